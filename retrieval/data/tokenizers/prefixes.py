"""Prefixes: what stands before every query and before every document, such as 'query: ' (E5, Wang et al. 2022).

A document with a title has it before the title, as sentence-transformers puts a prompt before the first of two texts.
How a title stands before its text is said here, too.

A text and what stands before it are tokenised as one string. Where tokens end at spaces, as word pieces do, that gives
the tokens of either, one after the other, and stored texts serve with any prefix. Else stored texts begin with it. A
prefix in brackets that is a token of the vocabulary, such as '[unused0]', is that token, before texts of any kind.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from retrieval.common.errors import UserError
from retrieval.data.sets.candidate import Candidate
from retrieval.data.tokenizers import prompts
from retrieval.data.tokenizers.vocab import Vocabulary

NAMES = tuple(prompts.USUAL.values())
FIELDS = (*(f"data.{name}" for name in NAMES), "data.titles")  # on which stored texts depend
PAIR, JOINED = "pair", "joined"
_MARK = re.compile(r"[\[<].*[\]>] ?")
_WORD = "1"  # a token of every vocabulary that splits at spaces, if only the unknown one


class Prefixes(NamedTuple):
    """Attributes:
    query, document: their token ids.
    joined: whether a title and its text are one text, not a pair.
    texts: the prefixes of queries and of documents, where the tokens of a text begin with them; None where they do not.
    """

    query: tuple[int, ...] = ()
    document: tuple[int, ...] = ()
    joined: bool = False
    texts: tuple[str, str] | None = None

    @classmethod
    def of(cls, data: Mapping[str, Any], vocabulary: Vocabulary) -> "Prefixes":
        """The prefixes of the group `data` of a config.

        Raises:
          UserError: one leaves no room for a text.
        """
        (query, document), texts, are_apart = zip(*(_prompt(data, vocabulary, side) for side in prompts.USUAL))
        joined = data.get("titles", PAIR) == JOINED
        apart = (vocabulary.splits_at_spaces and all(are_apart)) or not (any(texts) or joined)
        return cls(query, document, joined, None if apart else texts)

    @property
    def of_stored(self) -> "Prefixes":
        """What is still to be put before the tokens that `encode_query` and `encode_document` gave."""
        in_query, in_document = self.texts or ("", "")
        return self._replace(query=() if in_query else self.query, document=() if in_document else self.document)

    def encode_query(self, vocabulary: Vocabulary, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each query, for `query_row`."""
        return vocabulary.encode_batch([self.texts[0] + text for text in texts] if self.texts else texts)

    def encode_document(
        self, vocabulary: Vocabulary, titles: Sequence[str], texts: Sequence[str]
    ) -> Iterator[tuple[list[int], list[int]]]:
        """The tokens of each title and of its text, for `document_rows`."""
        if self.texts:  # the first that there is begins with the prefix
            prefix = self.texts[1]
            if self.joined:
                titles, texts = [""] * len(titles), [" ".join(filter(None, both)) for both in zip(titles, texts)]
            texts = [text if title else prefix + text for title, text in zip(titles, texts)]
            titles = [title and prefix + title for title in titles]
        yield from zip(vocabulary.encode_batch(titles), vocabulary.encode_batch(texts))

    def query_row(self, vocabulary: Vocabulary, ids: Sequence[int], length: int) -> list[int]:
        """`[CLS] prefix query [SEP]`, cut to `length` tokens."""
        return vocabulary.single([*self.of_stored.query, *ids], length)

    def document_rows(
        self, vocabulary: Vocabulary, title: Sequence[int], text: Sequence[int], length: int, most: int = 1
    ) -> list[list[int]]:
        """`[CLS] prefix title [SEP] text [SEP]`, or `[CLS] prefix text [SEP]`: `Vocabulary.windows` with the prefix.

        Joined, the title is the beginning of the text.
        """
        prefix = self.of_stored.document
        if self.joined:
            title, text = (), [*title, *text]
        if title or not self.document:
            return vocabulary.windows([*prefix, *title] if title else title, text, length, most)
        # Every window begins with the prefix; the first of a text that has it as its beginning has it there.
        room = max(1, length - vocabulary.template.size() - len(self.document))
        own = room + len(self.document) if self.document and not prefix else room
        starts = [0, *range(own, len(text), room)][:most]
        windows = [text[:own], *(text[start : start + room] for start in starts[1:])]
        before = [prefix, *[self.document] * (len(starts) - 1)]
        return [vocabulary.single([*ids, *window], length) for ids, window in zip(before, windows)]


