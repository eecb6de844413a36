"""The stage `tokens`: the vectors of all tokens of every set's queries and candidates, for the stage `maxsim`."""

import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.config.fields import of_fields
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Candidate
from retrieval.methods.late_interaction import residuals, token_store
from retrieval.methods.late_interaction.residuals import Codec
from retrieval.methods.late_interaction.token_store import TokenStore
from retrieval.methods.late_interaction.trained import LATE_MODELS, LateModel
from retrieval.pipeline.run import Run
from retrieval.pipeline.stage import STAGES, Read, Stage
from retrieval.recipes.placement import local_mesh
from retrieval.runtime import hosts, platforms
from retrieval.stages.collection import Collection, open_collection, repeated, set_names, train_unless

_log = logging.getLogger(__name__)

FOLDER = "tokens"
MODEL = "config.late.model"


def tokens(run: Run) -> dict[str, Any]:
    """Writes `tokens/SET/`; returns the counts of each set."""
    fields, model = run.config.late, LATE_MODELS.open(run, run.config.late.model, MODEL)
    bits = residuals.BITS.get(fields.stored, 0)
    sizes: dict[str, Any] = {"shard_size": fields.shard_size, "dtype": "float16" if bits else fields.stored}
    items = [open_collection(run, name) for name in set_names(run.sets)]
    same, told = repeated(items), {}

    def of_candidates(members: Sequence[Candidate]) -> tuple[list[str], list[Any]]:
        return [each.id for each in members], model.documents(members)

    for item in items:
        folder = run.folder / FOLDER / item.name
        queries = beir.read_queries(run.sets / item.name / "queries.jsonl")
        token_store.write(folder, "queries", queries.items(), len(queries), _of_queries(model), **sizes)
        total = sum(1 for _ in item.candidates())
        if first := same.get(item.name):
            _log.info("%s has the candidates of %s: their vectors are copied", item.name, first.name)
            token_store.copy(folder.with_name(first.name), folder, "candidates", total, fields.shard_size)
        else:
            codec = _codec(item, folder, model, total, bits) if bits and total else None
            token_store.write(folder, "candidates", item.candidates(), total, of_candidates, codec=codec, **sizes)
        told[item.name] = hosts.tell_all(functools.partial(_counts, folder))
        _log.info("%s: %s", item.name, ", ".join(f"{name} {count}" for name, count in told[item.name].items()))
    return told


def _of_queries(model: LateModel) -> Callable[[Sequence[tuple[str, str]]], tuple[list[str], list[Any]]]:
    def make(members: Sequence[tuple[str, str]]) -> tuple[list[str], list[Any]]:
        vectors_QAE, counts_QA = model.queries([text for _, text in members])
        return [id for id, _ in members], [vectors[counts] for vectors, counts in zip(vectors_QAE, counts_QA)]

    return make


def _codec(item: Collection, folder: Path, model: LateModel, total: int, bits: int) -> Codec:
    """The codec of a set's candidates, learned from some of them; one that is there is kept."""

    def learn() -> None:
        path = token_store.codec_path(folder, "candidates")
        if path.exists():
            return
        chosen = np.random.default_rng(0).choice(total, residuals.sample_size(total), replace=False)
        wanted = set(chosen.tolist())
        vectors = model.documents([each for row, each in enumerate(item.candidates()) if row in wanted])
        sample = np.concatenate([each for each in vectors if len(each)] or [np.zeros((0, 0), np.float32)])
        folder.mkdir(parents=True, exist_ok=True)
        count = total * len(sample) // len(vectors)
        Codec.learn(sample, count, bits, [0], local_mesh(model.config)).save(path)
        _log.info("%s: %d vectors of %d candidates have taught the codec", item.name, len(sample), len(vectors))

    hosts.on_first(learn)
    return Codec.load(token_store.codec_path(folder, "candidates"), "--stage=tokens makes it again")


def _counts(folder: Path) -> dict[str, Any]:
    """What the report says of a set's vectors; those without a token are never found, and find nothing."""
    queries, candidates = (TokenStore(folder, name) for name in ("queries", "candidates"))
    return {
        "candidates": len(candidates),
        "vectors": int(candidates.sizes.sum()),
        "dimensions": candidates.dimensions,
        "bytes a candidate": round(candidates.bytes / max(1, len(candidates)), 1),
        "candidates without a token": int((candidates.sizes == 0).sum()),
        "queries without a token": int((queries.sizes == 0).sum()),
    }


def read(model: str) -> list[str | Read]:
    """What the stage reads: texts, and the run's own model where `model` names none."""
    return [Read("sets", required=True, same=True), "prepare", *train_unless(model)]


STAGES.register(
    "tokens",
    Stage(
        tokens,
        check=(
            lambda run: LATE_MODELS.check(run, run.config.late.model, MODEL),
            platforms.check,
        ),
        fields=("late.model", "late.stored", "late.shard_size", "model.dtype"),
        uses=("encode.batch_tokens",),
        reads=of_fields(read, "late.model"),
        files=lambda run: LATE_MODELS.inputs(run, run.config.late.model, MODEL),
        fetch=lambda run: LATE_MODELS.fetch(run, run.config.late.model, MODEL),
        writes=(FOLDER,),
        everywhere=True,
    ),
)
