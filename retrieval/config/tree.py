"""Every field of a config, from top to bottom: its default, what it may be, and what it is.

`Field(default, kind, help)`. A method declares its own in its `fields.py`, a plugin anywhere, by the same `declare`.
"""

from retrieval.config import fields
from retrieval.config.fields import (
    NOT_NEGATIVE,
    NUMBER,
    PATHS,
    POSITIVE,
    PREFIX,
    SEED,
    SHARE,
    SHARE_ABOVE,
    SHARE_BELOW,
    SHARE_BETWEEN,
    SWITCH,
    TEXT,
    TEXTS,
    Field,
    Kind,
    checked_by,
    choice,
    declare,
    matching,
    names,
    number,
    one_of,
    tuple_of,
    whole,
    whole_numbers,
)

_RUNNERS = ("local", *(f"{name}Runner" for name in "Direct Dataflow Flink Spark Portable Prism".split()))
_RUNNER = Kind("runner", lambda value: value in _RUNNERS or "." in value, lambda: _RUNNERS)  # Beam takes any class
_FUSIONS = ("interleave", "reciprocal_rank", "weighted_sum")
_K1_B = tuple_of("k1 and b, numbers from 0 on, such as 0.9,0.4, or ()", NOT_NEGATIVE.fits, (0, 2).__contains__)
_FIRST_LAST = tuple_of("the first and the last step, such as 10,15, or ()", whole(0).fits, (0, 2).__contains__)
_TWO_OR_MORE = names("a tuple of two or more names, such as \"('bm25', 'dense')\", or ()", lambda count: count != 1)
_TRACKER_NAMES = ("tensorboard", "wandb", "trackio", "mlflow")
_TRACKERS = tuple_of(f"a tuple of some of {', '.join(_TRACKER_NAMES)}, or ()", _TRACKER_NAMES.__contains__)
_SOME_FUSIONS = tuple_of(f"a tuple of some of {', '.join(_FUSIONS)}", _FUSIONS.__contains__, bool)
_FOLD = matching("'' or a part such as 2/5", r"([1-9]\d{0,3}/[1-9]\d{0,3})?")
# Hosts as requests have them: of ASCII (xn--...), without a scheme; or the digits of an address of IPv6.
_HOST = matching("", r"[A-Za-z0-9._-]+|[0-9A-Fa-f.]*:[0-9A-Fa-f.:]*:[0-9A-Fa-f.]*")
_HOSTS = tuple_of("a tuple of names without a port, such as \"('search.example.org',)\", or ()", _HOST.fits)
_PRECISION = choice("float32", "bfloat16", "int8", "binary")


def _table(what: str, table: str, *others: str) -> Kind:
    return one_of(what, f"retrieval.{table}", *others)


_ADDRESS = checked_by(
    "an address of http or https, such as https://example.org/{id}, with {id}, {stem} or {title}",
    "retrieval.data.corpora.addresses.is_base",
)
_PROMPTS = checked_by(
    "a tuple of texts 'name=prompt', with other names than query and document: \"('clustering=cluster: ',)\"",
    "retrieval.data.tokenizers.prompts.are_prompts",
)
_SWITCHES = checked_by(
    "a tuple of texts 'name=value': \"('kv_heads=8', 'head_size=128')\"", "retrieval.models.architecture.are_switches"
)
_LAYERS = checked_by(
    "a tuple of layers: layer_norm, normalize or dense:SIZE, then perhaps an activation (tanh, relu, gelu, sigmoid, "
    "silu) and no_bias: \"('dense:256:tanh', 'normalize')\"",
    "retrieval.models.tower_head.are_layers",
)
_TARGETS = checked_by(
    "a tuple of some of query, key, value, output, mlp_in, mlp_gate, mlp_out, or of all",
    "retrieval.models.lora.are_targets",
)
_FAMILY = _table("encoder family", "models.encoders.family.FAMILIES")
_OPTIMIZER = _table("optimizer", "training.optimizer.OPTIMIZERS")
_SCHEDULE = _table("schedule", "training.schedules.SCHEDULES")
_NEGATIVES = _table("format", "data.labelled.negatives_format.FORMATS")
_REFRESH = _table("kind of refresh", "runs.fitting.refresh_kind.REFRESHES")
_FALSE = choice("", "absolute", "relative")
_HELD_OUT = number("0, or a share from 0.0001 to below 1, such as 0.01", lambda n: n == 0 or 0.0001 <= n < 1)
_OR_AS_DROPOUT = number("a number of at least 0 and below 1, or -1", lambda n: 0 <= n < 1 or n == -1)
_TWO = whole_numbers("two whole numbers, such as (3, 3)", 0)
_SIZES = whole_numbers("sizes of embeddings, ascending to all dimensions: a tuple such as (64, 256, 768)", 1)
_WORDS = names("one name or more, such as \"('bm25',)\"", bool)
_METRICS = names("a tuple of metrics, such as \"('RR@10', 'R@1000')\", or ()")
_PORT = Kind("a whole number from 0 to 65535", lambda value: type(value) is int and 0 <= value < 1 << 16)
_LICENSE = matching("an identifier such as apache-2.0, or ''", "([a-z0-9][a-z0-9.+-]*)?")
_TRANSFORMER, _RANK = ("model.encoder", "transformer"), "train.lora.rank"

