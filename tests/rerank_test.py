"""The stage `rerank`: on published runs, with a model against scores one by one, and what is refused."""

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
from retrieval import text_files
from retrieval.data.sets import beir
from retrieval.data.tokenizers import tokenizer_files
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.errors import UserError
from retrieval.evaluation import runs
from retrieval.methods.reranker import rerankers
from retrieval.methods.reranker.export_folder import write_cross_encoder
from retrieval.methods.reranker.model import CrossEncoder
from retrieval.methods.reranker.pair_scores import Lengths
from retrieval.methods.reranker.reranking import PairReranker
from retrieval.methods.reranker.scored_pairs import Scorer
from retrieval.methods.writer.judges import QueryJudge
from retrieval.models.text import Text
from retrieval.models.transformer import TransformerConfig
from retrieval.pipeline import preflight, records
from retrieval.search import encoding
from retrieval.stage_outputs import Run
from retrieval.stages import evaluated_runs


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


@pytest.fixture(scope="module")
def deep_learning(shared_data, tmp_path_factory):
    """The runs of DL 2019, of which BM25's is put in the order of another."""
    folder = shared_data / "msmarco" / "passage_pool" / "runs"
    files = {path.name.partition(".")[0]: path for path in sorted(folder.glob("*.dl19.trec"))}
    topics = tmp_path_factory.mktemp("dl19") / "topics.tsv"
    queries = [json.loads(line) for line in (folder.parent / "queries.dl19.jsonl").read_text().splitlines()]
    topics.write_text("".join(f"{query['_id']}\t{query['text']}\n" for query in queries))
    run = published(
        topics.parent / "run",
        (topics, shared_data / "msmarco" / "qrels.dl19-passage.txt"),
        files,
        **{
            "evaluate.depth": 100,
            "evaluate.metrics": ("nDCG@10",),
            "rerank.systems": tuple(files),
            "rerank.model": "SPLADE_P_P_ENSEMBLE_DISTIL",
            "rerank.depths": (5, 10, 50, 100),
            "rerank.measures": ("nDCG@10",),
            "rerank.trained_on": ("BM25",),
        },
    )
    preflight.check(run, run.config.stages)
    execute(run)
    return run


# What others measured, with the first 100 of BM25.
CONSISTENCY = {
    "BM25": (1, 1, 1, 1),
    "D_BERT_KD_TASB": (0.693, 0.640, 0.432, 0.327),
    "SPLADE_P_P_ENSEMBLE_DISTIL": (0.735, 0.677, 0.475, 0.359),
    "REP_LLAMA": (0.707, 0.658, 0.433, 0.321),
    "BM25_RM3": (1.000, 0.986, 0.881, 0.722),
}
NDCG = {"BM25": 0.5058, "BM25_RM3": 0.5216, "D_BERT_KD_TASB": 0.7210, "SPLADE_P_P_ENSEMBLE_DISTIL": 0.7308}


def test_consistency_factors_of_published_runs(deep_learning):
    told = records.details(deep_learning, "rerank")["consistency"]
    factors = {row["system"]: list(row["factors"].values()) for row in told}
    assert len(factors) == 6 and all(row["trained on"] == "BM25" for row in told)
    for system, expected in CONSISTENCY.items():
        np.testing.assert_allclose(factors[system], expected, atol=5.1e-4)
    report = (deep_learning.folder / "report.md").read_text()
    assert "## Consistency factor" in report and "| 0.693 | 0.640 | 0.432 | 0.327 |" in report


def test_published_runs_before_and_after(deep_learning):
    """A system in its own order stays as it is; the first 10 of one measure as they did in all of its list."""
    table = {(row["system"], row["depth"]): row for row in records.details(deep_learning, "rerank")["depths"]}
    for system, expected in NDCG.items():
        assert table[system, 100]["before"]["nDCG@10"] == pytest.approx(expected, abs=5e-5)
    for depth in (5, 10, 50, 100):
        own = table["SPLADE_P_P_ENSEMBLE_DISTIL", depth]
        assert own["after"] == own["before"]
    assert table["BM25", 100]["after"]["nDCG@10"] > 0.63  # BM25's 0.506 before
    rows = json.loads((deep_learning.folder / "reranked" / "results.json").read_text())
    values = {row["system"]: row["value"] for row in rows}
    assert values["BM25+rerank@100"] == pytest.approx(table["BM25", 100]["after"]["nDCG@10"], abs=1e-6)
    assert "BM25+rerank@100" in (deep_learning.folder / "report.md").read_text()


