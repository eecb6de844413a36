"""prepare: the same shards from every runner, WLP's join, and going on where it was cut off."""

import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tensorflow as tf
from conftest import REPOSITORY, run_here
from support import toy_corpus
from support.tiny import SETTINGS

from configs import bm25
from retrieval.common.errors import UserError
from retrieval.data import holdout
from retrieval.data.corpora import articles, corpus_kind, passages
from retrieval.data.corpora.articles import Article, Paragraph, Section
from retrieval.data.shards import local_runner, prepared_corpus, shard_steps
from retrieval.data.shards.external_sort import Sorter
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.runs.pipeline.run import Run
from retrieval.stages import prepare


@pytest.fixture(scope="module", autouse=True)
def pools():
    """Those of `local_runner`."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    statistics = prepared_corpus.prepare(toy_corpus.source(), folder, SETTINGS)
    return folder, statistics


def records(folder, kind):
    paths = sorted(folder.glob(f"{kind}-*.tfrecord"))
    for raw in tf.data.TFRecordDataset([str(p) for p in paths]):
        features = tf.train.Example.FromString(raw.numpy()).features.feature
        yield {name: list(feature.int64_list.value) for name, feature in features.items()}


def test_counts_add_up(corpus):
    counts, problems = corpus[1]["counts"], corpus[1]["problems"]
    assert counts["articles"] == 120 and counts["redirects"] == 120
    assert counts["pages dropped: other namespace"] == 1
    assert list(corpus[1]["examples"]) == ["pages dropped: other namespace"]
    assert problems == ["toy.xml: cut off after 'Yellow ape'"]
    assert counts["pages read"] == 120 + 120 + 1
    assert counts["links in passages"] == 4 * 120
    assert counts["links dropped: to the same article"] == 120
    assert counts["links dropped: no such article, or it has no lead"] == 120
    assert corpus[1]["tasks"]["wlp"]["pairs"] == 2 * 120


def test_links_join_passages_with_the_linked_pages_lead(corpus):
    folder, _ = corpus
    vocabulary = WordPiece.load(folder / "vocab.txt")
    expected = set()
    for number in range(120):
        (passage,) = (p for p in passages.cut(toy_corpus.article(number), vocabulary, SETTINGS.limits)[1] if p.targets)
        for step in (1, 2):  # one by title, one through a redirect
            lead = passages.cut(toy_corpus.article((number + step) % 120), vocabulary, SETTINGS.limits)[0]
            expected.add((holdout.document_id(passage.id), lead.ids))
    found = [(r["document_id"][0], tuple(r["lead_ids"])) for r in records(folder, "links")]
    assert set(found) == expected and len(found) == len(expected)


def test_a_sentences_bucket_is_the_smallest_of_the_passages_that_have_it(corpus):
    """Also in leads, of the article itself and of those that a passage links to; the toy articles share sentences."""
    smallest = {}
    for record in records(corpus[0], "passages"):
        for sentence in split(record["ids"], record["lengths"]):
            bucket = record["document_id"][0] % holdout.BUCKETS
            smallest[sentence] = min(bucket, smallest.get(sentence, bucket))
    shared = 0
    for record in (*records(corpus[0], "passages"), *records(corpus[0], "links")):
        for of in ("", "lead_"):
            sentences = split(record[f"{of}ids"], record[f"{of}lengths"])
            assert record[f"{of}buckets"] == [smallest[sentence] for sentence in sentences]
        shared += min(record["buckets"]) < record["document_id"][0] % holdout.BUCKETS
        assert record["title_bucket"] == [holdout.OPEN]
    assert shared > 100


def split(ids, lengths):
    ends = list(itertools.accumulate(lengths, initial=0))
    return [tuple(ids[start:end]) for start, end in itertools.pairwise(ends)]


def shard_bytes(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name.startswith(("passages-", "links-"))}


def test_beam_writes_the_same_bytes(corpus, tmp_path):
    settings = SETTINGS._replace(runner="DirectRunner", vocabulary=corpus[0] / "vocab.txt")
    statistics = prepared_corpus.prepare(toy_corpus.source(), tmp_path, settings)
    assert shard_bytes(tmp_path) == shard_bytes(corpus[0])
    assert statistics["tasks"] == corpus[1]["tasks"] and statistics["examples"] == corpus[1]["examples"]
    assert statistics["counts"] == corpus[1]["counts"] and statistics["problems"] == corpus[1]["problems"]
    for budget in (1 << 10, 1 << 30):  # what a vocabulary is trained on is no matter of the order of articles, either
        local, beam = (sorted(prepared_corpus._sample_texts(folder, budget)) for folder in (corpus[0], tmp_path))
        whole = list(prepared_corpus._sample_texts(tmp_path, 1 << 30))
        assert local == beam and (budget < 1 << 30) == (len(local) < len(whole))


@pytest.mark.parametrize("paragraphs", [1, 400])
def test_a_vocabulary_is_trained_on_parts_of_books(tmp_path, paragraphs):
    text = "many words of a long book " * (48_000 // paragraphs)
    article = Article("a", "a", (Section("", 1, (Paragraph(text),) * paragraphs),))
    (tmp_path / "articles").mkdir()
    (tmp_path / "articles" / "0.jsonl").write_text(articles.to_json(article) + "\n")
    assert 200_000 < sum(map(len, prepared_corpus._sample_texts(tmp_path, 400_000))) <= 800_000


@pytest.mark.long
def test_beam_with_two_worker_processes_writes_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))  # the worker processes import `retrieval`
    toy_corpus.write_dump(tmp_path / "dump.xml")
    source = corpus_kind.open_source(str(tmp_path / "dump.xml"), {}, tmp_path / "no.lock")
    statistics = prepared_corpus.prepare(source, tmp_path / "local", SETTINGS)
    options = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")
    settings = SETTINGS._replace(runner="DirectRunner", beam_options=options)
    settings = settings._replace(vocabulary=tmp_path / "local" / "vocab.txt")
    assert prepared_corpus.prepare(source, tmp_path / "beam", settings) == statistics
    assert shard_bytes(tmp_path / "beam") == shard_bytes(tmp_path / "local")


def test_no_step_needs_its_items_in_memory(corpus, tmp_path, monkeypatch):
    """Everything is sorted on disk, in runs and segments of a few items."""
    runs = []
    write_run = Sorter._write_run
    monkeypatch.setattr(Sorter, "_write_run", lambda sorter: runs.append(len(sorter._held)) or write_run(sorter))
    monkeypatch.setattr(local_runner, "run_tasks", run_here)
    monkeypatch.setattr(local_runner, "write_items", functools.partial(local_runner.write_items, memory=2000))
    for module in (local_runner, shard_steps):
        monkeypatch.setattr(module, "Sorter", functools.partial(Sorter, memory=4000))
    settings = SETTINGS._replace(vocabulary=corpus[0] / "vocab.txt")
    assert prepared_corpus.prepare(toy_corpus.source(), tmp_path, settings) == corpus[1]
    assert shard_bytes(tmp_path) == shard_bytes(corpus[0])
    assert len(runs) > 100 and max(runs) < 30


def test_goes_on_where_it_was_cut_off(corpus, tmp_path, monkeypatch):
    settings = SETTINGS._replace(vocabulary=corpus[0] / "vocab.txt")
    real = local_runner.run_tasks

    def cut_off(name, *args, **kwargs):
        if name == "attach":
            raise KeyboardInterrupt
        real(name, *args, **kwargs)

    monkeypatch.setattr(local_runner, "run_tasks", cut_off)
    with pytest.raises(KeyboardInterrupt):
        prepared_corpus.prepare(toy_corpus.source(), tmp_path, settings)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / shard_steps.WORK).rglob("*.items")}
    assert before
    monkeypatch.setattr(local_runner, "run_tasks", real)
    monkeypatch.setattr(prepared_corpus.shutil, "rmtree", lambda *args, **kwargs: None)
    prepared_corpus.prepare(toy_corpus.source(), tmp_path, settings)
    assert shard_bytes(tmp_path) == shard_bytes(corpus[0])
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())


@pytest.mark.parametrize(
    "mib, changes, expected",
    [(0.01, {}, 1), (7, {"prepare.shards": 24}, 6), (0.01, {"prepare.shard_size": 0.0, "prepare.shards": 3}, 3)],
)
def test_small_corpora_have_fewer_shards(tmp_path, monkeypatch, mib, changes, expected):
    """Two files of a folder, whose sizes count together."""
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, int(mib * 2**19))
    config = bm25.get_config()
    config.update_from_flattened_dict({"corpus": str(tmp_path), **changes})
    run, taken = Run(config, tmp_path / "run", tmp_path / "no.lock"), []
    told = {"problems": [], "examples": {}}
    monkeypatch.setattr(prepared_corpus, "prepare", lambda *given: taken.append(given[2]) or told)
    prepare.prepare_corpus(run)
    assert taken[0].num_shards == prepare.shards_of(run) == expected


def test_ids_of_several_dumps_are_told_apart(tmp_path):
    """Two snapshots of one wiki give the same page the same id; the same file is one snapshot."""
    text = "The red fox lives in the forest. It eats grass and leaves in the summer. It sleeps in the winter."
    for name in ("2007", "2015"):
        revision = f"<revision><id>1</id><text>{text} {name}.</text></revision>"
        page = f"<page><title>Fox</title><ns>0</ns><id>7</id>{revision}</page>"
        (tmp_path / f"{name}.xml").write_text(f"<mediawiki>{page}</mediawiki>", encoding="utf-8")
    again = f"{tmp_path / '2007.xml'},{tmp_path}/../{tmp_path.name}/2007.xml"
    source = corpus_kind.open_source(f"{again},{tmp_path / '2015.xml'},", {}, tmp_path / "no.lock")
    statistics = prepared_corpus.prepare(source, tmp_path / "corpus", SETTINGS)
    assert statistics["shards"] == SETTINGS.num_shards and statistics["counts"]["pages read"] == 2
    read = [json.loads(line) for path in (tmp_path / "corpus").glob("passages-*.jsonl") for line in path.open()]
    assert {item["_id"]: item["text"][-5:] for item in read} == {"7:0": "2007.", "1-7:0": "2015."}


def test_two_pages_of_one_id_are_refused(tmp_path):
    def read():
        yield toy_corpus.Page(3)
        yield toy_corpus.Page(3)

    with pytest.raises(UserError, match="two pages of the corpus have the id '3'"):
        prepared_corpus.prepare(corpus_kind.Source(read, toy_corpus.parse), tmp_path, SETTINGS)


def test_a_killed_worker_is_named(tmp_path):
    with pytest.raises(UserError, match="a worker was killed"):
        local_runner.run_tasks("die", [(tmp_path / "x", ())], _die, workers=1)


def _die(output):
    os.kill(os.getpid(), signal.SIGKILL)


def sleeping(folder):
    """The command of a process whose two workers say that they work, and go on."""
    code = f"""
