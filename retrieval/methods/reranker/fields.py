"""The fields of a reranker."""

from retrieval.config.fields import TEXT, TEXTS, Field, Kind, declare, whole, whole_numbers

declare(
    "model",
    classes=Field(
        2,
        Kind("1 or 2", lambda value: value in (1, 2)),
        "classes of a reranker: 2 (not relevant, relevant), or 1 score",
    ),
)
declare(
    "rerank",
    systems=Field(("bm25",), TEXTS, "systems whose runs are reranked, as tables name them; those of runs.files too"),
    model=Field(
        "",
        TEXT,
        "work directory of a reranker, which reads at its own lengths, folder or hf:NAME of a cross-encoder, or a "
        "system whose ranks count",
    ),
    length=Field(
        0, whole(0), "tokens of a query with a document that a reranker reads; 0: as many as its folder or run says"
    ),
    depths=Field((5, 10, 50, 500, 1000), whole_numbers("a tuple of depths, such as 10,100", 1), "results to rerank"),
    measures=Field(("RR@10",), TEXTS, "metrics of the table by depth, beside recall"),
    trained_on=Field((), TEXTS, "systems that the reranker's negatives are from, for the consistency factor"),
    trained_depth=Field(1000, whole(1), "results of those systems that count"),
)
