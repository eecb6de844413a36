"""Models that give a text a vector for every token, or weights of terms, behind the door that towers have."""

from collections.abc import Sequence
from typing import Any

from retrieval.data.sets.beir import Candidate
from retrieval.errors import UserError
from retrieval.pipeline.run import Run
from retrieval.recipes.trained_model import TextEncoder, TrainedKind
from retrieval.search.index_kind import EXACT, IndexKind, Options
from retrieval.search.side_by_side import Search


class VectorEncoder:
    """As `TowerEncoder`: exact search compares what is encoded; there is no other index.

    Attributes:
      config: of the model.
      similarity: of a query and a document.
    """

    def __init__(self, encoder: TextEncoder, kind: TrainedKind):
        self.config, self.vocabulary, self._encoder, self._kind = encoder.config, encoder.vocabulary, encoder, kind
        self.similarity = encoder.similarity

    @property
    def without(self) -> str:
        """What the run lacks where none of its passages are encoded, for an error."""
        return f"run the stage {self._kind.stage} with config.encode.corpus=True"

    def encode_queries(self, texts: Sequence[str], prompt_name: str | None = None, prompt: str | None = None) -> Any:
        """What `TextEncoder.encode_queries` gives."""
        self._check_prompt(prompt_name, prompt)
        return self._encoder.encode_queries(texts)

    def encode_documents(
        self, items: Sequence[Candidate], prompt_name: str | None = None, prompt: str | None = None
    ) -> Any:
        """What `TextEncoder.encode_documents` gives."""
        self._check_prompt(prompt_name, prompt)
        return self._encoder.encode_documents(items)

    def over_texts(self, kind: IndexKind, texts: Sequence[Candidate], options: Options) -> Search:
        """A search among texts.

        Raises:
          UserError: the index is of embeddings.
        """
        self._check(kind)
        search = self._encoder.over(self._encoder.encode_documents(texts))
        return lambda queries, k: search(self._encoder.encode_queries(queries), k)

    def over_passages(self, kind: IndexKind, run: Run, options: Options) -> Search | None:
        """A search among the passages of a run; None where they are not encoded."""
        self._check(kind)
        found = self._kind.over_passages(run, {})
        return found[1] if found else None

    def _check(self, kind: IndexKind) -> None:
        if kind.name != EXACT:
            raise UserError(
                f"the index '{kind.name}' is of embeddings, of which a model of the kind '{self._kind.name}' makes "
                "none: take 'exact', one of words, or 'hybrid'"
            )

    def _check_prompt(self, *given: str | None) -> None:
        if any(text is not None for text in given):
            raise UserError(
                f"a model of the kind '{self._kind.name}' has the markers that it was trained with: leave prompt_name "
                "and prompt out"
            )
