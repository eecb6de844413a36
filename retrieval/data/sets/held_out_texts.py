"""Formats of evaluation sets that ask with texts held out from the corpus, and which texts stand in others.

'sentences' are known items of any corpus, for documents that nobody has asked about. A query is a sentence of a passage
that training holds out, and the rest of that passage is the right answer, among all passages. It is the Inverse Cloze
Task (Lee et al. 2019) as a test. One that stands in another passage or in a title, alone or within a longer one, is no
query: more than one answer is right. 'pydocs' are known items held out of the corpus 'pydocs'.

Training reads no such sentence (`holdout`).
"""

import collections
import dataclasses
import heapq
import itertools
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from retrieval.common.errors import UserError
from retrieval.common.runtime import hashing
from retrieval.data import holdout
from retrieval.data.corpora import corpus_kind, pydocs, sentences
from retrieval.data.corpora.articles import Article
from retrieval.data.sets import open_domain
from retrieval.data.sets.beir import Candidate, RetrievalSet, Stream
from retrieval.data.sets.set_format import Context, Options, SetFormat, register
from retrieval.data.sets.splits import wording

LEAST = 4  # words: fewer stand together by chance

# Of scripts that put no space between words a letter is a word.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")

Words = tuple[Hashable, ...]
_SHORTEST = 20  # characters of a query: "See below." asks for nothing


def words(text: str) -> Words:
    """The words of a text. Case, accents, spaces and punctuation make no difference."""
    return tuple(_WORD.findall(wording(text)))


class Occurrences:
    """Finds texts of LEAST words or more inside others. Words are of any kind, such as token ids."""

    def __init__(self, texts: Iterable[Words]):
        self._by_start: dict[Words, set[Words]] = {}
        for text in texts:
            if len(text) >= LEAST:
                self._by_start.setdefault(text[:LEAST], set()).add(text)

    def inside(self, text: Sequence[Hashable]) -> Iterator[Words]:
        """Those that stand in a text, each as often as it does."""
        for place in range(len(text) - LEAST + 1):
            for known in self._by_start.get(tuple(text[place : place + LEAST]), ()):
                if tuple(text[place : place + len(known)]) == known:
                    yield known


@register
class HeldOutSentences(SetFormat):
    """Of a share of the passages. Training has to hold out as large a share, or a larger one: that has all of these."""

    name = "sentences"
    what = "sentences of held-out passages, which ask for the rest of their passage; of this share of the passages"
    setting = "--config.sets.sentences=0.1"
    example = "a sentence of the corpus"
    options = ("data.held_out",)
    holds_out = True

    def read(self, value: float, context: Context) -> Iterator[RetrievalSet]:
        yield _held_out_sentences(context.corpus, value)

    def check(self, value: float, options: Options, has_corpus: bool) -> None:
        if not has_corpus:
            raise UserError("config.sets.sentences are of a prepared corpus, and no stage prepares one: set it to 0")
        if value > options["data.held_out"]:
            less = f"config.data.held_out={options['data.held_out']:g} is less: raise it"
            raise UserError(f"config.sets.sentences={value:g} are of held-out passages, and {less}")


def _held_out_sentences(corpus: Path, share: float) -> RetrievalSet:
    """The set of a prepared corpus, with 2,000 queries at most, which a hash draws."""

    def passages() -> Iterator[Candidate]:
        return open_domain.corpus_passages(corpus, f"config.sets.sentences={share:g}")

    items = map(_item, (passage for passage in passages() if holdout.is_held_out(passage.id, share)))
    drawn = heapq.nsmallest(2000, filter(None, items), key=lambda item: (hashing.digest(item[0]), item[0]))
    known = {sentence: words(sentence) for _, sentence in drawn}
    occurrences, counts = Occurrences(known.values()), collections.Counter()
    for passage in passages():
        for text in (passage.title, passage.text):
            counts.update(occurrences.inside(words(text)))
    # Those that stand in one passage alone, once, and in no title.
    sentence_of = {id: sentence for id, sentence in drawn if counts[known[sentence]] == 1}
    if not sentence_of:
        problem = "no sentence of a held-out passage asks for that alone: raise this and config.data.held_out, or set 0"
        raise UserError(f"config.sets.sentences={share:g}: {problem}")

    def candidates() -> Iterator[Candidate]:
        """The passages; one that is asked for lacks the sentence of its query."""
        for passage in passages():
            if own := sentence_of.get(passage.id):
                passage = dataclasses.replace(passage, text=" ".join(each for each in _split(passage) if each != own))
            yield passage

    queries = {f"q:{id}": sentence for id, sentence in sentence_of.items()}
    stream = Stream(candidates, sum(1 for _ in passages()))
    return RetrievalSet("sentences", queries, stream, {"test": {f"q:{id}": {id: 1} for id in sentence_of}})


def _split(passage: Candidate) -> list[str]:
    return [passage.text[start:end].strip() for start, end in sentences.split(passage.text)]


def _item(passage: Candidate) -> tuple[str, str] | None:
    """The id of a passage and one of its sentences, if it has two; a hash draws it of those that are long enough."""
    split = _split(passage)
    long = [sentence for sentence in split if len(sentence) >= _SHORTEST and len(words(sentence)) >= LEAST]
    if len(split) < 2 or not long:
        return None
    return passage.id, long[hashing.number(passage.id, "sentence") % len(long)]


@register
class KnownItems(SetFormat):
    """The functions that `prepare` held out."""

    name = "pydocs"
    what = "held-out docstrings of the installed packages"
    setting = "--config.sets.pydocs=True"
    example = "def f(): ..."
    options = ("corpus", "prepare.held_out")
    holds_out = True

    def read(self, value: bool, context: Context) -> Iterator[RetrievalSet]:
        def items() -> Iterator[Any]:
            files = corpus_kind.article_files(context.corpus)
            return itertools.chain.from_iterable(map(corpus_kind.read_articles, files))

        yield _alone_in(pydocs.known_items(items()), (item for item in items() if isinstance(item, Article)))

    def check(self, value: bool, options: Options, has_corpus: bool) -> None:
        if not options["prepare.held_out"]:
            raise UserError("config.sets.pydocs are held-out functions: set config.prepare.held_out, such as 0.2")


def _alone_in(value: RetrievalSet, articles: Iterable[Article]) -> RetrievalSet:
    """The set without the items whose query an article has."""
    occurrences = Occurrences(map(words, value.queries.values()))
    texts = (p.text for article in articles for section in article.sections for p in section.paragraphs)
    shared = {held for text in texts for held in occurrences.inside(words(text))}
    queries = {id: query for id, query in value.queries.items() if words(query) not in shared}
    candidates = [candidate for candidate in value.candidates if candidate.id in queries]
    return RetrievalSet(value.name, queries, candidates, {"test": {id: {id: 1} for id in queries}})
