"""Every stage there is: what it does, what it reads, and the settings that its output depends on."""

from retrieval.stages import corpus, evaluate, index, plan, query, similarity, train
from retrieval.stages.run import Stage

_LIMITS = ("longest_passage", "shortest_paragraph", "least_passage", "across_sections")
_VALIDATION = ("validate_every", "validate_queries", "validate_candidates", "best")

STAGES = {
    "prepare": Stage(
        corpus.prepare_corpus,
        settings=("corpus", "vocab", *(f"prepare.{name}" for name in ("shards", "vocab_size", "held_out", *_LIMITS))),
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
    "plan": Stage(plan.plan, always=True),
    "report": Stage(evaluate.write_report, needs=("evaluate",), always=True),
    "similarity": Stage(similarity.similarity, needs=("prepare", "train"), always=True),
    "search": Stage(query.search, needs=("index", "prepare", "sets"), always=True),
}
