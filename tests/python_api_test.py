"""`import retrieval`: load a run, encode, index one's own documents, search, and run an experiment."""

import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from conftest import REPOSITORY
from support import tiny, toy_corpus
from support.tiny import execute

import retrieval
from retrieval.api import finished_run, stored_index
from retrieval.api.finished_run import FinishedRun
from retrieval.api.own_search import OwnSearch
from retrieval.common.errors import UserError
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.runs.pipeline import records
from retrieval.runs.pipeline.run import Run
from retrieval.search import encoding

WORDS = {word.lower() for text in (*toy_corpus.COLOURS, *toy_corpus.ANIMALS) for word in text.split()}
DOCUMENTS = ["the red fox sleeps", {"id": "owl", "title": "owls", "text": "an owl sees at night"}, "a blue whale"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of labelled examples whose passages are indexed."""
    folder = tmp_path_factory.mktemp("api")
    others = ["the", "an", "a", "sees", "sleeps", "night", "whale"]
    WordPiece([*SPECIAL_TOKENS, *sorted(WORDS), *others]).save(folder / "vocab.txt")
    pairs = [{"query": f"where is the {name}", "positives": [f"the {name} sleeps"]} for name in toy_corpus.ANIMALS]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    changes = {"vocab": str(folder / "vocab.txt"), "pairs.files": str(folder / "pairs.jsonl"), "data.negatives": 0}
    changes |= {"data.prompts": ("lost=the red fox ",), "data.lanes": 1, "split.shards": 1, "train.batch_size": 8}
    changes |= {"train.steps": 2, "loop.validate_every": 0, "encode.corpus": True}
    changes |= {"stages": ("sets", "pairs", "train", "encode", "index")}
    made = Run(tiny.make_config("dpr", **tiny.CHEAP | changes), folder / "run", REPOSITORY / "requirements.lock")
    execute(made)
    return made


@pytest.fixture(scope="module")
def model(run):
    return retrieval.load(run.folder)


def test_the_import_is_light():
    """And keeps the libraries that come later from telling what they find in the machine."""
    program = (
        "import os, sys, retrieval; print([m for m in ('jax', 'tensorflow', 'numpy', 'absl') if m in sys.modules], "
        "os.environ['TF_CPP_MIN_LOG_LEVEL'])"
    )
    variables = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    said = subprocess.check_output([sys.executable, "-c", program], cwd=REPOSITORY, env=variables, text=True)
    assert said.strip() == "[] 3"
    assert {"load", "run", "Model", "DocumentIndex", "Hit", "FinishedRun"} <= set(dir(retrieval))


def test_embeddings_are_those_of_the_stage_encode(run, model):
    embedded, ids = encoding.load(run.embeddings("corpus", "trained"), "candidates")
    texts = [json.loads(line) for path in run.passages for line in path.open()]
    assert [text["_id"] for text in texts] == ids
    np.testing.assert_allclose(model.encode_document(texts), embedded, atol=1e-6)
    assert len(model.encode_document([{"id": "1", "text": "a"}, "b", {"id": "1", "text": "c"}])) == 3


def test_one_text_is_a_vector_and_options_are_those_of_sentence_transformers(model):
    texts = ["the red fox", "owl", "a blue whale"]
    for encode in (model.encode_query, model.encode_document):
        whole = encode(texts)
        np.testing.assert_allclose(encode(texts[1]), whole[1], atol=1e-6)
        np.testing.assert_allclose(encode(texts, batch_size=2, show_progress_bar=True), whole, atol=1e-6)
        cut = whole[:, :4]
        np.testing.assert_allclose(encode(texts, truncate_dim=4), cut, atol=1e-6)
        unit = cut / np.linalg.norm(cut, axis=1, keepdims=True)
        np.testing.assert_allclose(encode(texts, truncate_dim=4, normalize_embeddings=True), unit, atol=1e-5)
        assert encode([]).shape == (0, whole.shape[1])
        for option in ("batch_size", "truncate_dim"):
            with pytest.raises(UserError, match=f"{option}=-1: "):
                encode(texts, **{option: -1})
    assert model.similarity_fn_name == "cosine"
    queries, documents = model.encode_query(texts), model.encode_document(texts[:2])
    np.testing.assert_allclose(model.similarity(queries, documents), queries @ documents.T, rtol=1e-5)
    np.testing.assert_allclose(model.similarity(queries[0], documents), queries[:1] @ documents.T, rtol=1e-5)


RECORDS = [{"text": f"the red\u2028fox {n}\x85", "lang": ["en", "de"][n % 2], "n": n} for n in range(40)]


@pytest.mark.parametrize("kind", ["exact", "bm25", "hybrid"])
def test_a_filter_is_exact_and_hits_carry_metadata(model, kind):
    index, k = model.index(RECORDS, kind), 5
    for some, fits in (
        ({"lang": "de"}, lambda record: record["lang"] == "de"),
        ({"n": [1, 7, 39], "lang": "de"}, lambda record: record["n"] in (1, 7, 39)),
        (lambda metadata: metadata["n"] > 37, lambda record: record["n"] > 37),
        ({"lang": {"fr"}}, lambda record: False),
    ):
        hits, others = index.search("red fox", k, filter=some), index.search("red fox", 40)
        expected = [hit for hit in others if fits(hit.metadata)][:k]
        if kind == "hybrid":  # merged after the filter
            assert {hit.id for hit in hits} <= {hit.id for hit in others if fits(hit.metadata)}
            assert len(hits) == len(expected)
        else:
            assert hits == expected
    assert hits == [] and others[0].metadata.keys() == {"lang", "n"}
    with pytest.raises(UserError, match=r"filter='de': a dict like"):
        index.search("red fox", filter="de")
    with pytest.raises(UserError, match="no document has 'lagn' as metadata"):
        index.search("red fox", filter={"lagn": "de"})


@pytest.mark.parametrize("kind", ["exact", "bm25", "hybrid", "quantised"])
def test_a_saved_index_is_the_same_index(model, run, kind, tmp_path):
    index = model.index(RECORDS, kind)
    index.save(tmp_path / "index")
    again = retrieval.load_index(tmp_path / "index")
    assert repr(again) == repr(index)
    assert again.search("red fox", 7) == index.search("red fox", 7)
    if kind == "exact":
        stored = stored_index.read(tmp_path / "index")
        stored.arrays["embeddings"] += 0.01
        with pytest.raises(UserError, match="the index was made with another model than"):
            model.over_stored(stored, is_checked=False)
        damaged = tmp_path / "index" / "documents.jsonl"
        damaged.write_text(damaged.read_text().replace("fox 1", "fix 1"))
        with pytest.raises(UserError, match=r"documents\.jsonl: damaged"):
            retrieval.load_index(tmp_path / "index")
        with pytest.raises(UserError, match="there is something else than an index"):
            index.save(tmp_path)
        with pytest.raises(UserError, match="the index is a part of its run"):
            model.index(kind="exact").save(tmp_path / "other")
        retrieval.load(run.folder, truncate_dim=4).index(RECORDS).save(tmp_path / "small")
        assert retrieval.load_index(tmp_path / "small").search("red fox")
        with pytest.raises(UserError, match=r"was loaded with \('', '', 4\), not \('', '', 0\)"):
            retrieval.load_index(tmp_path / "small", model)


def test_the_guides_lines_about_a_kept_index_run(model, tmp_path, monkeypatch):
    page = (REPOSITORY / "docs" / "guides" / "python.md").read_text()
    (lines,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "load_index" in block]
    monkeypatch.chdir(tmp_path)
    exec(lines, {"model": model, "retrieval": retrieval})
    assert (tmp_path / "fox-index" / "manifest.json").exists()


def test_a_run_whose_training_has_not_ended_is_refused(run, tmp_path):
    """Its checkpoints can be read already."""
    begun = Run(run.config, shutil.copytree(run.folder, tmp_path / "begun"), run.lock)
    records.write_record(begun, "train", records.record_of(begun, "train") | {"done": False})
    with pytest.raises(UserError, match=r"/begun: the training has not ended: `.* --workdir=.*/begun` goes on with it"):
        FinishedRun(begun.folder).load()


@pytest.mark.parametrize("kind", ["exact", "bm25", "hybrid"])
def test_documents_of_ones_own_are_searched(model, kind):
    index = model.index(DOCUMENTS, kind=kind)
    hits = index.search("where is the owl at night", k=2)
    assert len(index) == 3 and kind.replace("hybrid", "bm25 + exact") in repr(index)
    assert hits[0].score >= hits[-1].score
    if kind != "exact":  # two steps teach the towers nothing
        assert hits[0][:3] == ("owl", "owls", "an owl sees at night")
    own = model.index(kind=kind)  # the run's passages are the default
    assert len(own) == len(toy_corpus.ANIMALS) and (kind == "exact" or "yak" in own.search("the yak")[0].text)


def test_a_search_embeds_its_query_with_the_prompt_that_is_named(run):
    own = OwnSearch(run, 5)
    (named,), (written,) = own.search(["sleeps"], 3, (), "lost"), own.search(["the red fox sleeps"], 3)
    assert named["dense"] == written["dense"] != own.search(["sleeps"], 3)[0]["dense"]
    assert named["bm25"] == own.search(["sleeps"], 3)[0]["bm25"] != written["bm25"]
    with pytest.raises(UserError, match="unknown prompt 'lots': did you mean lost"):
        own.search(["sleeps"], 3, (), "lots")


def test_a_folder_is_cut_into_passages(model, tmp_path):
    (tmp_path / "a.md").write_text("# Owls\n\n" + "the owl sees at night. " * 20)
    (tmp_path / "b.txt").write_text("the red fox sleeps the red fox sleeps.")
    index = model.index(tmp_path, kind="bm25")
    hit = index.search("owl", k=1)[0]
    assert len(index) > 2 and hit.id.startswith("a.md:") and hit.title == "Owls"


def test_columns_are_those_that_the_run_names(run, tmp_path):
    tickets = f"id,text,description\nn7,{'the red fox sleeps ' * 3},{'the owl sees at night ' * 3}\n"
    (tmp_path / "tickets.csv").write_text(tickets)
    assert retrieval.load(run.folder).index(tmp_path / "tickets.csv", kind="bm25").search("fox")
    shutil.copytree(run.folder, tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["documents"].update(text="description", base_url="https://a.example/tickets/")
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    of_run = retrieval.load(tmp_path / "run")
    (hit,) = of_run.index(tmp_path / "tickets.csv", kind="bm25").search("owl")
    assert (hit.id, hit.url) == ("n7:0", "https://a.example/tickets/n7")
    (own, *_) = of_run.index(kind="bm25").search("yak")
    assert own.url == f"https://a.example/tickets/{own.id}"  # passages of labelled examples are no parts of documents


def test_a_run_of_older_passages_or_without_training_is_refused_and_left_as_it_was(run, tmp_path):
    copy = shutil.copytree(run.folder, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    with pytest.raises(UserError, match="has no checkpoint, so no model can be read"):
        retrieval.load(copy)
    assert not (copy / "checkpoints").exists()
    shutil.copytree(run.folder / "checkpoints", copy / "checkpoints")
    path = copy / "pairs" / "passages.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(UserError, match=r"passages\.jsonl"):
        retrieval.load(copy).index(kind="exact")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.encode_query({"a": "one"}), "takes a text or a list of texts"),
        (lambda m: m.index({"a": "one text"}), "a list of texts or records is needed, not dict"),
        (lambda m: m.index([{"id": 1, "text": "a"}, {"id": "1", "text": "b"}]), "document 1: the id '1' is there"),
        (lambda m: m.encode_query(["\ud800"]), "query 0 has half of a surrogate pair"),
        (
            lambda m: m.index("an owl sees at night. " * 99),
            r"^'an owl .*…' is no path \(.*\); for one text write \[text\]",
        ),
        (lambda m: retrieval.load("no/such/run"), "no/such/run: neither a work directory"),
        (lambda m: retrieval.run("dpr", "x", "train.steps=1"), "overrides='train.steps=1': fields and values"),
    ],
)
def test_mistakes_are_one_sentence(model, call, message):
    with pytest.raises(UserError, match=message):
        call(model)


def test_a_run_from_python_is_the_program(tmp_path, capfd):
    toy = toy_corpus.write_set(tmp_path / "toy", {"c": "the red fox"}, {"q": "red fox"}, {"q": "c"})
    stages = ("sets", "index", "evaluate", "report")
    done = retrieval.run("bm25", tmp_path / "run", {"sets.beir": str(toy), "sets.pydocs": False, "stages": stages})
    assert {row["dataset"] for row in done.results} == {"toy"} and "bm25" in done._repr_markdown_().lower()
    assert "evaluate: done" in capfd.readouterr().out
    with pytest.raises(UserError, match=r"config\.sets\.bier.*did you mean config\.sets\.beir"):
        retrieval.run("bm25", tmp_path / "other", {"sets.bier": "x"}, quiet=True)


def test_ctrl_c_waits_until_the_program_has_saved(tmp_path, monkeypatch):
    program = tmp_path / "program"
    program.write_text(
        f"#!{sys.executable}\nimport pathlib, signal, sys, time\n"
        f"def save(*_): time.sleep(0.3); pathlib.Path({str(tmp_path / 'saved')!r}).touch(); sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, save)\nprint('step 1', flush=True)\ntime.sleep(60)\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))

    def interrupted(line):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finished_run.run_program({}, tmp_path / "run", interrupted)
    assert (tmp_path / "saved").exists()
