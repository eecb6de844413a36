"""MS MARCO's documents, from the official files to a run: FirstP, MaxP, triples of ids, negatives mined anew."""

import json

import numpy as np
import pytest
from conftest import REPOSITORY, write
from support import refreshed_runs, tiny, toy_corpus
from support.tiny import execute

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

CHANGES = refreshed_runs.CHANGES | {
    "data.document_length": 20,
    "train.steps": 4,
    "loop.validate_every": 3,
    "loop.keep_checkpoints": 20,
    "encode.windows": 4,
    "encode.untrained": True,
    "mine.negatives": 3,
    "mine.last": 6,
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


def read_embeddings(run, name, system):
    """The windows of each candidate, and the queries."""
    windows, ids = encoding.load(run.embeddings(name, system), "candidates")
    queries, asked = encoding.load(run.embeddings(name, system), "queries")
    assert list(dict.fromkeys(ids)) == [f"D{i}" for i in range(DOCUMENTS)]
    return [windows[np.array(ids) == f"D{i}"] for i in range(DOCUMENTS)], queries, asked


def of_best(queries, windows):
    """Scores of all candidates, [Q, N], by the best window of each."""
    return np.stack([(queries @ own.T).max(axis=1) for own in windows], axis=1)


@pytest.mark.parametrize("name", ["msmarco", "trec"])
def test_a_documents_score_is_that_of_its_best_window(finished, name):
    systems = {"dense": "trained", "untrained": "untrained"}
    for system, of in (systems | ({"dense_(ScaNN)": "trained"} if scann.Scann().available() else {})).items():
        windows, queries, asked = read_embeddings(finished, name, of)
        assert set(map(len, windows)) >= {1, 3, 4}
        run = [line.split() for line in (finished.folder / "runs" / name / f"{system}.trec").read_text().splitlines()]
        for query, scores_N in zip(asked, of_best(queries, windows)):
            found = [(document, float(score)) for id, _, document, _, score, _ in run if id == query]
            order = np.argsort(-scores_N, kind="stable")[:20]
            np.testing.assert_allclose([score for _, score in found], scores_N[order], rtol=1e-5)
            assert len({document for document, _ in found}) == 20
    found = {line.split()[2] for line in (finished.folder / "runs" / name / "hybrid.trec").open()}
    assert found <= {f"D{i}" for i in range(DOCUMENTS)}


def test_a_refresh_mines_by_the_best_window(finished):
    """Its reciprocal rank is that of all documents, each by its best window, with the parameters of step 2."""
    vocabulary, config = vocabularies.load(finished.corpus), finished.config
    like = train_state.abstract_state(config, abstract_model(config, len(vocabulary)), local_mesh(config))
    params = train_state.open_checkpoints(finished.folder, config).restore(like, step=2).params
    embedder = Embedder(config, vocabulary, local_mesh(config))
    with refreshed_runs.open_questions(finished) as (questions, candidates):
        texts = [candidates[row] for row in range(len(candidates))]
    rows = candidate_windows(config, vocabulary, texts)
    documents = [embedder.embed_rows(embedder.documents(params), own) for own in rows]
    tokens = query_tokens(config, vocabulary, [question.text for question in questions])
    scores_QN = of_best(embedder.embed_rows(embedder.queries(params), tokens), documents)
    told = json.loads((finished.folder / "refreshed" / "00001" / "made.json").read_text())
    assert (told["questions"], told["candidates"], told["negatives"]) == (len(questions), DOCUMENTS, 3 * len(questions))
    ranks = []
    for question, scores_N in zip(questions, scores_QN):
        order = np.argsort(-scores_N, kind="stable").tolist()
        ranks.append(1 + min(map(order.index, question.positives)))
    ranks = np.array(ranks)
    assert told["RR"] == pytest.approx(np.where(ranks <= 8, 1 / ranks, 0).mean(), abs=1e-6)  # 6, and two positives


def test_validation_folds_windows(finished):
    vocabulary, mesh = vocabularies.load(finished.corpus), make_mesh(finished.config)
    pool = validation._labelled_pool(finished, vocabulary)
    assert len(pool.candidates) == DOCUMENTS and set(map(len, pool.candidates.values())) >= {1, 3, 4}
    params = parameters_of(build_towers(finished.config, len(vocabulary)))
    embedder = Embedder(finished.config, vocabulary, mesh)
    queries = embedder.embed_rows(embedder.queries(params), list(pool.queries.values()))
    documents = [embedder.embed_rows(embedder.documents(params), own) for own in pool.candidates.values()]
    order, names = np.argsort(-of_best(queries, documents), axis=1, kind="stable"), list(pool.candidates)
    ranks = [1 + min(row.index(names.index(d)) for d in pool.qrels[q]) for q, row in zip(pool.queries, order.tolist())]
    assert validation.make(finished, vocabulary, mesh)(params)["RR"] == pytest.approx(np.mean(1 / np.array(ranks)))