# The run.
declare(
    "",
    seed=Field(0, SEED, "seed of everything random"),
    recipe=Field("two_tower", _table("recipe", "recipes.recipe.RECIPES"), "family of models to train"),
    stages=Field((), TEXTS, "stages of the run, such as ('sets', 'train'); docs/reference/stages.md has all"),
    base=Field("", PATHS, "work directory of a run whose outputs serve for the stages that are not listed"),
    corpus=Field("", PATHS, "pydocs, MediaWiki exports, or documents: files, folders and patterns, with commas"),
    vocab=Field("", PATHS, "BERT's vocab.txt, tokenizer.json, or a folder with one; '': one is trained on the corpus"),
    plugins=Field((), TEXTS, "modules to import first, which add losses, formats, fields, such as ('my_package.a',)"),
)

# Text: the corpus, its passages and its vocabulary; sets to evaluate on; labelled examples.
declare(
    "documents",
    id=Field("", TEXT, "JSON lines, CSV, Parquet: the field of a document's id; '': _id, id or docid"),
    title=Field("", TEXT, "the field of its title; '': title"),
    text=Field("", TEXT, "the field of its text; '': text, contents or body"),
    url=Field("", TEXT, "the field of its web address; '': url or metadata.url"),
    base_url=Field("", _ADDRESS, "of documents without one: the id follows, or {id}, {stem}, {title} in it; '': none"),
)
declare(
    "prepare",
    runner=Field("local", _RUNNER, "local, or a Beam runner, such as DataflowRunner or a class's dotted name"),
    beam_options=Field((), TEXTS, "flags for Beam, such as ('--region=europe-west4',)"),
    workers=Field(2, whole(1), "processes of the local runner"),
    shards=Field(1024, whole(1), "files of each kind that the corpus is written to"),
    shard_size=Field(0.0, NOT_NEGATIVE, "least MiB of a shard; 0: all of prepare.shards", in_place_of="prepare.shards"),
    # A vocabulary that is trained on the corpus.
    vocab_kind=Field("wordpiece", choice("wordpiece", "trigrams"), "its tokens; trigrams of letters are for bow_mlp"),
    vocab_size=Field(30_522, whole(100), "tokens of a vocabulary that is trained on the corpus"),
    lower_case=Field(True, SWITCH, "whether such a vocabulary is uncased: lower case, no accents"),
    # Passages.
    longest_passage=Field(256, whole(1), "tokens of a passage at most; with its title it fits data.document_length"),
    shortest_paragraph=Field(96, whole(0), "a paragraph of fewer tokens is joined with the next"),
    least_passage=Field(16, whole(1), "tokens of a passage at least"),
    across_sections=Field(False, SWITCH, "whether a passage goes on behind a heading"),
    held_out=Field(0.0, SHARE_BELOW, "pydocs: share of the functions that are kept for evaluation"),
)
declare(
    "sets",
    beir=Field("", PATHS, "BEIR folders: corpus.jsonl, queries.jsonl, qrels/NAME.tsv"),
    ir=Field("", PATHS, "data sets of the package ir_datasets by name, such as ir:beir/scifact/test"),
    splits=Field((), TEXTS, "names of qrels/NAME.tsv that are evaluated of sets.beir, such as ('test',); (): all"),
    parquet=Field("", PATHS, "corpus, queries and qrels as Parquet: folders, or data sets of the hub, as NanoBEIR"),
    trec=Field("", PATHS, "TREC: passages (MS MARCO's TSV or BEIR's corpus.jsonl), topics (SGML, XML or TSV), qrels"),
    msmarco=Field("", PATHS, "MS MARCO: passages or documents, queries and qrels, as TSV"),
    unknown=Field("refuse", choice("refuse", "drop"), "beir, trec, msmarco: judgements of candidates that a set lacks"),
    labelled=Field("", PATHS, "labelled examples (below): the texts of a file are its candidates"),
    reqa=Field("", PATHS, "SQuAD v1.1, as ReQA"),
    reqa_sentences=Field(False, SWITCH, "reqa, nq: whether a candidate is its sentence alone, without its paragraph"),
    known_articles=Field(False, SWITCH, "whether sets.reqa asks only about articles that the corpus has too"),
    distractors=Field(0, whole(0), "further candidates from the corpus (Table 6 of Chang et al. 2020: one million)"),
    squad=Field("", PATHS, "SQuAD v1.1: the questions of the first file, over the paragraphs of all"),
    nq=Field("", PATHS, "Natural Questions, full or simplified, as ReQA"),
    qa=Field("", PATHS, "open-domain questions with answers (below), over DPR's passages or the run's corpus"),
    qa_dev=Field("", PATHS, "the tenth of open-domain training questions that ORQA validates on (the set qa-dev)"),
    qa_patterns=Field(False, SWITCH, "whether the answers of sets.qa and sets.qa_dev are regular expressions"),
    judgements=Field("", PATHS, "queries and judgements without texts, for run files"),
    sentences=Field(0.0, SHARE_BELOW, "share of held-out passages of which a sentence is a query for the rest"),
    pydocs=Field(False, SWITCH, "held-out docstrings of the installed packages", goes_with=("corpus", "pydocs")),
)
declare(
    "split",
    set=Field("", TEXT, "evaluation set whose questions are divided for fine-tuning"),
    train=Field("", TEXT, "name of its qrels/NAME.tsv to train on, such as train; '': split.ratio divides all"),
    dev=Field("", TEXT, "beside split.train, the one to validate on, such as dev; '': the share split.validation"),
    ratio=Field(0.8, SHARE_BETWEEN, "share of the questions to train on"),
    fold=Field("", _FOLD, "in place of split.ratio: which part of the questions to test on, 1/5 to 5/5"),
    validation=Field(0.1, SHARE_BETWEEN, "share of the training questions to validate on"),
    seed=Field(0, whole(0), "seed of the division"),
    shards=Field(64, whole(1), "files of labelled examples; a multiple of data.lanes"),
)
declare(
    "pairs",
    files=Field("", PATHS, "labelled examples: files, folders of Parquet, hf:datasets/OWNER/NAME:CONFIG:SPLIT"),
    sources=Field("", PATHS, "in place of pairs.files: a TOML file of several sources, a table each; its content"),
    fields=Field("", TEXT, "fields of JSON, CSV, Parquet: query=title,positive=body,negative=other; also score, label"),
    format=Field("", _table("format", "data.labelled.labelled_format.LABELLED", ""), "of all files; '': recognised"),
    queries=Field("", PATHS, "queries of examples that are ids: TSV, JSON lines, Parquet, or a data set of the hub"),
    collection=Field("", PATHS, "passages of ids, likewise; corpus.jsonl, or a corpus's folder, of format generated"),
    positives=Field(0, whole(0), "positives of a query that are trained on, the first; 0: all"),
    in_order=Field(False, SWITCH, "whether examples keep the order of pairs.files, each with its own negatives"),
    keep_lone=Field(False, SWITCH, "whether pairs without a hard negative are trained on beside others"),
    pool=Field(100, whole(1), "hard negatives that a query keeps, to draw data.negatives from"),
    teacher=Field("", TEXT, "a teacher's score of every pair, as JSON lines; '': those of the stage teacher, if any"),
)

