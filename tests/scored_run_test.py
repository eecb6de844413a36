"""Runs on labelled examples with scores or classes, from their files to batches and a trained step."""

import io
import json

import numpy as np
import pyarrow
import pytest
from conftest import REPOSITORY, write
from pyarrow import parquet
from support import tiny, toy_hub
from support.tiny import execute

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import hub_datasets
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.recipes.parameters import make_mesh
from retrieval.runs.fitting import examples
from retrieval.runs.pipeline import preflight, records
from retrieval.runs.pipeline.run import Run

WORDS = "fox dog owl hen cow pig rat elk bee ant cat eel".split()


def make_run(folder, rows, **changes):
    """A run whose examples are these rows, checked before."""
    WordPiece([*SPECIAL_TOKENS, *WORDS]).save(folder / "vocab.txt")
    if not isinstance(rows, str):
        rows = str(write(folder / "rows.jsonl", "\n".join(map(json.dumps, rows))))
    named = {"vocab": str(folder / "vocab.txt"), "pairs.files": rows, "split.shards": 1, "stages": ("pairs", "train")}
    small = {"train.steps": 2, "train.batch_size": 8, "data.negatives": 0, "loop.validate_every": 0}
    config = tiny.make_config("dpr", **tiny.CHEAP | named | small | changes)
    run = Run(config, folder / "run", REPOSITORY / "requirements.lock")
    preflight.check(run, config.stages)
    return run


def batch_of(run):
    vocabulary = run.load_vocabulary()
    return next(examples.make_batches(run, vocabulary, make_mesh(run.config))), vocabulary


def words_of(ids, vocabulary):
    names = [*SPECIAL_TOKENS, *WORDS]
    return " ".join(names[id] for id in np.asarray(ids).tolist() if id >= len(SPECIAL_TOKENS))


def logged(run):
    """The lines of the log of training."""
    lines = map(json.loads, (run.folder / "metrics" / "train.jsonl").read_text().splitlines())
    return [line for line in lines if "loss" in line]


LISTS = [
    {
        "query": word,
        "documents": [WORDS[number - 1], f"{word} {word}", WORDS[number - 2]],
        "scores": [number / 4, 9 + number / 4, -number / 4],
    }
    for number, word in enumerate(WORDS[:9])
]


@pytest.mark.parametrize("loss", ["kl_divergence", pytest.param("margin_mse", marks=pytest.mark.long)])
def test_a_list_with_scores_is_distilled_without_another_file(tmp_path, loss):
    run = make_run(tmp_path, LISTS, **{"train.loss": loss, "data.negatives": 2})
    execute(run)
    batch, vocabulary = batch_of(run)
    expected = {(row["query"], document): x for row in LISTS for document, x in zip(row["documents"], row["scores"])}
    found = {
        (words_of(query, vocabulary), words_of(text, vocabulary)): float(score)
        for query, texts, scores in zip(*(np.asarray(batch[name]) for name in ("query", "document", "teacher")))
        for text, score in zip(texts, scores)
    }
    assert found.items() <= expected.items() and len(found) >= 12 and batch["teacher"].shape == (8, 3)
    assert (np.asarray(batch["teacher"])[:, 0] >= 9).all()  # the best one is the positive
    losses = [line["loss"] for line in logged(run)]
    assert losses and np.isfinite(losses).all()


PAIRS = [{"sentence1": word, "sentence2": WORDS[number - 1], "score": number / 12} for number, word in enumerate(WORDS)]
OF_COSINES = {"train.loss": "cosent", "model.normalize": True, "train.temperature": 0.05}


