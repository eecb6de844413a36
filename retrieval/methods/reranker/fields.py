"""The fields of a reranker."""

from retrieval.config.fields import TEXT, TEXTS, Field, Kind, declare, whole, whole_numbers

declare("model", classes=Field(2, Kind("1 or 2", lambda value: value in (1, 2)), "classes of a reranker; 1 is a score"))
declare(
    "rerank",
    systems=Field(("bm25",), TEXTS, "systems whose runs are reranked, as tables name them; those of runs.files too"),
    model=Field("", TEXT, "work directory, folder or hf:NAME of a reranker; or a system whose ranks count"),
    length=Field(0, whole(0), "tokens that a reranker reads of a query with a document; 0: as its folder or run says"),
    depths=Field((5, 10, 50, 500, 1000), whole_numbers("a tuple of depths, such as 10,100", 1), "results to rerank"),
    measures=Field(("RR@10",), TEXTS, "metrics of the table by depth, beside recall"),
    trained_on=Field((), TEXTS, "systems that the reranker's negatives are from, for the consistency factor"),
    trained_depth=Field(1000, whole(1), "results of those systems that count"),
)