# Batches.
declare(
    "data",
    query_length=Field(64, whole(3), "tokens of a query, with [CLS] and [SEP]"),
    document_length=Field(288, whole(5), "tokens of a document, with its title, [CLS] and two [SEP]"),
    query_prefix=Field("", PREFIX, "what stands before every query, such as 'query: '; its tokens count"),
    document_prefix=Field("", PREFIX, "what stands before every document, in front of its title"),
    prompts=Field((), _PROMPTS, "prompts by name; a set NAME has NAME-query, NAME-document or NAME"),
    default_prompt=Field("document", TEXT, "export: name of the prompt of texts that nobody calls one; '': none"),
    titles=Field("pair", choice("pair", "joined"), "title and text: pair, with a [SEP] between them, or joined"),
    append_eos=Field(False, SWITCH, "whether a vocabulary without a token behind texts puts its eos_token there"),
    negatives=Field(0, whole(0), "hard negatives of a labelled example, drawn anew every epoch"),
    lanes=Field(256, whole(1), "streams of examples; a multiple of the hosts that divides train.batch_size and shards"),
    source_alpha=Field(1.0, SHARE, "sources are drawn by size to this power; 0: alike", goes_with="pairs.sources"),
    shuffle_buffer=Field(128, whole(1), "examples that each lane and task draws from; the shards are in random order"),
    held_out=Field(0.001, _HELD_OUT, "share of the passages that validate pre-training, and are not trained on"),
    skip_empty=Field(False, SWITCH, "whether a task that has no example is left out; else it ends the run"),
    # Options of tasks.
    ict_removal=Field(1.0, SHARE, "how often ICT takes the query's sentence out of the document; ORQA: 0.9"),
)
declare(
    "data.rates",
    ict=Field(0.0, NOT_NEGATIVE, "how often the inverse cloze task is drawn, beside the other tasks; 0: never"),
    bfs=Field(0.0, NOT_NEGATIVE, "how often body-first selection is drawn"),
    wlp=Field(0.0, NOT_NEGATIVE, "how often Wikipedia link prediction is drawn"),
    pairs=Field(0.0, NOT_NEGATIVE, "how often labelled examples are drawn: fine-tuning"),
)
declare(
    "data.pack",
    auto=Field(False, SWITCH, "choose the shares from the data where both are 0, if packing saves a twentieth"),
    query=Field(0.0, SHARE, "tokens of packed query rows, as a share of one text per row's; 0: one text per row"),
    query_row=Field(128, whole(3), "tokens of a packed row of queries"),
    document=Field(0.0, SHARE, "tokens of packed document rows, as a share of one text per row's; 0: one text per row"),
    document_row=Field(384, whole(5), "tokens of a packed row of documents"),
)

