"""The command `retrieval mine`: negatives against loops in float64, files that are read again, kills, and bad input."""

import json
import sys

import numpy as np
import pytest
from flax import nnx
from support import embedder_folders
from support.exported import work_directory
from support.modules import spread

import retrieval
from retrieval import cli, main, mine
from retrieval.data.labelled import labelled_format
from retrieval.data.labelled.labelled_format import Settings
from retrieval.data.tokenizers import tokenizer_files
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.errors import UserError
from retrieval.methods.reranker.model import CrossEncoder, write_cross_encoder
from retrieval.models.transformer_config import TransformerConfig
from retrieval.parsing import parquet_files
from retrieval.search import encoding
from retrieval.stages import negatives_file, negatives_search
from retrieval.stages.negatives_file import Asked

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
    return {
        query: [texts[place] for place in rng.choice(np.arange(20, 60), 1 + n % 3)] for n, query in enumerate(queries)
    }


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
    folder, vocabulary = tmp_path_factory.mktemp("model"), WordPiece([*SPECIAL_TOKENS, *WORDS])
    sizes = dict(num_layers=1, hidden_size=16, num_heads=2, mlp_size=24, max_length=64)
    written = spread(CrossEncoder(TransformerConfig(vocab_size=len(vocabulary), **sizes), 1, rngs=nnx.Rngs(0)))
    write_cross_encoder(folder, written)
    tokenizer_files.write_tokenizer(folder, vocabulary, length=64, types=2)
    return str(folder)


@pytest.fixture(scope="module")
def ask(files, model, tmp_path_factory):
    """What is asked for, with the embeddings of all tests in one cache."""
    cache = str(tmp_path_factory.mktemp("cache"))
    return lambda out, **more: Asked(
        **{"pairs": str(files / "pairs.jsonl"), "model": model, "out": out, "cache": cache} | more
    )


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def by_query(path):
    """Positives and negatives of each query, as a run would read them from a file."""
    with labelled_format.grouped([path], Settings("", "", "", 0), path.parent, 1000) as (groups, _):
        return {
            group.query: tuple({text.text for text in side} for side in (group.positives, group.negatives))
            for group in groups
        }


def test_negatives_are_those_of_a_loop(ask, examples, texts, model, tmp_path):
    """All documents of the pairs are candidates; the worst positive counts, and that of the query spelled otherwise."""
    counts = negatives_file.write(
        ask(tmp_path / "x.jsonl", relative_margin=0.01, max_score=0.9, format="flagembedding")
    )
    documents = list(dict.fromkeys(text for positives in examples.values() for text in (*positives, texts[61])))
    towers = retrieval.load(model)
    embeddings = dict(zip(documents, towers.encode_documents(documents).astype(np.float64)))
    found, fewer, negatives = {row["query"]: row for row in read(tmp_path / "x.jsonl")}, 0, 0
    for query, vector in zip(examples, towers.encode_queries(list(examples)).astype(np.float64)):
        known = {text for other, own in examples.items() if other.lower() == query.lower() for text in own}
        score = {text: float(vector @ embeddings[text]) for text in documents}
        worst = min(score[text] for text in examples[query])
        left = [text for text in documents if text not in known and text != query]
        left = [text for text in left if score[text] <= min(worst - 0.01 * abs(worst), 0.9)]
        expected = sorted(left, key=lambda text: -score[text])[:3]
        fewer, negatives = fewer + (len(left) < 3), negatives + len(expected)
        row = found.pop(query, {"neg": []})
        assert row["neg"] == expected
        if expected:
            assert row["pos"] == examples[query] or set(row["pos"]) == set(examples[query])
            assert row["pos_scores"] == pytest.approx([score[text] for text in row["pos"]], abs=1e-5)
            assert row["neg_scores"] == pytest.approx([score[text] for text in expected], abs=1e-5)
    assert not found and counts["queries"] == 20 and counts["candidates"] == len(documents)
    assert (counts["queries with fewer negatives"], counts["negatives"]) == (fewer, negatives)
    assert 0 < counts["queries without any"] <= fewer < 20
    assert {what for what in counts["left out"] if what.startswith("results")} == {
        "results that are positives",
        "results that are the query itself",
        "results too close to the positive",
        "results above the highest score",
    }


