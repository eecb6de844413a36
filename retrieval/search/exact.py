"""Exact search: the candidates with the largest inner products, by matrix multiplication on every device of a mesh.

The kind of index 'exact' compares embeddings as they are stored, and 'quantised' makes smaller codes of them. Neither
saves anything.

Of codes (`vector_codes`) the devices hold the codes, and a tile at a time is what these stand for.

Each device holds an equal share of the rows and ranks it by itself; the best of all shares are gathered and ranked once
more. Rows lie in their order: in ties `top_k` takes what comes first, so at every level the smaller row wins.

Shape letters: Q queries of a call, B queries of a batch, G batches of a program, N candidates, E embedding, K results,
P rows of a share, S stored numbers of a row. A share is T tiles of R rows, R being M blocks of W; C blocks of a tile
can hold a result; X is what is ranked.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from retrieval.common.errors import UserError
from retrieval.common.runtime import devices
from retrieval.search.index_kind import EXACT, IndexKind, Options, register
from retrieval.search.vector_codes import FLOAT32, Codes, Form, Rows, products

# Rows that are ranked together, and those of one matrix product, whose scores (16 MB for 512 queries) are looked at
# while they are in a cache. On a CPU this pair is the fastest of 32 to 128 and 2,048 to 16,384.
_BLOCK, _TILE = 64, 8192
# How many blocks of a tile are ranked: the least of these that is enough, or K, which always is.
_CHOICES = (4, 8, 16, 32, 64)
# Queries that are scored at once, and such batches in one program: its memory is touched for the first time once, which
# on a CPU costs as much as the scores that are written into it.
_QUERIES, _BATCHES = 512, 8
# A GPU goes back to the host at every tile, to learn how many blocks to rank. Among a million candidates on an H200
# these sizes took one query from 44 to 2.3 ms, and 2,048 queries from 64 to 31 ms.
_GPU_TILE, _GPU_QUERIES = 131_072, 2048
# A call of few queries is one batch of the least of these sizes that is enough. Of 80,000 candidates on a CPU core, the
# best 100 take 3, 6 and 17 ms, and those of 512 queries 220 ms. Each size compiles a program, so they are few.
_FEW = (1, 8, 32, 512)
# Rows that are brought to a device at once: on a CPU, too, they are there twice meanwhile.
_PIECE = 65_536

Pair = tuple[jax.Array, jax.Array]


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the rows of all candidates, and rows of padding behind them, lie on the devices; and what is in them.

    Each compiles a program. How many of the rows are candidates it does not say: so an index that grows a little
    compiles nothing.
    """

    mesh: jax.sharding.Mesh
    tiles: int
    rows: int
    precision: str = FLOAT32

    @classmethod
    def of(cls, candidates: int, mesh: jax.sharding.Mesh, precision: str = FLOAT32) -> "Layout":
        """The tile depends on the number of candidates and the kind of device alone.

        The last bits of a product depend on its shape, so with tiles of one shape the scores are the same on any mesh.
        A small collection has 16 of them, for as many devices.
        """
        tile = _GPU_TILE if _of_gpus(mesh) else _TILE
        rows = min(tile, _ceil(_ceil(candidates, 16), _BLOCK) * _BLOCK)
        return cls(mesh, _ceil(_ceil(candidates, rows), mesh.size), rows, precision)

    @property
    def share(self) -> int:
        """Rows of a device."""
        return self.tiles * self.rows

    def place(self, rows_NS: Rows) -> jax.Array:
        """The rows and their padding on the devices; only the rows of this process's devices are read."""
        shape = self.mesh.size * self.share, rows_NS.shape[1]
        sharding = NamedSharding(self.mesh, P(self.mesh.axis_names))
        indices = sharding.addressable_devices_indices_map(shape)
        parts = [self._share_of(rows_NS, index[0].start or 0, device) for device, index in indices.items() if index]
        return jax.make_array_from_single_device_arrays(shape, sharding, parts)

    def _share_of(self, rows_NS: Rows, start: int, device: Any) -> jax.Array:
        """The rows of a device, piece by piece: all at once they would be in memory twice."""
        share_PS = None
        for first in range(0, self.share, _PIECE):
            size = min(_PIECE, self.share - first)
            piece_NS = rows_NS[start + first : start + first + size]
            missing = size - len(piece_NS)
            piece_NS = np.pad(piece_NS, ((0, missing), (0, 0))) if missing else np.asarray(piece_NS)
            if size == self.share:
                return jax.device_put(piece_NS, device)
            if share_PS is None:
                share_PS = jnp.zeros((self.share, rows_NS.shape[1]), piece_NS.dtype, device=device)
            share_PS = _filled(share_PS, jax.device_put(piece_NS, device), first).block_until_ready()
        assert share_PS is not None, "every device has rows"
        return share_PS


