"""Damaged input of every format: it is accepted and can be used, or the error names the file and the place.

Thousands of seeded mutations of small good files: bytes flipped, cut and inserted, fields deleted, repeated and given
values that do not belong there. Another exception than `UserError` fails a test, and so does an hour in a loop.
"""

import gzip
import json
import random
import re

import pytest
from support import nq_records, toy_squad
from support.mutated import VALUES, as_json, changed, damaged

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.data.corpora import articles, corpus_kind
from retrieval.data.corpora.articles import Article, KnownItem, Link, Paragraph, Redirect, Section
from retrieval.data.corpora.passages import Limits
from retrieval.data.labelled import grouping
from retrieval.data.labelled.grouping import Counts
from retrieval.data.labelled.labelled_format import LABELLED, Reading, Settings
from retrieval.data.sets import beir, natural_questions, reqa
from retrieval.data.shards import shard_steps
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece

PLACE = re.compile(
    r"line \d+|record \d+|article \d+|\(char \d+\)|config\.\w+|not valid JSON|not UTF-8|cannot be read|is empty|lacks"
)


def as_lines(value) -> bytes:
    return b"".join(as_json(line) + b"\n" for line in value) if isinstance(value, list) else as_json(value)


def fuzz(rounds, path, value, encode, read, compress=False):
    """Reads `path` with every mutation of `value`; returns how many were refused, as they ought to be."""
    rng, refused = random.Random(rounds), 0
    for number in range(rounds):
        data = encode(changed(rng, value)) if number % 2 else damaged(rng, encode(value))
        if compress:
            data = gzip.compress(data, 1) if number % 4 else damaged(rng, gzip.compress(encode(value), 1))
        path.write_bytes(data)
        refused += is_refused(path, read)
    assert 0 < refused < rounds
    return refused


def is_refused(path, read) -> bool:
    try:
        read()
    except UserError as error:
        message = str(error)
        says_where = PLACE.search(message) or SET_LEVEL.search(message)
        assert path.name.removesuffix(".gz") in message and says_where, message
        return True
    except BaseException:
        print(f"with {path.read_bytes()[:2000]!r}")
        raise
    return False


# What is wrong with a file or a set as a whole, and has no line.
SET_LEVEL = re.compile(
    r"not one question|no query is left|no candidate in|the field '(data|_id)'|not a JSON object|neither \S+ nor|"
    r"a JSON array of obj|no (query|passage|topic|judgement|record) in it"
)
MUTATIONS = [250, pytest.param(20_000, marks=pytest.mark.long)]  # how many, and their seed
rounds = pytest.fixture(params=MUTATIONS)(lambda request: request.param)


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(files, "_sync", lambda path: None)


def use_set(value, folder):
    """An accepted set can be written and is read back the same."""
    beir.write_folder(folder, value)
    again = beir.read_folder(folder)
    assert again.candidates == value.candidates and again.qrels == value.qrels


def test_squad(rounds, tmp_path):
    path = tmp_path / "squad.json.gz"
    fuzz(rounds, path, toy_squad.SQUAD, as_json, lambda: use_set(reqa.read_squad([path]), tmp_path / "set"), True)


@pytest.mark.parametrize("form", ["full", "simplified"])
def test_natural_questions(rounds, tmp_path, form):
    path = tmp_path / "nq.jsonl"
    records = [nq_records.city(nq_records.PEOPLE, id=i, question=f"q{i}") for i in range(2)]
    if form == "simplified":
        records = list(map(nq_records.simplified, records))
    fuzz(rounds, path, records, as_lines, lambda: use_set(natural_questions.read_nq([path]), tmp_path / "set"))


CANDIDATES = [{"_id": f"d{i}", "title": f"T{i}", "text": f"the text of é {i}"} for i in range(4)]
QUERIES = [{"_id": f"q{i}", "text": f"what is {i}?"} for i in range(3)]
QRELS = "query-id\tcorpus-id\tscore\n" + "".join(f"q{i}\td{j}\t{i - 1}\n" for i in range(3) for j in range(i + 2))


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "tiny"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_bytes(as_lines(CANDIDATES))
    (folder / "queries.jsonl").write_bytes(as_lines(QUERIES))
    (folder / "qrels" / "test.tsv").write_text(QRELS)
    return folder


def use_folder(folder, target):
    value = beir.read_folder(folder)
    use_set(value, target)
    judged = beir.read_judged(folder)
    own = (value.queries, [c.id for c in value.candidates], value.qrels)
    assert (judged.queries, judged.candidates, judged.qrels) == own


@pytest.mark.parametrize(("name", "value"), [("corpus.jsonl", CANDIDATES), ("queries.jsonl", QUERIES)])
def test_texts_of_a_beir_folder(rounds, folder, tmp_path, name, value):
    fuzz(rounds, folder / name, value, as_lines, lambda: use_folder(folder, tmp_path / "again"))


