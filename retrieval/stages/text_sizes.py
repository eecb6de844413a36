"""How long texts are as towers read them: with prefixes, titles and special tokens, before they are cut."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.prefixes import Prefixes
from retrieval.data.tokenizers.vocab import Vocabulary


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
        return [more + len(ids) for ids in self.prefixes.encode_queries(self.vocabulary, list(texts))]

    def of_documents(self, texts: Iterable[Candidate]) -> list[int]:
        """Tokens of `[CLS] prefix title [SEP] text [SEP]`, or with one [SEP] where there is no title to part."""
        items = list(texts)
        titles, bodies = [item.title for item in items], [item.text for item in items]
        tokens = self.prefixes.encode_documents(self.vocabulary, titles, bodies)
        more, parted = len(self.prefixes.of_stored.document), not self.prefixes.joined
        size = self.vocabulary.template.size
        return [more + len(title) + len(body) + size(parted and bool(title)) for title, body in tokens]
