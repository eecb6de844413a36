"""Fields that a config no longer has, each with a sentence that says what took its place."""

REMOVED: dict[str, str] = {
    "latency.questions": "reports have the milliseconds a query of every search; leave it out.",
    "latency.reranked": "reports have the milliseconds a query of every search and reranker; leave it out.",
    "loop.wandb": "`wandb sync --sync-tensorboard` sends what a run writes for TensorBoard, in metrics/; leave it out.",
    "mine.refresh_env": "training refreshes on its own devices, and waits meanwhile; leave it out.",
    "mine.refresh_lag": "training refreshes on its own devices, and waits meanwhile; leave it out.",
    "similarity.lengths": "the stage that measured how alike random texts are is gone too; leave it out.",
    "similarity.pairs": "the stage that measured how alike random texts are is gone too; leave it out.",
}