def test_depths_of_monobert_are_those_of_the_official_scorer(shared_data, tmp_path):
    """105 queries of MS MARCO's dev set, and the first 1,000 of BM25 in monoBERT's order."""
    folder, dev = shared_data / "msmarco" / "rerank_runs", shared_data / "msmarco" / "dev_small"
    files = {"bm25": folder / "run.bm25.tsv", "monobert": folder / "run.monobert.tsv"}
    wanted = (5, 10, 50, 500, 1000)
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
    tokenizer_files.write_tokenizer(folder, vocabulary, length=16, types=2)
    return folder, model


def with_model(place, toy, folder, **changes):
    """BM25 over the toy set, and its first results in the order of a model."""
    config = bm25.get_config()
    config.stages = ("sets", "index", "evaluate", "rerank", "report")
    config.sets.beir = str(toy)
    config.data.update(query_length=6, document_length=9)
    config.model.dtype = "float32"
    config.encode.batch_tokens = 64
    more = {
        "rerank.model": str(folder),
        "rerank.depths": (2, 5),
        "rerank.shard_size": 4,
        "evaluate.metrics": ("RR@10",),
    }
    return make_run(place, config, **more | changes)


def read_run(path, queries=tuple(QUERIES)):
    ids = [f"d{row}" for row in range(len(TEXTS))]
    return runs.read_run(path, text_files.lines, queries, ids)


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
                beginning = vocabulary.single(vocabulary.encode(query), 6)
                ids = [*beginning, *body[: 9 - len(beginning) - 1], vocabulary.sep_id]
                types = np.arange(9) >= len(beginning)
                padded = np.pad(ids, (0, 9 - len(ids)))
                pair = Text.from_ids(*(jax.numpy.asarray([x], jax.numpy.int32) for x in (padded, types * (padded > 0))))
                expected[row] = float(score_alone(model, pair)[0])
            found = {row: score for row, score in zip(rows[number].tolist(), scores[number].tolist()) if row >= 0}
            assert found == pytest.approx(expected, abs=1e-5)
            assert list(found) == sorted(expected, key=expected.get, reverse=True)
    assert {row["system"] for row in json.loads((run.folder / "reranked" / "results.json").read_text())} == {
        "bm25+rerank@2",
        "bm25+rerank@5",
    }
    assert "## Reranking by depth" in (run.folder / "report.md").read_text()


