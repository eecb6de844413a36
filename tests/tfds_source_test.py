"""TFDS: tiny prepared data sets with the features of the real ones, against files that hold the same; no network."""

import dataclasses
import json
import logging
import random
import socket

import pytest
import tensorflow_datasets as tfds
from support import toy_corpus
from support.tiny import SETTINGS
from support.toy_squad import SQUAD

from retrieval.data.corpora import sources, tfds_source
from retrieval.data.corpora.articles import Article, Dropped, Paragraph, Section
from retrieval.data.sets import reqa
from retrieval.data.shards import beam_pipeline, prepared_corpus
from retrieval.errors import UserError


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    connect = socket.socket.connect

    def refuse(*args, **kwargs):
        raise AssertionError("a test reached for the network")

    def connect_here(self, address):
        return connect(self, address) if self.family == socket.AF_UNIX else refuse()

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", connect_here)


def store(folder, spec, splits, examples_a_file=2):
    """Writes what `tfds build` would, in the order given."""
    builder = tfds.builder(spec, data_dir=str(folder))
    builder.data_path.mkdir(parents=True)
    writer = tfds.core.SequentialWriter(builder.info, max_examples_per_shard=examples_a_file)
    writer.initialize_splits(list(splits))
    for split, examples in splits.items():
        writer.add_examples({split: examples})
    writer.close_all()
    return builder.data_path


