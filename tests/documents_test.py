"""MS MARCO's documents, from the official files to a run: FirstP, MaxP, triples of ids, negatives mined anew."""

import json

import numpy as np
import pytest
from conftest import REPOSITORY, write
from support import tiny, toy_corpus
from support.refreshed_runs import open_questions
from support.tiny import execute

from retrieval.data.sets import trec
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers import vocabularies
from retrieval.recipes.parameters import local_mesh, make_mesh, parameters_of
from retrieval.recipes.recipe import abstract_model
from retrieval.recipes.towers import Embedder, build_towers, candidate_windows, query_tokens
from retrieval.runs.fitting import validation
from retrieval.runs.pipeline import preflight
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import train_state
from retrieval.search import encoding, scann

pytestmark = pytest.mark.usefixtures("one_device")

CHANGES = tiny.CHEAP | {
    "data.document_length": 20,
    "data.negatives": 2,
    "train.batch_size": 8,
    "train.learning_rate": 1e-2,
    "loop.log_every": 1,
    "loop.validate_every": 3,
    "loop.keep_checkpoints": 20,
    "encode.shard_size": 10,
    "encode.windows": 4,
    "encode.untrained": True,
    "mine.negatives": 3,
    "mine.last": 6,
    "split.ratio": 0.75,
    "split.validation": 0.2,
    "split.set": "msmarco",
    "index.dense": "scann",
    "evaluate.depth": 20,
    "evaluate.metrics": ("RR@10", "R@20", "nDCG@10"),
}
DOCUMENTS = 24


def document(number):
    """An article in one line; every third has no title, and every fourth is a few words."""
    name = toy_corpus.title(number)
    paragraphs = [p.text for section in toy_corpus.article(number).sections for p in section.paragraphs]
    body = " ".join(paragraphs[: 1 + number % 3]) if number % 4 else f"eat {number}" * (1 + number % 8)
    return f"D{number}\thttps://zoo/{number}\t{name if number % 3 else ''}\t{body}\n"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """The official files, of 24 documents and a question on each."""
    folder = tmp_path_factory.mktemp("inputs")
    toy_corpus.write_dump(folder / "dump.xml")
    write(folder / "msmarco-docs.tsv.gz", "".join(map(document, range(DOCUMENTS))))
    asked = "".join(f"{9000 + i}\twhat does the {toy_corpus.title(i)} eat\n" for i in range(DOCUMENTS))
    write(folder / "msmarco-doctrain-queries.tsv", asked)
    relevant = (f"{9000 + i} 0 D{(i + j) % DOCUMENTS} 1\n" for i in range(DOCUMENTS) for j in range(2))
    write(folder / "msmarco-doctrain-qrels.tsv.gz", "".join(relevant))
    write(folder / "ids.tsv", "".join(f"{9000 + i}\tD{i}\tD{(i + 5) % DOCUMENTS}\n" for i in range(DOCUMENTS)))
    judged = (f"{9000 + i} Q0 D{(i + j) % DOCUMENTS} {j}\n" for i in range(5) for j in range(4))
    write(folder / "dl.qrels", "".join(judged))
    return folder


def make_run(folder, inputs, **changes):
    names = ("msmarco-docs.tsv.gz", "msmarco-doctrain-queries.tsv", "msmarco-doctrain-qrels.tsv.gz")
    of_sets = {"sets.msmarco": names, "sets.trec": (*names[:2], "dl.qrels")}
    sets = {field: ",".join(str(inputs / name) for name in own) for field, own in of_sets.items()}
    config = tiny.make_config("dpr_mined", **CHANGES | sets | changes)
    return Run(config, folder, REPOSITORY / "requirements.lock")


@pytest.fixture(scope="module")
def finished(inputs, tmp_path_factory):
    """A run with windows in validation, embeddings, both indexes, and a refresh in the middle of training."""
    folder = tmp_path_factory.mktemp("finished")
    execute(tiny.make_run("ict", inputs, folder / "corpus", stages=("prepare",)), "prepare")
    warm_up = make_run(folder / "warm_up", inputs, base=str(folder / "corpus"))
    preflight.check(warm_up, warm_up.config.stages)
    execute(warm_up, "sets", "index", "mine", "pairs")
    stages = ("train", "encode", "index", "evaluate", "report")
    changes = {"stages": stages, "base": str(warm_up.folder), "mine.refresh_every": 2}
    run = make_run(folder / "run", inputs, **changes)
    preflight.check(run, stages)
    execute(run)
    return run


def test_a_document_has_its_url_before_its_title(inputs):
    first, second, *_ = trec.read_candidates(inputs / "msmarco-docs.tsv.gz")
    name = toy_corpus.title(1)
    assert first == Candidate("D0", "https://zoo/0", document(0).rstrip("\n").split("\t")[3])
    assert (second.id, second.title) == ("D1", f"https://zoo/1 {name}")


