"""Every stage there is: what it does, what it reads, and the settings that its output depends on."""

from retrieval.stages import corpus, evaluate, index, query, train
from retrieval.stages.run import Stage

_PREPARE = ("shards", "vocab_size", "longest_passage", "shortest_paragraph", "least_passage", "held_out")

STAGES = {
    "prepare": Stage(
        corpus.prepare_corpus,
        settings=("corpus", "vocab", *(f"prepare.{name}" for name in _PREPARE)),
        inputs=corpus.corpus_inputs,
        fixed=True,
    ),
    "sets": Stage(
        corpus.write_sets, settings=("sets",), needs=("prepare",), inputs=corpus.set_inputs, outputs=("sets",)
    ),
    "train": Stage(train.train, settings=("seed", "data", "model", "train"), needs=("prepare",), fixed=True),
    "encode": Stage(index.encode, settings=("encode",), needs=("sets", "train"), outputs=("embeddings",)),
    "index": Stage(index.index, settings=("index",), needs=("sets", "encode"), outputs=("index",)),
    "evaluate": Stage(
        evaluate.evaluate, settings=("evaluate",), needs=("sets", "index"), outputs=("runs", "results.json")
    ),
    "report": Stage(evaluate.write_report, needs=("evaluate",), always=True),
    "search": Stage(query.search, needs=("index",), always=True),
}