# Models.
declare(
    "model",
    encoder=Field("transformer", _table("encoder", "models.two_tower.ENCODERS"), "encoder of a tower"),
    family=Field("bert", _FAMILY, "architecture of a Transformer: bert, modernbert, qwen3, gemma3_text, t5, ..."),
    switches=Field((), _SWITCHES, "where it differs from its family, such as ('kv_heads=8', 'rope_theta=1e6')"),
    num_layers=Field(12, whole(1), "layers of a tower"),
    hidden_size=Field(768, whole(1), "size of a token's vector"),
    num_heads=Field(12, whole(1), "attention heads of a layer"),
    mlp_size=Field(3072, whole(1), "size of a layer's MLP"),
    positions=Field(0, whole(0), "positions of the encoder, for later runs on longer texts; 0: the longest text's"),
    type_vocab_size=Field(2, whole(1), "token types: BERT has 2, RoBERTa 1"),
    layer_norm_epsilon=Field(1e-12, POSITIVE, "epsilon of LayerNorm: BERT has 1e-12, RoBERTa 1e-5"),
    dropout=Field(0.1, SHARE_BELOW, "share of the values that dropout sets to zero"),
    attention_dropout=Field(-1.0, _OR_AS_DROPOUT, "the same of attention's probabilities; -1: as `model.dropout`"),
    # Embeddings.
    pooling=Field("cls", _table("pooling", "models.pooling.POOLINGS"), "the first token's vector ([CLS]), last, ..."),
    pool_from=Field((0, 0), _TWO, "first pooled token of a query, and of a document", goes_with=_TRANSFORMER),
    embed_dim=Field(512, whole(0), "size of an embedding; 0: no projection, it is the pooled hidden state"),
    embed_norm=Field(False, SWITCH, "whether a LayerNorm follows the projection", goes_with=_TRANSFORMER),
    head=Field((), _LAYERS, "layers behind the pooling, in place of embed_dim and embed_norm", goes_with=_TRANSFORMER),
    truncate_dim=Field(0, whole(0), "dimensions of an embedding that are kept, the first ones; 0: all"),
    normalize=Field(False, SWITCH, "whether embeddings have length 1, after they are truncated"),
    tied=Field(False, SWITCH, "whether both towers share their parameters"),
    token_types=Field("texts", choice("texts", "sides"), "0 and 1: title and text, or query and document (RepBERT)"),
    # How it is computed.
    dtype=Field("bfloat16", choice("bfloat16", "float32"), "number format of activations; parameters are float32"),
    attention=Field("auto", choice("auto", "plain", "fused"), "fused: a kernel of the chip; auto: where it fits"),
    matmul_dtype=Field("dtype", choice("dtype", "bfloat16", "auto"), "factors of products; auto: bfloat16 with AMX"),
    remat=Field("full", choice("none", "dots", "full", "auto"), "recomputed in backward; auto: dots or none"),
    unroll=Field(1, whole(0), "layers in an iteration of the scan; 0: one where backward recomputes, else up to four"),
)
declare(
    "mesh",
    fsdp=Field(1, whole(1), "devices that share one copy of parameters and optimizer state; 1: each has its own"),
    replicate_below=Field(65_536, whole(0), "parameters with fewer values are whole on every device"),
)

