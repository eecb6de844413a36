"""ICT + BFS + WLP: the two-tower Transformer of Chang et al. 2020, pre-trained on Wikipedia.

The paper's run (32 TPU v3 chips, 100k steps of batch 8192, about 2.5 days; R@1 37.4 on ReQA SQuAD after fine-tuning on
1 % of the questions, 58.4 on 80 %):

    python -m retrieval.main --config=configs/ict_bfs_wlp.py --workdir=runs/ict_bfs_wlp \\
        --config.corpus=enwiki-latest-pages-articles.xml.bz2 --config.vocab=vocab.txt \\
        --config.sets.reqa=train-v1.1.json,dev-v1.1.json

At the size of a laptop, on the docstrings of the installed packages (2 CPU cores, 10 minutes):

    python -m retrieval.main --config=configs/ict_bfs_wlp.py:local --workdir=runs/quickstart
"""

from ml_collections import ConfigDict

from retrieval.errors import unknown_name

SIZES = ("paper", "local")


def get_config(size: str = "paper") -> ConfigDict:
    """The paper's configuration, or 'local': the same experiment for a laptop's CPU."""
    if size not in SIZES:
        raise unknown_name("size of a config", size, SIZES)
    config = _paper()
    if size == "local":
        _local(config)
    return config


def _paper() -> ConfigDict:
    config = ConfigDict()
    config.seed = 0
    config.stages = ("prepare", "sets", "train", "encode", "index", "evaluate", "report")

    # 'pydocs' (the docstrings of the installed packages), MediaWiki exports, separated by commas, or TFDS's:
    # 'tfds:wikipedia/CONFIG'.
    config.corpus = ""
    # Work directory of a run whose outputs serve for the stages that are not listed here.
    config.base = ""
    # A BERT vocab.txt, a RoBERTa tokenizer.json, or the folder of either; empty trains one of prepare.vocab_size tokens
    # on the corpus.
    config.vocab = ""

    config.prepare = ConfigDict(
        dict(
            runner="local",  # or a Beam runner: DirectRunner, DataflowRunner, FlinkRunner, SparkRunner
            beam_options=(),  # flags for Beam, such as ('--region=europe-west4',)
            workers=2,
            shards=1024,
            vocab_size=30522,
            longest_passage=256,  # tokens; with its title a passage fits data.document_length
            shortest_paragraph=96,  # a paragraph that ends before is joined with the next
            least_passage=16,
            across_sections=False,  # True: a passage that a heading ends goes on behind it
            held_out=0.0,  # pydocs: fraction of the functions kept for evaluation
        )
    )
    config.data = ConfigDict(
        dict(
            # pairs: labelled ones, fine-tuning
            rates=dict(ict=1.0, bfs=1.0, wlp=1.0, mlm=0.0, autoencoder=0.0, pairs=0.0),
            ict_removal=1.0,  # ORQA: 0.9
            whole_word=False,  # whether MLM masks all pieces of a word or none
            query_length=64,
            document_length=288,
            # Several texts in a row: the packed rows' tokens as a share of those of one text per row (0: one text per
            # row), and the tokens of a packed row.
            pack=dict(query=0.0, query_row=128, document=0.0, document_row=384),
            lanes=256,  # a multiple of the hosts; divides train.batch_size and prepare.shards (pairs: split.shards)
            shuffle_buffer=128,  # examples per lane and task; the records themselves are in the order of a hash
            held_out=0.001,  # share of the passages that pre-training is validated on, and never sees as documents
            negatives=0,  # hard negatives of a labelled example, drawn anew in every epoch; with rates.pairs alone
        )
    )
    config.model = ConfigDict(
        dict(
            encoder="transformer",  # or 'bow_mlp'
            num_layers=12,
            hidden_size=768,
            num_heads=12,
            mlp_size=3072,
            type_vocab_size=2,  # RoBERTa: 1
            layer_norm_epsilon=1e-12,  # RoBERTa: 1e-5
            dropout=0.1,
            dtype="bfloat16",
            remat="full",  # what the backward pass computes again: 'none', 'dots' (all but weights' products) or 'full'
            unroll=1,  # layers in one turn of the loop over layers: more run faster and compile longer
            positions=0,  # of the encoder, for later runs of longer texts; 0: those of the longest text
            embed_dim=512,  # 0: no projection, the embedding is the pooled hidden state
            embed_norm=False,  # a LayerNorm behind the projection
            pooling="cls",  # or 'mean'
            tied=False,
            normalize=False,
            # Of the task 'autoencoder', for pre-training alone: the tokens before each that it sees (so many in each
            # layer; or, with reach 'decoder', in all), how [CLS] comes to it ('cross': attention; 'prefix': the first
            # position), the size of a latent variable between the two (Optimus; 0: none), and whether its logits have
            # the output layer's bias.
            decoder=dict(layers=3, span=2, wiring="cross", reach="layer", latent=0, bias=True),
        )
    )
    config.train = ConfigDict(
        dict(
            steps=100_000,  # batches; an update comes every `accumulation` of them
            batch_size=8192,
            accumulation=1,
            chunk_size=0,  # examples that a tower takes at a time, on all devices; less memory, more time; 0: all
            learning_rate=1e-4,
            warmup_ratio=0.1,
            weight_decay=0.0,
            clip_norm=1.0,
            optimizer="adam",  # or 'lamb'
            lamb_norm_limit=0.0,  # LAMB takes no parameter for longer; 0: no limit
            loss="in_batch_softmax",  # or, of an example's own hard negatives, multi_negative_nll, two_way_nll, triplet
            temperature=1.0,
            margin=1.0,  # of triplet
            symmetric=False,
            # A query's other positives in the batch: 'mask' (no negatives), 'mean' (the mean of the losses of all of
            # them) or 'negatives' (like all others). This, symmetric and log_q are of in_batch_softmax.
            other_positives="mask",
            log_q=True,
            kl_weight=1.0,  # of model.decoder.latent, with so many nats of each dimension free
            free_bits=0.0,
            # Work directory of a trained run (the encoder of an MLM initialises both towers), or a folder of BERT's
            # weights; or two of these, QUERY,DOCUMENT: where one is left empty, that tower starts at random.
            init_from="",
        )
    )
    config.mesh = ConfigDict(
        dict(
            fsdp=1,  # devices that a copy of parameters and optimizer state is spread over; 1: each device has its own
            replicate_below=65_536,  # parameters with fewer values are whole on every device
            # (regular expression, an axis or None for each dimension) for parameters that are to be sharded otherwise,
            # such as (("token_embedding", ("fsdp", None)),); the first that is found in a parameter's path counts.
            rules=(),
        )
    )
    # What --stage=plan compiles for: a TPU topology such as v3:4x8, v5e:4x8 or v4:2x2x4; '': the devices that are here.
    config.plan = ConfigDict(dict(topology=""))
    config.loop = ConfigDict(
        dict(
            log_every=100,
            checkpoint_every=1000,
            keep_checkpoints=2,
            validate_every=5000,  # 0: never; otherwise the step with the highest `best` is kept, and is the result
            validate_queries=1000,
            validate_candidates=4000,
            best="RR",  # or Success@1, Success@10, Success@100
            wandb="",  # a project of Weights & Biases that gets the metrics too
        )
    )
    # The first and the last step of a trace that TensorBoard's profiler shows, such as 10,15; written to profile/.
    config.profile = ConfigDict(dict(steps=()))
    # Evaluation sets: known-item search on pydocs; ReQA from SQuAD or Natural Questions files, BEIR folders, MS MARCO
    # and TREC (passages, queries and qrels each), files of labelled examples, open-domain questions with answers
    # (passages, or the word 'corpus', and questions); paths separated by commas. qa_patterns: the answers of `qa` are
    # regular expressions (CuratedTREC). Distractors are further candidates from the corpus (Table 6: one million).
    config.sets = ConfigDict(
        dict(pydocs=False, reqa="", nq="", beir="", msmarco="", trec="", labelled="", qa="")
        | dict(qa_patterns=False, distractors=0)
    )
    # Labelled examples for fine-tuning, in files of the formats that README.md shows.
    config.pairs = ConfigDict(
        dict(
            files="",  # separated by commas
            format="",  # of all of them: dpr, jsonl, triples or id_triples; '': each is recognised
            queries="",  # TSV files with the texts of triples of ids
            collection="",
            positives=0,  # of a query, those that are trained on, the first; 0: all
            pool=100,  # hard negatives that a query keeps, to draw data.negatives from
        )
    )
    # Hard negatives out of ranked lists: stage 'mine' searches an index for the training questions of split.set.
    config.mine = ConfigDict(
        dict(
            system="bm25",  # or, with the base's model, 'exact' or 'scann'
            negatives=20,  # of a question, drawn from
            first=1,  # this rank
            last=200,  # to this one, once its positives have been taken out of the list
            margin=0.0,  # how much lower than the best positive they score at least; 0: any score
            relative_margin=0.0,  # the same as a share of that positive's score
            # Whether passages that hold an answer of the question are left out (DPR), for sets with answers. On ReQA
            # that is all of the gold paragraph's sentences, too.
            answers=False,
            # ANCE: steps after which negatives are mined anew with the model as it is then, by exact search; 0: never.
            refresh_every=0,
            refresh_share=1.0,  # of the training questions, those that a refresh mines, and the steps after it train on
            # Steps for which training goes on before it turns to what is mined by a second process meanwhile; 0: the
            # devices that train mine, and training waits. And the devices of that process, as variables of its
            # environment, such as ('CUDA_VISIBLE_DEVICES=1',) or ('JAX_PLATFORMS=cpu',).
            refresh_lag=0,
            refresh_env=(),
        )
    )
    # The set whose questions are divided for fine-tuning: a share to train on, of that a share to validate on.
    config.split = ConfigDict(dict(set="", ratio=0.8, validation=0.1, seed=0, shards=64))
    config.encode = ConfigDict(
        dict(
            batch_tokens=262_144,
            shard_size=65_536,  # texts in a file of embeddings; those of one are in memory at a time
            # Windows of data.document_length tokens that a candidate is cut into, at most, the best of which is its
            # score (MaxP); 1: its beginning alone (FirstP), which is what training sees of it in any case.
            windows=1,
            untrained=True,  # the same towers before training, as a baseline
            corpus=True,  # the passages of the corpus, for --stage=search
        )
    )
    config.index = ConfigDict(
        dict(
            dense="scann",  # or 'exact', which builds nothing
            recall_target=0.99,  # of the exact best evaluate.depth, for ScaNN
            tune_queries=1000,  # queries of the evaluation sets on which that is measured
            # The field's two settings of BM25 are k1 1.5 with b 0.75, and k1 0.9 with b 0.4.
            bm25_k1=1.5,
            bm25_b=0.75,
            bm25_also=(),  # k1 and b of a second BM25 in the tables, such as 0.9,0.4; the first serves for all else
            bm25_stop_words="english",  # left out: Lucene's 33; or 'none', 'english_plus' (179), 'french', ...
            bm25_stemmer="none",  # or one of Snowball's: 'english', 'porter', 'french', ...
            # Whether 'café' and 'cafe' are one word: 'fold', 'keep', or as the 'vocabulary' has it (without one: fold).
            bm25_accents="vocabulary",
        )
    )
    # Metrics as ir_measures writes them, such as ('RR@10', 'R@1000', 'RR(rel=2)@10'), none of which looks deeper than
    # `depth`; (): Success@k and RR where a query has one right answer, else nDCG@10, R@100 and RR@10. Answer@k, as
    # DPR counts it, is of the sets whose answers are known; of those without judgements also where none is asked for.
    config.evaluate = ConfigDict(dict(depth=100, metrics=(), runs=True))
    config.search = ConfigDict(dict(k=5))
    # What the model card of --stage=export says, such as apache-2.0; '': that none was given.
    config.export = ConfigDict(dict(license=""))
    # Of random texts (Figure 5 of SEED-Encoder); tokens, (): of the longest passages, a half, a quarter, an eighth.
    config.similarity = ConfigDict(dict(lengths=(), pairs=1000))
    return config


def _local(config: ConfigDict) -> None:
    """What differs: a small corpus and model, and what lets a model learn from 10^5 pairs in place of 10^9.

    In so few steps a [CLS] vector learns nothing, the mean of the tokens does; towers that share their parameters and
    cosines with a temperature learn faster; and there is no time to overfit.
    """
    config.corpus = "pydocs"
    config.sets.pydocs = True
    config.prepare.update(shards=8, vocab_size=16_000, longest_passage=80, shortest_paragraph=32, held_out=0.2)
    config.data.update(query_length=32, document_length=96, lanes=4, shuffle_buffer=512, held_out=0.0)
    config.data.pack.update(query_row=64, document_row=128)
    config.model.update(num_layers=2, hidden_size=128, num_heads=2, mlp_size=512, dtype="float32", embed_dim=128)
    config.model.update(remat="none", unroll=4)
    config.model.update(pooling="mean", tied=True, normalize=True, dropout=0.0)
    config.train.update(steps=600, batch_size=128, learning_rate=2e-3, temperature=0.05)
    config.loop.update(log_every=20, checkpoint_every=200, validate_every=0)
    config.encode.update(batch_tokens=2048, shard_size=8192)
