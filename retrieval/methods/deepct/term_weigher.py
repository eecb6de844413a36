"""A trained DeepCT as what weighs the words of passages."""

from collections.abc import Sequence
from typing import NamedTuple

from ml_collections import ConfigDict

from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.methods.deepct.model import DeepCT
from retrieval.methods.deepct.term_weights import term_frequencies
from retrieval.recipes.on_mesh import OnMesh
from retrieval.recipes.passage_rows import cut, rows_of
from retrieval.recipes.placement import local_mesh, parameters_of
from retrieval.search.encoding import batches
from retrieval.search.words import paired


class Scale(NamedTuple):
    """How weights become frequencies: as `term_frequencies` has it."""

    scale: int = 100
    square_root: bool = False


class TermWeigher:
    """Passages to the frequencies of their words, on this host's devices."""

    def __init__(self, config: ConfigDict, vocabulary: Vocabulary, model: DeepCT, scale: Scale, batch_size: int):
        """Args are the config that the model was trained with, and the passages of a batch."""
        mesh = local_mesh(config)
        self._length, self._vocabulary, self._scale = config.data.document_length, vocabulary, scale
        self._rows = -(-batch_size // mesh.size) * mesh.size
        on_mesh = OnMesh(config, model, vocabulary.sep_id, mesh)
        self._weigh = on_mesh.compiled(lambda model, text: model(text, None))(parameters_of(model))

    def cut(self, passages: Sequence[Candidate]) -> int:
        """How many passages are longer than the model reads: words behind that get no weight."""
        return cut(self._vocabulary, passages, self._length)

    def weigh(self, passages: Sequence[Candidate]) -> list[dict[str, int]]:
        """The frequencies of each passage's words, for `Bm25Index.from_frequencies`."""
        rows = rows_of(self._vocabulary, passages, self._length)
        frequencies: list[dict[str, int]] = [{} for _ in passages]
        for places, ids_RL in batches(rows, lambda _: self._rows, self._length):
            for place, weights_L in zip(places, self._weigh(ids_RL)):
                pieces = [self._vocabulary.tokens[id] for id in rows[place]]
                frequencies[place] = term_frequencies(
                    pieces, weights_L[: len(pieces)].tolist(), **self._scale._asdict(), indexed=paired
                )
        return frequencies
