"""Cross-encoder rerankers, and what they teach two towers."""

NAMES = {
    "recipe": {"recipe": "reranker"},
    "stage": {"stage": "rerank"},
    "loss": {"loss": "binary_cross_entropy class_cross_entropy"},
    "trained": {"trained": "reranker"},
}
