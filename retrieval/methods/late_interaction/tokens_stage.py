"""The stage `tokens`: the vectors of all tokens of every set's queries and candidates, for the stage `maxsim`.

Those of the passages of the corpus are made too, for searches of one's own.
"""

import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from retrieval.data.sets import beir
from retrieval.data.sets.beir import Candidate
from retrieval.methods.late_interaction import residuals, token_store
from retrieval.methods.late_interaction.residuals import Codec
from retrieval.methods.late_interaction.token_store import FOLDER, TokenStore
from retrieval.methods.late_interaction.trained import LATE_MODELS, MODEL
from retrieval.pipeline.run import Run
from retrieval.pipeline.stage import STAGES, Read, Stage
from retrieval.recipes import encoding_cost
from retrieval.recipes.placement import local_mesh
from retrieval.runtime import devices, hosts
from retrieval.search import sharded_map
from retrieval.stages import costs
from retrieval.stages.collection import CORPUS, Collection, collections, of_pairs, repeated, train_unless

_log = logging.getLogger(__name__)

_CANDIDATES = 4096  # of a file of vectors at most: each has one of every token


def tokens(run: Run) -> dict[str, Any]:
    """Writes `tokens/SET/`; returns the counts of each set."""
    fields, model = run.config.late, LATE_MODELS.open(run, run.config.late.model, MODEL)
    bits = residuals.BITS.get(fields.stored, 0)
    shard_size = min(run.config.encode.shard_size, _CANDIDATES)
    sizes: dict[str, Any] = {"shard_size": shard_size, "dtype": "float16" if bits else fields.stored}
    items = collections(run)
    same, told = repeated(items), {}

    def of_queries(members: Sequence[tuple[str, str]]) -> tuple[list[str], list[Any]]:
        return [id for id, _ in members], model.encode_queries([text for _, text in members])

    def vectors_of(members: Sequence[Candidate]) -> list[np.ndarray]:
        return [pooled(each, fields.pool) for each in model.documents(members)]

    def of_candidates(members: Sequence[Candidate]) -> tuple[list[str], list[Any]]:
        return [each.id for each in members], vectors_of(members)

    for item in items:
        folder = run.folder / FOLDER / item.name
        total, operations = sum(1 for _ in item.candidates()), {}
        if item.name != CORPUS:
            queries = beir.read_queries(run.sets / item.name / "queries.jsonl")
            token_store.write(folder, "queries", queries.items(), len(queries), of_queries, **sizes)
            asked = encoding_cost.some(queries.values(), len(queries))
            operations = model.operations(asked, encoding_cost.some(item.candidates(), total))
        if first := same.get(item.name):
            _log.info("%s has the candidates of %s: their vectors are copied", item.name, first.name)
            token_store.copy(folder.with_name(first.name), folder, "candidates", total, shard_size)
        else:
            codec = _codec(item, folder, vectors_of, local_mesh(model.config), total, bits) if bits and total else None
            token_store.write(folder, "candidates", item.candidates(), total, of_candidates, codec=codec, **sizes)
        told[item.name] = hosts.tell_all(functools.partial(_counts, folder)) | operations
        _log.info("%s: %s", item.name, ", ".join(f"{name} {count}" for name, count in told[item.name].items()))
    return told


def _codec(
    item: Collection,
    folder: Path,
    vectors_of: Callable[[Sequence[Candidate]], list[np.ndarray]],
    mesh: jax.sharding.Mesh,
    total: int,
    bits: int,
) -> Codec | None:
    """The codec of a set's candidates, learned from some of them; one that is there is kept."""

    def learn() -> None:
        path = token_store.codec_path(folder, "candidates")
        if sharded_map.is_whole(path):
            return
        chosen = np.random.default_rng(0).choice(total, residuals.sample_size(total), replace=False)
        wanted = set(chosen.tolist())
        vectors = vectors_of([each for row, each in enumerate(item.candidates()) if row in wanted])
        sample = np.concatenate([each for each in vectors if len(each)] or [np.zeros((0, 0), np.float32)])
        folder.mkdir(parents=True, exist_ok=True)
        count = total * len(sample) // len(vectors)
        Codec.learn(sample, count, bits, [0], mesh).save(path)
        sharded_map.seal(path)
        _log.info("%s: %d vectors of %d candidates have taught the codec", item.name, len(sample), len(vectors))

    hosts.on_first(learn)
    return token_store.load_codec(folder, "candidates")


def pooled(vectors_TE: np.ndarray, factor: int) -> np.ndarray:
    """One vector for so many of a document (Clavié, Chaffin & Adams 2024); the first stays as it is.

    By Ward's clustering of cosine distances.
    Means are not of length 1.

    Args:
      vectors_TE: of length 1.
    """
    first_1E, others_TE = vectors_TE[:1], vectors_TE[1:]
    count = max(len(others_TE) // factor, 1)
    if count >= len(others_TE):
        return vectors_TE
    from scipy.cluster import hierarchy  # half a second, which others do without

    distances = 1 - (others_TE @ others_TE.T)[np.triu_indices(len(others_TE), k=1)]
    labels_T = hierarchy.fcluster(hierarchy.linkage(distances, method="ward"), t=count, criterion="maxclust")
    members_CT = np.unique(labels_T)[:, None] == labels_T
    means_CE = members_CT.astype(np.float32) @ others_TE / members_CT.sum(axis=1, keepdims=True)
    return np.concatenate([first_1E, means_CE.astype(vectors_TE.dtype)])


def _counts(folder: Path) -> dict[str, Any]:
    """What the report says of a set's vectors; those without a token are never found, and find nothing."""
    candidates = TokenStore(folder, "candidates")
    queries = TokenStore(folder, "queries").sizes if folder.name != CORPUS else np.ones(0)
    return {
        "candidates": len(candidates),
        "vectors": int(candidates.sizes.sum()),
        "dimensions": candidates.dimensions,
        costs.BYTES: round(candidates.bytes / max(1, len(candidates)), 1),
        "candidates without a token": int((candidates.sizes == 0).sum()),
        "queries without a token": int((queries == 0).sum()),
    }


def read(config: ConfigDict) -> list[str | Read]:
    """What the stage reads: texts, and the run's own model where `late.model` names none."""
    return [Read("sets", same=True), "prepare", *of_pairs(config), *train_unless(config.late.model)]


STAGES.register(
    "tokens",
    Stage(
        tokens,
        check=(
            lambda run: LATE_MODELS.check(run, run.config.late.model, MODEL),
            devices.check,
        ),
        fields=("late.model", "late.stored", "late.pool", "model.dtype", "encode.corpus", "encode.shard_size"),
        uses=("encode.batch_tokens",),
        reads=read,
        files=lambda run: LATE_MODELS.inputs(run, run.config.late.model, MODEL),
        fetch=lambda run: LATE_MODELS.fetch(run, run.config.late.model, MODEL),
        writes=(FOLDER,),
        everywhere=True,
    ),
)
