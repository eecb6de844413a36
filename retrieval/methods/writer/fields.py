"""The fields of a model that writes."""

from retrieval.config.fields import NOT_NEGATIVE, SHARE_BELOW, SWITCH, TEXT, TEXTS, Field, declare, one_of, whole

_MAKER = one_of("maker of answers", "retrieval.methods.writer.examples.MAKERS", "")

declare("data.rates", doc2query=Field(0.0, NOT_NEGATIVE, "how often a labelled passage is drawn, to write its query"))
declare(
    "model.writer",
    layers=Field(6, whole(1), "layers of the decoder that writes; its other sizes are the encoder's"),
    pre_norm=Field(True, SWITCH, "whether the encoder's norms stand before its sublayers, as in no own encoder"),
    copy=Field(False, SWITCH, "whether tokens can be copied from the source (a pointer network)"),
)
declare("train", label_smoothing=Field(0.0, SHARE_BELOW, "share of a label spread over the vocabulary; paper: 0.1"))
declare("index", expansions=Field("", TEXT, "doc2query: FILE.jsonl or a folder of queries; '': the stage generate's"))
declare(
    "generate",
    model=Field("", TEXT, "T5 or BART, for transformers: a folder or hf:NAME; '': the model of the run or its base"),
    collections=Field((), TEXTS, "evaluation sets whose passages are read, and 'corpus'; (): all"),
    answers=Field("", _MAKER, "what proposes answers to ask for; '': queries, no answers"),
    queries=Field(5, whole(1), "queries of a passage; docTTTTTquery appends 40; with answers, one for each"),
    way=Field("sample", one_of("way of writing", ("sample", "beam", "greedy")), "greedy writes one; sample is top-k"),
)