def squad_examples(squad):
    """One example a question, shuffled, as in TFDS."""
    found = [
        {
            "id": question["id"],
            "title": article["title"],
            "context": paragraph["context"],
            "question": question["question"],
            "answers": {
                "text": [answer["text"] for answer in question["answers"]],
                "answer_start": [answer["answer_start"] for answer in question["answers"]],
            },
        }
        for article in squad["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    return random.Random(3).sample(found, len(found))


def unordered(value):
    return value.name, value.queries, {c.id: c for c in value.candidates}, value.qrels


@pytest.fixture(scope="module")
def squad():
    """The hand-made file, with a non-ASCII paragraph, and misplaced answers in it."""
    text = "Zoë’s café – „Köln“. It opened in 1998."
    questions = [
        {"id": "x", "question": "Wann?", "answers": [{"text": "1998", "answer_start": text.index("1998")}]},
        {"id": "y", "question": "Wo?", "answers": [{"text": "„Köln“", "answer_start": 0}]},
        {"id": "z", "question": "Who?", "answers": [{"text": "Paris", "answer_start": 3}]},
    ]
    return {"data": [*SQUAD["data"], {"title": "Café", "paragraphs": [{"context": text, "qas": questions}]}]}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, squad):
    folder = tmp_path_factory.mktemp("tfds")
    examples = squad_examples(squad)
    store(folder, "squad/v1.1", {"train": examples[:5], "validation": examples[5:]})
    return folder


@pytest.mark.parametrize("spec", ["squad", "squad/v1.1:3.0.0"])
def test_squad_is_the_set_of_the_json_files(prepared, squad, tmp_path, caplog, spec):
    path = tmp_path / "squad.json"
    path.write_text(json.dumps(squad))
    with caplog.at_level(logging.WARNING):
        expected = reqa.read_squad([path])
        value = reqa.read_squad([f"tfds:{spec}?data_dir={prepared}"])
    assert unordered(value) == unordered(expected) and len(value.queries) == 5
    warnings = [record.message for record in caplog.records if record.name == "retrieval.data.sets.reqa"]
    assert warnings == ["ReQA: left out 1 misplaced answers, 2 questions with no answer"] * 2


def test_squad_splits_and_order(prepared, squad):
    examples = squad_examples(squad)
    source = f"tfds:squad?data_dir={prepared}"
    assert [e["id"] for e in tfds_source.examples(source, "squad")] == [e["id"] for e in examples]
    train = list(tfds_source.examples(f"{source}&split=train", "squad"))
    assert [e["id"] for e in train] == [e["id"] for e in examples[:5]]
    columns = examples[0]["answers"]
    rows = [dict(zip(columns, row)) for row in zip(*columns.values())]
    assert train[0] == examples[0] | {"answers": rows}
    (last,) = tfds_source.examples(f"tfds:squad?split=validation[-1:]&data_dir={prepared}", "squad")
    assert last["id"] == examples[-1]["id"]


DREAM = "It is said of foxes in this forest that they dream of many hens at night"
WIKI_TEXT = """Red foxes are animals.
They live in forests.

They are red. Not all are.

Life \n\nEvery fox sleeps.\n\n Item one\n Item two

It is said of foxes in this forest that they dream of many hens at night

Names
File:fox.jpg
Fuchs (German).

Empty section

See also\n Wolf

* — *

Category:Foxes
Category: Animals"""


def test_a_page_becomes_an_article():
    (article,) = tfds_source.parse_page(tfds_source.Page("Red fox", WIKI_TEXT))
    lead = ("Red foxes are animals.", "They live in forests.", "They are red. Not all are.")
    assert article == Article(
        "Red_fox",
        "Red fox",
        (
            Section("", 1, tuple(map(Paragraph, lead))),
            Section("Life", 2, tuple(map(Paragraph, ("Every fox sleeps.", "Item one", "Item two", DREAM)))),
            Section("Names", 2, (Paragraph("Fuchs (German)."),)),
        ),
    )


@pytest.mark.parametrize(
    ("title", "text", "reason"),
    [
        (" ", "A text.", "no title"),
        ("Fox (disambiguation)", "A fox is one of these.", "disambiguation"),
        ("List of foxes", "Red fox.", "list"),
        ("Fox", "* — *\n\nCategory:Foxes", "no text"),
        ("Fox", "", "no text"),
    ],
)
def test_a_page_that_is_dropped(title, text, reason):
    assert tfds_source.parse_page(tfds_source.Page(title, text)) == [Dropped(title, reason)]


@pytest.fixture(scope="module")
def wikipedia(tmp_path_factory):
    """The toy articles as plain text."""
    folder = tmp_path_factory.mktemp("wikipedia")
    articles = [toy_corpus.article(number) for number in range(0, 120, 4)]
    texts = [
        "\n\n".join(s.heading + "\n" + "\n\n".join(p.text for p in s.paragraphs) for s in a.sections) for a in articles
    ]
    examples = [{"title": a.title, "text": text.strip()} for a, text in zip(articles, texts)]
    store(folder, "wikipedia/20230601.en", {"train": examples}, examples_a_file=20)
    return f"tfds:wikipedia/20230601.en?data_dir={folder}", articles


def test_wikipedia_as_a_corpus_under_both_runners(wikipedia, tmp_path, caplog):
    source, articles = wikipedia
    with caplog.at_level(logging.WARNING):
        opened = sources.open_source(source, {}, tmp_path / "none")
        opened.read()
    assert "WLP gets no pair" in caplog.text
    assert [page.size for page in opened.read()] == [len(page.text) for page in opened.read()]
    settings = dataclasses.replace(SETTINGS, num_shards=1, workers=1)
    statistics = prepared_corpus.prepare(opened, tmp_path / "local", settings)
    found = [item for path in sources.article_files(tmp_path / "local") for item in sources.read_articles(path)]
    assert [(a.title, [s.heading for s in a.sections]) for a in found] == [(a.title, ["", "Life"]) for a in articles]
    assert [[p.text for s in a.sections for p in s.paragraphs] for a in found] == [
        [p.text for s in a.sections for p in s.paragraphs] for a in articles
    ]
    assert statistics["counts"]["articles"] == 30 and not statistics["counts"]["links in passages"]
    assert statistics["tasks"]["bfs"]["pairs"] > 0 and statistics["tasks"]["wlp"]["pairs"] == 0
    counts, examples = beam_pipeline.write_articles(
        opened, tmp_path / "beam", dataclasses.replace(settings, runner="DirectRunner")
    )
    assert counts == {"pages read": 30} and not examples
    assert lines(tmp_path / "beam") == lines(tmp_path / "local")


def lines(folder):
    return sorted(line for path in sources.article_files(folder) for line in path.read_text().splitlines())


BAD_SOURCES = {
    "tfds:": ["not of the form"],
    "tfds:sqaud": ["unknown TFDS data set 'sqaud'", "did you mean squad"],
    "tfds:squad?data_dri=x": ["unknown option", "data_dri", "did you mean data_dir"],
    "tfds:squad:1.0.0?data_dir={}": ["cannot open 'squad:1.0.0'", "only: 3.0.0"],
    "tfds:squad?data_dir={}&split=test": ["no split 'test'", "known: train, validation"],
}


@pytest.mark.parametrize("source", BAD_SOURCES)
def test_a_bad_source_is_explained(prepared, source):
    with pytest.raises(UserError) as error:
        reqa.read_squad([source.format(prepared)])
    assert all(word in str(error.value) for word in BAD_SOURCES[source]), str(error.value)


def test_what_needs_a_pipeline_is_not_downloaded(tmp_path, monkeypatch):
    spec = "wikipedia/20230601.en"
    monkeypatch.setattr(
        tfds.core.DatasetBuilder, "download_and_prepare", lambda *args, **kwargs: pytest.fail("downloads")
    )
    source = f"tfds:{spec}?data_dir={tmp_path}"
    with pytest.raises(UserError, match=rf"nothing is prepared at .*`tfds build {spec} --data_dir={tmp_path}`"):
        sources.open_source(source, {}, tmp_path).read()


def test_squad_is_downloaded_where_it_is_missing(tmp_path, squad, monkeypatch):
    def download(builder, **kwargs):
        assert not kwargs["download_config"].try_download_gcs
        if download.fails:
            raise ConnectionError("no route to host\nand more")
        store(tmp_path, "squad/v1.1", {"train": squad_examples(squad), "validation": []})
        builder.info.read_from_directory(builder.data_dir)

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", download)
    source = f"tfds:squad?data_dir={tmp_path}"
    download.fails = True
    with pytest.raises(UserError) as error:
        reqa.read_squad([source])
    for word in ("the download failed (ConnectionError: no route to host)", "tfds build squad/v1.1", "?data_dir="):
        assert word in str(error.value)
    download.fails = False
    assert len(reqa.read_squad([source + "&split=train"]).queries) == 5


def damage(folder, kind):
    path = folder / "squad-train.tfrecord-00001"
    if kind == "no info":
        (folder / "dataset_info.json").unlink()
    else:
        data = path.read_bytes()
        path.write_bytes(data[:40] + b"####" + data[44:])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("flipped", "damaged .*prepare it again"),
        ("no info", "nothing is prepared at"),
    ],
)
def test_damaged_data_is_named(tmp_path, squad, kind, message):
    examples = squad_examples(squad)
    damage(store(tmp_path, "squad/v1.1", {"train": examples[:6], "validation": examples[6:]}), kind)
    with pytest.raises(UserError, match=message):
        reqa.read_squad([f"tfds:squad?data_dir={tmp_path}"])
