"""The same negatives as sentence-transformers' `mine_hard_negatives`, for the same rule."""

import json

import numpy as np
import pytest
from support import embedder_folders
from support.packages import package

import configs.mine
from retrieval import LOCK
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.runs.pipeline import runner
from retrieval.runs.pipeline.run import Run

sentence_transformers, datasets = package("sentence_transformers"), package("datasets")
hard_negatives = package("sentence_transformers.util.hard_negatives")

WORDS = "the a dog fox cat sat ran saw sea moon sun tree house red blue green old new two three".split()


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """40 queries of one to three positives; 80 further documents."""
    rng = np.random.default_rng(0)
    texts = list(dict.fromkeys(" ".join(rng.choice(WORDS, rng.integers(4, 12))) for _ in range(200)))
    queries, documents = texts[:40], texts[40:]
    rows = [(query, documents[place]) for query in queries for place in rng.integers(0, 80, rng.integers(1, 4))]
    rows = sorted(dict.fromkeys(rows), key=lambda row: row[1])
    folder = tmp_path_factory.mktemp("pairs")
    lines = [json.dumps({"anchor": query, "positive": positive}) for query, positive in rows]
    (folder / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    lines = [json.dumps({"_id": str(place), "text": text}) for place, text in enumerate(documents)]
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    return folder, rows, documents


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return embedder_folders.modernbert(tmp_path_factory.mktemp("model") / "embedder")


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    return embedder_folders.cross_encoder(tmp_path_factory.mktemp("model"), WordPiece([*SPECIAL_TOKENS, *WORDS]))[0]


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


RULES = [
    {"range_max": 20},
    {"range_min": 3, "range_max": 20, "num_negatives": 5},
    {"relative_margin": 0.01, "num_negatives": 4, "range_max": 160},
    {"absolute_margin": 0.001, "relative_margin": 0.005, "num_negatives": 2, "range_max": 60},
]


@pytest.mark.parametrize(("number", "form"), [(0, "triplet"), (1, "n-tuple"), (2, "n-tuple"), (3, "triplet")])
def test_the_same_negatives(pairs, model, tmp_path, number, form):
    rule, with_collection = RULES[number], number % 2 == 0
    ours, theirs = both(pairs, model, tmp_path, rule, with_collection, form)
    assert sorted(tuple(row.values()) for row in ours) == sorted(map(tuple, theirs))
    assert len(theirs) > 5


def test_the_same_negatives_by_a_rerankers_scores(pairs, model, reranker, tmp_path):
    rule = {"absolute_margin": 0.2, "range_max": 60}
    ours, theirs = both(pairs, model, tmp_path, rule, reranker=reranker)
    assert sorted(tuple(row.values()) for row in ours) == sorted(map(tuple, theirs))
    plain, _ = both(pairs, model, tmp_path / "plain", rule)
    assert len(theirs) > 20 and ours != plain


def both(pairs, model, folder, rule, with_collection=False, form="triplet", reranker=None):
    """Our rows, and theirs as tuples of values. Ranks count what margins leave there, and all candidates here."""
    place, rows, documents = pairs
    config = configs.mine.get_config(str(model))
    config.pairs.files = str(place / "pairs.jsonl")
    config.pairs.collection = str(place / "corpus.jsonl") if with_collection else ""
    config.mine.update(
        reranker=str(reranker or ""),
        format=form,
        negatives=rule.get("num_negatives", 3),
        first=rule.get("range_min", 0) + 1,
        last=rule["range_max"],
        margin=rule.get("absolute_margin", 0.0),
        relative_margin=rule.get("relative_margin", 0.0),
    )
    run = Run(config, folder / "ours", LOCK)
    runner.take_run(run)
    runner.run_stage(run, "mine")
    dataset = datasets.Dataset.from_dict({"anchor": [q for q, _ in rows], "positive": [text for _, text in rows]})
    theirs = hard_negatives.mine_hard_negatives(
        dataset,
        sentence_transformers.SentenceTransformer(str(model), device="cpu"),
        corpus=documents if with_collection else None,
        cross_encoder=sentence_transformers.CrossEncoder(str(reranker), device="cpu") if reranker else None,
        output_format=form,
        verbose=False,
        cache_folder=str(place / "theirs"),
        **rule,
    )
    return read(run.negatives / f"{form}.jsonl"), list(zip(*theirs.to_dict().values()))
