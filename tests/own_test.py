"""`configs/own.py`: documents and a published model, or towers of their own; then labelled pairs on top."""

import json
import logging
import math

import pytest
from support.tiny import CHEAP, execute, make_config

from configs import own as own_documents
from retrieval.common.errors import UserError
from retrieval.data import holdout
from retrieval.data.holdout import document_id
from retrieval.data.sets import beir
from retrieval.runs.fitting import validation
from retrieval.runs.pairs import labelled_groups
from retrieval.runs.pipeline import overrides, preflight, records
from retrieval.runs.pipeline.run import Run
from retrieval.stages import evaluate

pytestmark = pytest.mark.usefixtures("one_device")

WORDS = "owl park tree night moon river stone bird leaf rain wind star".split()
CHANGES = CHEAP | {"train.epochs": 1.5, "train.steps": 999, "loop.log_every": 1, "train.warmup_ratio": 0.0}


def make_run(size, folder, lock="no.lock", **changes):
    changes = {"prepare.shards": 4, "split.shards": 1, "data.lanes": 1, **CHANGES, **changes}
    return Run(make_config("own", size, **changes), folder, lock)


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """Pages with headings and without links, and pairs, of which one has a word that no other text has."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "docs").mkdir()
    for number, word in enumerate(WORDS):
        parts = [f"The {word} of part {part} has number {number}. It is {word} again, in {part}." for part in range(4)]
        text = "\n\n".join(f"## Part {part}\n\n{text}" for part, text in enumerate(parts))
        (folder / "docs" / f"my {word}.md").write_text(f"# {word}\n\nAll of {word} is here. Read on.\n\n{text}\n")
    lines = [{"query": f"home of the {word}", "positives": [f"The {word} is at home."]} for word in WORDS]
    lines += [{"query": f"only {word}", "positives": [f"{word} shines"]} for word in ("x1", "x2", "x3", "x4", "x5")]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def own(documents):
    """A run over the documents; what preparing them warns of is in its list."""
    run, warnings, handler = make_run("local", documents / "run", corpus=str(documents / "docs")), [], logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())
    log = logging.getLogger("retrieval")  # not the root: a program that ran before keeps messages from that
    log.addHandler(handler)
    execute(run, "prepare", "sets")
    log.removeHandler(handler)
    assert any("prepare: corpus: pairs of WLP: 0 of 60" in text for text in warnings)
    return run


def test_it_trains_for_epochs_on_existing_tasks(own, caplog):
    own.config.loop.update(validate_every=100, checkpoint_every=100)
    execute(own, "train")
    assert "task 'wlp' is left out: it has no example" in caplog.text and "bfs" not in caplog.text
    tasks = holdout.statistics_at(json.loads((own.corpus / "stats.json").read_text()), 0.15)["tasks"]
    epoch = tasks["ict"]["pairs"] + tasks["bfs"]["pairs"]
    lines = [json.loads(line) for line in (own.folder / "metrics" / "train.jsonl").read_text().splitlines()]
    assert any("validation/RR" in line for line in lines)
    assert records.details(own, "train")["steps"] == math.ceil(1.5 * epoch / own.config.train.batch_size) < 20
    own.config.train.epochs = 2.0
    with pytest.raises(UserError, match="finished with less"):
        preflight.check(own, ["encode"])
    execute(own, "train")
    assert f"goes on to {records.details(own, 'train')['steps']}" in caplog.text


def test_a_held_out_sentence_asks_for_its_passage(own):
    found = beir.read_folder(own.sets / "sentences")
    whole = {c.id: c for path in own.corpus.glob("passages-*.jsonl") for c in beir.read_candidates(path)}
    rest = {candidate.id: candidate for candidate in found.candidates}
    assert found.queries and rest.keys() == whole.keys()
    for query, sentence in found.queries.items():
        (id,) = found.qrels["test"][query]
        assert document_id(id) % 10_000 < 1000 and sentence in whole[id].text and sentence not in rest[id].text
        texts = [text for candidate in whole.values() for text in (candidate.title, candidate.text)]
        assert sum(sentence in text for text in texts) == 1
        rest[id] = whole[id]
    assert rest == whole


def test_pairs_are_trained_on_with_what_bm25_finds(own, documents):
    changes = {"base": str(own.folder), "sets.labelled": str(documents / "pairs.jsonl")}
    run = make_run("local_pairs", documents / "tuned", **changes, **{"train.batch_size": 8})
    preflight.check(run, run.config.stages[:-1])  # the model here has no export
    execute(run, "sets", "index", "mine", "pairs", "train")
    written = records.details(run, "pairs")
    assert written["pairs"] == written["pairs with negatives"] > 0
    assert records.details(run, "train")["steps"] == math.ceil(1.5 * written["pairs"] / 8)


@pytest.mark.parametrize("tested", [0.1, 0.3])
def test_no_passage_is_validated_on_that_is_tested_on(own, tested):
    """As long as training holds out others, too."""
    config = own.config.copy_and_resolve_references()
    config.data.held_out, config.sets.sentences = 0.3, tested
    pool = validation._held_out_pool(Run(config, own.folder, own.lock), own.load_vocabulary())
    buckets = [holdout.bucket(int(id)) for id in pool.candidates]
    assert max(buckets) < 3000 and (min(buckets) >= 1000) == (tested < 0.3)


def test_a_length_from_the_shell_counts_in_place_of_minutes():
    for field, epochs, minutes in (("train.steps", 0, 0), ("train.epochs", 30, 0), ("train.minutes", 30, 10)):
        config = own_documents.get_config("local")
        overrides.settle(config, [field])
        assert (config.train.epochs, config.train.minutes) == (epochs, minutes)


def test_labels_may_be_documents(own, documents, caplog):
    """Any passage of a right one is right, and training takes those that BM25 finds best; later it is known who saw."""
    lines = [{"query": f"where is {word} in part 2", "document": f"my {word}.md"} for word in WORDS]
    (documents / "labels.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    changes = {"sets.labelled": str(documents / "labels.jsonl"), "split.set": "labels", "train.batch_size": 8}
    run = make_run("local_pairs", documents / "by_id", base=str(own.folder), **changes)
    preflight.check(run, run.config.stages[:-1])
    execute(run, "sets", "index", "mine", "pairs")
    passages = {c.id: c.text for path in own.passages for c in beir.read_candidates(path)}
    test, training = beir.read_folder(run.sets / "labels"), beir.read_folder(run.training)
    assert [candidate.id for candidate in test.candidates] == list(passages)
    of_owl = {id for id in passages if id.startswith("my owl.md:")}
    judged = test.qrels["document"] | training.qrels["train"] | training.qrels["validation"]
    queries = {text: id for id, text in (test.queries | training.queries).items()}
    assert len(of_owl) == 5 and judged[queries["where is owl in part 2"]].keys() == of_owl
    for grades in training.qrels["train"].values():  # the passage that has the word once comes last
        assert [passages[id].startswith("All of") for id in grades] == [False] * 4 + [True]
    sizes = records.details(run, "sets")["labels"]
    assert sizes["notes"][0].startswith(f"Judged against {len(passages)} passages of {len(WORDS)} documents")
    assert "Tested on 2 of 12 questions, which are few" in sizes["notes"][1] + caplog.text
    trained = len(training.qrels["train"])
    assert records.details(run, "pairs")["pairs"] == 3 * trained
    assert f"left out {2 * trained} positives behind the first 3 of their query" in caplog.text
    run.config.train.steps, run.config.train.minutes = 2, 0.0
    execute(run, "train")
    seen = [*training.qrels["train"], *test.queries]
    asked = [(training.queries | test.queries)[id].upper() for id in seen]
    assert labelled_groups.trained_on(run, asked) == asked[:trained]
    later = Run(make_config("evaluate", base=str(run.folder)), documents / "later", "no.lock")
    (note,) = evaluate._of_training(later, "labels", beir.read_judged(run.training))
    assert note.startswith(f"The model was trained on {trained} of these {len(training.queries)} questions, such as")
    assert "what is measured there flatters it" in caplog.text