def test_a_collection_gives_candidates(ask, files, examples, texts, tmp_path):
    """With the positives, but without the negatives of the file."""
    asked = ask(tmp_path / "x.jsonl", collection=str(files / "corpus.jsonl"), cache="", format="tevatron", negatives=50)
    counts = negatives_file.write(asked)
    positives = {text for own in examples.values() for text in own}
    assert counts["candidates"] == len(positives) + len(texts[60:])
    assert counts["left out"]["empty documents"] == 1
    rows = read(tmp_path / "x.jsonl")
    found = {(text["title"], text["text"]) for row in rows for text in row["negative_passages"]}
    assert {text for title, text in found if title} <= set(texts[60:]) and ("", texts[61]) not in found
    assert len(rows) == 20 and ("A title", texts[61]) in found
    assert not (tmp_path / "x.jsonl.cache").exists()


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("form", ["triplet", "n-tuple", "flagembedding", "tevatron"])
def test_files_are_read_again(ask, examples, tmp_path, form, suffix):
    wanted = negatives_of(ask, tmp_path)
    negatives_file.write(ask(path := tmp_path / f"x{suffix}", format=form, margin=0.01))
    if form == "n-tuple":
        wanted = {query: own for query, own in wanted.items() if len(own) == 3}
    assert by_query(path) == {query: (set(examples[query]), own) for query, own in wanted.items()} != {}


def negatives_of(ask, folder):
    negatives_file.write(ask(folder / "wanted.jsonl", format="flagembedding", margin=0.01))
    return {row["query"]: set(row["neg"]) for row in read(folder / "wanted.jsonl")}


def test_columns_of_labels(ask, examples, tmp_path):
    wanted = negatives_of(ask, tmp_path)
    for form in ("labeled-pair", "labeled-list"):
        negatives_file.write(ask(tmp_path / f"{form}.parquet", format=form, margin=0.01))
    columns = ["anchor", "document", "label"]
    pairs = [row for _, row in parquet_files.rows(tmp_path / "labeled-pair.parquet", columns)]
    found = {query: [set(), set()] for query in examples}
    for row in pairs:
        found[row["anchor"]][row["label"]].add(row["document"])
    assert found == {query: [wanted.get(query, set()), set(own)] for query, own in examples.items()}
    columns = ["anchor", "documents", "labels"]
    for _, row in parquet_files.rows(tmp_path / "labeled-list.parquet", columns):
        assert row["labels"] == [1] + [0] * len(wanted[row["anchor"]])
        assert row["documents"][0] in examples[row["anchor"]] and set(row["documents"][1:]) == wanted[row["anchor"]]


def test_blocks_and_parts_change_nothing(ask, tmp_path, monkeypatch):
    for out in ("whole", "parts"):
        negatives_file.write(ask(tmp_path / f"{out}.jsonl", sampling="random", range_max=20, negatives=4))
        monkeypatch.setattr(negatives_search, "_BLOCK", 7)
        monkeypatch.setattr(negatives_search, "_PART", 6)
    assert (tmp_path / "whole.jsonl").read_bytes() == (tmp_path / "parts.jsonl").read_bytes()
    negatives_file.write(ask(tmp_path / "other.jsonl", sampling="random", range_max=20, negatives=4, seed=1, cache=""))
    assert (tmp_path / "whole.jsonl").read_bytes() != (tmp_path / "other.jsonl").read_bytes()


def test_a_command_that_is_killed_goes_on(ask, reranker, tmp_path, monkeypatch):
    """It ends with the same bytes, and embeds and judges nothing twice."""
    monkeypatch.setattr(negatives_file, "_SHARD", 8)
    monkeypatch.setattr(negatives_search, "_PAIRS", 50)
    negatives_file.write(ask(tmp_path / "whole.jsonl", cache="", reranker=reranker))
    written, write = [], encoding.write

    def killed(path, *rest):
        if len(written) in (2, 9):
            written.append("kill")
            raise KeyboardInterrupt
        write(path, *rest)
        written.append(path)

    monkeypatch.setattr(encoding, "write", killed)
    asked = ask(tmp_path / "killed.jsonl", cache="", reranker=reranker)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            negatives_file.write(asked)
        assert not asked.out.exists()
    counts = negatives_file.write(asked)
    assert asked.out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    paths = [path for path in written if path != "kill"]
    assert len(paths) == len(set(paths)) > 9 and any("judged" in str(path) for path in paths)
    assert negatives_file.write(asked) == counts  # it is there
    with pytest.raises(UserError, match=r"killed\.jsonl: it is there, of other settings or files; name another"):
        negatives_file.write(asked._replace(negatives=2))