# Training.
declare(
    "train",
    steps=Field(100_000, whole(0), "batches; an update comes every train.accumulation of them"),
    epochs=Field(0.0, NOT_NEGATIVE, "length as passes over all examples; 0: train.steps", in_place_of="train.steps"),
    minutes=Field(0.0, NOT_NEGATIVE, "no more steps than take so many minutes; 0: all", in_place_of="train.epochs"),
    batch_size=Field(8192, whole(1), "examples of a batch, on all devices"),
    accumulation=Field(1, whole(1), "batches whose gradients make one update"),
    chunk_size=Field(0, whole(0), "examples that a tower takes at a time: less memory, more time; 0: all"),
    init_from=Field("", TEXT, "work directory of a run, or weights: a folder or hf:NAME@REVISION; or QUERY,DOCUMENT"),
    init_step=Field(0, whole(0), "step of that run whose parameters are taken; 0: the best one, or the last"),
    loss=Field("in_batch_softmax", _table("loss", "training.loss_kind.LOSSES"), "what is minimised"),
    # The optimizer.
    optimizer=Field("adam", _OPTIMIZER, "with decoupled weight decay; lamb is ANCE's"),
    learning_rate=Field(0.0001, POSITIVE, "highest learning rate, at the end of the warm-up"),
    schedule=Field("linear", _SCHEDULE, "after the warm-up: fall to 0 (linear, cosine), stay (constant), both (wsd)"),
    warmup_ratio=Field(0.1, SHARE, "share of the steps in which the learning rate rises"),
    schedule_steps=Field(0, whole(0), "batches that the learning rate is planned for; 0: train.steps"),
    weight_decay=Field(0.0, NOT_NEGATIVE, "weight decay, times the learning rate"),
    clip_norm=Field(1.0, NOT_NEGATIVE, "maximum gradient norm; 0: no clipping"),
    clip_parts=Field(False, SWITCH, "whether each batch of train.accumulation clips the sum so far (RepBERT)"),
    adam_epsilon=Field(1e-06, POSITIVE, "Adam's epsilon; 1e-6 is BERT's, 1e-8 PyTorch's"),
    lamb_norm_limit=Field(0.0, NOT_NEGATIVE, "longest that LAMB takes a parameter for; 0: no limit"),
)
_OF_LOSSES = declare(
    "train",
    temperature=Field(1.0, POSITIVE, "scores are divided by it"),
    log_q=Field(True, SWITCH, "in_batch_softmax: whether scores are corrected for how often a document is drawn"),
    symmetric=Field(False, SWITCH, "in_batch_softmax: whether documents choose among queries too"),
    other_positives=Field("mask", choice("mask", "mean", "negatives"), "a query's other positives in its softmax"),
    groups=Field(1, whole(1), "in_batch_softmax: equal parts of a batch that do not see each other (ProQA: 8)"),
    matryoshka=Field((), _SIZES, "first dimensions that are trained to be embeddings of their own; (): all alone"),
    false_negatives=Field("", _FALSE, "leaves out negatives that score above the positive + train.false_margin"),
    false_margin=Field(0.1, NUMBER, "relative: times the positive's score", goes_with="train.false_negatives"),
    guide=Field("", TEXT, "towers that mask false negatives, or teach: folder, hf:NAME or work directory; '': none"),
    guide_margin=Field(0.0, NUMBER, "as train.false_margin, by the guide's scores", goes_with="train.guide"),
    margin=Field(1.0, NOT_NEGATIVE, "how much higher a positive must score, of the losses of a margin"),
    teacher_temperature=Field(1.0, POSITIVE, "distillation: the teacher's scores are divided by it; cosines: 0.05"),
)
declare(
    "train.lora",
    rank=Field(0, whole(0), "rank of adapters trained in place of the encoder (LoRA); 0: none", goes_with=_TRANSFORMER),
    alpha=Field(16.0, POSITIVE, "their products are multiplied by alpha / rank", goes_with=_RANK),
    targets=Field(("query", "value"), _TARGETS, "matrices with an adapter; ('all',): all of a layer", goes_with=_RANK),
    dropout=Field(0.0, SHARE_BELOW, "dropout on what goes into an adapter", goes_with=_RANK),
    base=Field("stored", choice("stored", "bfloat16", "float32"), "type of the frozen parameters", goes_with=_RANK),
)
declare(
    "loop",
    log_every=Field(100, whole(1), "steps between lines of the log"),
    checkpoint_every=Field(1000, whole(1), "steps between checkpoints"),
    keep_checkpoints=Field(2, whole(1), "checkpoints that stay on the disk"),
    keep_steps=Field((), whole_numbers("a tuple of steps, such as (1000,2000), or ()", 1), "further checkpoints"),
    validate_every=Field(5000, whole(0), "steps between validations, whose best step is the result; 0: never"),
    validate_queries=Field(1000, whole(1), "queries of a validation"),
    validate_candidates=Field(4000, whole(2), "candidates of a validation"),
    report_to=Field(("tensorboard",), _TRACKERS, "where metrics go besides metrics/train.jsonl, such as ('wandb',)"),
    best=Field("RR", TEXT, "metric of the best step: Success@1, Success@10, Success@100, RR, or one of the recipe"),
)
declare("profile", steps=Field((), _FIRST_LAST, "first and last step of a trace for TensorBoard, such as 10,15, or ()"))
declare(
    "mine",
    system=Field("bm25", _table("index", "search.index_kind.MINED"), "index to mine from; random: any candidates"),
    model=Field("", TEXT, "an embedder that mines for the pairs of pairs.files: work directory, folder or hf:NAME"),
    reranker=Field("", TEXT, "a cross-encoder whose scores take the place of those of mine.model: likewise"),
    format=Field("tevatron", _NEGATIVES, "of a second file; triplet, n-tuple: sentence-transformers'"),
    negatives=Field(20, whole(1), "hard negatives of a question, drawn from its ranked list"),
    first=Field(1, whole(1), "first rank to draw from, without the positives"),
    last=Field(200, whole(1), "last rank to draw from, without the positives"),
    margin=Field(0.0, NOT_NEGATIVE, "how much less than the best positive (mine.model: the worst) they score; 0: any"),
    relative_margin=Field(0.0, SHARE_BELOW, "the same as a share of that positive's score"),
    sampling=Field("random", choice("random", "top"), "top: the best; with a relative margin NV-Retriever's"),
    answers=Field(False, SWITCH, "whether passages that hold an answer of the question are left out (DPR)"),
    # Negatives, clusters or quadruplets made anew while training.
    refresh_makes=Field("negatives", _REFRESH, "what a refresh makes"),
    refresh_every=Field(0, whole(0), "steps between refreshes with the model as it is then (ANCE, ProQA); 0: never"),
    refresh_share=Field(1.0, SHARE_ABOVE, "share of the training questions that a refresh mines and its steps take"),
    patience=Field(0, whole(0), "validations without gain before it; 0: by steps", goes_with="mine.refresh_every"),
    turn_rate=Field(0.0, NOT_NEGATIVE, "highest learning rate after it; 0: as before", goes_with="mine.patience"),
)
declare("teacher", model=Field("", TEXT, "cross-encoders, embedders: runs, folders or hf:NAME; mean of scaled scores"))

