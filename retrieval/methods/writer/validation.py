"""Validation of a model that writes: how probable it finds the held-out queries, given their passages.

Letters of shapes: B pairs of a batch, L tokens of a query.
"""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from retrieval.data.sets import beir
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.methods.writer.model import EncoderDecoder, teacher_forced
from retrieval.models.text import Text
from retrieval.recipes import examples
from retrieval.recipes.on_mesh import token_types
from retrieval.recipes.passage_rows import rows_of
from retrieval.recipes.placement import bind, gather
from retrieval.recipes.recipe import abstract_model
from retrieval.recipes.towers import query_tokens
from retrieval.search.encoding import padded
from retrieval.stage_outputs import Run
from retrieval.training import losses, sharding

_log = logging.getLogger(__name__)

# Of the tokens of held-out queries, the end token among them: the mean log-probability, in nats, and the share of those
# that the model finds the most probable. Of both, more is better.
METRICS = ("LogLikelihood", "TokenAccuracy")
_ROWS = 64  # pairs of a batch, rounded up to whole devices


class _Rows(NamedTuple):
    """Padded token ids of sources [N, M] and targets [N, L]; N is a multiple of the rows of a batch."""

    source: np.ndarray
    target: np.ndarray


def make(run: Run, vocabulary: Vocabulary, mesh: jax.sharding.Mesh) -> Callable[[Any], dict[str, float]]:
    """A function from parameters to METRICS over the pairs that are held out of training.

    Raises:
      UserError: none is held out.
    """
    config = run.config
    size = -(-_ROWS // mesh.size) * mesh.size
    pairs = held_out(run, vocabulary, size)
    _log.info("validation: %d pairs", int((pairs.target != 0).any(axis=1).sum()))
    bound = bind(abstract_model(config, len(vocabulary)))

    @jax.jit
    def totals(params: Any, source: Text, target_BL: jax.Array) -> jax.Array:
        seen_BL, labels_BL, weights_BL = teacher_forced(target_BL)
        model: EncoderDecoder = bound(gather(params))
        label_BL, normalizer_BL, hit_BL = losses.of_labels(model(source, seen_BL, None), labels_BL)
        log_BL = label_BL - normalizer_BL
        sums = [(weights_BL * values_BL).sum() for values_BL in (log_BL, hit_BL, jnp.ones_like(log_BL))]
        return jax.reshard(jnp.stack(sums), sharding.replicated(mesh))

    def validate(params: Any) -> dict[str, float]:
        rows, sums = sharding.batch_sharding(mesh), np.zeros(3)
        for start in range(0, len(pairs.source), size):
            source, target = (part[start : start + size] for part in pairs)
            text = (sharding.place(part, rows) for part in (source, token_types(source, vocabulary.sep_id)))
            with jax.set_mesh(mesh):
                sums += np.asarray(totals(params, Text.from_ids(*text), sharding.place(target, rows)))
        return dict(zip(METRICS, (sums[:2] / sums[2]).tolist()))

    return validate


def held_out(run: Run, vocabulary: Vocabulary, multiple: int = 1) -> _Rows:
    """The held-out queries with each of their passages.

    Args:
      multiple: rows of padding make their number a multiple of it.

    Raises:
      UserError: none is held out.
    """
    data = run.config.data
    queries, qrels = examples.validation(run)
    relevant = [(query, id) for query, grades in qrels.items() for id, grade in grades.items() if grade > 0]
    wanted = {id for _, id in relevant}
    candidates = beir.read_candidates(examples.validation_folder(run) / "corpus.jsonl")
    passages = {candidate.id: candidate for candidate in candidates if candidate.id in wanted}
    sources = rows_of(vocabulary, [passages[id] for _, id in relevant], data.document_length)
    targets = query_tokens(run.config, vocabulary, [queries[query] for query, _ in relevant])
    count = -(-len(relevant) // multiple) * multiple
    return _Rows(padded(sources, count, data.document_length), padded(targets, count, data.query_length))
