"""Every stage there is: what it does, what it reads, and the settings that its output depends on."""

from retrieval.stages import corpus, evaluate, export, index, plan, query, train
from retrieval.stages.run import Stage

_PREPARE = ("shards", "vocab_size", "longest_passage", "shortest_paragraph", "least_passage", "held_out")
_VALIDATION = ("validate_every", "validate_queries", "validate_candidates", "best")

STAGES = {
    "prepare": Stage(
        corpus.prepare_corpus,
        settings=("corpus", "vocab", *(f"prepare.{name}" for name in _PREPARE)),
        inputs=corpus.corpus_inputs,
        outputs=("corpus",),
        fixed=True,
    ),
    "sets": Stage(
        corpus.write_sets,
        settings=("sets", "split"),
        needs=("prepare",),
        inputs=corpus.set_inputs,
        outputs=("sets", "training"),
    ),
    "pairs": Stage(corpus.write_pairs, settings=("split",), needs=("prepare", "sets"), outputs=("pairs",)),
    "train": Stage(
        train.train,
        settings=("seed", "data", "model", "train", *(f"loop.{name}" for name in _VALIDATION)),
        needs=("prepare", "pairs"),
        inputs=train.train_inputs,
        fixed=True,
        everywhere=True,
    ),
    "encode": Stage(
        index.encode, settings=("encode",), needs=("prepare", "sets", "train"), outputs=("embeddings",), everywhere=True
    ),
    "index": Stage(
        index.index, settings=("index", "evaluate.depth"), needs=("sets", "encode"), outputs=("index",), sealed=True
    ),
    "evaluate": Stage(
        evaluate.evaluate, settings=("evaluate",), needs=("sets", "encode", "index"), outputs=("runs", "results.json")
    ),
    "export": Stage(
        export.export,
        settings=("export",),
        needs=("prepare", "train"),
        inputs=export.results,
        outputs=(export.FOLDER,),
        everywhere=True,
    ),
    "plan": Stage(plan.plan, always=True),
    "report": Stage(evaluate.write_report, needs=("evaluate",), always=True),
    "search": Stage(query.search, needs=("index", "prepare", "sets"), always=True),
}
