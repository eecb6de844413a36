"""The format of evaluation sets 'sentences': known items of any corpus, for documents that nobody has asked about.

A query is a sentence of a passage that training holds out, and the rest of that passage is the right answer, among all
passages. It is the Inverse Cloze Task (Lee et al. 2019) as a test. Training reads no such sentence (`holdout`). One
that stands in another passage or in a title, alone or within a longer one, is no query: more than one answer is right.
"""

import collections
import dataclasses
import heapq
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from retrieval.data import holdout
from retrieval.data.corpora import sentences
from retrieval.data.sets import open_domain
from retrieval.data.sets.beir import Candidate, RetrievalSet, Stream
from retrieval.data.sets.occurrences import LEAST, Occurrences, words
from retrieval.data.sets.set_format import Given, Options, SetFormat, register
from retrieval.errors import UserError
from retrieval.runtime import hashing

_SHORTEST = 20  # characters of a query: "See below." asks for nothing
_MOST = 2000  # queries


@register
class HeldOutSentences(SetFormat):
    """Of a share of the passages. Training has to hold out as large a share, or a larger one: that has all of these."""

    name = "sentences"
    what = "sentences of held-out passages, which ask for the rest of their passage; of this share of the passages"
    setting = "--config.sets.sentences=0.1"
    example = "a sentence of the corpus"
    options = ("data.held_out",)
    holds_out = True

    def read(self, value: float, given: Given) -> Iterator[RetrievalSet]:
        yield held_out_sentences(given.corpus, value)

    def sources(self, value: Any) -> list[str]:
        return []

    def check(self, value: float, options: Options, has_corpus: bool) -> None:
        if not has_corpus:
            raise UserError("config.sets.sentences are of a prepared corpus, and no stage prepares one: set it to 0")
        if value > options["data.held_out"]:
            raise UserError(
                f"config.sets.sentences={value:g} are of passages that training holds out, and config.data.held_out="
                f"{options['data.held_out']:g} holds out fewer: set both to {value:g}, or config.sets.sentences=0"
            )


def held_out_sentences(corpus: Path, share: float) -> RetrievalSet:
    """The set of a prepared corpus, with 2,000 queries at most, which a hash draws.

    Args:
      share: of the passages.

    Raises:
      UserError: no held-out passage has a sentence to ask with.
    """

    def passages() -> Iterator[Candidate]:
        return open_domain.corpus_passages(corpus, f"config.sets.sentences={share:g}")

    held_out = (passage for passage in passages() if holdout.is_held_out(passage.id, share))
    found = (item for passage in held_out if (item := _item(passage)))
    drawn = heapq.nsmallest(_MOST, found, key=lambda item: (hashing.digest(item[0]), item[0]))
    alone = _alone([sentence for _, sentence in drawn], passages())
    asked = {id: sentence for id, sentence in drawn if sentence in alone}
    if not asked:
        raise UserError(
            f"config.sets.sentences={share:g}: no sentence of a held-out passage asks for that alone: raise this and "
            "config.data.held_out, or set config.sets.sentences=0"
        )
    candidates = Stream(lambda: (_without(passage, asked) for passage in passages()), sum(1 for _ in passages()))
    queries = {f"q:{id}": sentence for id, sentence in asked.items()}
    return RetrievalSet("sentences", queries, candidates, {"test": {f"q:{id}": {id: 1} for id in asked}})


def _split(passage: Candidate) -> list[str]:
    return [passage.text[start:end].strip() for start, end in sentences.split(passage.text)]


def _item(passage: Candidate) -> tuple[str, str] | None:
    """The id of a passage and one of its sentences, if it has two; a hash draws it of those that are long enough."""
    split = _split(passage)
    long = [sentence for sentence in split if len(sentence) >= _SHORTEST and len(words(sentence)) >= LEAST]
    if len(split) < 2 or not long:
        return None
    return passage.id, long[hashing.number(passage.id, "sentence") % len(long)]


def _alone(sentences: Iterable[str], passages: Iterable[Candidate]) -> set[str]:
    """The sentences that stand in one passage alone, once, and in no title."""
    known = {sentence: words(sentence) for sentence in sentences}
    occurrences, counts = Occurrences(known.values()), collections.Counter()
    for passage in passages:
        for text in (passage.title, passage.text):
            counts.update(occurrences.inside(words(text)))
    return {sentence for sentence, own in known.items() if counts[own] == 1}


def _without(passage: Candidate, asked: Mapping[str, str]) -> Candidate:
    """A candidate; one that is asked for lacks the sentence of its query."""
    if passage.id not in asked:
        return passage
    return dataclasses.replace(passage, text=" ".join(s for s in _split(passage) if s != asked[passage.id]))
