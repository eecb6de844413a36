"""Texts that an encoder-decoder writes, token by token: greedily, by beam search or drawn at random.

The functions are of arrays of fixed shapes, to be jitted with the model as an argument. They end when all texts have.
`Writer` writes texts of passages with them. What it writes of a passage depends on that alone, not on the batch: each
passage has a random key of its own, and the arrays of a passage have the same shapes in every batch.

Letters of shapes: R sources, W texts of each, T tokens of a text at most, V vocabulary, X tokens that are drawn from
or tried.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from retrieval.common.runtime import hashing
from retrieval.common.runtime.arrays import first_highest, reshape_rows
from retrieval.common.runtime.filler import FILLER
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.prefixes import cut, rows_of
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.methods.writer.model import EncoderDecoder
from retrieval.models.text import Text
from retrieval.recipes.inference import Inference
from retrieval.recipes.parameters import local_mesh, parameters_of
from retrieval.search.text_batches import batches

GREEDY, BEAM, SAMPLE = "greedy", "beam", "sample"
BEAMS = 4  # texts that beam search keeps, or as many as are asked for
TOP_K = 10  # tokens that each is drawn from (Nogueira & Lin 2019)
BATCH = 64  # passages of a batch, rounded up to whole devices


class Written(NamedTuple):
    """Texts.

    Attributes:
      ids_RWT: without the start token; with the end token, unless the text was cut, and `FILLER` behind it.
      log_probability_RW: of all its tokens, the end token's too, by the model's own distribution without `Ends.never`;
        float32.
    """

    ids_RWT: jax.Array
    log_probability_RW: jax.Array


class Ends(NamedTuple):
    """How a text begins and ends: the ids of two tokens.

    Attributes:
      length: how many tokens it has at most, the end token among them.
      never: the token of padding, which a text has not: a model that never saw it may still give it a share. -1: none.
    """

    start: int
    end: int
    length: int
    never: int


def greedy(model: EncoderDecoder, source: Text, ends: Ends) -> Written:
    """The most probable token each time; one text of each source."""
    return _one_by_one(model, source, ends, 1, lambda logits_RWV, place: first_highest(logits_RWV))


def sample(
    model: EncoderDecoder, source: Text, ends: Ends, keys_R: jax.Array, count: int, top_k: int = TOP_K
) -> Written:
    """Texts whose tokens are drawn from the `top_k` most probable (Fan et al. 2018).

    Args:
      keys_R: a random key of each source, so that its texts do not depend on the batch that it is in.
      count: W, how many texts.
    """

    def pick(logits_RWV: jax.Array, place: jax.Array) -> jax.Array:
        logits_RWX, ids_RWX = jax.lax.top_k(logits_RWV, min(top_k, logits_RWV.shape[-1]))
        draw = jax.vmap(lambda key, logits_WX: jax.random.categorical(jax.random.fold_in(key, place), logits_WX))
        drawn_RW = draw(keys_R, logits_RWX)
        return jnp.take_along_axis(ids_RWX, drawn_RW[:, :, None], axis=2)[:, :, 0]

    return _one_by_one(model, source, ends, count, pick)


def beam_search(model: EncoderDecoder, source: Text, ends: Ends, *, width: int = BEAMS) -> Written:
    """The best texts of a search that keeps `width` of them each time, best first.

    Where there are fewer texts, the last have a log-probability of -inf and mean nothing.
    """

    def choose(state: _State, logits_RWV: jax.Array, total_RW: jax.Array) -> _Choice:
        R, W, V = logits_RWV.shape
        X = min(W, V)  # no text has more than W of its tokens among the W best of all
        logits_RWX, ids_RWX = jax.lax.top_k(logits_RWV, X)
        # A text that has ended goes on in one way, with padding, which is certain.
        ended_X = jnp.where(jnp.arange(X) == 0, 0, -jnp.inf)
        is_done_RW1 = state.done_RW[:, :, None]
        ids_RWX = jnp.where(is_done_RW1, FILLER, ids_RWX)
        log_RWX = jnp.where(is_done_RW1, ended_X, logits_RWX - total_RW[:, :, None]) + state.log_RW[:, :, None]
        flat = [reshape_rows(x_RWX, R, W * X) for x_RWX in (log_RWX, ids_RWX)]
        _, best_RW = jax.lax.top_k(flat[0], W)
        log_RW, picked_RW = (jnp.take_along_axis(x_RT, best_RW, axis=1) for x_RT in flat)
        parent_RW = best_RW // X

        def of_parents(x: jax.Array) -> jax.Array:
            parents = parent_RW.reshape(R, W, *[1] * (x.ndim - 2))
            return jnp.take_along_axis(x, parents, axis=1, mode="clip")  # all are in bounds, and need no check

        return jax.tree.map(lambda x: of_parents(x) if x.ndim else x, state), picked_RW, log_RW

    # All beams are alike at first: one of them is enough.
    return _run(model, source, ends, jnp.where(jnp.arange(width) == 0, 0.0, -jnp.inf), choose)


class Decoding(NamedTuple):
    """How texts are written.

    Attributes:
      way: 'greedy', 'beam' or 'sample'.
      texts: of each passage.
      tokens: of a text at most, the end token among them.
      seed: of the draws.
    """

    way: str
    texts: int
    tokens: int
    seed: int = 0

    @property
    def beams(self) -> int:
        """The texts that beam search keeps, of which the first are taken."""
        return max(BEAMS, self.texts)


class WrittenText(NamedTuple):
    """A text, its log-probability by one of this project's models, and whether it was cut for want of room."""

    text: str
    log_probability: float | None
    is_cut: bool


