"""An encoder-decoder of a config, as what writes texts of passages.

What is written of a passage depends on that alone, not on the batch: each passage has a random key of its own, and the
arrays of a passage have the same shapes in every batch.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from retrieval import hashing
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.methods.writer.decoding import Ends, Written, beam_search, greedy, sample
from retrieval.methods.writer.model import EncoderDecoder
from retrieval.models.text import Text
from retrieval.recipes.on_mesh import OnMesh
from retrieval.recipes.passage_rows import cut, rows_of
from retrieval.recipes.placement import local_mesh, parameters_of
from retrieval.search.encoding import batches

GREEDY, BEAM, SAMPLE = "greedy", "beam", "sample"
WAYS = (GREEDY, BEAM, SAMPLE)


class Decoding(NamedTuple):
    """How texts are written.

    Attributes:
      way: a name in WAYS.
      texts: of each passage.
      tokens: of a text at most, the end token among them.
      beams, length_penalty: as `beam_search` has them.
      top_k, temperature: as `sample` has them.
      seed: of the draws.
    """

    way: str
    texts: int
    tokens: int
    beams: int = 4
    length_penalty: float = 0.0
    top_k: int = 10
    temperature: float = 1.0
    seed: int = 0


class WrittenText(NamedTuple):
    """A text, its log-probability by the model's own distribution, and whether it was cut for want of room."""

    text: str
    log_probability: float
    is_cut: bool


class Writer:
    """Passages to texts, by a trained model on this host's devices."""

    def __init__(
        self, config: ConfigDict, vocabulary: Vocabulary, model: EncoderDecoder, decoding: Decoding, batch_size: int
    ):
        """Args are the config that the model was trained with, the vocabulary, and the passages of a batch.

        Raises:
          UserError: more tokens are asked for than the model has positions.
        """
        if decoding.tokens > model.writer.max_length:
            raise UserError(
                f"texts of {decoding.tokens} tokens, but the model was trained to write "
                f"{model.writer.max_length}: lower config.generate.tokens, or train one with a larger "
                "config.data.query_length"
            )
        mesh = local_mesh(config)
        self._length, self._vocabulary, self._decoding = config.data.document_length, vocabulary, decoding
        self._rows = -(-batch_size // mesh.size) * mesh.size
        ends = Ends(vocabulary.cls_id, vocabulary.sep_id, decoding.tokens)

        def write(model: EncoderDecoder, source: Text, seeds_R: jax.Array) -> Written:
            keys_R = jax.vmap(lambda seed: jax.random.fold_in(jax.random.key(decoding.seed), seed))(seeds_R)
            return decode(model, source, ends, keys_R, decoding)

        self._write = OnMesh(config, model, vocabulary.sep_id, mesh).compiled(write)(parameters_of(model))

    def cut(self, passages: Sequence[Candidate]) -> int:
        """How many passages are longer than the model reads."""
        return cut(self._vocabulary, passages, self._length)

    def write(self, passages: Sequence[Candidate]) -> list[list[WrittenText]]:
        """The texts of each passage, in the order in which the model gives them."""
        sources = rows_of(self._vocabulary, passages, self._length)
        texts: list[list[WrittenText]] = [[] for _ in passages]
        for places, ids_RM in batches(sources, lambda _: self._rows, self._length):
            for place, token_ids in zip(places, self._batch(ids_RM, [passages[place].id for place in places])):
                texts[place] = token_ids
        return texts

    def _batch(self, ids_RM: np.ndarray, ids: Sequence[str]) -> list[list[WrittenText]]:
        seeds_R = np.zeros(self._rows, np.uint32)
        seeds_R[: len(ids)] = [hashing.number(id) >> 32 for id in ids]
        tokens, log = self._write(ids_RM, seeds_R)
        return [
            [
                self._text(tokens[row, place], float(log[row, place]))
                for place in range(self._decoding.texts)
                if np.isfinite(log[row, place])  # beam search may find fewer texts than it is asked for
            ]
            for row in range(len(ids))
        ]

    def _text(self, ids_T: np.ndarray, log_probability: float) -> WrittenText:
        end = np.flatnonzero(ids_T == self._vocabulary.sep_id)
        token_ids = ids_T[: end[0]] if len(end) else ids_T
        words = [id for id in token_ids.tolist() if id != self._vocabulary.unk_id]  # which is no word of the vocabulary
        text = self._vocabulary.decode(words).removeprefix("##").strip()  # a piece that goes on, without a beginning
        return WrittenText(text, log_probability, not len(end))


def check(decoding: Decoding) -> None:
    """Checks how texts are to be written.

    Raises:
      UserError: more texts are asked for than the way gives.
    """
    most = {GREEDY: 1, BEAM: decoding.beams}.get(decoding.way)
    if most is not None and decoding.texts > most:
        more = " or a larger config.generate.beams" if decoding.way == BEAM else ""
        raise UserError(
            f"config.generate.queries={decoding.texts}, and config.generate.way={decoding.way} gives {most}: ask for "
            f"{most}, or take config.generate.way={SAMPLE}{more}"
        )


def decode(model: EncoderDecoder, source: Text, ends: Ends, keys_R: jax.Array, decoding: Decoding) -> Written:
    """Writes texts in the way that `decoding` names."""
    if decoding.way == GREEDY:
        return greedy(model, source, ends)
    if decoding.way == BEAM:
        return beam_search(model, source, ends, width=decoding.beams, length_penalty=decoding.length_penalty)
    return sample(
        model, source, ends, keys_R, count=decoding.texts, top_k=decoding.top_k, temperature=decoding.temperature
    )