def contents(folder):
    paths = [path for path in (folder / "reranked").rglob("*") if path.is_file() and path.name != "results.json"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_a_killed_run_ends_with_the_same_bytes(toy, cross_encoder, tmp_path, monkeypatch):
    """After every file of scores; those that are there are not scored again."""
    whole = with_model(tmp_path / "whole", toy, cross_encoder[0])
    execute(whole)
    shards = sorted((whole.folder / "reranked" / "scores").rglob("*.npy"))
    assert len(shards) > 1
    run = with_model(tmp_path / "run", toy, cross_encoder[0])
    execute(run, "sets", "index", "evaluate")
    write = encoding.write
    written = []

    def killed_after_one(path, *rest):
        if written and written[-1] != path:
            raise KeyboardInterrupt
        written.append(path)
        write(path, *rest)

    for _ in shards[1:]:
        written.clear()
        monkeypatch.setattr(encoding, "write", killed_after_one)
        with pytest.raises(KeyboardInterrupt):
            execute(run, "rerank")
        assert not (run.folder / "reranked" / "results.json").exists()
    monkeypatch.setattr(encoding, "write", write)
    execute(run, "rerank")
    assert contents(run.folder) == contents(whole.folder)


def test_seconds_are_of_the_pairs_that_this_process_scores(toy, cross_encoder, tmp_path):
    run = with_model(tmp_path / "run", toy, cross_encoder[0])
    scorer = Scorer(run.config, rerankers.open_reranker(run, run.config.rerank.model, "config.rerank.model"), 2)
    pairs, text = [(0, "one"), (0, "two"), (0, "three")], lambda words: beir.Candidate("", "", words)
    first, again = (scorer.score(tmp_path / "scores", ["a query"], pairs, 3, text) for _ in range(2))
    assert first.seconds > 0 and again.seconds is None
    np.testing.assert_array_equal(first.values, again.values)
    none = scorer.score(tmp_path / "none", ["a query"], [], 0, text)
    assert none.values.shape == (0,) and none.seconds is None


@pytest.mark.parametrize("scores", [(8, 7, 6), (1e9, 1e9, 1e9)])
def test_another_run_ranks_the_pairs_that_it_has(toy, tmp_path, caplog, scores):
    """By its ranks, whatever its scores."""
    other = tmp_path / "other.trec"
    lines = enumerate(zip(("d3", "d9", "d0"), scores), 1)
    other.write_text("".join(f"q0 Q0 {id} {rank} {score} x\n" for rank, (id, score) in lines))
    changes = {"runs.files": (f"other={other}",), "runs.unknown": "allow", "rerank.model": "other"}
    run = with_model(tmp_path / "run", toy, "", **changes)
    execute(run)
    _, first = read_run(run.folder / "runs" / "toy" / "bm25.trec")
    _, rows = read_run(run.folder / "reranked" / "runs" / "toy" / "bm25+rerank@5.trec")
    assert first[0, :3].tolist() == [5, 0, 3] and rows[0, :3].tolist() == [3, 0, 5]  # d5 is not in it
    assert rows[1:].tolist() == first[1:, : rows.shape[1]].tolist()
    assert "pairs are not in the run of config.rerank.model, and come last" in caplog.text


def test_a_set_without_a_run_of_the_other_system_is_left_out(toy, tmp_path, caplog):
    more = write_toy(tmp_path / "more", TEXTS)
    (tmp_path / "other.trec").write_text("q0 Q0 d3 1 1 x\n")
    changes = {"runs.files": (f"other={tmp_path / 'other.trec'}",), "runs.set": "toy", "rerank.model": "other"}
    run = with_model(tmp_path / "run", f"{toy},{more}", "", **changes)
    execute(run)
    assert {row["set"] for row in records.details(run, "rerank")["depths"]} == {"toy"}
    assert "set more: no run of config.rerank.model=other, so it is not reranked" in caplog.text


def test_two_systems_that_share_no_set_are_refused(toy, tmp_path, monkeypatch):
    run = with_model(tmp_path / "run", toy, "", **{"rerank.model": "other"})
    execute(run, "sets", "index", "evaluate")
    shared = evaluated_runs.by_set(run, ["toy"], {"bm25": "rerank.systems"})["toy"]["bm25"]
    monkeypatch.setattr(evaluated_runs, "by_set", lambda *args: {"toy": {"bm25": shared}, "more": {"other": shared}})
    with pytest.raises(UserError, match=r"no set has a run of it and of one of config\.rerank\.systems"):
        execute(run, "rerank")


def test_the_depth_of_consistency_is_that_of_the_run(toy, cross_encoder, tmp_path, caplog):
    changes = {"rerank.trained_on": ("bm25",), "rerank.trained_depth": 3, "evaluate.depth": 10}
    run = with_model(tmp_path / "run", toy, cross_encoder[0], **changes)
    execute(run)
    (row,) = records.details(run, "rerank")["consistency"]
    assert row["trained depth"] == 3 and "config.rerank.trained_depth" not in caplog.text
    assert "| toy | bm25 | bm25 | 3 | 1.000 |" in (run.folder / "report.md").read_text()
    run.config.rerank.trained_depth = 1000
    execute(run, "rerank")
    (row,) = records.details(run, "rerank")["consistency"]
    most = row["trained depth"]
    assert most < len(TEXTS) and f"consistency with bm25 goes by its first {most} results" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rerank.depths": (2, 500)}, r"config\.evaluate\.depth=100 results: raise that to 500"),
        ({"rerank.model": ""}, "no reranker, for no stage trains one here"),
        ({"evaluate.runs": False}, "with config.evaluate.runs=True"),
        ({"data.query_length": 15}, r"=15 leaves no room for a document: set config\.data\.query_length=4 at most"),
    ],
)
def test_what_cannot_be_reranked_is_refused_before_the_run(toy, cross_encoder, tmp_path, changes, message):
    run = with_model(tmp_path / "run", toy, cross_encoder[0], **changes)
    with pytest.raises(UserError, match=message):
        preflight.check(run, run.config.stages)