def test_a_reranker_takes_the_place_of_the_scores(ask, reranker, tmp_path):
    asked = ask(tmp_path / "x.jsonl", reranker=reranker, margin=0.05, format="flagembedding")
    negatives_file.write(asked)
    rows, scorer = read(tmp_path / "x.jsonl"), negatives_file.TRAINED["reranker"]
    run = negatives_file._for_reranker(asked, negatives_file._run(asked))
    judge = scorer.open(run, reranker, "--reranker")
    for row in rows:
        documents = [negatives_search.Candidate("", "", text) for text in (*row["pos"], *row["neg"])]
        expected = judge.scores([row["query"]] * len(documents), documents)
        assert [*row["pos_scores"], *row["neg_scores"]] == pytest.approx(expected.tolist(), abs=1e-5)
        assert max(row["neg_scores"]) <= min(row["pos_scores"]) - 0.05
        assert row["neg_scores"] == sorted(row["neg_scores"], reverse=True)
    assert rows


def test_a_work_directory_is_a_model(ask, tmp_path):
    run = work_directory(tmp_path / "run")
    negatives_file.write(ask(tmp_path / "x.jsonl", model=str(run.folder), cache=""))
    assert len(read(tmp_path / "x.jsonl")) > 20


BAD = [
    ({"format": "tripel"}, r"unknown --format 'tripel': did you mean triplet\?"),
    ({"sampling": "best"}, "unknown --sampling 'best'"),
    ({"out": "x.txt"}, r"--out=.*x\.txt: end the name in \.jsonl or \.parquet"),
    ({"range_min": 5, "range_max": 7}, "--range-min=5 --range-max=7: room for 2 of --negatives=3"),
    ({"negatives": 0}, "one negative at least"),
    ({"margin": -1.0}, "--margin=-1.0: a number of at least 0"),
    ({"relative_margin": 3.0}, r"no query has a negative left among \d+ candidates \(.*results too close to the posi"),
    ({"format": "n-tuple", "negatives": 500}, "no query has 500 negatives left"),
    ({"pairs": "empty.jsonl"}, r"empty\.jsonl: the file is empty"),
    ({"pairs": "none.jsonl"}, "no such file"),
    ({"pairs": "lone.jsonl"}, r"lone\.jsonl: no query with a positive is left"),
    ({"model": "none"}, "--model=.*none: no embedder there"),
    ({"model": "reranker"}, "--model=.*: it reads pairs, and an embedder is needed"),
    ({"reranker": "model"}, "--reranker=.*: an embedder, and a model that reads pairs is needed"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=lambda value: str(value)[:30])
def test_bad_input_is_told_in_a_sentence(ask, model, reranker, tmp_path, change, message):
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "lone.jsonl").write_text('{"query": "a", "positive": " "}\n')
    models = {"reranker": reranker, "model": model}
    change = {
        name: models.get(value) or str(tmp_path / value) if name in ("pairs", "model", "reranker") else value
        for name, value in change.items()
    }
    out = tmp_path / change.pop("out", "x.jsonl")
    more = {"cache": ""} if "pairs" in change else {}
    with pytest.raises(UserError, match=message):
        negatives_file.write(ask(out, **more, **change))
    assert not out.exists()


def test_a_cache_of_other_texts_is_refused(ask, tmp_path):
    with pytest.raises(UserError, match="embeddings of other texts, or by another model; name another --cache"):
        negatives_file.write(ask(tmp_path / "x.jsonl", seed=7))


def test_the_command_prints_what_it_counted(ask, tmp_path, capsys):
    asked = ask(tmp_path / "x.jsonl")
    mine.main(
        ["", asked.pairs, f"--model={asked.model}", f"--out={asked.out}", f"--cache={asked.cache}", "--margin=0.01"]
    )
    lines = capsys.readouterr().out.splitlines()
    assert "queries: 20" in lines and any(line.startswith("left out: results too close") for line in lines)
    assert read(tmp_path / "x.jsonl")


@pytest.mark.parametrize(("more", "is_command"), [(["x.jsonl", "--out=y"], True), (["--workdir=x"], False)])
def test_the_word_is_a_command_without_a_work_directory(monkeypatch, more, is_command):
    called = []
    monkeypatch.setattr(sys, "argv", ["retrieval", "mine", *more])
    monkeypatch.setattr(cli, "run", lambda function, *args, **options: called.append(function))
    main.program()
    assert called == [mine.main if is_command else main.main]
