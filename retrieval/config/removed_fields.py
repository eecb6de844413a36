"""Fields that configs no longer have, and what took the place of each."""

# Fields whose value is fixed by now.
_FIXED = """
answer.spans answer.sums cluster.sample cluster.spherical cluster.start data.deepct_stemmer data.whole_word
encode.calibrate encode.symmetric fuse.constant fuse.weights generate.batch_size generate.beams generate.least_words
generate.length_penalty generate.temperature generate.tokens generate.top_k handover.dtype handover.since
index.bm25_accents index.bm25_identifiers index.deepct_b index.deepct_k1 index.expansions_used index.recall_target
index.symmetric index.tune_queries inspect late.fde_index loop.validate_negatives mesh.rules mine.refresh_env
mine.refresh_lag model.answer_tokens runs.set spans.gold spans.most sparse.document_terms sparse.query_terms
train.decay_ratio train.guide_rule train.hardness_of train.in_batch train.kl_weight train.matryoshka_weights
train.sparse.documents weigh
"""
# Field or group of fields, such as 'train.steps' or 'train' -> a sentence: what to do in its place.
REMOVED: dict[str, str] = dict.fromkeys(_FIXED.split(), "Its value is fixed; leave it out.")
REMOVED |= {
    "evaluate.dense": "config.index.dense names the index; a run an index, with one base, compares them.",
    "evaluate.precisions": "Set config.encode.precision, or config.index.dense=quantised and config.index.precision.",
    "evaluate.rescore": "config.index.rescore scores the results of a quantised index again.",
    "evaluate.sizes": "config.encode.truncate cuts embeddings; a run a size, with one base, compares sizes.",
    "export.formats": "--config.export.onnx=True writes ONNX; the static and StableHLO forms are gone.",
    "export.hub_private": "A model that is not there yet is made for you alone; its page on the hub opens it.",
    "data.mixed_sources": "A batch is of one source; leave it out.",
    "generate.proposer": "config.generate.answers proposes the answers; leave it out.",
    "generate.reader": "No reader has to find an answer again; leave it out.",
    "generate.reranker": "Written queries are not scored; leave it out.",
    "index.binary_queries": "Queries keep their numbers, and find more than their bits do; leave it out.",
    "late.pool": "A candidate keeps the vector of every token; config.late.stored makes them smaller. Leave it out.",
    "late.retrieved": "XTR's search is gone; config.late.fde is an index of token vectors. Leave it out.",
    "model.late.mean": "Scores are sums over a query's tokens, which are as many for all; leave it out.",
    "index.expansions_share": "All written queries are used; for a share, keep the better lines of the file.",
    "spans.asked": "A reader reads questions; leave it out.",
    "sparse.scale": "Weights are not rounded; leave it out.",
    "sparse.vectors": "Files of Anserini and Elasticsearch are gone; sparse/SET has SciPy's matrices. Leave it out.",
    "train.hardness": "All negatives of a query weigh alike; leave it out.",
    "train.retrieved": "All tokens of a query count, as in ColBERT; leave it out.",
    "train.terms": "A query's softmax holds the scores of documents alone, and config.train.symmetric both directions.",
    "latency": "Reports have the milliseconds a query of every search; leave it out.",
    "loop.wandb": "Set config.loop.report_to=\"('tensorboard', 'wandb')\".",
    "plan.passages": "A plan is of the train step alone. Encode part of a collection to see how long it takes.",
    "plan.tune": "Plan each setting by itself, such as --config.model.remat=dots, and compare the plans.",
    "model.learned_scale": "The temperature of cosines is a constant: set config.train.temperature, such as 0.05.",
    "runs.third": "Three columns are MS MARCO's, the last one a rank; write scores as a TREC run of six columns.",
    "search": "--stage=search shows five hits; leave it out. In Python search() takes k.",
    "serve.origins": "A proxy before the server may let pages of other sites read answers (CORS); leave it out.",
    "similarity": "The stage that measured how alike random texts are is gone too; leave it out.",
    "spans.run": "Paragraphs come from an index: name its system in config.spans.system.",
    "train.lora.rslora": "Multiply config.train.lora.alpha by the root of the rank, which is the same.",
    "train.min_max": "Scores keep their scale: set config.train.temperature and config.train.teacher_temperature.",
    "train.softening": "Multiply config.train.temperature and config.train.teacher_temperature by it; leave it out.",
    "train.spread_out": "The regulariser that spread embeddings is gone; leave it out.",
    "train.spread_out_mean": "The regulariser that spread embeddings is gone; leave it out.",
}
_LIMITS = "batch body characters inputs inputs_body inputs_seconds inputs_tokens seconds texts waiting".split()
_LISTED = "The server's limits are fixed; docs/guides/serving.md lists them. Leave it out."
REMOVED |= {f"serve.{name}": _LISTED for name in _LIMITS}
_SHARDS = "A file has at most config.encode.shard_size items, as of every stage; leave it out."
REMOVED |= {f"{stage}.shard_size": _SHARDS for stage in ("answer", "generate", "late", "rerank", "sparse", "teacher")}


def explained(field: str) -> str:
    """An error's message for a field that is gone, alone or with its group; empty for any other."""
    for name, sentence in REMOVED.items():
        if f"{field}.".startswith(f"{name}."):
            return f"config.{field} is gone: {sentence}"
    return ""