def test_an_error_in_the_run_leaves_nothing_half_written(cross_encoder, tmp_path):
    folder = cross_encoder[0]
    unknown = with_model(tmp_path / "a", write_toy(tmp_path / "toy", TEXTS), folder, **{"rerank.systems": ("bm26",)})
    with pytest.raises(UserError, match=r"unknown system in config\.rerank.* 'bm26': did you mean bm25"):
        execute(unknown)
    empty = write_toy(tmp_path / "empty" / "toy", [*TEXTS[:5], " "])
    (tmp_path / "x.trec").write_text("q0 Q0 d0 1 3 x\nq0 Q0 d5 2 1 x\n")
    files = {"runs.files": (f"x={tmp_path / 'x.trec'}",), "rerank.systems": ("x",), "rerank.depths": (2,)}
    with pytest.raises(UserError, match=r"corpus\.jsonl, line 6: the passage 'd5' is empty"):
        execute(with_model(tmp_path / "b", empty, folder, **files))
    with pytest.raises(UserError, match=r"the first 3 results are to be reranked, and the run of 'x'.* has at most 2"):
        execute(with_model(tmp_path / "c", empty, folder, **files | {"rerank.depths": (3,)}))
    (tmp_path / "x.trec").write_text("q0 Q0 d0 1 3 x\nq0 Q0 d77 2 1 x\n")
    with pytest.raises(UserError, match="no text of the candidate 'd77', which a run names"):
        execute(with_model(tmp_path / "d", empty, folder, **files | {"runs.unknown": "allow"}))
    for name in "abcd":
        assert not list((tmp_path / name).glob("reranked/**/*.trec"))


def test_a_vocabulary_of_another_model_is_refused(toy, cross_encoder, tmp_path):
    _, model = cross_encoder
    other = tmp_path / "other"
    other.mkdir()
    write_cross_encoder(other, model)
    run = with_model(tmp_path / "run", toy, other)
    with pytest.raises(UserError, match="no vocabulary beside the weights"):
        preflight.check(run, run.config.stages)
    WordPiece([*SPECIAL_TOKENS, *WORDS, "more"]).save(other / "vocab.txt")
    with pytest.raises(UserError, match=r"a model of 16 tokens, and .*vocab\.txt has 17"):
        preflight.check(run, run.config.stages)


def test_scores_of_written_queries_are_those_of_pairs(toy, cross_encoder, tmp_path):
    run = with_model(tmp_path / "run", toy, cross_encoder[0])
    passages = list(beir.read_candidates(toy / "corpus.jsonl"))[:4]
    queries = [*QUERIES.values()][:2] * 2
    one = PairReranker(run, str(cross_encoder[0]), "config.rerank.model")
    expected = [one.scores(query, [passage])[0] for query, passage in zip(queries, passages)]
    judge = QueryJudge(run, str(cross_encoder[0]))
    np.testing.assert_allclose(judge.scores(queries, passages), expected, rtol=1e-5, atol=1e-6)
    assert len(judge.scores([], [])) == 0


def test_what_scores_as_many_documents_is_compiled_before(toy, cross_encoder, tmp_path, monkeypatch):
    run, shapes = with_model(tmp_path / "run", toy, cross_encoder[0]), []
    reranker = PairReranker(run, str(cross_encoder[0]), "config.rerank.model")
    monkeypatch.setattr(
        reranker._scorer, "score", lambda ids_BL: shapes.append(ids_BL.shape) or np.zeros((len(ids_BL), 1))
    )
    monkeypatch.setattr(reranker._scorer, "lengths", Lengths(8, 80))
    reranker.compile(20)
    compiled, (word, *_) = set(shapes), WORDS
    for length in range(1, 200, 5):
        reranker.scores(word, [beir.Candidate(str(place), "", f"{word} " * length) for place in range(20)])
    assert set(shapes) == compiled == {(32, length) for length in (16, 32, 48, 64, 80)}
