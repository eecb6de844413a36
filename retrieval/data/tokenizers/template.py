"""What stands around a text, as the folder of its tokenizer has it: `[CLS] text [SEP]`, `text </s>`, or nothing."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Template(NamedTuple):
    """Ids of tokens.

    Attributes:
      before, behind: what stands before a text, and behind it or the second of two.
      between: what parts two texts.
    """

    before: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()

    def size(self, parted: bool = False) -> int:
        """The tokens of a row that are of no text; of two texts where they are `parted`."""
        return len(self.before) + len(self.between) * parted + len(self.behind)

    def single(self, ids: Sequence[int], length: int) -> list[int]:
        """`[CLS] ids [SEP]`, cut to `length` tokens; what stands behind is kept."""
        return [*self.before, *ids[: max(0, length - self.size())], *self.behind]

    def pair(self, first: Sequence[int], second: Sequence[int], length: int) -> list[int]:
        """`[CLS] first [SEP] second [SEP]`, cut to `length` tokens as BERT and Hugging Face's `longest_first` cut.

        The longer text loses its last tokens until both are of one length, then both do. One odd place is left to the
        longer, or to `second`. An empty `first` (a text without a title) gives `single(second)`.
        """
        return PairTemplate(*self).row(first, second, length) if first else self.single(second, length)

    def windows(self, first: Sequence[int], second: Sequence[int], length: int, most: int) -> list[list[int]]:
        """The `pair` of the two, then pairs with the same `first`.

        In each, `second` goes on where the one before was cut.

        Args:
          most: pairs, at most; what `second` has behind the last of them is left out.
        """
        room = length - self.size(bool(first))
        first = _beside(first, second, room)
        step = max(1, room - len(first))
        starts = range(0, max(1, len(second)), step)[:most]
        return [self.pair(first, second[start : start + step], length) for start in starts]

    def processor(self, tokens: Sequence[str], types: int, pair: "PairTemplate | None" = None) -> dict[str, Any]:
        """The post-processor of a `tokenizer.json` that does the same.

        Args:
          tokens: id -> token.
          types: how many token types there are: the second text of a pair has the last.
          pair: what stands around a pair where that is not this template.
        """
        around = pair or PairTemplate(self.before, self.between, self.behind, len(self.between))
        last, of_first = types - 1, max(around.of_first, 0)

        def special(ids: Sequence[int], type_id: int = 0) -> list[Any]:
            return [{"SpecialToken": {"id": tokens[id], "type_id": type_id}} for id in ids]

        first, second = ([{"Sequence": {"id": id, "type_id": n}}] for id, n in (("A", 0), ("B", last)))
        between = special(around.between[:of_first]) + special(around.between[of_first:], last)
        names = {id: tokens[id] for id in (*self.before, *self.behind, *around.before, *around.between, *around.behind)}
        return {
            "type": "TemplateProcessing",
            "single": special(self.before) + first + special(self.behind),
            "pair": special(around.before) + first + between + second + special(around.behind, last),
            "special_tokens": {name: {"id": name, "ids": [id], "tokens": [name]} for id, name in names.items()},
        }


class PairTemplate(NamedTuple):
    """What stands around a query and a document that a cross-encoder reads, and their token types.

    Attributes:
      before, between, behind: ids of tokens.
      of_first: how many tokens of `between` have the query's type, 0; the rest and the document have type 1. -1 where
        all of a pair has type 0.
    """

    before: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    of_first: int = -1

    @property
    def change(self) -> tuple[int, int]:
        """The token behind which types are 1, and its how manyth place in a row that is; (-1, 1) where none are."""
        ids = (*self.before, *self.between[: self.of_first])
        return (ids[-1], ids.count(ids[-1])) if self.of_first > 0 else (-1, 1)

    def row(self, query: Sequence[int], document: Sequence[int], length: int) -> list[int]:
        """`[CLS] query [SEP] document [SEP]` of at most `length` tokens, cut as transformers' `longest_first` cuts."""
        room = max(0, length - len(self.before) - len(self.between) - len(self.behind))
        query = _beside(query, document, room)
        return [*self.before, *query, *self.between, *document[: room - len(query)], *self.behind]


class Frame(NamedTuple):
    """The special tokens of a vocabulary, by role, '' where it has none; and what stands around a text, and a pair.

    Attributes:
      template: by default that of [CLS] and [SEP], also around a pair.
      pair: None where the post-processor makes pairs of a kind that no model here reads.
    """

    roles: Mapping[str, str]
    template: Template | None = None
    pair: PairTemplate | None = None


def _beside(first: Sequence[int], second: Sequence[int], room: int) -> Sequence[int]:
    """What is left of `first` where the two share `room` tokens."""
    half = (room + (len(first) > len(second))) // 2
    return first[: max(half, room - len(second))]
