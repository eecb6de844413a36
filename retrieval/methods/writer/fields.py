"""The fields of a model that writes."""

from retrieval.config.fields import (
    NOT_NEGATIVE,
    SHARE_ABOVE,
    SHARE_BELOW,
    SWITCH,
    TEXT,
    TEXTS,
    Field,
    declare,
    one_of,
    whole,
)

declare(
    "data.rates",
    doc2query=Field(0.0, NOT_NEGATIVE, "how often a labelled passage is drawn whose query is to be written"),
)
declare(
    "model.writer",
    layers=Field(6, whole(1), "layers of the decoder that writes; its other sizes are the encoder's"),
    pre_norm=Field(
        True, SWITCH, "whether the encoder's norms stand before its sublayers, not after as an own encoder's"
    ),
    copy=Field(False, SWITCH, "whether tokens can be copied from the source (a pointer network)"),
)
declare(
    "train",
    label_smoothing=Field(0.0, SHARE_BELOW, "share of a token's label that is spread over the vocabulary; paper: 0.1"),
)
declare(
    "index",
    expansions=Field(
        "", TEXT, "queries of passages for doc2query: FILE.jsonl or a folder; '': what the stage generate wrote"
    ),
    expansions_share=Field(
        1.0, SHARE_ABOVE, "share of the queries that is used, by their scores (Doc2Query--); 1: all"
    ),
)
declare(
    "generate",
    model=Field("", TEXT, "folder or hf:NAME of a T5 or BART, for transformers; '': the model of the run or its base"),
    collections=Field((), TEXTS, "evaluation sets whose passages are read, and 'corpus'; (): all"),
    answers=Field(
        "",
        one_of("maker of answers", "retrieval.methods.writer.examples.MAKERS", ""),
        "what proposes answers to ask for; '': queries, no answers",
    ),
    reranker=Field(
        "", TEXT, "reranker that scores queries, for index.expansions_share: work directory or folder; '': none"
    ),
    queries=Field(5, whole(1), "queries of a passage; docTTTTTquery appends 40; with answers, one for each"),
    way=Field(
        "sample",
        one_of("way of writing", ("sample", "beam", "greedy")),
        "sample (top-k), beam, or greedy, which writes one query",
    ),
)