def type_change(data: Mapping[str, Any], sep_id: int) -> int:
    """The token behind which tokens are of a second text, [SEP]; -1, which is none, where texts are joined."""
    return -1 if data.get("titles", PAIR) == JOINED else sep_id


def _prompt(data: Mapping[str, Any], vocabulary: Vocabulary, side: str) -> tuple[tuple[int, ...], str, bool]:
    """The tokens of a side's prefix; its text, '' where it is a token by itself, such as ColBERT's '[unused0]', '[Q] '.

    And whether it and what follows have the tokens of either.
    """
    prefix, length = data.get(prompts.USUAL[side], ""), data.get(f"{side}_length", math.inf)
    is_token = bool(_MARK.fullmatch(prefix)) and prefix in vocabulary.tokens
    # Its last space belongs to what follows: pieces of SentencePiece begin with theirs.
    ids = [vocabulary.tokens.index(prefix)] if is_token else vocabulary.encode(prefix.rstrip()) if prefix else []
    if ids and vocabulary.template.size() + len(ids) >= length:
        remedy = f"no token is left of config.data.{side}_length={length}: take a shorter prompt, or raise the length"
        special = f"{vocabulary.template.size()} special ones"
        raise UserError(f"the prompt {prefix[:60]!r} has {len(ids)} tokens, and with {special} {remedy}")
    is_apart = is_token or vocabulary.encode(prefix + _WORD) == [*ids, *vocabulary.encode(_WORD)]
    return tuple(ids), "" if is_token else prefix, is_apart


NONE = Prefixes()


class TextSizes(NamedTuple):
    """Counts tokens of texts.

    Attributes:
      query_length, document_length: the tokens that queries and documents are cut to.
    """

    vocabulary: Vocabulary
    prefixes: Prefixes
    query_length: int
    document_length: int

    @classmethod
    def of(cls, data: Mapping[str, Any], vocabulary: Vocabulary) -> "TextSizes":
        """As the group `data` of a config has it."""
        return cls(vocabulary, Prefixes.of(data, vocabulary), data["query_length"], data["document_length"])

    def of_queries(self, texts: Iterable[str]) -> list[int]:
        """Tokens of `[CLS] prefix query [SEP]`."""
        more = self.vocabulary.template.size() + len(self.prefixes.of_stored.query)
        return [more + len(ids) for ids in self.prefixes.encode_query(self.vocabulary, list(texts))]

    def of_documents(self, texts: Iterable[Candidate]) -> list[int]:
        """Tokens of `[CLS] prefix title [SEP] text [SEP]`, or with one [SEP] where there is no title to part."""
        tokens = self.prefixes.encode_document(self.vocabulary, *_titles_and_texts(texts))
        more, parted = len(self.prefixes.of_stored.document), not self.prefixes.joined
        size = self.vocabulary.template.size
        return [more + len(title) + len(body) + size(parted and bool(title)) for title, body in tokens]


def rows_of(vocabulary: Vocabulary, passages: Sequence[Candidate], length: int) -> list[list[int]]:
    """`[CLS] title [SEP] text [SEP]` of each passage, at most so long."""
    tokens = NONE.encode_document(vocabulary, *_titles_and_texts(passages))
    return [vocabulary.pair(*both, length) for both in tokens]


def _titles_and_texts(items: Iterable[Candidate]) -> tuple[list[str], list[str]]:
    items = list(items)
    return [item.title for item in items], [item.text for item in items]


def cut(vocabulary: Vocabulary, passages: Sequence[Candidate], length: int) -> int:
    """How many passages have more tokens than such a row."""
    return sum(size > length for size in TextSizes(vocabulary, NONE, length, length).of_documents(passages))
