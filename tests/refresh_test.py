"""Hard negatives on a toy set: mined by BM25 before training, and by the model in its middle."""

import json
import os
import shutil
import signal
from random import Random

import jax
import numpy as np
import pytest
from support import children
from support.refreshed_runs import assert_same, cut_off, judged, make_run, open_questions, read_shards, versions_of
from support.tiny import execute

from retrieval.common.errors import UserError
from retrieval.data.tokenizers import vocabularies
from retrieval.recipes.parameters import local_mesh, make_mesh
from retrieval.recipes.recipe import abstract_model
from retrieval.recipes.towers import Embedder, candidate_windows, query_tokens
from retrieval.runs.fitting import validation, versions
from retrieval.runs.fitting.refresh_kind import refresh_of
from retrieval.runs.pairs import hard_negatives, mined_negatives
from retrieval.runs.pairs.hard_negatives import Searched
from retrieval.runs.pipeline import preflight, records, runner
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import train_state
from retrieval.search.bm25 import Bm25Index

REFRESHED = {"stages": ("train",), "mine.refresh_every": 3, "loop.keep_checkpoints": 20}


@pytest.fixture(scope="module")
def mined(inputs, prepared, tmp_path_factory):
    """A run with the negatives of BM25, that has yet to be trained."""
    folder = tmp_path_factory.mktemp("mined") / "run"
    run = make_run(folder, inputs, **{"base": str(prepared), "train.steps": 2})
    preflight.check(run, run.config.stages)
    execute(run, "sets", "index", "mine", "pairs")
    return run


def refreshed(folder, inputs, mined, **changes):
    return make_run(folder, inputs, **REFRESHED | {"base": str(mined.folder)} | changes)


@pytest.fixture(scope="module")
def whole(inputs, mined, tmp_path_factory):
    """A run with two refreshes that nothing happened to."""
    run = refreshed(tmp_path_factory.mktemp("whole") / "run", inputs, mined)
    preflight.check(run, run.config.stages)
    execute(run)
    return run


def test_bm25s_negatives_are_its_best_without_the_positives(mined):
    golds, candidates = judged(mined)
    lines = [json.loads(line) for line in (mined.folder / "negatives" / "negatives.jsonl").read_text().splitlines()]
    assert {line["query"] for line in lines} == set(golds) and len(lines) == 14
    _, rows_QK = Bm25Index.load(mined.index("reqa", "bm25")).search([line["query"] for line in lines], len(candidates))
    for line, rows in zip(lines, rows_QK):
        best = [candidates[row] for row in rows if row >= 0]
        allowed = [text.id for text in best if (text.title, text.text) not in golds[line["query"]]][:8]
        found = [text["docid"] for text in line["negative_passages"]]
        assert len(found) == 4 and found == [id for id in allowed if id in found]
    told = json.loads((mined.folder / "negatives" / "provenance.json").read_text())
    assert (told["system"], told["rule"]["last"], told["negatives"]) == ("bm25", 8, 4 * 14)
    assert told["index"] == records.read_record(mined, "index")["inputs"]
    assert records.details(mined, "pairs")["pairs with negatives"] == 14
    assert records.details(mined, "pairs")["negatives per pair"] == 4


def test_a_question_of_another_spelling_has_the_same_positives(mined):
    mining = hard_negatives.mining_of(mined.config.mine, 0)
    mining = mining._replace(rule=mining.rule._replace(count=mining.rule.last))  # all that are left
    with open_questions(mined) as (questions, candidates):
        one, other = next((a, b) for a in questions for b in questions if a.positives != b.positives)
        spelt = [q._replace(text=f"  {one.text.upper()}") if q is other else q for q in questions]
        both, spelt = sorted({*one.positives, *other.positives}), hard_negatives.with_known(spelt)
        order = np.array(both + [row for row in range(100) if row not in both])  # what each question finds
        searched = Searched(
            spelt, candidates, [None] * 14, lambda _, k: (np.zeros((14, k)), np.tile(order[:k], (14, 1)))
        )
        negatives_of = dict(zip((question.id for question in spelt), hard_negatives.mine(mining, searched).rows))
    for question in spelt:
        if question.id in (one.id, other.id):
            assert question.known == both and not set(both) & set(negatives_of[question.id].tolist())
    drawn = hard_negatives.draw(spelt, 0.3, 0, 1)
    assert len({one.id, other.id} & {question.id for question in drawn}) in (0, 2)


def embeddings(run, step, queries, candidates):
    """By the model of a run, at one of its steps."""
    vocabulary, mesh = vocabularies.load(run.corpus), local_mesh(run.config)
    like = train_state.abstract_state(run.config, abstract_model(run.config, len(vocabulary)), mesh)
    params = train_state.open_checkpoints(run.owner("train").folder, run.config).restore(like, step=step).params
    embedder, windows = Embedder(run.config, vocabulary, mesh), candidate_windows(run.config, vocabulary, candidates)
    query_QE = embedder.embed_rows(embedder.queries(params), query_tokens(run.config, vocabulary, queries))
    return query_QE, embedder.embed_rows(embedder.documents(params), [ids for (ids,) in windows])


