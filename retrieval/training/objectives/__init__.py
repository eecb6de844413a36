"""The losses of the trunk."""

NAMES = {
    "loss": {
        "in_batch_softmax": "in_batch_softmax",
        "distillation": "margin_mse kl_divergence",
        "embedding_distillation": "embedding_mse embedding_cosine",
        "listwise": "ranknet list_mle lambda_loss",
        "margins": "multi_label_margin",
        "own_negatives": "two_way_nll multi_negative_nll triplet",
        "scored_pairs": "cosent cosine_mse",
    }
}
