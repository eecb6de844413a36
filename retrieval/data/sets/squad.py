"""SQuAD v1.1 (Rajpurkar et al. 2016) as open-domain questions: all paragraphs are candidates, one is judged right."""

import collections
from collections.abc import Iterator, Sequence
from pathlib import Path

from retrieval.data.corpora.source_paths import split
from retrieval.data.sets import beir, reqa
from retrieval.data.sets.answers import of_texts
from retrieval.data.sets.beir import Candidate
from retrieval.data.sets.set_format import Given, Options, SetFormat, register
from retrieval.errors import UserError
from retrieval.runtime import hashing

RULE = "test"


def read(asked: Path | str, more: Sequence[Path | str] = ()) -> beir.RetrievalSet:
    """The set 'squad': the questions of one file, over the distinct paragraphs of all.

    A question that is asked of several paragraphs has them all, and all its answers. Ids come from the texts. Of
    answers without a sure place in their paragraph, and of questions that have no other, `left_out` says how many there
    were.
    """
    queries: dict[str, str] = {}
    qrels: dict[str, dict[str, int]] = {}
    found: dict[str, list[str]] = {}
    candidates: dict[str, Candidate] = {}
    left_out = collections.Counter[str]()
    for number, path in enumerate([asked, *more]):
        for paragraph in reqa.paragraphs(path):
            id = hashing.digest(paragraph.text).hex()
            candidates[id] = Candidate(id, "", paragraph.text)
            if number:
                continue
            left_out["answers without a sure place in their paragraph, left out"] += paragraph.lost
            for question, placed in paragraph.questions:
                left_out["questions without an answer, left out"] += not placed
                if placed:
                    query = hashing.digest(question).hex()
                    queries[query] = question
                    qrels.setdefault(query, {})[id] = 1
                    found.setdefault(query, []).extend(answer for _, answer in placed)
    if not queries:
        raise UserError(f"{asked}: not one question with an answer; name a file of SQuAD")
    known = {query: of_texts(texts) for query, texts in found.items()}
    return beir.RetrievalSet("squad", queries, list(candidates.values()), {RULE: qrels}, known, +left_out)


@register
class Squad(SetFormat):
    """The format 'squad'."""

    name = "squad"
    what = "SQuAD v1.1: the questions of the first file, over the paragraphs of all"
    setting = "--config.sets.squad=ASKED.json,MORE.json,…"
    example = reqa.SquadFiles.example
    tfds = "squad"

    def read(self, value: str, given: Given) -> Iterator[beir.RetrievalSet]:
        asked, *more = split(value)
        yield read(asked, more)

    def has_answers(self, name: str, value: str, options: Options) -> bool:
        return name == self.name