def assert_best_of(run, step, negatives):
    """The negatives of each query are among the first 8 of all candidates, by inner products, that are no positive."""
    vocabulary, (golds, candidates) = vocabularies.load(run.corpus), judged(run)
    query_QE, document_NE = embeddings(run, step, list(golds), candidates)
    assert len(negatives) == len(golds)
    for query, scores_N in zip(golds, query_QE @ document_NE.T):
        order = [candidates[row] for row in np.argsort(-scores_N, kind="stable")]
        texts = [(text.title, text.text) for text in order if (text.title, text.text) not in golds[query]][:8]
        key, *ids = vocabulary.encode_batch([query, *(part for text in texts for part in text)])
        key, texts = tuple(key), list(zip(map(tuple, ids[::2]), map(tuple, ids[1::2])))
        assert len(negatives[key]) == 4 and set(negatives[key]) <= set(texts)


def test_every_refresh_is_of_the_current_model(whole):
    for version in (1, 2):
        found = read_shards(whole, whole.folder / "refreshed" / f"{version:05d}")
        assert_best_of(whole, 3 * version, found)
    assert found != read_shards(whole, whole.pairs)
    lines = [json.loads(line) for line in (whole.folder / "metrics" / "train.jsonl").read_text().splitlines()]
    assert {line["step"]: line["refresh/negatives"] for line in lines if "refresh/RR" in line} == {4: 4.0, 7: 4.0}


def test_a_checkpoint_says_which_negatives_its_batches_use(whole):
    """The checkpoint of a step that a refresh follows is of the version before."""
    assert versions_of(whole) == {2: 0, 3: 0, 4: 1, 5: 1, 6: 1, 7: 2}
    vocabulary, mesh = vocabularies.load(whole.corpus), make_mesh(whole.config)
    batches = refresh_of(whole.config).batches(whole, vocabulary, mesh)
    batches.restore(whole.folder / "checkpoints" / "5" / "data")
    assert batches._version == 1
    batches.turn_to(2)
    shards = read_shards(whole, whole.folder / "refreshed" / "00002")
    allowed = {
        tuple(vocabulary.single(list(query), 16)): {tuple(vocabulary.pair(*map(list, text), 48)) for text in texts}
        for query, texts in shards.items()
    }
    batch = jax.device_get(next(batches))
    for query, documents in zip(batch["query"], batch["document"]):
        drawn = {tuple(ids[ids >= 0].tolist()) for ids in documents[1:]}
        assert drawn <= allowed[tuple(query[query >= 0].tolist())]


@pytest.mark.long
def test_a_run_cut_off_around_refreshes_ends_the_same(whole, inputs, mined, tmp_path, monkeypatch):
    run = refreshed(tmp_path / "run", inputs, mined)
    # In the middle of the first: half of the candidates are cut up.
    cut_off(monkeypatch, run, mined_negatives, "candidate_windows", 2)
    assert not list((run.folder / "refreshed").glob("*"))
    cut_off(monkeypatch, run, validation.metrics, "evaluate", 2)  # behind it, after a checkpoint of version 1
    execute(run)
    assert_same(run, whole)


@pytest.mark.long
def test_a_run_that_is_killed_over_and_over(whole, inputs, mined, tmp_path):
    """SIGKILL, at random moments of a run with two refreshes."""
    run = refreshed(tmp_path / "run", inputs, mined)
    runner.open_run(run)
    random, log = Random(0), tmp_path / "log"
    moments = [[], *([run.folder / place] for place in ("checkpoints", "refreshed/00001", "refreshed/00002"))]
    for _ in range(20):
        strike = children.Strike(random.choice(moments), random.uniform(0, 4))
        code = children.run([f"--workdir={run.folder}"], log, strike, os.environ["XLA_FLAGS"])
        assert code in (0, -signal.SIGKILL), log.read_text()
    execute(run)
    assert_same(run, whole)


def test_a_damaged_version_is_mined_again_or_refused(whole, tmp_path):
    run = Run(whole.config, shutil.copytree(whole.folder, tmp_path / "run"), whole.lock)
    path = run.folder / "refreshed" / "00002" / "stats.json"
    assert versions.is_there(run.folder, 2, 6)
    path.write_bytes(path.read_bytes()[:-1])
    assert not versions.is_there(run.folder, 2, 6)
    batches = refresh_of(run.config).batches(run, vocabularies.load(run.corpus), make_mesh(run.config))
    with pytest.raises(UserError, match=r"stats\.json: damaged, .* delete the newest checkpoint"):
        batches.turn_to(2)


@pytest.mark.parametrize(("count", "turns"), [(100, 3), (7, 6)])
def test_versions_have_all_questions_in_turn(count, turns):
    questions = [hard_negatives.Question(str(number), f"q{number}", [0], []) for number in range(count)]
    for first in (1, 1 + turns, 1 + 40 * turns):
        parts = [hard_negatives.draw(questions, 1 / turns, 0, first + turn) for turn in range(turns)]
        assert sorted(question.id for part in parts for question in part) == sorted(map(str, range(count)))
        assert {len(part) for part in parts} <= {count // turns, -(-count // turns)}


def test_the_ids_of_a_text_are_drawn_together():
    """The positives of each are no negatives of the others, which has to be known wherever one is drawn."""
    questions = [hard_negatives.Question(str(number), f"q{number // 2}", [0], []) for number in range(100)]
    for version in (1, 2):
        drawn = [question.id for question in hard_negatives.draw(questions, 0.2, 0, version)]
        assert 10 <= len(drawn) < 40 and all(int(id) ^ 1 in set(map(int, drawn)) for id in drawn)
