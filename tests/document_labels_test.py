"""Labels that are ids of documents or passages of the corpus, in every kind of file; and what only looks like some."""

import json

import pytest

from retrieval.common.errors import UserError
from retrieval.config import tree
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Candidate
from retrieval.data.sets.set_format import SETS, Given

FORM = SETS["labelled"]
AUDIT, RUN = "npm/npm audit.md", "npm/run.md"
DOCUMENTS = {AUDIT: 3, RUN: 1}
OF_AUDIT = {f"{AUDIT}:{n}" for n in range(3)}


@pytest.fixture
def read(tmp_path):
    """A function from the lines of a file, and fields, to the set."""
    passages = [Candidate(f"{id}:{n}", id, f"text {n}") for id, count in DOCUMENTS.items() for n in range(count)]
    (tmp_path / "corpus").mkdir()
    beir.write_candidates(tmp_path / "corpus" / "passages-00000-of-00001.jsonl", passages)
    (tmp_path / "queries.jsonl").write_text('{"_id": "1", "text": "how"}\n{"_id": "2", "text": "why"}\n')

    def read(lines, corpus="corpus", **changes):
        path = tmp_path / "labels.x"
        path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
        options = {name: tree.defaults()[name] for name in FORM.options} | {
            name.replace("__", "."): value for name, value in changes.items()
        }
        FORM.check(str(path), options, has_corpus=corpus == "corpus")
        return next(FORM.read(str(path), Given(options, tmp_path / corpus, tmp_path)))

    return read


def judged(value):
    ((rule, qrels),) = value.qrels.items()
    return rule, {value.queries[id]: set(grades) for id, grades in qrels.items()}


BOTH = {"how": OF_AUDIT, "why": {f"{RUN}:0"}}
QUERIES = "pairs__queries"


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ([{"query": "how", "document": AUDIT}, {"query": "why", "document": RUN}], False),
        ([{"query": "how", "positives": [f"./{AUDIT}", RUN]}, {"query": "why", "positives": [f"{RUN}:0"]}], False),
        ([{"query": "how", "positive_id": AUDIT}, {"query": "why", "positive_id": [RUN, f"{RUN}:0"]}], False),
        (["query,document", f"how,{AUDIT}", f"why,{RUN}"], False),
        ([f"why\t{RUN}", f"how\t{AUDIT}"], False),
        (["query-id\tcorpus-id\tscore", f"1\t{AUDIT}\t2", f"2\t{RUN}\t1", f"2\t{AUDIT}\t0"], True),
        ([{"query_id": 1, "document_ids": [AUDIT, RUN], "labels": [1, 0]}, {"query_id": 2, "positive_id": RUN}], None),
    ],
)
def test_any_passage_of_a_right_document_is_right(read, tmp_path, lines, named):
    fields = {QUERIES: str(tmp_path / "queries.jsonl")} if named else {}
    if named is None:
        with pytest.raises(UserError, match="ids, whose texts are elsewhere: set"):
            read(lines)
        return
    value = read(lines, **fields)
    rule, pairs = judged(value)
    expected = BOTH if "./" not in str(lines) else BOTH | {"how": OF_AUDIT | {f"{RUN}:0"}}
    assert rule == "document" and pairs == expected
    assert [candidate.id for candidate in value.candidates] == [*sorted(OF_AUDIT), f"{RUN}:0"]
    assert value.notes == ("Judged against 4 passages of 2 documents, which labels name.",)


def test_labels_of_passages_alone_are_an_ordinary_set(read):
    assert judged(read([{"query": "why", "document": f"{RUN}:0"}])) == ("test", {"why": {f"{RUN}:0"}})


def test_unknown_ids_are_named_with_their_lines(read, caplog):
    lines = [{"query": "how", "document": AUDIT}, {"query": "why", "document": "npm/rum.md"}]
    with pytest.raises(
        UserError, match=r"1 of 2 labels are no ids .*'npm/rum.md' \(line 2\); an id of a passage is 'npm"
    ):
        read(lines)
    value = read(lines, sets__unknown="drop")
    assert judged(value) == ("document", {"how": OF_AUDIT}) and sum(value.left_out.values()) == 1
    assert "'npm/rum.md' (line 2)" in caplog.text


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        (["rum.md", "docs/start.md"], "2 of 2 answers look like ids of documents, such as 'rum.md' (line 1)"),
        (["rum.md", "Hold the button.", "no"], "1 of 3 answers look like ids"),
        (["Hold the button.", "no"], ""),
    ],
)
def test_what_looks_like_ids_is_never_silently_an_answer(read, caplog, answers, says):
    lines = [{"query": f"q{n}", "answer": answer} for n, answer in enumerate(answers)]
    if says.startswith("2"):
        with pytest.raises(UserError) as error:
            read(lines)
        assert says in str(error.value)
    value = read(lines, corpus="none" if says.startswith("2") else "corpus")
    assert value.notes == (f"Judged against the {len(answers)} answers of the file.",)
    assert says in caplog.text and ("look like" in caplog.text) == bool(says)
    assert sorted(candidate.text for candidate in value.candidates) == sorted(answers)
