"""The fields of late interaction."""

from retrieval.config.fields import SWITCH, TEXT, TEXTS, Field, declare, one_of, whole

declare(
    "model.late",
    expansion=Field(
        "unseen",
        one_of("way of query expansion", ("none", "unseen", "seen")),
        "late interaction: [MASK]s fill queries up and count: unseen (no token sees them), seen; none: they do not",
    ),
    skip=Field(
        ("punctuation",),
        TEXTS,
        "late interaction: tokens of documents that do not count, such as ('the',); punctuation: all such signs",
    ),
)
declare(
    "late",
    model=Field("", TEXT, "work directory of late interaction, or folder of PyLate; '': the run's own, or its base's"),
    systems=Field(("bm25",), TEXTS, "systems whose results are ranked by MaxSim, as tables name them; runs.files too"),
    depth=Field(100, whole(1), "results of a system that are ranked"),
    exact=Field(False, SWITCH, "whether all candidates of a set are ranked too, which takes long: the system maxsim"),
    stored=Field(
        "float16",
        one_of("format of stored vectors", ("float32", "float16", "residual1", "residual2", "residual4")),
        "what a candidate's vectors are stored in; residual: a centroid and 1, 2 or 4 bits a dimension (ColBERTv2)",
    ),
    probes=Field(0, whole(0), "residual: centroids that a query's token looks at for what to rank (PLAID); 0: none"),
)
