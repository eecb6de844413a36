"""The stage `tokens`: the vectors of all tokens of every set's queries and candidates, for the stage `maxsim`.

Those of the passages of the corpus are made too, for searches of one's own.
"""

import functools
import logging
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.common.runtime import hosts
from retrieval.data.sets import beir
from retrieval.methods.late_interaction import residuals, token_store
from retrieval.methods.late_interaction.residuals import Codec
from retrieval.methods.late_interaction.token_masks import NONE
from retrieval.methods.late_interaction.token_store import FOLDER, TokenStore
from retrieval.methods.late_interaction.trained import LATE_MODELS, MODEL, LateModel
from retrieval.recipes.parameters import local_mesh
from retrieval.runs.fitting import encoding_cost
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Stage
from retrieval.runs.ranking import costs
from retrieval.runs.ranking.collection import CORPUS, Collection, collections, repeated
from retrieval.search import sharded_map
from retrieval.search.sharded_map import Shards
from retrieval.stages import encode

_log = logging.getLogger(__name__)

_CANDIDATES = 4096  # of a file of vectors at most: each has one of every token


def tokens(run: Run) -> dict[str, Any]:
    """Writes `tokens/SET/`; returns the counts of each set."""
    fields, model = run.config.late, LATE_MODELS.open(run, run.config.late.model, MODEL)
    bits = residuals.BITS.get(fields.stored, 0)
    shard_size = min(run.config.encode.shard_size, _CANDIDATES)
    dtype = "float16" if bits else fields.stored
    items, summary, config = collections(run), {}, model.config
    same, as_dtype = repeated(items), lambda vectors: vectors.astype(dtype)
    for item in items:
        folder = run.folder / FOLDER / item.name
        total, operations = sum(1 for _ in item.candidates()), {}
        if item.name != CORPUS:
            queries = beir.read_queries(run.sets / item.name / "queries.jsonl")
            shards = Shards(folder, "queries", ".npy", len(queries), shard_size)
            token_store.write(shards, queries.items(), model.encode_query, as_dtype)
            texts, are_filled = (queries.values(), item.candidates(), total), config.model.late.expansion != NONE
            operations = encoding_cost.of_set(config, model.vocabulary, *texts, are_filled=are_filled)
        shards = Shards(folder, "candidates", ".npy", total, shard_size)
        if first := same.get(item.name):
            _log.info("%s has the candidates of %s: their vectors are copied", item.name, first.name)
            token_store.copy(folder.with_name(first.name), shards)
        else:
            if bits and total:
                hosts.on_first(functools.partial(_learn_codec, model, item, folder, total, bits))
            texts, codec = ((each.id, each) for each in item.candidates()), token_store.load_codec(folder, "candidates")
            stored_of = functools.partial(codec.encode, mesh=local_mesh(config)) if codec else as_dtype
            token_store.write(shards, texts, model.encode_document, stored_of)
        summary[item.name] = hosts.tell_all(functools.partial(_counts, folder)) | operations
        _log.info("%s: %s", item.name, ", ".join(f"{name} {count}" for name, count in summary[item.name].items()))
    return summary


def _learn_codec(model: LateModel, item: Collection, folder: Path, total: int, bits: int) -> None:
    """Writes the codec of a set's candidates, learned from some of them; one that is there is kept."""
    path = token_store.codec_path(folder, "candidates")
    if sharded_map.is_whole(path):
        return
    count = min(1 + int(8 * (120 * total) ** 0.5), total)  # half of PLAID's: enough for each centroid's vectors
    wanted = set(np.random.default_rng(0).choice(total, count, replace=False).tolist())
    vectors = model.encode_document([each for row, each in enumerate(item.candidates()) if row in wanted])
    sample = np.concatenate(vectors)
    folder.mkdir(parents=True, exist_ok=True)
    Codec.learn(sample, total * len(sample) // len(vectors), bits, [0], local_mesh(model.config)).save(path)
    sharded_map.seal(path)
    _log.info("%s: %d vectors of %d candidates have taught the codec", item.name, len(sample), len(vectors))


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


_FIELDS = ("late.model", "late.stored", "model.dtype", "encode.corpus", "encode.shard_size")
_SHARED = encode.over_texts(LATE_MODELS, "late.model")
STAGES.register("tokens", Stage(tokens, fields=_FIELDS, writes=(FOLDER,), **_SHARED))
