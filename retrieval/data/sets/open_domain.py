"""More candidates for an evaluation set, from a prepared corpus (Chang et al. 2020, section 4.4: one million)."""

import dataclasses
import heapq
import itertools
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from retrieval.common.errors import UserError
from retrieval.common.runtime import hashing
from retrieval.data.corpora import sentences
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Candidate, RetrievalSet, Stream

_PASSAGES = "passages-*.jsonl"


def extend(value: RetrievalSet, passages: Iterable[Candidate], count: int, seed: int) -> RetrievalSet:
    """The set with `count` more candidates: (sentence, passage) pairs of a corpus that are not among its own.

    They are drawn by a hash of seed and id, in one pass over the corpus that holds `count` of them in memory. Pairs
    with a sentence of the set are left out: they might be right answers that nobody has judged. So are all pairs of a
    passage that is a candidate, or that has a query as a sentence. A draw of fewer is the beginning of a draw of more.

    Raises:
      UserError: the corpus has fewer.
    """
    known, texts = set[str](), set[bytes]()
    for candidate in value.candidates:
        known.add(candidate.title)
        texts.add(hashing.digest(candidate.text))
    fresh = (pair for pair in _pairs(passages, set(value.queries.values()), texts) if pair.title not in known)
    drawn = heapq.nsmallest(count, fresh, key=lambda pair: (hashing.digest(f"{seed} {pair.id}"), pair.id))
    if len(drawn) < count:
        problem = f"the corpus has only {len(drawn)} (sentence, passage) pairs; ask for fewer, or prepare a larger one"
        raise UserError(f"config.sets.distractors={count}: {problem}")
    candidates = Stream(lambda: itertools.chain(value.candidates, drawn), len(value.candidates) + len(drawn))
    return dataclasses.replace(value, candidates=candidates)


def corpus_passages(corpus: Path, setting: str) -> Iterator[Candidate]:
    """The passages of a prepared corpus, for a setting that takes them.

    Raises:
      UserError: the folder has none.
    """
    if not any(corpus.glob(_PASSAGES)):
        raise UserError(f"{setting}: that is of a prepared corpus, and {corpus} has no passages")
    return passages(corpus)


def passages(corpus: Path) -> Iterator[Candidate]:
    """The passages of a prepared corpus; none where there is no corpus."""
    return itertools.chain.from_iterable(map(beir.read_candidates, sorted(corpus.glob(_PASSAGES))))


def title_key(title: str) -> str:
    """A title for comparing: SQuAD writes 'Super_Bowl_50', a dump 'Super Bowl 50'."""
    return " ".join(title.replace("_", " ").split()).casefold()


def _pairs(passages: Iterable[Candidate], queries: Collection[str], known: Collection[bytes]) -> Iterator[Candidate]:
    """The pairs of passages that have no query as a sentence, and whose text is not known, by its digest."""
    for passage in passages:
        sentence_texts = dict.fromkeys(passage.text[start:end] for start, end in sentences.split(passage.text))
        if hashing.digest(passage.text) in known or any(sentence in queries for sentence in sentence_texts):
            continue
        for number, sentence in enumerate(sentence_texts):
            yield Candidate(f"corpus:{passage.id}-{number}", sentence, passage.text)
