"""Labels that are ids of documents or passages of the corpus, in every kind of file; and what only looks like some."""

import json

import pytest

from retrieval.common.errors import UserError
from retrieval.config import fields
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Candidate
from retrieval.data.sets.set_format import SETS, Context

AUDIT, RUN = "npm/npm audit.md", "npm/run.md"
PASSAGES = [f"{AUDIT}:0", f"{AUDIT}:1", f"{AUDIT}:2", f"{RUN}:0"]
BOTH = {"how": PASSAGES[:3], "why": PASSAGES[3:]}


@pytest.fixture
def read(tmp_path):
    """A function from the lines of a file to the set."""
    (tmp_path / "corpus").mkdir()
    passages = [Candidate(id, "title", f"text {id}") for id in PASSAGES]
    beir.write_candidates(tmp_path / "corpus" / "passages-00000-of-00001.jsonl", passages)
    queries, path, form = tmp_path / "queries.jsonl", tmp_path / "labels.x", SETS["labelled"]
    queries.write_text('{"_id": "1", "text": "how"}\n{"_id": "2", "text": "why"}\n')

    def read(lines, corpus="corpus", unknown="refuse"):
        path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
        options = {name: fields.defaults()[name] for name in form.options}
        options |= {"sets.unknown": unknown, "pairs.queries": str(queries)}
        form.check(str(path), options, has_corpus=corpus == "corpus")
        return next(form.read(str(path), Context(options, tmp_path / corpus, tmp_path)))

    return read


def judged(value):
    ((rule, qrels),) = value.qrels.items()
    return rule, {value.queries[id]: list(grades) for id, grades in qrels.items()}


@pytest.mark.parametrize(
    "lines",
    [
        [{"query": "how", "document": AUDIT}, {"query": "why", "document": RUN}],
        [{"query": "how", "positives": [f"./{AUDIT}"]}, {"query": "why", "positives": [RUN, f"{RUN}:0"]}],
        [{"query": "how", "positive_id": AUDIT}, {"query": "why", "positive_id": [RUN]}],
        ["query,document", f"how,{AUDIT}", f"why,{RUN}"],
        [f"why\t{RUN}", f"how\t{AUDIT}"],
        ["query-id\tcorpus-id\tscore", f"1\t{AUDIT}\t2", f"2\t{RUN}\t1", f"2\t{AUDIT}\t0"],
    ],
)
def test_any_passage_of_a_right_document_is_right(read, lines):
    value = read(lines)
    assert judged(value) == ("document", BOTH)
    assert [candidate.id for candidate in value.candidates] == PASSAGES
    assert value.notes == ("Judged against 4 passages of 2 documents, which labels name.",)


def test_labels_of_passages_alone_are_an_ordinary_set(read):
    assert judged(read([{"query": "why", "document": f"{RUN}:0"}])) == ("test", {"why": [f"{RUN}:0"]})


def test_unknown_ids_are_named_with_their_lines(read, caplog):
    lines = [{"query": "how", "document": AUDIT}, {"query": "why", "document": "npm/rum.md"}]
    with pytest.raises(UserError, match=r"1 of 2 labels are no ids .*'npm/rum.md' \(line 2\); an id of a passage is"):
        read(lines)
    value = read(lines, unknown="drop")
    assert judged(value) == ("document", {"how": BOTH["how"]}) and list(value.left_out.values()) == [1]
    assert "'npm/rum.md' (line 2)" in caplog.text


@pytest.mark.parametrize("like", [0, 1, 2])
def test_what_looks_like_ids_is_never_silently_an_answer(read, caplog, like):
    answers = [*["rum.md", "docs/start.md"][:like], "Hold the button.", "no"][: 2 + like % 2]
    lines = [{"query": f"q{n}", "answer": answer} for n, answer in enumerate(answers)]
    if like == 2:
        with pytest.raises(UserError, match=r"2 of 2 answers look like ids of documents such as 'rum.md' \(line 1\)"):
            read(lines)
    value = read(lines, corpus="corpus" if like < 2 else "none")
    assert value.notes == (f"Judged against the {len(answers)} answers of the file.",)
    assert (f"{like} of {len(answers)} answers look like ids" in caplog.text) == bool(like)
    assert sorted(candidate.text for candidate in value.candidates) == sorted(answers)
