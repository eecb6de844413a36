"""Passages as rows of token ids that a model reads."""

from collections.abc import Iterator, Sequence

from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.vocab import Vocabulary


def rows_of(vocabulary: Vocabulary, passages: Sequence[Candidate], length: int) -> list[list[int]]:
    """`[CLS] title [SEP] text [SEP]` of each passage, at most so long."""
    return [vocabulary.pair(title, text, length) for title, text in _tokens(vocabulary, passages)]


def cut(vocabulary: Vocabulary, passages: Sequence[Candidate], length: int) -> int:
    """How many passages have more tokens than such a row."""
    more = vocabulary.template.size
    sizes = (len(title) + len(text) + more(bool(title)) for title, text in _tokens(vocabulary, passages))
    return sum(size > length for size in sizes)


def _tokens(vocabulary: Vocabulary, passages: Sequence[Candidate]) -> Iterator[tuple[list[int], list[int]]]:
    """The tokens of each title and text."""
    titles, texts = (
        vocabulary.encode_batch([getattr(passage, part) for passage in passages]) for part in ("title", "text")
    )
    return zip(titles, texts)