def fuzz_lines(rounds, path, text, read):
    """As `fuzz`, for lines of fields with tabs or blanks between them."""
    rng, refused = random.Random(rounds), 0
    for number in range(rounds):
        data = damaged(rng, text.encode()) if number % 2 else changed_lines(rng, text).encode("utf-8", "surrogatepass")
        path.write_bytes(data)
        refused += is_refused(path, read)
    assert 0 < refused < rounds


def changed_lines(rng, text):
    lines = text.split("\n")
    blank = "\t" if "\t" in text else " "
    for _ in range(rng.choice([1, 1, 2])):
        i = rng.randrange(len(lines))
        fields = lines[i].split(blank)
        j = rng.randrange(len(fields))
        change = rng.randrange(4)
        if change == 0:
            del fields[j]
        elif change == 1:
            fields.insert(j, fields[j])
        else:
            fields[j] = rng.choice([*map(str, VALUES), "9" * 5000, "-1", "2147483648", "1_0", "٣", "1e-400"])
        lines[i] = blank.join(fields)
        if rng.random() < 0.2:
            lines.insert(rng.randrange(len(lines)), rng.choice(lines))
    return "\n".join(lines)


def test_judgements_of_a_beir_folder(rounds, folder, tmp_path):
    fuzz_lines(rounds, folder / "qrels" / "test.tsv", QRELS, lambda: use_folder(folder, tmp_path / "again"))


NEGATIVE = {"title": "", "text": "no", "psg_id": 7}
POSITIVES = [{"title": "T", "text": f"é {i}", "passage_id": str(i)} for i in range(3)]
DPR = [{"question": f"who {i}?", "answers": ["é"], "positive_ctxs": [POSITIVES[i]]} for i in range(3)]
DPR = [record | {"hard_negative_ctxs": [NEGATIVE]} for record in DPR]
PAIRS = [
    {"query": "q0", "positives": ["é", {"docid": "1", "title": "T", "text": "a"}], "negatives": ["b", "c"]},
    {"anchor": "q1", "positive": "a", "negative": "b", "negative_2": "é"},
    {"query": "q2", "positive_passages": [{"docid": 2, "text": "a"}], "negative_passages": [{"text": "d"}]},
]


def use_examples(path, form):
    """Accepted examples are grouped, kept on the disk and read back, and make an evaluation set that can be written."""
    counts = Counts()
    examples = form.read(path, Reading(Settings(), path.parent, 9, counts))
    with grouping.grouped(examples, path.parent, 3, counts) as groups:
        examples = list(groups)
        assert all(e.query.strip() and e.positives and not set(e.positives) & set(e.negatives) for e in examples)
        use_set(grouping.evaluation_set("labelled", groups), path.parent / "set") if examples else None


@pytest.mark.parametrize(
    ("name", "value", "encode", "form"), [("x.json", DPR, as_json, "dpr"), ("x.jsonl", PAIRS, as_lines, "jsonl")]
)
def test_labelled_examples(rounds, tmp_path, name, value, encode, form):
    path = tmp_path / name
    fuzz(rounds, path, value, encode, lambda: use_examples(path, LABELLED[form]))


def test_vocabularies(rounds, tmp_path):
    path = tmp_path / "vocab.txt"

    def read():
        vocabulary = WordPiece.load(path)
        assert max(vocabulary.encode("a the [SEP] é\x00 xyz")) < len(vocabulary)
        vocabulary.save(tmp_path / "again.txt")
        assert WordPiece.load(tmp_path / "again.txt").tokens == vocabulary.tokens

    fuzz_lines(rounds, path, "\n".join([*SPECIAL_TOKENS, *"abcdexyz", "the", "##a", "##b", "é"]) + "\n", read)


ITEMS = [
    Article("1", "One", (Section("", 1, (Paragraph("A link and Bé.", (Link("Two", 2, 6), Link("B", 11, 13))),)),)),
    Article("2", "Two", (Section("", 1, ()), Section("H", 2, (Paragraph("Words."), Paragraph("More words."))))),
    Redirect("Deux", "Two"),
    KnownItem("f", "what does f do", "def f(): pass"),
]


def test_shards_of_articles(rounds, tmp_path):
    path, vocabulary = tmp_path / "000000.jsonl", WordPiece([*SPECIAL_TOKENS, *"abcdefghijklmnopqrstuvwxyz"])

    def read():
        for item in corpus_kind.read_articles(path):
            assert articles.from_json(articles.to_json(item), "here") == item
            list(shard_steps.cut_article(item, vocabulary, Limits(), num_shards=2))

    fuzz(rounds, path, [json.loads(articles.to_json(item)) for item in ITEMS], as_lines, read)
