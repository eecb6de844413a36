"""Prefixes: what stands before every query and before every document, such as 'query: ' (E5, Wang et al. 2022).

A document with a title has it before the title, as sentence-transformers puts a prompt before the first of two texts.
How a title stands before its text is said here, too.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError

NAMES = ("query_prefix", "document_prefix")
PAIR, JOINED = "pair", "joined"
_WORD = "1"  # a token of every vocabulary, if only the unknown one


class Prefixes(NamedTuple):
    """Attributes:
    query, document: their token ids.
    joined: whether a title and its text are one text, not a pair.
    spaced: whether the text has other tokens then than alone, as with byte pairs, whose words begin with their space.
    """

    query: tuple[int, ...] = ()
    document: tuple[int, ...] = ()
    joined: bool = False
    spaced: bool = False

    @classmethod
    def of(cls, data: Mapping[str, Any], vocabulary: Vocabulary) -> "Prefixes":
        """The prefixes of the group `data` of a config; one of an older version has none.

        Raises:
          UserError: there is one, and the vocabulary begins a text unlike what follows, as byte pairs do.
        """
        joined = data.get("titles", PAIR) == JOINED
        query, document = (_ids(data.get(name, ""), vocabulary, name) for name in NAMES)
        spaced = joined and vocabulary.encode(f"{_WORD} {_WORD}") != 2 * vocabulary.encode(_WORD)
        return cls(query, document, joined, spaced)

    def check_stored(self) -> None:
        """Checks that titles and texts may be tokenised apart, as those of training are.

        Raises:
          UserError: they may not.
        """
        if self.spaced:
            raise UserError(
                "config.data.titles=joined: this vocabulary has other tokens at the beginning of a text than behind a "
                f"title, as byte pairs have, and training tokenises the two apart: set it to {PAIR}"
            )

    def encode_documents(
        self, vocabulary: Vocabulary, titles: Sequence[str], texts: Sequence[str]
    ) -> Iterator[tuple[list[int], list[int]]]:
        """The tokens of each title and of its text, for `document_rows`."""
        if self.spaced:
            texts = [f" {text}" if title and text else text for title, text in zip(titles, texts)]
        yield from zip(vocabulary.encode_batch(titles), vocabulary.encode_batch(texts))

    def query_row(self, vocabulary: Vocabulary, ids: Sequence[int], length: int) -> list[int]:
        """`[CLS] prefix query [SEP]`, cut to `length` tokens."""
        return vocabulary.single([*self.query, *ids], length)

    def document_rows(
        self, vocabulary: Vocabulary, title: Sequence[int], text: Sequence[int], length: int, most: int = 1
    ) -> list[list[int]]:
        """`[CLS] prefix title [SEP] text [SEP]`, or `[CLS] prefix text [SEP]`: `Vocabulary.windows` with the prefix.

        Joined, the title is the beginning of the text.
        """
        if self.joined:
            title, text = (), [*title, *text]
        if title or not self.document:
            return vocabulary.windows([*self.document, *title] if title else title, text, length, most)
        rows = vocabulary.windows([], text, length - len(self.document), most)
        return [[row[0], *self.document, *row[1:]] for row in rows]


def type_change(data: Mapping[str, Any], sep_id: int) -> int:
    """The token behind which tokens are of a second text, [SEP]; -1, which is none, where texts are joined."""
    return -1 if data.get("titles", PAIR) == JOINED else sep_id


def _ids(prefix: str, vocabulary: Vocabulary, name: str) -> tuple[int, ...]:
    """The tokens of a prefix. Its last space belongs to what follows: pieces of SentencePiece begin with theirs."""
    ids = vocabulary.encode(prefix.rstrip()) if prefix else []
    if prefix and vocabulary.encode(prefix + _WORD) != [*ids, *vocabulary.encode(_WORD)]:
        raise UserError(
            f"config.data.{name}: this vocabulary has other tokens at the beginning of a text than behind a prefix, as "
            "byte pairs have: leave it empty"
        )
    return tuple(ids)


NONE = Prefixes()
