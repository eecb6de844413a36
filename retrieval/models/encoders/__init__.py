"""The families of encoders."""

NAMES = {
    "family": {
        "bert": "bert roberta xlm-roberta distilbert mpnet",
        "decoders": "llama mistral qwen2 qwen3 gemma3_text eurobert",
        "rotary_berts": "modernbert nomic_bert gte new",
        "t5": "t5",
    }
}