if __name__ == "__main__":
    import signal
    import sys
    signal.signal(signal.SIGINT, signal.default_int_handler)  # where tests run in the background it is ignored
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    from pathlib import Path
    from support import children
    from retrieval.data.shards import local_runner
    tasks = [(Path({str(folder)!r}) / str(number), ()) for number in range(2)]
    local_runner.run_tasks("sleep", tasks, children.tell_and_sleep, workers=2)
"""
    return [sys.executable, "-c", code]


def test_ctrl_c_ends_workers_without_a_word(tmp_path):
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
    with subprocess.Popen(sleeping(tmp_path), cwd=REPOSITORY, **both) as parent:
        while len(children := Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()) < 3:
            time.sleep(0.01)  # one looks after semaphores, two are workers
        for child in children:
            os.kill(int(child), signal.SIGINT)
        for _ in range(2):
            assert parent.stdout.readline() == b"working\n"
        os.killpg(parent.pid, signal.SIGINT)  # as a terminal does
        said = parent.communicate(timeout=30)[1].decode()
    assert said.count("Traceback") == 1 and "run_tasks" in said and "Process" not in said


def test_workers_end_with_their_parent(tmp_path):
    with subprocess.Popen(sleeping(tmp_path), cwd=REPOSITORY, stdout=subprocess.PIPE) as parent:
        for _ in range(2):
            assert parent.stdout.readline() == b"working\n"
        parent.kill()
        assert parent.communicate(timeout=20) == (b"", None)  # nobody has its output any more


def test_table_1_against_a_count_by_hand(corpus):
    folder, statistics = corpus
    found = list(records(folder, "links"))
    query = sum(len(r["lead_ids"]) / len(r["lead_lengths"]) for r in found) / len(found)
    document = sum(len(r["ids"]) for r in found) / len(found)
    assert statistics["tasks"]["wlp"]["query_tokens"] == pytest.approx(query, abs=0.01)
    assert statistics["tasks"]["wlp"]["document_tokens"] == pytest.approx(document, abs=0.01)


def test_losses_are_counted_and_told(tmp_path):
    """By hand: of sentences of 21 and 5 tokens passages of 10 have 10 and 5; one of 2 is in none."""
    long, short = " ".join(["The", *["fox"] * 19]) + ".", "A dog ran far."
    leads = [Section("", 1, (Paragraph(f"{long} {short}"),)), Section("", 1, (Paragraph("No."),))]
    items = [Article(str(number), "Fox", (lead,)) for number, lead in enumerate(leads)]
    vocabulary = tmp_path / "vocab.txt"
    WordPiece([*SPECIAL_TOKENS, ".", "the", "fox", "a", "dog", "ran", "far", "no"]).save(vocabulary)
    settings = shard_steps.Settings(vocabulary, vocab_size=0, num_shards=1, limits=passages.Limits(10, 5, 4))
    source = corpus_kind.Source(lambda: iter(items), _as_list)
    statistics = prepared_corpus.prepare(source, tmp_path / "corpus", settings)
    counts = statistics["counts"]
    assert counts[passages.SENTENCES] == 3 and counts[passages.LONG_SENTENCES] == 1
    assert (counts[passages.TOKENS], counts[passages.CUT_OFF], counts[passages.DROPPED]) == (21 + 5 + 2, 11, 2)
    assert counts["passages"] == counts[f"{shard_steps.WITHOUT_PAIR} of ICT: one sentence alone"] == 2
    assert counts[f"{shard_steps.WITHOUT_PAIR} of BFS: part of the lead itself"] == 2
    assert counts[f"{shard_steps.WITHOUT_PAIR} of WLP: no link"] == 2
    cut, alone = statistics["problems"]
    assert cut.startswith("39.3% of the tokens are cut off: 1 of 3 sentences are longer than a passage")
    assert alone.startswith("2 of 2 passages are one sentence alone")


def _as_list(article):
    return [article]