class ExactIndex:
    """Every candidate's embedding, or its code, on the devices of a mesh, compared with every query in float32.

    The same scores and rows, to the bit, on any number of devices of a kind. Besides the embeddings a search needs
    about `batch_size` x 8,192 x 4 bytes on a device, on a GPU a gigabyte, however many queries and candidates there
    are.
    On 2 CPU cores, 97,888 queries x 102,000 candidates x 128 dimensions, the best 100: about 40 s.
    """

    def __init__(
        self,
        embeddings_NE: Rows,
        batch_size: int | None = None,
        mesh: jax.sharding.Mesh | None = None,
        form: Form | None = None,
    ):
        """Args:
        embeddings_NE: float32; what is no array checks its rows itself, and each process reads those of its devices.
        batch_size: queries that are scored at once, 512 or on a GPU 2,048 where it is None; calls of few queries
          have smaller batches.
        mesh: the rows are spread over all its axes; without one, over the devices of this process. Where it has
          devices of several processes, all of them build the index and make the same searches.
        form: of what the rows are codes, as `Form.typed` gives them; by default they are embeddings.
        """
        self._form = form if form and form.precision != FLOAT32 else None
        if isinstance(embeddings_NE, np.ndarray) and not self._form:
            embeddings_NE = finite_embeddings(embeddings_NE, "candidate")
        if not len(embeddings_NE):
            raise UserError("there are no candidates to search: the list of embeddings is empty")
        self._candidates, width = embeddings_NE.shape
        self._dimensions = self._form.dim if self._form else width
        mesh = mesh or local_mesh()
        self._batch_size = batch_size or _queries(mesh)
        self._layout = Layout.of(self._candidates, mesh, self._form.precision if self._form else FLOAT32)
        self._embeddings = self._layout.place(embeddings_NE)

    def search(self, queries_QE: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The `k` candidates with the largest inner product for each query, ties to the smaller row."""
        queries_QE = matching_queries(queries_QE, self._dimensions)
        scores_QK, rows_QK = no_results(len(queries_QE), k)
        depth = min(k, self._candidates)
        constant_Q = np.zeros(len(queries_QE), np.float32)
        if self._form:
            queries_QE, constant_Q = self._form.queries(queries_QE)
        start, batch_size = 0, _batch_size(len(queries_QE), self._batch_size)
        for batches in _calls(len(queries_QE), batch_size):
            part = slice(start, start := start + batches * batch_size)
            padded_BE = np.pad(part_BE := queries_QE[part], ((0, batches * batch_size - len(part_BE)), (0, 0)))
            queries_GBE = padded_BE.reshape(batches, batch_size, -1)
            with jax.set_mesh(self._layout.mesh), devices.alone():  # the caller's mesh may be another one
                best = search_batches(queries_GBE, self._embeddings, self._candidates, self._layout, depth)
                scores_BK, rows_BK = jax.device_get(best)
            scores_QK[part, :depth], rows_QK[part, :depth] = scores_BK[: len(part_BE)], rows_BK[: len(part_BE)]
        if not np.isfinite(scores_QK[:, :depth]).all():
            raise UserError("an inner product is too large for float32: the embeddings grew without bound")
        return scores_QK + constant_Q[:, None], rows_QK


@register
class Exact(IndexKind):
    """Exact search."""

    name, title, system = EXACT, "exact search", "dense"
    is_saved, spreads = False, True

    def build(self, contents: Rows, options: Options, mesh: jax.sharding.Mesh | None = None) -> ExactIndex:
        form = getattr(contents, "form", None)
        return ExactIndex(Codes(contents, form) if form else contents, mesh=mesh, form=form)


@register
class Quantised(IndexKind):
    """Exact search over codes; the ranges that they need are those of all rows."""

    name, title, system = "quantised", "quantised search", "dense (quantised)"
    is_saved, spreads = False, True
    options = ("index.precision", "index.rescore")

    def build(self, contents: Rows, options: Options, mesh: jax.sharding.Mesh | None = None) -> ExactIndex:
        if isinstance(contents, np.ndarray):
            contents = finite_embeddings(contents, "candidate")
        form = Form(options["index.precision"], contents.shape[1])
        form = form.calibrated_on(contents) if len(contents) else form
        return ExactIndex(Codes(contents, form), mesh=mesh, form=form)


def recall(exact_QK: np.ndarray, approximate_QK: np.ndarray) -> float:
    """The mean share of each query's exact results (rows, -1 where there is none) that the approximate ones hold."""
    lists = zip(exact_QK, approximate_QK, strict=True)
    return float(np.mean([np.isin(exact_K[exact_K >= 0], rows_K).mean() for exact_K, rows_K in lists]))


def compiling(queries: int) -> int:
    """How many of so many queries a search has to have to compile all that a search of all of them uses."""
    most = _queries(local_mesh())
    return min(queries, most * sum(set(_calls(queries, most))))


def sizes_up_to(queries: int) -> list[int]:
    """Numbers of queries: searches of so many compile all that those of up to `queries`, one batch's, use."""
    most = _queries(local_mesh())
    return sorted({min(_batch_size(count, most), queries) for count in range(1, queries + 1)})


def _batch_size(queries: int, most: int) -> int:
    """How many queries a batch of a call has."""
    return next((size for size in _FEW if queries <= size < most), most)


def _calls(queries: int, batch_size: int) -> list[int]:
    """How many batches every program takes; there are two sizes, so two programs are compiled at most."""
    whole, rest = divmod(_ceil(queries, batch_size), _BATCHES)
    return [_BATCHES] * whole + [1] * rest


def finite_embeddings(embeddings: np.ndarray, what: str) -> np.ndarray:
    """`embeddings` as float32; `what` ('query', 'candidate') names them in the error.

    Raises:
      UserError: one holds NaN or infinity.
    """
    embeddings = np.asarray(embeddings, np.float32)
    if embeddings.ndim != 2:
        raise ValueError(f"{what} embeddings have shape {embeddings.shape}, not [number, dimensions]")
    # NaN and infinity survive min and max, which unlike isfinite need no memory.
    if embeddings.size and not np.isfinite([embeddings.min(), embeddings.max()]).all():
        bad = np.flatnonzero(~np.isfinite(embeddings).all(axis=1))
        count = f"{len(bad)} of {len(embeddings)} {what} embeddings"
        raise UserError(f"{count} are not finite, first row {bad[0]}: encode again")
    return embeddings


def matching_queries(queries_QE: np.ndarray, dimensions: int) -> np.ndarray:
    """`finite_embeddings` of queries that must have as many dimensions as the candidates."""
    queries_QE = finite_embeddings(queries_QE, "query")
    if (ours := queries_QE.shape[1]) != dimensions:
        raise UserError(f"the queries have {ours} dimensions and the candidates {dimensions}: encode with one model")
    return queries_QE


def no_results(queries: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of -inf and rows of -1, [queries, k]: what an index returns where it found nothing."""
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    return np.full((queries, k), -np.inf, np.float32), np.full((queries, k), -1, np.int32)


def merge(lists: Sequence[tuple[np.ndarray, np.ndarray]], queries: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The best `k` of several lists [Q, K] of scores and rows, ties to the smaller row; -inf and -1 stay last."""
    scores_QX, rows_QX = (np.concatenate(parts, axis=1) for parts in zip(no_results(queries, k), *lists))
    last_QX = np.where(rows_QX < 0, np.iinfo(np.int32).max, rows_QX)
    order_QK = np.lexsort((last_QX, -scores_QX), axis=1)[:, :k]
    return np.take_along_axis(scores_QX, order_QK, axis=1), np.take_along_axis(rows_QX, order_QK, axis=1)


@functools.partial(jax.jit, donate_argnums=0)
def _filled(share_PS: jax.Array, piece_NS: jax.Array, first: jax.Array) -> jax.Array:
    """A share with some of its rows."""
    return jax.lax.dynamic_update_slice(share_PS, piece_NS, (first, 0))


@functools.partial(jax.jit, static_argnames=("layout", "k"))
def search_batches(queries_GBE: jax.Array, embeddings_NE: jax.Array, candidates: jax.Array, layout: Layout, k: int):
    """The best `k` of the best of every share: scores and rows, [G * B, K], on every device."""
    axes = layout.mesh.axis_names
    of_share, specs = functools.partial(_search_share, layout=layout, k=k), (P(), P(axes), P())
    search_shares = jax.shard_map(of_share, in_specs=specs, out_specs=P(None, None, axes))
    best_GBX = jax.reshard(search_shares(queries_GBE, embeddings_NE, candidates), P())  # the one all-gather
    scores_QX, rows_QX = (x_GBX.reshape(-1, x_GBX.shape[-1]) for x_GBX in best_GBX)
    return _best(scores_QX, rows_QX, k)


def _search_share(queries_GBE: jax.Array, embeddings_PE: jax.Array, candidates: jax.Array, layout: Layout, k: int):
    """The best `k` rows of this device, or all of them where it has fewer; padding may be among them, at -inf."""
    tiles_TRE = embeddings_PE.reshape(layout.tiles, layout.rows, -1)
    first_row = jax.lax.axis_index(layout.mesh.axis_names) * layout.share
    first_rows_T = first_row + layout.rows * jnp.arange(layout.tiles)
    nothing = (jnp.full((queries_GBE.shape[1], k), -jnp.inf), jnp.full((queries_GBE.shape[1], k), -1))
    nothing = jax.lax.pcast(nothing, layout.mesh.axis_names, to="varying")

    def search(queries_BE: jax.Array):
        def step(best: Pair, tile: Pair):
            return _search_tile(queries_BE, tile, best, candidates, layout), None

        return jax.lax.scan(step, nothing, (tiles_TRE, first_rows_T))[0]

    return jax.lax.map(search, queries_GBE)


def _search_tile(queries_BE: jax.Array, tile: Pair, best: Pair, candidates: jax.Array, layout: Layout) -> Pair:
    """The best K of `best`, which come from the rows before, and of a tile: scores and rows, [B, K].

    Ranking is what costs besides the products, and only blocks with a maximum above the last of `best` are ranked: few,
    but for the first tiles. Never more than K are needed: a candidate of a block outside of the best K is beaten by
    the maxima of K blocks, in a tie by their smaller rows.
    """
    (tile_RE, first_row), (B, K) = tile, best[0].shape
    scores_BMW = products(layout.precision, queries_BE, tile_RE).reshape(B, -1, _BLOCK)
    rows_MW = first_row + jnp.arange(len(tile_RE)).reshape(-1, _BLOCK)

    def candidates_only(scores: jax.Array, rows: jax.Array) -> jax.Array:
        scores = jnp.where(scores == 0, 0, scores)  # top_k ranks 0.0 above -0.0
        return jnp.where(rows < candidates, scores, -jnp.inf)

    # Of all scores only these maxima are made: a second copy of them would cost as much as half of the products.
    maxima_BM = candidates_only(scores_BMW, rows_MW).max(axis=-1)

    def rank(count: int) -> Pair:
        blocks_BC = jnp.sort(jax.lax.top_k(maxima_BM, count)[1], axis=-1)  # keep the rows in order
        rows_BCW = rows_MW[blocks_BC]
        scores_BCW = candidates_only(jnp.take_along_axis(scores_BMW, blocks_BC[:, :, None], axis=1), rows_BCW)
        scores_BX = jnp.concatenate((best[0], scores_BCW.reshape(B, -1)), axis=1)
        rows_BX = jnp.concatenate((best[1], rows_BCW.reshape(B, -1)), axis=1)
        return _best(scores_BX, rows_BX, K)

    most = min(K, maxima_BM.shape[1])
    choices = [count for count in _CHOICES if count < most] + [most]
    needed = (maxima_BM > best[0][:, -1:]).sum(axis=1).max()
    return jax.lax.switch((needed > jnp.array(choices[:-1])).sum(), [functools.partial(rank, c) for c in choices])


def _best(scores_BX: jax.Array, rows_BX: jax.Array, k: int) -> Pair:
    """The `k` largest scores and their rows, ties to what comes first."""
    scores_BK, places_BK = jax.lax.top_k(scores_BX, k)
    return scores_BK, jnp.take_along_axis(rows_BX, places_BK, axis=1)


def local_mesh() -> jax.sharding.Mesh:
    """One axis over the devices of this process."""
    devices = jax.local_devices()
    return jax.make_mesh((len(devices),), ("rows",), devices=devices)


def _queries(mesh: jax.sharding.Mesh) -> int:
    """Queries of a batch."""
    return _GPU_QUERIES if _of_gpus(mesh) else _QUERIES


def _of_gpus(mesh: jax.sharding.Mesh) -> bool:
    return mesh.devices.flat[0].platform == "gpu"


def _ceil(number: int, by: int) -> int:
    """`number` / `by`, rounded up."""
    return -(-number // by)