def test_pairs_with_a_score_are_trained_on_by_their_order(tmp_path):
    run = make_run(tmp_path, PAIRS, **OF_COSINES)
    execute(run)
    batch, vocabulary = batch_of(run)
    expected = {(row["sentence1"], row["sentence2"]): row["score"] for row in PAIRS}
    for query, texts, scores in zip(*(np.asarray(batch[name]) for name in ("query", "document", "teacher"))):
        pair = words_of(query, vocabulary), words_of(texts[0], vocabulary)
        assert scores.shape == (1,) and expected[pair] == pytest.approx(scores[0])
    assert records.details(run, "pairs")["validation queries"] == 0
    assert all(line["loss"] > 0 and -1 <= line["correlation"] <= 1 for line in logged(run)) and logged(run)


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        (PAIRS, {}, r"rows\.jsonl: pairs of texts with a score, none of which is a right answer, .* one of cosent"),
        (PAIRS, OF_COSINES | {"loop.validate_every": 2}, r"validate_every=2 looks for the right documents of queries"),
        (PAIRS, OF_COSINES | {"data.negatives": 1}, r"compares two texts: set config.data.negatives=1 to 0"),
        (PAIRS, OF_COSINES | {"model.normalize": False}, r"loss=cosent compares cosines.*model.normalize=True"),
        (PAIRS, OF_COSINES | {"sets.labelled": "rows.jsonl"}, r"rows\.jsonl: two texts and how alike they are"),
        ([LISTS[0] | {"scores": [1, 2]}], {}, r"rows\.jsonl, line 1: 2 numbers in scores, of 3 positives and 0 neg"),
        (LISTS, {"pairs.positives": 1}, r"examples have .* the scores of their record, in config.pairs.files"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_run(tmp_path, monkeypatch, rows, changes, message):
    monkeypatch.chdir(tmp_path)
    sets = {"stages": ("sets", "pairs", "train")} if "sets.labelled" in changes else {}
    with pytest.raises(UserError, match=message) as refused:
        make_run(tmp_path, rows, **changes | sets)
    assert "\n" not in str(refused.value)


def test_scores_beyond_a_cosine_are_no_target_of_one(tmp_path):
    rows = [row | {"score": 5 * row["score"]} for row in PAIRS]
    run = make_run(tmp_path, rows, **OF_COSINES | {"train.loss": "cosine_mse", "train.temperature": 1.0})
    execute(run, "pairs")
    with pytest.raises(UserError, match=r"scores from 0 to 4\.58.*, and .*loss=cosine_mse takes them from -1"):
        execute(run, "train")


def test_files_with_scores_and_files_with_positives_do_not_mix(tmp_path):
    both = write(tmp_path / "a.jsonl", json.dumps(PAIRS[0])), write(tmp_path / "b.jsonl", json.dumps(LISTS[0]))
    with pytest.raises(UserError, match=r"a\.jsonl has pairs with a score, and .*b\.jsonl positives"):
        make_run(tmp_path, ",".join(map(str, both)), **OF_COSINES)


def test_texts_of_a_class_are_no_negatives_of_each_other(tmp_path):
    """A document has the id of its class, which is that of each positive of the class."""
    rows = [{"text": word, "label": number % 3} for number, word in enumerate(WORDS)]
    run = make_run(tmp_path, rows, **{"split.validation": 0.1})
    execute(run)
    batch, vocabulary = batch_of(run)
    label = {row["text"]: row["label"] for row in rows}
    pairs = [
        (label[words_of(query, vocabulary)], label[words_of(texts[0], vocabulary)], int(ids[0]))
        for query, texts, ids in zip(*(np.asarray(batch[name]) for name in ("query", "document", "document_id")))
    ]
    assert all(asked == answered for asked, answered, _ in pairs)
    assert len({(answered, id) for _, answered, id in pairs}) == len({id for *_, id in pairs}) == 3
    assert files.read_json(run.pairs / "stats.json")["most positives"] == 1  # a batch needs no list of them


def test_a_data_set_of_the_hub_is_trained_on_and_its_commit_recorded(tmp_path, monkeypatch):
    rows = {name: [str(row[name]) for row in PAIRS[:9]] for name in ("sentence1", "sentence2")}
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(rows), file)
    sets = {"me/pairs": {"all/train-0-of-1.parquet": file.getvalue()}}
    hub_datasets.local.cache_clear()
    with toy_hub.served(sets, tmp_path / "cache", monkeypatch):
        run = make_run(tmp_path, "hf:datasets/me/pairs:all")
        execute(run, "pairs")
    details = records.details(run, "pairs")
    assert details["commits"] == {"hf:datasets/me/pairs:all": toy_hub.COMMIT} and details["pairs"] == 8
    hub_datasets.local.cache_clear()


@pytest.mark.long
def test_a_source_of_several_has_the_scores_of_its_records(tmp_path):
    """Beside one of pairs, with a loss of its own. Nothing is validated on where a source has pairs with a score."""
    write(tmp_path / "lists.jsonl", "\n".join(map(json.dumps, LISTS)))
    write(tmp_path / "pairs.jsonl", "\n".join(json.dumps({"query": word, "answer": f"{word} ant"}) for word in WORDS))
    write(tmp_path / "sts.jsonl", "\n".join(map(json.dumps, PAIRS)))
    tables = {"lists": ("kl_divergence", 2), "pairs": ("in_batch_softmax", 0), "sts": ("cosent", 0)}
    text = "".join(
        f'[{name}]\nfiles = "{tmp_path}/{name}.jsonl"\nloss = "{loss}"\nnegatives = {negatives}\nweight = 1.0\n'
        for name, (loss, negatives) in tables.items()
    )
    several = {"pairs.files": "", "pairs.sources": text, "model.normalize": True}
    run = make_run(tmp_path, "", **several)
    execute(run)
    written = {name: files.read_json(run.pairs / "sources" / name / "stats.json") for name in tables}
    assert [written[name]["has teacher"] for name in tables] == [True, False, True]
    assert written["sts"]["scored pairs"] and records.details(run, "pairs")["validation queries"] == 0
    assert written["lists"]["scores"] == [-2.0, 11.0] and np.isfinite([line["loss"] for line in logged(run)]).all()
    (other := tmp_path / "other").mkdir()
    with pytest.raises(UserError, match=r"source 'sts': .*sts\.jsonl: pairs of texts with a score"):
        make_run(other, "", **several | {"pairs.sources": text.replace("cosent", "in_batch_softmax")})
    with pytest.raises(UserError, match=r"source 'lists': .* scores of each record, and config.pairs.positives=5"):
        make_run(other, "", **several | {"pairs.positives": 5})