def read_embeddings(run, name, system="trained"):
    """The windows of each candidate, and the queries."""
    windows, ids = encoding.load(run.embeddings(name, system), "candidates")
    queries, asked = encoding.load(run.embeddings(name, system), "queries")
    assert list(dict.fromkeys(ids)) == [f"D{i}" for i in range(DOCUMENTS)]
    return [windows[np.array(ids) == f"D{i}"] for i in range(DOCUMENTS)], queries, asked


def best_windows(run, name, system="trained"):
    """Scores of all candidates, [Q, N], by the best window of each."""
    windows, queries, _ = read_embeddings(run, name, system)
    return np.stack([(queries @ own.T).max(axis=1) for own in windows], axis=1)


@pytest.mark.parametrize("name", ["msmarco", "trec"])
def test_a_documents_score_is_that_of_its_best_window(finished, name):
    windows, _, asked = read_embeddings(finished, name)
    assert set(map(len, windows)) >= {1, 3, 4}
    scores_QN = best_windows(finished, name)
    systems = ["dense", *(["dense_(ScaNN)"] if scann.Scann().available() else []), "untrained"]
    for system in systems:
        if system == "untrained":
            scores_QN = best_windows(finished, name, "untrained")
        run = [line.split() for line in (finished.folder / "runs" / name / f"{system}.trec").read_text().splitlines()]
        for query, scores_N in zip(asked, scores_QN):
            found = [(document, float(score)) for id, _, document, _, score, _ in run if id == query]
            order = np.argsort(-scores_N, kind="stable")[:20]
            np.testing.assert_allclose([score for _, score in found], scores_N[order], rtol=1e-5)
            assert len({document for document, _ in found}) == 20
    assert {line.split()[2] for line in (finished.folder / "runs" / name / "hybrid.trec").open()} <= {
        f"D{i}" for i in range(DOCUMENTS)
    }


def test_a_refresh_mines_by_the_best_window(finished):
    """Its reciprocal rank is that of all documents, each by its best window, with the parameters of step 2."""
    vocabulary, config = vocabularies.load(finished.corpus), finished.config
    like = train_state.abstract_state(config, abstract_model(config, len(vocabulary)), local_mesh(config))
    params = train_state.open_checkpoints(finished.folder, config).restore(like, step=2).params
    embedder = Embedder(config, vocabulary, local_mesh(config))

    def embed(rows, function):
        return encoding.encode_rows(rows, function, 1024, 20, 8)

    with open_questions(finished) as (questions, candidates):
        texts = [candidates[row] for row in range(len(candidates))]
    rows = candidate_windows(config, vocabulary, texts)
    documents = [embed(own, embedder.documents(params)) for own in rows]
    asked = embed(query_tokens(config, vocabulary, [q.text for q in questions]), embedder.queries(params))
    told = json.loads((finished.folder / "refreshed" / "00001" / "made.json").read_text())
    assert (told["questions"], told["candidates"], told["negatives"]) == (len(questions), DOCUMENTS, 3 * len(questions))
    ranks = []
    for question, query_E in zip(questions, asked):
        order = np.argsort([-(own @ query_E).max() for own in documents], kind="stable").tolist()
        ranks.append(1 + min(map(order.index, question.positives)))
    ranks = np.array(ranks)
    assert told["RR"] == pytest.approx(np.where(ranks <= 8, 1 / ranks, 0).mean(), abs=1e-6)  # 6, and two positives


def test_validation_folds_windows(finished):
    vocabulary, mesh = vocabularies.load(finished.corpus), make_mesh(finished.config)
    pool = validation._labelled_pool(finished, vocabulary)
    assert len(pool.candidates) == DOCUMENTS and set(map(len, pool.candidates.values())) >= {1, 3, 4}
    params = parameters_of(build_towers(finished.config, len(vocabulary)))
    embedder = Embedder(finished.config, vocabulary, mesh)
    queries = encoding.encode_rows(list(pool.queries.values()), embedder.queries(params), 1024, 20, 8)
    scores = np.stack(
        [
            (queries @ encoding.encode_rows(own, embedder.documents(params), 1024, 20, 8).T).max(axis=1)
            for own in pool.candidates.values()
        ],
        axis=1,
    )
    order, names = np.argsort(-scores, axis=1, kind="stable"), list(pool.candidates)
    ranks = [1 + min(row.index(names.index(d)) for d in pool.qrels[q]) for q, row in zip(pool.queries, order.tolist())]
    assert validation.make(finished, vocabulary, mesh)(params)["RR"] == pytest.approx(np.mean(1 / np.array(ranks)))
