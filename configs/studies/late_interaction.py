"""Late interaction beside two towers that start from the same published embedder, and learn from the same pairs.

    python -m retrieval.study --config=configs/studies/late_interaction.py --workdir=runs/late \\
        --config.model=hf:sentence-transformers/all-MiniLM-L6-v2 --config.beir=DATA/nfcorpus

`beir` is a folder of that name, nfcorpus if none follows the colon. One without judgements to train on is divided: half
of its questions are tested. Everything is for two CPU cores: texts of 32 and 64 tokens, 150 steps of 32 pairs, three
seeds, some five minutes a run. The last step is tested. A token has 128 dimensions. All documents are scored, BM25's
first 100, and those that centroids find; details of the stages `tokens` and `maxsim` have bytes and recall. What came
out is in docs/papers/colbert.md.
"""

from pathlib import Path

from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.configs import embedding
from retrieval.studies.claims import Cell, Claim, Report, Row, Table

SEEDS = (0, 1, 2)
METRICS = ("nDCG@10", "R@100")
STORED = ("residual4", "residual2", "residual1")
PROBES = (1, 2, 4, 8, 16)  # centroids of a token
_OF_TOWERS = ("train", "encode", "index", "evaluate", "report")


def get_config(dataset: str = "nfcorpus") -> ConfigDict:
    """The table of runs on a BEIR folder of this name; `complete` gives them the model."""
    config = ConfigDict({"model": "", "beir": "", "steps": 150, "runs": {}})
    config.runs["start"] = _run(config, dataset, ("sets", "pairs", "adopt", *_OF_TOWERS[1:-1]))
    for seed in SEEDS:
        config.runs[f"towers-s{seed}"] = _run(config, dataset, _OF_TOWERS, base="start", seed=seed)
    for seed in SEEDS:
        config.runs[f"late-s{seed}"] = late = _run(config, dataset, ("train", "tokens", "maxsim"), "start", seed)
        late.late.exact = True
        for stored in STORED:
            config.runs[f"{stored}-s{seed}"] = small = _run(
                config, dataset, ("tokens", "maxsim"), f"late-s{seed}", seed
            )
            small.late.update(exact=True, stored=stored)
        for probes in PROBES:
            name = f"probes-{probes}-s{seed}"
            config.runs[name] = of_centroids = _run(config, dataset, ("maxsim",), f"residual2-s{seed}", seed)
            of_centroids.late.update(exact=True, probes=probes)
    config.report = _report(dataset)
    return config


def complete(study: ConfigDict) -> None:
    """Gives every run the model.

    Raises:
      UserError: there is none.
    """
    if not study.model:
        raise UserError("config.model is empty: name the model to start from, a folder or hf:NAME")
    for name, run in study.runs.items():
        run.train.init_from = study.model
        run.train.steps = study.steps
        embedding.complete(run)
        run.data.update(query_length=32, document_length=64)
        if not (Path(study.beir) / "qrels" / "train.tsv").exists():
            run.split.update(train="", dev="", ratio=0.5)
        if name.startswith(("late", "probes", *STORED)):
            run.recipe = "late_interaction"
            # No markers and [MASK]s, which this model does not know: before training dev's RR is 57, with them 23.
            # A score is a sum over a query's tokens, some ten of them, so the temperature is ten times the towers'.
            run.model.late.expansion, run.train.temperature = "none", 0.5
            run.model.update(embed_dim=128, normalize=False, pooling="cls")
            run.train.loss = "maxsim_softmax"


def _run(study: ConfigDict, dataset: str, stages: tuple[str, ...], base: str = "", seed: int = 0) -> ConfigDict:
    config = embedding.get_config("local")
    config.stages, config.base, config.seed = stages, base, seed
    config.sets.update(beir=study.get_ref("beir"), splits=("test",))
    config.split.update(set=dataset, train="train", dev="dev", shards=8)
    config.train.minutes = 0
    config.loop.validate_every = 0
    config.index.dense = "exact"
    config.encode.start = False
    return config


def _report(dataset: str) -> Report:
    def cells(arm: str, system: str) -> Cell:
        return Cell(tuple(f"{arm}-s{seed}" for seed in SEEDS), system, dataset, "test", "")

    before, towers = Cell(("start",), "dense", dataset, "test", ""), cells("towers", "dense")
    late, reranked = cells("late", "maxsim"), cells("late", "bm25+maxsim@100")
    rows = {
        "BM25": before.at(system="bm25"),
        "the model before": before,
        "towers": towers,
        "towers and BM25": cells("towers", "hybrid"),
        "late interaction": late,
        "late interaction of BM25's first 100": reranked,
    }
    rows |= {f"late interaction, {stored}": cells(stored, "maxsim") for stored in STORED}
    claims = [
        Claim(text, better.at(metric="nDCG@10"), worse.at(metric="nDCG@10"))
        for text, better, worse in (
            ("Late interaction beats towers", late, towers),
            ("Late interaction beats itself on BM25's first 100", late, reranked),
        )
    ]
    return Report(
        f"Late interaction beside towers on {dataset}",
        "All start from one published model, and have the same pairs, lengths and steps.",
        [
            Table(
                "What is found", ["", *METRICS], [Row([name], cell.each(metric=METRICS)) for name, cell in rows.items()]
            ),
            Table(
                "What centroids find, residual2",
                ["centroids of a token", *METRICS],
                [
                    Row([str(probes)], cells(f"probes-{probes}", f"plaid-{probes}+maxsim@100").each(metric=METRICS))
                    for probes in PROBES
                ],
            ),
        ],
        claims,
    )
