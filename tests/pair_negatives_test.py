"""Negatives of pairs by an embedder: against loops in float64, files that are read again, kills, and bad input."""

import json

import numpy as np
import pytest
from support import embedder_folders

import configs.mine
import retrieval
from retrieval import LOCK
from retrieval.common.errors import UserError
from retrieval.data.labelled import labelled_format
from retrieval.data.labelled.labelled_format import Settings
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.runs.pairs import hard_negatives
from retrieval.runs.pipeline import preflight, runner
from retrieval.runs.pipeline.run import Run
from retrieval.search import encoding

WORDS = "the a dog fox cat sat ran saw sea moon sun tree house red blue green old new two three".split()

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def texts():
    rng = np.random.default_rng(0)
    return list(dict.fromkeys(" ".join(rng.choice(WORDS, rng.integers(4, 12))) for _ in range(90)))


@pytest.fixture(scope="module")
def examples(texts):
    """Of 20 queries; two differ in a capital alone, and one is a document of another."""
    rng = np.random.default_rng(1)
    queries = [*texts[:18], texts[0].capitalize(), texts[61]]
    return {query: [texts[place] for place in rng.choice(range(20, 60), 1 + n % 3)] for n, query in enumerate(queries)}


@pytest.fixture(scope="module")
def files(texts, examples, tmp_path_factory):
    """A file of pairs, with a negative, and a collection in which a text comes twice and one is empty."""
    folder = tmp_path_factory.mktemp("files")
    lines = [{"query": query, "pos": positives, "neg": [texts[61]]} for query, positives in examples.items()]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    lines = [{"_id": f"d{n}", "title": "A title", "text": text} for n, text in enumerate([*texts[60:], texts[70]])]
    lines.append({"_id": "empty", "title": "", "text": " "})
    (folder / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(embedder_folders.modernbert(tmp_path_factory.mktemp("model") / "embedder"))


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    vocabulary = WordPiece([*SPECIAL_TOKENS, *WORDS])
    return str(embedder_folders.cross_encoder(tmp_path_factory.mktemp("model"), vocabulary)[0])


@pytest.fixture(scope="module")
def asked(files, model):
    """A run of configs/mine.py, with changed fields."""

    def run(folder, **changes):
        config = configs.mine.get_config(model)
        config.update_from_flattened_dict({"pairs.files": str(files / "pairs.jsonl"), "mine.relative_margin": 0.01})
        config.update_from_flattened_dict(changes)
        return Run(config, folder, LOCK)

    return run


def mined(run):
    """What a run writes: positives and negatives of each query."""
    preflight.check(run, ["mine"])
    runner.take_run(run)
    runner.run_stage(run, "mine")
    rows = [json.loads(line) for line in (run.negatives / "negatives.jsonl").read_text().splitlines()]
    sides = ("positive_passages", "negative_passages")
    return {row["query"]: tuple([text["text"] for text in row[side]] for side in sides) for row in rows}


def read_again(path):
    """Positives and negatives of each query, as another run reads a file."""
    with labelled_format.grouped([path], Settings("", "", "", 0), path.parent, 1000) as (groups, _):
        return {
            group.query: tuple({text.text for text in side} for side in (group.positives, group.negatives))
            for group in groups
        }


def left(query, documents, examples, score, margin):
    """Candidates that may be negatives, best first."""
    known = {text for other, own in examples.items() if other.lower() == query.lower() for text in own}
    worst = min(score[text] for text in examples[query])
    ranked = sorted(set(documents) - known - {query}, key=lambda text: -score[text])
    return [text for text in ranked if score[text] <= worst - margin * abs(worst)]


def test_negatives_are_those_of_a_loop(asked, examples, texts, model, tmp_path):
    """All documents of the pairs are candidates; the worst positive counts, and that of the query spelled otherwise."""
    found = mined(run := asked(tmp_path / "run"))
    documents = list(dict.fromkeys(text for positives in examples.values() for text in (*positives, texts[61])))
    towers = retrieval.load(model)
    embeddings = dict(zip(documents, towers.encode_document(documents).astype(np.float64)))
    counts, fewer = json.loads((run.negatives / "provenance.json").read_text()), 0
    for query, vector in zip(examples, towers.encode_query(list(examples)).astype(np.float64)):
        score = {text: float(vector @ embeddings[text]) for text in documents}
        expected = left(query, documents, examples, score, 0.01)
        fewer += len(expected) < 3
        assert found.get(query, ((), []))[1] == expected[:3]
        assert query not in found or set(found[query][0]) == set(examples[query])
    assert (counts["questions"], counts["candidates"], counts["questions with fewer"]) == (20, len(documents), fewer)
    assert 0 < counts["questions without any"] <= fewer < 20 and counts["results too close to the positive"]
    assert counts["model"] == model
    assert {path.name for path in run.negatives.iterdir()} == {"negatives.jsonl", "provenance.json"}


def test_a_collection_gives_candidates(asked, files, examples, texts, tmp_path):
    """With the positives, but without the negatives of the file; empty texts are none."""
    changes = {"pairs.collection": str(files / "corpus.jsonl"), "mine.negatives": 50, "mine.relative_margin": 0.0}
    found = mined(run := asked(tmp_path / "run", **changes))
    rows = [json.loads(line) for line in (run.negatives / "negatives.jsonl").read_text().splitlines()]
    negatives = {(text["title"], text["text"]) for row in rows for text in row["negative_passages"]}
    assert {text for title, text in negatives if title} <= set(texts[60:]) and ("", texts[61]) not in negatives
    assert len(found) == 20 and ("A title", texts[61]) in negatives and ("", " ") not in negatives


@pytest.mark.parametrize("form", ["negatives", "triplet", "n-tuple"])
def test_files_are_read_again(asked, tmp_path, form):
    changes = {"mine.format": form} if form != "negatives" else {}
    whole = mined(run := asked(tmp_path / "run", **changes))
    if form == "n-tuple":
        whole = {query: own for query, own in whole.items() if len(own[1]) == 3}
    expected = {query: tuple(map(set, own)) for query, own in whole.items()}
    assert read_again(run.negatives / f"{form}.jsonl") == expected != {}


@pytest.mark.long
def test_a_stage_that_is_killed_goes_on(asked, reranker, tmp_path, monkeypatch):
    """It ends with the same bytes, in parts of any size, and embeds and judges nothing twice."""
    changes = {"mine.reranker": reranker, "mine.sampling": "random", "mine.last": 20, "encode.shard_size": 8}
    whole = asked(tmp_path / "whole", **changes)
    mined(whole)
    monkeypatch.setattr(hard_negatives, "_PART", 6)
    written, write = [], encoding.write

    def killed(path, *rest):
        if len(written) in (2, 12):
            written.append("kill")
            raise KeyboardInterrupt
        write(path, *rest)
        written.append(path)

    monkeypatch.setattr(encoding, "write", killed)
    run = asked(tmp_path / "killed", **changes)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            mined(run)
    mined(run)
    assert (run.negatives / "negatives.jsonl").read_bytes() == (whole.negatives / "negatives.jsonl").read_bytes()
    paths = [path for path in written if path != "kill"]
    assert len(paths) == len(set(paths)) > 12 and any("judged" in str(path) for path in paths)


BAD = [
    ({"mine.negatives": 500, "mine.last": 600, "mine.format": "n-tuple"}, "no question has config.mine.negatives=500"),
    ({"mine.margin": 3.0}, "no question has a negative left, from '0'"),
    ({"pairs.files": "lone.jsonl"}, r"lone\.jsonl: no query with a positive is left"),
    ({"mine.model": "reranker"}, "config.mine.model=.*: a cross-encoder, which embeds nothing; name an embedder"),
    ({"mine.reranker": "model"}, "embedder: its modules do not end in a Dense of one score; take another cross-enc"),
    ({"stages": ("mine", "pairs")}, "leave 'pairs' out of config.stages"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=lambda value: str(value)[:30])
def test_bad_input_is_told_in_a_sentence(asked, model, reranker, tmp_path, changes, message):
    (tmp_path / "lone.jsonl").write_text('{"query": "a", "positive": " "}\n')
    models = {"reranker": reranker, "model": model}
    changes = {
        name: str(tmp_path / value) if str(value).endswith(("none", "jsonl")) else models.get(str(value), value)
        for name, value in changes.items()
    }
    with pytest.raises(UserError, match=message):
        mined(asked(tmp_path / "run", **changes))
