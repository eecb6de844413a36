"""The fields of SPLADE."""

from retrieval.config.fields import NOT_NEGATIVE, TEXT, Field, declare, one_of, whole

declare(
    "model",
    sparse_queries=Field(
        "encoder", one_of("encoder of queries", ("encoder", "idf")), "what weighs a query's tokens; idf: a table"
    ),
)
declare(
    "train.sparse",
    queries=Field("flops", one_of("regularizer", ("flops", "l1")), "what keeps queries sparse, as documents flops"),
    query_weight=Field(3e-4, NOT_NEGATIVE, "weight of the queries' regularizer, when it has risen"),
    document_weight=Field(1e-4, NOT_NEGATIVE, "weight of the documents' regularizer"),
    rise=Field(50_000, whole(0), "steps in which both rise from 0, with their square; 0: they are there at once"),
)
declare(
    "sparse",
    model=Field("", TEXT, "run of sparse vectors, or folder of SparseEncoder; '': the run's own, or its base's"),
)