# Search and evaluation.
declare(
    "encode",
    batch_tokens=Field(262_144, whole(1), "tokens of a batch of texts"),
    shard_size=Field(65_536, whole(1), "texts of a file of embeddings, or of a stage's; two are in memory"),
    windows=Field(1, whole(1), "windows of a candidate at most; its best one scores (MaxP); 1: its beginning (FirstP)"),
    truncate=Field(0, whole(0), "first dimensions of an embedding that are kept, when training has ended; 0: all"),
    precision=Field("float32", _PRECISION, "how embeddings of candidates are stored, such as bfloat16 or int8"),
    untrained=Field(True, SWITCH, "whether the towers before training are evaluated too, as a baseline"),
    start=Field(False, SWITCH, "whether the towers that train.init_from names are evaluated too, as a baseline"),
    corpus=Field(True, SWITCH, "whether the corpus is indexed, for --stage=search"),
)
declare(
    "index",
    dense=Field("scann", _table("index", "search.index_kind.DENSE"), "exact and quantised build nothing"),
    precision=Field("int8", _PRECISION, "quantised: what is searched, such as int8 or binary"),
    rescore=Field(0, whole(0), "quantised, scann: results that embeddings rescore, for each wanted one; 0: none"),
    words=Field(("bm25",), _WORDS, "indexes of words; the first is in the hybrid"),
    bm25_k1=Field(1.5, NOT_NEGATIVE, "k1 of BM25; the field's settings are k1 1.5, b 0.75 and k1 0.9, b 0.4"),
    bm25_b=Field(0.75, SHARE, "b of BM25"),
    bm25_stop_words=Field("english", _table("list of stop words", "search.words.STOP_WORDS"), "words left out"),
    bm25_stemmer=Field("none", _table("stemmer", "search.words.STEMMERS"), "Snowball's of a language"),
    bm25_also=Field((), _K1_B, "k1 and b of a second BM25 in the tables, such as 0.9,0.4, or ()"),
)
declare(
    "evaluate",
    depth=Field(100, whole(1), "results that are looked for; no metric looks deeper"),
    metrics=Field((), _METRICS, "metrics of ir_measures; (): those of each set"),
    runs=Field(True, SWITCH, "whether the ranked lists are written as TREC runs"),
)
declare(
    "fuse",
    systems=Field((), _TWO_OR_MORE, "systems to fuse, as tables name them; where they interleave the first one starts"),
    pairs=Field(False, SWITCH, "whether every two of them are fused, in both orders, instead of all together"),
    methods=Field(_FUSIONS, _SOME_FUSIONS, "interleave (RepBERT, equation 6), reciprocal_rank, weighted_sum (min-max)"),
    dense_weight=Field(0.5, SHARE, "weight of the dense list in the hybrid, where no validation questions choose it"),
)
declare(
    "runs",
    files=Field((), TEXTS, "run files of other systems, such as ('bm25=FILE.trec', 'bert=FILE.tsv'); .gz too"),
    unknown=Field("refuse", choice("refuse", "allow"), "ids that the set lacks; allow: queries go, candidates stay"),
)
declare(
    "serve",
    host=Field("127.0.0.1", matching("an address", r"\S+"), "address to listen at; 0.0.0.0: for other machines, too"),
    port=Field(8080, _PORT, "port to listen at; 0: any that is free"),
    hosts=Field((), _HOSTS, "names that requests may ask for; (): this machine's at 127.0.0.1, elsewhere any"),
    reranker=Field("", TEXT, "work directory, or a cross-encoder's folder or hf:NAME; '': the run's own, if any"),
    name=Field("", TEXT, "of the model, for clients that name one, and of the tools of mcp; '': the work directory's"),
    keys_file=Field("", PATHS, "a file of keys, one a line, of which a request needs one; '': none is needed"),
    k=Field(100, whole(1), "most hits of a list"),
    truncate=Field(True, SWITCH, "whether OpenAI's clients get long texts cut, and counted in `usage`; else a 413"),
)
declare("served", models=Field((), TEXTS, "what serve_models serves: a model that encodes, a reranker, or one of each"))
declare(
    "export",
    license=Field("", _LICENSE, "license that the model card names"),
    adapter=Field(False, SWITCH, "whether adapters are written alone, for PEFT, and not merged into their model"),
)
declare(
    "handover",
    to=Field("table", TEXT, "targets, with commas: table, vertex, or both"),
    collection=Field("", TEXT, "whose vectors: corpus or a set; '': the corpus's, or those of the only set"),
    out=Field("", TEXT, "folder, or address such as gs://BUCKET/x, with one folder a target; '': handover/ of the run"),
)

# What runs on the side.
declare("plan", topology=Field("", TEXT, "TPU topology to compile for, such as v4:2x2x4; '': the devices here"))

fields.GENERAL.update(fields.DECLARED.keys() - set(_OF_LOSSES))
