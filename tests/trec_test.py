"""Test collections of TREC and MS MARCO: topics, judgements, and sets whose texts stay on the disk."""

import pytest
from conftest import write

from retrieval.common.errors import UserError
from retrieval.data.sets import beir, trec

TOPICS = """
<top>
<num> Number: 301
<title> International Organized
Crime

<desc> Description:
Identify organizations < that > participate.
<narr> Narrative: long
</top>
<top> <num>302</num> <title>Topic:  Polio &amp; law  </title> <dom>Domain: x</dom> </top>
"""


@pytest.mark.parametrize("name", ["topics.txt", "topics.txt.gz"])
def test_topics(tmp_path, name):
    path = write(tmp_path / name, "\ufeff" + TOPICS.replace("\n", "\r\n"))
    assert trec.read_queries(path) == {"301": "International Organized Crime", "302": "Polio & law"}


XML = {
    "elements with attributes, and numbers of their own": (
        "<topics><topic><number>101</number><query lang='en'>does <b>tape</b> help</query><desc>d</desc></topic>"
        "</topics>"
    ),
    "a query before its question": "<topics task='COVID'>\n<topic number='101'><query>does tape\n help</query>"
    "<question>q</question></topic></topics>",
    "no root": "<?xml version='1.0'?>\n<top lang='en'><num>101</num><title>does tape help</title></top>\n<top><num>102"
    "</num><title>b</title></top>",
    "a text alone": '<topics><topic number="101">\n does tape\n  <i>help</i></topic></topics>',
    "a description": "<topics><topic id='101'><desc>Description: does tape help</desc><narr>n</narr></topic></topics>",
    "no XML": "<top lang='en'><num>Number: 101<title lang='en'><!-- x --><![CDATA[do&#101;s tape help]]>",
}


@pytest.mark.parametrize("kind", XML)
def test_topics_have_their_number_and_their_text_in_many_places(tmp_path, kind):
    assert trec.read_queries(write(tmp_path / "t.xml", XML[kind]))["101"] == "does tape help"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TOPICS.replace("302", ""), r"topic 2: no <num>"),
        (TOPICS.replace("Polio &amp; law", ""), r"topic 2: no <title>"),
        (TOPICS.replace("302", "301"), r"topic 2: the number '301' is there twice"),
        ("<topics>", r"topics\.txt: no topic in it; <top> <num> Number: 1"),
        (b"<top>\n\xff", r"topics\.txt, line 2: not UTF-8"),
    ],
)
def test_broken_topics(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        trec.read_queries(write(tmp_path / "topics.txt", text))


QRELS = "301 0 d1 1\n301\tQ0\td2\t0\n\n302 0 d2 -1\n302 0 d3 3\n302 0 d3 3\n999 0 d9 1\n"


def collection(folder, **changes):
    good = {
        "c.tsv": "d1\tone\nd2\ttwo\nd3\t \nd4\tfour\n",
        "topics.txt": f"{TOPICS}<top><num>303<title>Nobody judges it",
        "qrels.txt": QRELS,
    }
    return [write(folder / name, changes.get(name.partition(".")[0], text)) for name, text in good.items()]


def test_a_sets_texts_stay_on_disk(tmp_path, caplog):
    value = trec.read_set("trec", *collection(tmp_path))
    assert list(value.queries) == ["301", "302"] and len(value.candidates) == 4
    assert value.qrels == {"test": {"301": {"d1": 1, "d2": 0}, "302": {"d2": -1, "d3": 3}}}
    assert isinstance(value.candidates, beir.Stream) and [c.id for c in value.candidates] == ["d1", "d2", "d3", "d4"]
    for said in ("judgements are there again", "judged queries that are not asked", "queries without a judgement"):
        assert f"1 {said}" in caplog.text
    beir.write_folder(tmp_path / "trec", value)
    again = beir.read_folder(tmp_path / "trec")
    assert again.candidates == list(value.candidates) and (again.queries, again.qrels) == (value.queries, value.qrels)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("qrels", "301 0 d1\n", r"qrels\.txt, line 1: 3 fields, expected 4: query id, 0, candidate id, grade"),
        ("qrels", "301 0 d1 0\n999 0 d1 1\n", r"qrels\.txt: no candidate in .*c\.tsv has a grade above 0"),
        ("qrels", "0301 0 d1 1\n", r"qrels\.txt: none of its 1 queries is in .*topics\.txt.*written alike"),
        ("qrels", "301 0 d1 1\n302 0 d8 0\n", r"qrels\.txt, line 2: the candidate 'd8' is not in .*c\.tsv"),
        ("c", "d1\tone\nd2\ttwo\nd3\tthree\nd1\tagain\n", r"c\.tsv, line 4: the id 'd1' is there twice"),
    ],
)
def test_a_broken_collection(tmp_path, name, text, message):
    with pytest.raises(UserError, match=message):
        trec.read_set("trec", *collection(tmp_path, **{name: text}))
