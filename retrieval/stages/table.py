"""Every stage there is: what it does, what it reads, and the settings that its output depends on."""

from retrieval.stages import corpus, evaluate, export, index, mining, negatives, plan, query, refresh, similarity, train
from retrieval.stages.run import Stage

_LIMITS = ("longest_passage", "shortest_paragraph", "least_passage", "across_sections")
_VALIDATION = ("validate_every", "validate_queries", "validate_candidates", "best")

STAGES = {
    "prepare": Stage(
        corpus.prepare_corpus,
        reads="a dump, or the installed packages",
        writes="`corpus/`: articles, vocabulary, TFRecord shards, `stats.json`",
        settings=("corpus", "vocab", *(f"prepare.{name}" for name in ("shards", "vocab_size", "held_out", *_LIMITS))),
        inputs=corpus.corpus_inputs,
        outputs=("corpus",),
        fixed=True,
    ),
    "sets": Stage(
        corpus.write_sets,
        reads="evaluation sets of any format",
        writes="`sets/NAME/`: BEIR folders; `training/`",
        settings=("sets", "split", "pairs.format"),
        needs=("prepare",),
        inputs=corpus.set_inputs,
        outputs=("sets", "training"),
    ),
    "mine": Stage(
        mining.mine,
        reads="training questions, an index that is made before or is the base's",
        writes="`negatives/`: the questions with hard negatives, and where these are from",
        settings=tuple(f"mine.{name}" for name in ("system", "answers", *negatives.RULE)),
        needs=("prepare", "sets"),
        also=mining.needs,
        looks_back=True,
        outputs=("negatives",),
    ),
    "pairs": Stage(
        corpus.write_pairs,
        reads="`training/`, `negatives/`, labelled examples of any format",
        writes="`pairs/`: TFRecord shards of labelled examples; `pairs/validation/`",
        settings=("split", "pairs"),
        needs=("prepare", "sets", "mine"),
        inputs=corpus.pair_inputs,
        outputs=("pairs",),
    ),
    "train": Stage(
        train.train,
        reads="shards",
        writes="`checkpoints/`, `metrics/` (JSON lines and TensorBoard), `refreshed/`",
        settings=("seed", "data", "model", "train", "encode.windows", *(f"loop.{name}" for name in _VALIDATION)),
        needs=("prepare", "pairs"),
        also=refresh.needs,
        inputs=train.train_inputs,
        fixed=True,
        everywhere=True,
    ),
    "encode": Stage(
        index.encode,
        reads="checkpoint, sets, passages",
        writes="`embeddings/`",
        settings=("encode",),
        needs=("prepare", "sets", "train"),
        outputs=("embeddings",),
        everywhere=True,
    ),
    "index": Stage(
        index.index,
        reads="embeddings, texts",
        writes="`index/`: ScaNN and BM25",
        settings=("index", "evaluate.depth"),
        needs=("sets",),
        also=index.needs,
        outputs=("index",),
        sealed=True,
    ),
    "evaluate": Stage(
        evaluate.evaluate,
        reads="indexes",
        writes="`runs/*/*.trec`, `results.json`",
        settings=("evaluate",),
        needs=("sets", "encode", "index"),
        outputs=("runs", "results.json"),
    ),
    "plan": Stage(
        plan.plan,
        reads="the config alone",
        writes="`plan.json`; prints what a train step takes on `plan.topology`",
        always=True,
    ),
    "report": Stage(
        evaluate.write_report, reads="everything", writes="`report.md`, `plots/`", needs=("evaluate",), always=True
    ),
    "similarity": Stage(
        similarity.similarity,
        reads="checkpoint, passages",
        writes="`similarity.json`; prints how alike random texts are to the encoder, by length",
        needs=("prepare", "train"),
        always=True,
    ),
    "search": Stage(
        query.search,
        reads="indexes of the corpus",
        writes="prints hits for `--query`",
        needs=("index", "prepare", "sets"),
        always=True,
    ),
    "export": Stage(
        export.export,
        reads="checkpoint, vocabulary, results",
        writes="`export/`: the towers for Hugging Face's libraries, a model card",
        settings=("export",),
        needs=("prepare", "train"),
        inputs=export.results,
        outputs=(export.FOLDER,),
        everywhere=True,
    ),
}
