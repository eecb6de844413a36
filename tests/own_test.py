"""`configs/own.py`: documents and a published model, or towers of their own; then labelled pairs on top."""

import json
import math
import shutil

import pytest
from support.tiny import CHEAP, execute, make_config

from configs import own as own_documents
from retrieval.config import experiment
from retrieval.data import holdout
from retrieval.data.corpora.passages import document_id
from retrieval.data.labelled import pair_shards
from retrieval.data.labelled.grouping import Example
from retrieval.data.sets import beir, held_out_sentences
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.errors import UserError
from retrieval.libraries import tf
from retrieval.pipeline import overrides, preflight, records
from retrieval.recipes import validation
from retrieval.stage_outputs import Run

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
    run = make_run("local", documents / "run", corpus=str(documents / "docs"))
    execute(run, "prepare", "sets")
    return run


def test_it_trains_for_epochs_on_existing_tasks(own, caplog):
    own.config.loop.update(validate_every=100, checkpoint_every=100)
    execute(own, "train")
    assert "task 'wlp' is left out: it has no example" in caplog.text and "bfs" not in caplog.text
    assert "train: corpus: pairs of WLP, of 60 passages: 0" in caplog.text and "MLM" not in caplog.text
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


def test_a_sentence_that_stands_elsewhere_asks_for_nothing():
    texts = ["The owl sees at night. It eats.", "As told: the owl sees at night, and more.", "The river is blue. Fish."]
    passages = [Candidate(str(number), "", text) for number, text in enumerate(texts)]
    passages.append(Candidate("3", "The rain is wet", "The rain is wet. The moon is round."))
    passages += [Candidate("4", "", "夜に梟が飛ぶ。"), Candidate("5", "", "昔、夜に梟が飛ぶと言う。川は青い。")]
    asked = ["The owl sees at night.", "The river is blue.", "The rain is wet.", "The moon is round."]
    alone = held_out_sentences._alone([*asked, "夜に梟が飛ぶ。", "川は青い。"], passages)
    assert alone == {"The river is blue.", "The moon is round.", "川は青い。"}


def copied(run, folder, **changes):
    """The run in another folder, with other settings, and not trained."""
    shutil.copytree(run.folder, folder, ignore=shutil.ignore_patterns("train.json", "checkpoints", "metrics"))
    config = run.config.copy_and_resolve_references()
    config.update_from_flattened_dict(changes)
    return Run(config, folder, run.lock)


@pytest.mark.parametrize("share", [0.1, 0.0])
def test_inspect_finds_queries_in_what_is_trained_on(own, tmp_path, share):
    """None, and all of them where nothing is held out."""
    run = copied(own, tmp_path / "run", **{"data.held_out": share})
    execute(run, "inspect")
    found = {(line["about"], line["what"]): line for line in json.loads((run.folder / "inspect.json").read_text())}
    line = found["set sentences", "queries that stand in a passage, a title or a lead of the corpus that is trained on"]
    assert line["of"] > 0 and line["count"] == (0 if share else line["of"]) and line["is_warning"] == (not share)
    what = "sentences that are not trained on, for what is held out has them too"
    assert (("corpus", what) in found) == bool(share)


def test_pairs_are_trained_on_with_what_bm25_finds(own, documents):
    changes = {"base": str(own.folder), "sets.labelled": str(documents / "pairs.jsonl")}
    run = make_run("local_pairs", documents / "tuned", **changes, **{"train.batch_size": 8})
    preflight.check(run, run.config.stages[:-1])  # the model here has no export
    execute(run, "sets", "index", "mine", "pairs", "train")
    written = records.details(run, "pairs")
    assert written["pairs"] == written["pairs with negatives"] > 0
    assert records.details(run, "train")["steps"] == math.ceil(1.5 * written["pairs"] / 8)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_pair_without_a_negative_can_be_kept(tmp_path, keeps):
    vocabulary = WordPiece([*SPECIAL_TOKENS, *WORDS])
    owl, park, tree = (Candidate("", "", word) for word in WORDS[:3])
    groups = [Example("night", (owl,), (park,)), Example("moon", (tree,), ())]
    written = pair_shards.write_pairs(groups, vocabulary, tmp_path, 1, keep_lone=keeps)
    assert written["pairs with negatives"] == 1 + keeps
    columns = {"document_id": tf.io.RaggedFeature(tf.int64), "counts": tf.io.RaggedFeature(tf.float32)}
    (path,) = tmp_path.glob("*.tfrecord")
    rows = [tf.io.parse_single_example(record, columns) for record in tf.data.TFRecordDataset(str(path))]
    found = {
        len(set(row["document_id"].numpy())): [len(row["document_id"]), *row["counts"].numpy()[:3]] for row in rows
    }
    # The one text of the lone pair stands there twice, and is drawn as the positive and as the negative of its record.
    assert found == {2: [2, 1, 1, 0], 1: [2, 1, 1, 1] if keeps else [1, 1, 0, 0]}


def test_a_set_of_sentences_wants_them_held_out(own):
    own.config.sets.sentences = 0.2
    with pytest.raises(UserError, match=r"config\.data\.held_out=0\.15 holds out fewer"):
        preflight.check(own, ["sets"])
    own.config.sets.sentences = 0.1


def test_epochs_and_refreshes_do_not_mix():
    config = make_config("own", "local_pairs")
    config.mine.refresh_every = 2
    with pytest.raises(UserError, match="refreshes are planned in steps"):
        preflight.check_settings(config, ("train",))


@pytest.mark.parametrize("tested", [0.1, 0.3])
def test_no_passage_is_validated_on_that_is_tested_on(own, tested):
    """As long as training holds out others, too."""
    config = own.config.copy_and_resolve_references()
    config.data.held_out, config.sets.sentences = 0.3, tested
    pool = validation._held_out_pool(Run(config, own.folder, own.lock), own.load_vocabulary())
    buckets = [holdout.bucket(int(id)) for id in pool.candidates]
    assert max(buckets) < 3000 and (min(buckets) >= 1000) == (tested < 0.3)


@pytest.mark.parametrize("size", ["local", "local_pairs", "large", "large_pairs"])
def test_a_size_is_of_stages_that_are_there(size):
    config = own_documents.get_config(size)
    config.corpus, config.sets.labelled = "docs", "pairs.jsonl"
    experiment.check(config)
    preflight.check_settings(config, config.stages)


def test_a_word_that_is_no_model_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="unknown size or model of --config=own 'locl': did you mean local"):
        own_documents.get_config("locl")
    with pytest.raises(UserError, match=r"--config=own:no/model: no such folder"):
        own_documents.get_config("no/model")


def test_a_length_from_the_shell_counts_in_place_of_minutes():
    for field, epochs, minutes in (("train.steps", 0, 0), ("train.epochs", 30, 0), ("train.minutes", 30, 10)):
        config = own_documents.get_config("local")
        overrides.settle(config, [field])
        assert (config.train.epochs, config.train.minutes) == (epochs, minutes)
