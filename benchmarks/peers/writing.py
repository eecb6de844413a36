"""The same texts by a BART of transformers, of the same sizes; sources a second, for each way of writing."""

from collections.abc import Mapping
from typing import Any

from benchmarks import worker
from benchmarks.measure import timed


def prepare(settings: Mapping[str, Any]) -> worker.Turn:
    """Settings: model (sizes), layers of the decoder, vocab_size, sources, source_tokens, tokens; beams; texts and
    top_k of sampling.
    """
    import torch
    from transformers import BartConfig, BartForConditionalGeneration

    sizes, sources, tokens = settings["model"], settings["sources"], settings["tokens"]
    config = BartConfig(
        vocab_size=settings["vocab_size"],
        d_model=sizes["hidden_size"],
        encoder_layers=sizes["num_layers"],
        decoder_layers=settings["layers"],
        encoder_attention_heads=sizes["num_heads"],
        decoder_attention_heads=sizes["num_heads"],
        encoder_ffn_dim=sizes["mlp_size"],
        decoder_ffn_dim=sizes["mlp_size"],
        max_position_embeddings=max(settings["source_tokens"], tokens + 1),
        forced_eos_token_id=None,
    )
    torch.manual_seed(0)
    model = BartForConditionalGeneration(config).eval()
    ids_RM = torch.randint(3, config.vocab_size, (sources, settings["source_tokens"]))
    ways = {
        "greedy": {},
        "beams": dict(num_beams=settings["beams"]),
        "sampled": dict(do_sample=True, top_k=settings["top_k"], num_return_sequences=settings["texts"]),
    }

    def write(options: Mapping[str, Any]) -> None:
        with torch.inference_mode():
            model.generate(ids_RM, max_new_tokens=tokens, min_new_tokens=tokens, **options)

    def turn() -> dict[str, float]:
        seconds = {name: timed(lambda options=options: write(options))[1] for name, options in ways.items()}
        return {f"sources/s, {name}": sources / taken for name, taken in seconds.items()}

    return turn


if __name__ == "__main__":
    worker.serve(prepare)
