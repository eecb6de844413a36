"""How the authors of published embedders train them: what stands before texts, temperature and learning rates.

Sources: the model cards and papers of Qwen3-Embedding, EmbeddingGemma, E5 (Wang et al. 2022, 2024), GTE (Li et al.
2023), GTR (Ni et al. 2022), BGE, nomic-embed and RepLLaMA; SWIFT's guide for Qwen3-Embedding, FlagEmbedding's and
Tevatron's examples; for adapters of other encoders Hu et al. 2021. `USUAL` was chosen on NFCorpus's dev queries
(docs/results/fine-tuning.md).
"""

import re
from pathlib import PurePath
from typing import NamedTuple


class Embedder(NamedTuple):
    """Attributes:
    query, document: what stands before texts, where a model's folder does not say it.
    temperature: of scores that are cosines.
    rate, lora_rate: the learning rate of all parameters, and of LoRA's adapters.
    """

    query: str = ""
    document: str = ""
    temperature: float = 0.05
    rate: float = 5e-5
    lora_rate: float = 5e-4


USUAL = Embedder(lora_rate=1e-3)
_TASK = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
_PASSAGES = "Represent this sentence for searching relevant passages: "
_DECODER = Embedder(temperature=0.01, rate=6e-6, lora_rate=1e-4)
_E5 = Embedder("query: ", "passage: ", 0.01, 2e-5)

# By what a model's name has in it; the first one counts.
BY_NAME = {
    r"qwen3-embedding": _DECODER._replace(query=_TASK),
    r"embedding-?gemma": Embedder("task: search result | query: ", "title: none | text: ", 0.05, 2e-5, 1e-4),
    r"modernbert-embed|nomic-embed-text": Embedder("search_query: ", "search_document: ", 1 / 50, 2e-5),
    r"e5-mistral": _DECODER._replace(query=f"{_TASK} ", temperature=0.02),
    r"\be5-.*instruct": _E5._replace(query=f"{_TASK} ", document=""),
    r"\be5\b": _E5,
    r"repllama": _DECODER._replace(query="query: ", document="passage: "),
    r"\bgte-": Embedder(temperature=0.01, rate=2e-5),
    r"\bbge-.*\ben\b": Embedder(_PASSAGES, "", 0.02, 1e-5),
    r"\bbge-": Embedder(temperature=0.02, rate=1e-5),
    r"\bgtr-|sentence-t5": Embedder(temperature=0.01),
}
# Of other names. The weights of these families are published in bfloat16, and trained so.
BY_FAMILY = {
    **dict.fromkeys(("qwen3", "qwen2", "llama", "mistral"), _DECODER),
    "gemma3_text": Embedder(rate=2e-5, lora_rate=1e-4),
}


def embedder(model: str, family: str) -> Embedder:
    """What is recommended for a model.

    Args:
      model: its folder or hf:NAME, of which the last part is its name.
    """
    name = PurePath(model.partition("@")[0]).name.lower()
    named = (found for pattern, found in BY_NAME.items() if re.search(pattern, name))
    return next(named, BY_FAMILY.get(family, USUAL))
