"""The fields of a reader."""

from retrieval.config.fields import NOT_NEGATIVE, PATHS, SWITCH, TEXT, TEXTS, Field, declare, number, one_of, whole

_DRAW = one_of("draw of paragraphs", ("first", "positive"))
_INDEX = one_of("index", "retrieval.search.index_kind.INDEXES")
_WEIGHT = number("a number from 0 to 1, or -1", lambda value: 0 <= value <= 1 or value == -1)

declare(
    "data",
    paragraphs=Field(5, whole(1), "paragraphs of a question that a reader is trained on"),
    draw=Field("first", _DRAW, "the first retrieved (ProQA), or positive: one with an answer, others without (DPR)"),
)
declare("data.rates", spans=Field(0.0, NOT_NEGATIVE, "how often a reader's questions are drawn"))
declare(
    "train",
    shared_norm=Field(True, SWITCH, "span_likelihood: whether a question's paragraphs share one softmax"),
    joint=Field(False, SWITCH, "span_likelihood: whether spans count by their paragraph's retrieval score"),
    select=Field(False, SWITCH, "span_likelihood: whether a head that reranks paragraphs is trained too"),
    early=Field(False, SWITCH, "whether a reader's question tower is trained too, on the first spans.early candidates"),
)
declare(
    "spans",
    questions=Field("", PATHS, "files of questions with answers to train on, as sets.qa takes them; '': split.set's"),
    set=Field("", TEXT, "evaluation set whose passages are read; '': split.set, or the only one"),
    system=Field("bm25", _INDEX, "index that retrieves"),
    depth=Field(5, whole(1), "paragraphs of a question that are kept, those that are retrieved first"),
    early=Field(0, whole(0), "candidates that a question tower is trained with (train.early), such as 5000; 0: none"),
)
declare(
    "answer",
    systems=Field(("bm25",), TEXTS, "systems whose first passages are read; tuned: by the reader's own question tower"),
    sets=Field("", TEXT, "evaluation sets whose questions are answered, separated by commas; '': all"),
    model=Field("", TEXT, "work directory of a reader; '': the run's own, or its base's"),
    paragraphs=Field(5, whole(1), "passages of a question that are read"),
    weight=Field(-1.0, _WEIGHT, "of the reader's score beside its head's, or the retriever's; -1: the loss's"),
    validation=Field("", TEXT, "evaluation set that chooses the weight in place of answer.weight; '': none"),
)