class Writer:
    """Passages to texts, by a trained model on this host's devices."""

    def __init__(self, config: ConfigDict, vocabulary: Vocabulary, model: EncoderDecoder, decoding: Decoding):
        """Args are the config that the model was trained with, and its vocabulary."""
        mesh = local_mesh(config)
        self._length, self._vocabulary, self._decoding = config.data.document_length, vocabulary, decoding
        self._rows = -(-BATCH // mesh.size) * mesh.size
        never = vocabulary.pad_id if vocabulary.pad_id != vocabulary.sep_id else -1
        ends = Ends(vocabulary.cls_id, vocabulary.sep_id, decoding.tokens, never)

        def write(model: EncoderDecoder, source: Text, seeds_R: jax.Array) -> Written:
            keys_R = jax.vmap(lambda seed: jax.random.fold_in(jax.random.key(decoding.seed), seed))(seeds_R)
            if decoding.way == GREEDY:
                return greedy(model, source, ends)
            if decoding.way == BEAM:
                return beam_search(model, source, ends, width=decoding.beams)
            return sample(model, source, ends, keys_R, decoding.texts)

        self._write = Inference(config, model, vocabulary.sep_id, mesh).compiled(write)(parameters_of(model))

    def cut(self, passages: Sequence[Candidate]) -> int:
        """How many passages are longer than the model reads."""
        return cut(self._vocabulary, passages, self._length)

    def write(self, passages: Sequence[Candidate]) -> list[list[WrittenText]]:
        """The texts of each passage, in the order in which the model gives them."""
        sources = rows_of(self._vocabulary, passages, self._length)
        texts: list[list[WrittenText]] = [[] for _ in passages]
        for places, ids_RM in batches(sources, lambda _: self._rows, self._length):
            seeds_R = np.zeros(self._rows, np.uint32)
            seeds_R[: len(places)] = [hashing.number(passages[place].id) >> 32 for place in places]
            for place, ids_WT, log_W in zip(places, *self._write(ids_RM, seeds_R)):
                written = zip(ids_WT[: self._decoding.texts], log_W.tolist())
                # Beam search may find fewer texts than it is asked for.
                texts[place] = [self._text(ids_T, log) for ids_T, log in written if np.isfinite(log)]
        return texts

    def _text(self, ids_T: np.ndarray, log_probability: float) -> WrittenText:
        end = np.flatnonzero(ids_T == self._vocabulary.sep_id)
        token_ids = ids_T[: end[0]] if len(end) else ids_T
        words = [id for id in token_ids.tolist() if id != self._vocabulary.unk_id]  # which is no word of the vocabulary
        text = self._vocabulary.decode(words).removeprefix("##").strip()  # a piece that goes on, without a beginning
        return WrittenText(text, log_probability, not len(end))


class _State(NamedTuple):
    """Texts that are being written.

    Attributes:
      place: how many tokens are written.
      last_RW: the last of them.
      cache: as `EncoderDecoder.step` takes it.
    """

    place: jax.Array
    ids_RWT: jax.Array
    last_RW: jax.Array
    log_RW: jax.Array
    done_RW: jax.Array
    cache: jax.Array


# The texts that go on, the next token of each and its log-probability with that token.
_Choice = tuple[_State, jax.Array, jax.Array]
_Choose = Callable[[_State, jax.Array, jax.Array], _Choice]


def _one_by_one(
    model: EncoderDecoder, source: Text, ends: Ends, width: int, pick: Callable[[jax.Array, jax.Array], jax.Array]
) -> Written:
    """Texts that do not compete; `pick` is from logits [R, W, V] and the place in the text to the next token [R, W]."""

    def choose(state: _State, logits_RWV: jax.Array, total_RW: jax.Array) -> _Choice:
        picked_RW = jnp.where(state.done_RW, FILLER, pick(logits_RWV, state.place).astype(state.ids_RWT.dtype))
        log_RW = jnp.take_along_axis(logits_RWV, picked_RW[:, :, None], axis=2)[:, :, 0] - total_RW
        return state, picked_RW, state.log_RW + jnp.where(state.done_RW, 0, log_RW)

    return _run(model, source, ends, jnp.zeros(width), choose)


def _run(model: EncoderDecoder, source: Text, ends: Ends, log_W: jax.Array, choose: _Choose) -> Written:
    """Goes on until all texts have ended, or have no more room.

    Args:
      log_W: the log-probability of each of a source's texts before its first token.
      choose: from the state, the logits of the next token [R, W, V] and the logarithm of the sum of their exponentials
        [R, W].
    """
    memory = model.read(source)
    cache = model.empty_cache(memory, len(log_W), ends.length)
    zero_RW = jnp.zeros_like(cache[:, :, 0, 0, 0, 0, 0], jnp.int32)
    ids_RWT = zero_RW[:, :, None] + jnp.full(ends.length, FILLER, jnp.int32)
    begun = _State(jnp.int32(0), ids_RWT, zero_RW + ends.start, zero_RW + log_W, zero_RW > 0, cache)

    def going(state: _State) -> jax.Array:
        return (state.place < ends.length) & ~state.done_RW.all()

    def one_token(state: _State) -> _State:
        logits_RWV, cache = model.step(state.last_RW, state.place, memory, state.cache)
        logits_RWV = jnp.where(jnp.arange(logits_RWV.shape[-1]) == ends.never, -jnp.inf, logits_RWV)
        total_RW = jax.nn.logsumexp(logits_RWV, axis=-1)
        state, picked_RW, log_RW = choose(state._replace(cache=cache), logits_RWV, total_RW)
        picked_RW = picked_RW.astype(state.ids_RWT.dtype)
        return state._replace(
            place=state.place + 1,
            ids_RWT=jax.lax.dynamic_update_slice(state.ids_RWT, picked_RW[:, :, None], (0, 0, state.place)),
            last_RW=picked_RW,
            log_RW=log_RW,
            done_RW=state.done_RW | (picked_RW == ends.end),
        )

    state = jax.lax.while_loop(going, one_token, begun)
    return Written(state.ids_RWT, state.log_RW)
