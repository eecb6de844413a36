"""Fields that configs no longer have, and what took the place of each."""

# Field or group of fields, such as 'train.steps' or 'train' -> a sentence: what to do in its place.
REMOVED: dict[str, str] = {
    "answer.spans": "The twenty best spans of a passage are kept; leave it out.",
    "answer.sums": "Spans of equal text are answers of their own; leave it out.",
    "cluster.sample": "k-means learns from at most 1,000 paragraphs of a cluster; leave it out.",
    "cluster.spherical": "Embeddings of a model with model.normalize have length 1 anyway; leave it out.",
    "cluster.start": "k-means starts from paragraphs that are drawn by chance; leave it out.",
    "data.deepct_stemmer": "DeepCT's labels have Porter's stems; leave it out.",
    "data.whole_word": "The masked language model masks tokens; leave it out.",
    "encode.calibrate": "The ranges of int8 are from at most 10,000 candidates; leave it out.",
    "encode.symmetric": "int8 has a range for each dimension; leave it out.",
    "evaluate.dense": "config.index.dense names the index; a run an index, with one base, compares them.",
    "evaluate.precisions": "Set config.encode.precision, or config.index.dense=quantised and config.index.precision.",
    "evaluate.rescore": "config.index.rescore scores the results of a quantised index again.",
    "evaluate.sizes": "config.encode.truncate cuts embeddings; a run a size, with one base, compares sizes.",
    "export.formats": "--config.export.onnx=True writes ONNX; the static and StableHLO forms are gone.",
    "export.hub_private": "A model that is not there yet is made for you alone; its page on the hub opens it.",
    "fuse.constant": "Reciprocal ranks have the constant 60 of Cormack et al. 2009; leave it out.",
    "fuse.weights": "Validation questions choose the weights of two systems, else all count alike; leave it out.",
    "generate.batch_size": "A batch has 64 passages; leave it out.",
    "generate.beams": "Beam search keeps four texts, or as many as config.generate.queries; leave it out.",
    "generate.least_words": "With answers, passages of fewer than 20 words are left out; leave it out.",
    "generate.length_penalty": "Beam search ranks texts by their probability; leave it out.",
    "generate.temperature": "Tokens are drawn as often as the model says; leave it out.",
    "generate.tokens": "A query has as many tokens as the model was trained to write; leave it out.",
    "generate.top_k": "Each token is drawn from the ten most probable ones; leave it out.",
    "handover.dtype": "Vectors are handed over as float32, and the other system quantises them; leave it out.",
    "handover.since": "A collection is handed over as a whole; leave it out.",
    "index.bm25_accents": "BM25 folds accents where the vocabulary does; leave it out.",
    "index.bm25_identifiers": "Names of programs are words as any; leave it out.",
    "index.deepct_b": "The index deepct has its authors' b, 0.9; leave it out.",
    "index.deepct_k1": "The index deepct has its authors' k1, 10; leave it out.",
    "index.recall_target": "ScaNN looks into a fifth of its partitions, and reports have its recall; leave it out.",
    "index.symmetric": "int8 has a range for each dimension; leave it out.",
    "index.tune_queries": "ScaNN is no longer tuned; leave it out.",
    "index.expansions_used": "The first 40 queries of a passage are appended; leave it out.",
    "inspect": "It looks at the first 20,000 passages and labelled queries; leave it out.",
    "late.fde_index": "MUVERA's vectors and XTR's tokens are searched exactly; leave it out.",
    "latency": "Reports have the milliseconds a query of every search; leave it out.",
    "loop.validate_negatives": "A reranker is validated on 20 candidates of BM25 beside the positives; leave it out.",
    "loop.wandb": "`wandb sync --sync-tensorboard` sends what a run writes for TensorBoard, in metrics/; leave it out.",
    "mesh.rules": "Parameters are sharded over fsdp devices by their largest dimension; leave it out.",
    "mine.refresh_env": "Training refreshes on its own devices, and waits meanwhile; leave it out.",
    "mine.refresh_lag": "Training refreshes on its own devices, and waits meanwhile; leave it out.",
    "model.answer_tokens": "A reader gives answers of ten tokens at most; leave it out.",
    "plan.passages": "A plan is of the train step alone. Encode part of a collection to see how long it takes.",
    "plan.tune": "Plan each setting by itself, such as --config.model.remat=dots, and compare the plans.",
    "model.learned_scale": "The temperature of cosines is a constant: set config.train.temperature, such as 0.05.",
    "runs.set": "Run files are of the one set of a run; leave it out.",
    "runs.third": "Three columns are MS MARCO's, the last one a rank; write scores as a TREC run of six columns.",
    "search": "--stage=search shows five hits; leave it out. In Python search() takes k.",
    "similarity": "The stage that measured how alike random texts are is gone too; leave it out.",
    "sparse.document_terms": "A passage keeps its 512 greatest weights; leave it out.",
    "sparse.query_terms": "A query keeps its 512 greatest weights; leave it out.",
    "sparse.scale": "Weights are not rounded; config.sparse.vectors=('anserini',) writes hundredths. Leave it out.",
    "spans.gold": "A judged passage that was not retrieved takes the place of the last one; leave it out.",
    "spans.most": "A question keeps 32 places of answers; leave it out.",
    "spans.run": "Paragraphs come from an index: name its system in config.spans.system.",
    "train.decay_ratio": "The schedule wsd falls over the last tenth of the steps; leave it out.",
    "train.guide_rule": "config.train.guide_margin is the difference of two scores of the guide; leave it out.",
    "train.hardness": "All negatives of a query weigh alike; leave it out.",
    "train.hardness_of": "All negatives of a query weigh alike; leave it out.",
    "train.in_batch": "Both parts of maxsim_distillation weigh 1, as in ColBERTv2; leave it out.",
    "train.kl_weight": "The KL divergence of the latent variable weighs 1, as in the evidence bound; leave it out.",
    "train.lora.rslora": "Multiply config.train.lora.alpha by the root of the rank, which is the same.",
    "train.matryoshka_weights": "All sizes of config.train.matryoshka weigh alike; leave it out.",
    "train.min_max": "Scores keep their scale: set config.train.temperature and config.train.teacher_temperature.",
    "train.softening": "Multiply config.train.temperature and config.train.teacher_temperature by it; leave it out.",
    "train.sparse.documents": "Documents have the regularizer flops; leave it out.",
    "train.spread_out": "The regulariser that spread embeddings is gone; leave it out.",
    "train.spread_out_mean": "The regulariser that spread embeddings is gone; leave it out.",
    "train.terms": "A query's softmax holds the scores of documents alone, and config.train.symmetric both directions.",
    "weigh": "A word of weight 1 counts 100 times, and batches have 64 passages; leave it out.",
}
_LIMITS = "batch body characters inputs inputs_body inputs_seconds inputs_tokens seconds texts waiting".split()
_FIXED = "The server's limits are fixed; docs/guides/serving.md lists them. Leave it out."
REMOVED |= {f"serve.{name}": _FIXED for name in _LIMITS}
_SHARDS = "A file has at most config.encode.shard_size items, as of every stage; leave it out."
REMOVED |= {f"{stage}.shard_size": _SHARDS for stage in ("answer", "generate", "late", "rerank", "sparse", "teacher")}


def explained(field: str) -> str:
    """An error's message for a field that is gone, alone or with its group; empty for any other."""
    for name, sentence in REMOVED.items():
        if f"{field}.".startswith(f"{name}."):
            return f"config.{field} is gone: {sentence}"
    return ""
