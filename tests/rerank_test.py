"""The stage `rerank`: on a published run, and with a model against scores one by one."""

import importlib.util
import json

import jax
import numpy as np
import pytest
from conftest import REPOSITORY
from flax import nnx
from support.modules import spread
from support.tiny import execute
from support.tiny_pairs import scores as score_alone

from configs import bm25, run_files
from retrieval.data.sets import beir
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.evaluation import runs
from retrieval.methods.reranker.model import CrossEncoder, write_cross_encoder
from retrieval.models.text import Text
from retrieval.models.transformer_config import TransformerConfig
from retrieval.runs.pipeline import preflight, records
from retrieval.runs.pipeline.run import Run


def make_run(folder, config, **changes):
    config.update_from_flattened_dict({"rerank.systems": ("bm25",), **changes})
    return Run(config, folder, REPOSITORY / "requirements.lock")


def published(folder, sets, files, **changes):
    """A run over run files alone."""
    config = run_files.get_config()
    config.stages = ("sets", "evaluate", "rerank", "report")
    config.sets.judgements = ",".join(map(str, sets))
    config.runs.files = tuple(f"{name}={path}" for name, path in files.items())
    return make_run(folder, config, **changes)


@pytest.mark.long
def test_depths_of_monobert_are_those_of_the_official_scorer(shared_data, tmp_path):
    """105 queries of MS MARCO's dev set, and the first 1,000 of BM25 in monoBERT's order."""
    folder, dev = shared_data / "msmarco" / "rerank_runs", shared_data / "msmarco" / "dev_small"
    files = {"bm25": folder / "run.bm25.tsv", "monobert": folder / "run.monobert.tsv"}
    wanted = (5, 1000)
    run = published(
        tmp_path / "run",
        (folder / "queries.tsv", dev / "qrels.dev.small.tsv"),
        files,
        **{"rerank.model": "monobert", "rerank.depths": wanted},
    )
    execute(run)
    spec = importlib.util.spec_from_file_location("ms_marco_eval", dev / "ms_marco_eval.py")
    scorer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scorer)
    queries = {line.split("\t")[0] for line in (folder / "queries.tsv").read_text().splitlines()}
    lines = (dev / "qrels.dev.small.tsv").read_text().splitlines()
    (tmp_path / "qrels").write_text("".join(f"{line}\n" for line in lines if line.split("\t")[0] in queries))
    first, rank = {}, {}
    for name, path in files.items():
        for line in path.read_text().splitlines():
            query, id, place = line.split("\t")
            if name == "bm25":
                first.setdefault(query, []).append((int(place), id))
            else:
                rank[query, id] = int(place)
    table = {row["depth"]: row for row in records.details(run, "rerank")["depths"]}
    for depth in wanted:
        with (tmp_path / "by_hand.tsv").open("w") as file:
            for query, found in first.items():
                top = [id for _, id in sorted(found)[:depth]]
                for place, id in enumerate(sorted(top, key=lambda id: rank[query, id]), 1):
                    file.write(f"{query}\t{id}\t{place}\n")
        expected = scorer.compute_metrics_from_files(str(tmp_path / "qrels"), str(tmp_path / "by_hand.tsv"))
        assert table[depth]["after"]["RR@10"] == pytest.approx(expected["MRR @10"], abs=1e-6)
    assert table[1000]["after"]["RR@10"] > table[5]["after"]["RR@10"] > table[5]["before"]["RR@10"]


WORDS = "the a red blue fox owl whale sleeps swims where does".split()
TEXTS = ["the red fox sleeps", "an owl", "the blue whale swims", "a red owl", "a whale , a whale", "red red red fox"]
QUERIES = {"q0": "red fox", "q1": "the whale", "q2": "owl"}


@pytest.fixture
def toy(tmp_path):
    return write_toy(tmp_path / "toy", TEXTS)


def write_toy(folder, texts):
    passages = [beir.Candidate(f"d{row}", "fox" if row == 4 else "", text) for row, text in enumerate(texts)]
    qrels = {"q0": {"d3": 1}, "q1": {"d2": 1}, "q2": {"d3": 1, "d1": 1}}
    beir.write_folder(folder, beir.RetrievalSet("toy", QUERIES, passages, {"test": qrels}))
    return folder


@pytest.fixture(scope="module")
def vocabulary():
    return WordPiece([*SPECIAL_TOKENS, *WORDS])


@pytest.fixture(scope="module")
def cross_encoder(vocabulary, tmp_path_factory):
    """A folder, and its model."""
    folder = tmp_path_factory.mktemp("models") / "cross"
    folder.mkdir()
    sizes = TransformerConfig(
        vocab_size=len(vocabulary), num_layers=1, hidden_size=8, num_heads=2, mlp_size=12, max_length=16, dropout=0.0
    )
    model = spread(CrossEncoder(sizes, 1, rngs=nnx.Rngs(0)))
    write_cross_encoder(folder, model)
    vocabulary.export(folder, length=16, types=2)
    return folder, model


def with_model(place, toy, folder, **changes):
    """BM25 over the toy set, and its first results in the order of a model."""
    config = bm25.get_config()
    config.stages = ("sets", "index", "evaluate", "rerank", "report")
    config.sets.beir = str(toy)
    config.rerank.length = 9
    config.model.dtype = "float32"
    config.encode.batch_tokens = 64
    more = {
        "rerank.model": str(folder),
        "rerank.depths": (2, 5),
        "encode.shard_size": 4,
        "evaluate.metrics": ("RR@10",),
    }
    return make_run(place, config, **more | changes)


def read_run(path, queries=tuple(QUERIES)):
    ids = [f"d{row}" for row in range(len(TEXTS))]
    return runs.read_run(path, queries, ids)


def test_every_pair_has_the_score_that_it_has_alone(toy, cross_encoder, vocabulary, tmp_path):
    folder, model = cross_encoder
    run = with_model(tmp_path / "run", toy, folder)
    preflight.check(run, run.config.stages)
    execute(run)
    _, first = read_run(run.folder / "runs" / "toy" / "bm25.trec")
    for depth in (2, 5):
        scores, rows = read_run(run.folder / "reranked" / "runs" / "toy" / f"bm25+rerank@{depth}.trec")
        for number, query in enumerate(QUERIES.values()):
            expected = {}
            for row in [row for row in first[number, :depth].tolist() if row >= 0]:
                body = vocabulary.encode(f"fox {TEXTS[row]}" if row == 4 else TEXTS[row])
                ids = vocabulary.pair(vocabulary.encode(query), body, 9)
                types = np.arange(9) > ids.index(vocabulary.sep_id)
                padded = np.pad(ids, (0, 9 - len(ids)), constant_values=-1)
                pair = Text.from_ids(
                    *(jax.numpy.asarray([x], jax.numpy.int32) for x in (padded, types * (padded >= 0)))
                )
                expected[row] = float(score_alone(model, pair)[0])
            found = {row: score for row, score in zip(rows[number].tolist(), scores[number].tolist()) if row >= 0}
            assert found == pytest.approx(expected, abs=1e-5)
            assert list(found) == sorted(expected, key=expected.get, reverse=True)
    assert {row["system"] for row in json.loads((run.folder / "reranked" / "results.json").read_text())} == {
        "bm25+rerank@2",
        "bm25+rerank@5",
    }
    assert "## Reranking by depth" in (run.folder / "report.md").read_text()
