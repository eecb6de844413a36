"""An encoder-decoder of a config, as what writes texts of passages.

What is written of a passage depends on that alone, not on the batch: each passage has a random key of its own, and the
arrays of a passage have the same shapes in every batch.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from retrieval import hashing
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.models.decoding import Ends, Written, beam_search, greedy, sample
from retrieval.models.encoder_decoder import EncoderDecoder
from retrieval.models.text import Text
from retrieval.recipes.passage_batches import batches, cut, rows_of
from retrieval.recipes.placement import bind, gather, local_mesh, parameters_of, shardings_of
from retrieval.recipes.towers import token_types
from retrieval.training import sharding

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
        self._mesh = local_mesh(config)
        self._length, self._vocabulary, self._decoding = config.data.document_length, vocabulary, decoding
        self._rows = -(-batch_size // self._mesh.size) * self._mesh.size
        bound, params = bind(model), parameters_of(model)
        with jax.set_mesh(self._mesh):
            params = jax.device_put(params, shardings_of(params, config, self._mesh))
        ends = Ends(vocabulary.cls_id, vocabulary.sep_id, decoding.tokens)
        everywhere = sharding.replicated(self._mesh)

        @jax.jit
        def write(params: Any, source: Text, seeds_R: jax.Array) -> Written:
            keys_R = jax.vmap(lambda seed: jax.random.fold_in(jax.random.key(decoding.seed), seed))(seeds_R)
            written = decode(bound(gather(params)), source, ends, keys_R, decoding)
            return jax.tree.map(lambda leaf: jax.reshard(leaf, everywhere), written)

        self._write: Callable[..., Written] = functools.partial(write, params)

    def cut(self, passages: Sequence[Candidate]) -> int:
        """How many passages are longer than the model reads."""
        return cut(self._vocabulary, passages, self._length)

    def write(self, passages: Sequence[Candidate]) -> list[list[WrittenText]]:
        """The texts of each passage, in the order in which the model gives them."""
        sources = rows_of(self._vocabulary, passages, self._length)
        texts: list[list[WrittenText]] = [[] for _ in passages]
        for places, ids_RM in batches(sources, self._rows, self._length):
            for place, token_ids in zip(places, self._batch(ids_RM, [passages[place].id for place in places])):
                texts[place] = token_ids
        return texts

    def _batch(self, ids_RM: np.ndarray, ids: Sequence[str]) -> list[list[WrittenText]]:
        rows = sharding.batch_sharding(self._mesh)
        text = (sharding.place(part, rows) for part in (ids_RM, token_types(ids_RM, self._vocabulary.sep_id)))
        seeds_R = np.zeros(self._rows, np.uint32)
        seeds_R[: len(ids)] = [hashing.number(id) >> 32 for id in ids]
        with jax.set_mesh(self._mesh):
            written = self._write(Text.from_ids(*text), sharding.place(seeds_R, rows))
        tokens, log = np.asarray(written.ids_RWT), np.asarray(written.log_probability_RW)
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
