"""Validation of BERT's two tasks: masked tokens and next sentences of passages that are held out of training.

Letters of shapes: B pairs of a batch, P masked positions, V vocabulary.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from retrieval.data.examples.batches import as_written
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.libraries import seqio
from retrieval.recipes import examples
from retrieval.recipes.batch_fields import text_of
from retrieval.recipes.placement import bind, gather
from retrieval.recipes.recipe import abstract_model, recipe_of
from retrieval.stage_outputs import Run
from retrieval.training import losses, sharding

_log = logging.getLogger(__name__)

# Of masked tokens the mean log-probability, in nats, and the share that the model finds the most probable; and of pairs
# the share whose class it finds more probable. Of all three, more is better.
METRICS = ("LogLikelihood", "TokenAccuracy", "NextSentenceAccuracy")
_ROWS = 64  # pairs of a batch, rounded up to whole devices


def check(validate_every: int, held_out: float) -> None:
    """Checks that passages are held out.

    Args:
      validate_every, held_out: these fields of `loop` and `data`.

    Raises:
      UserError: none is.
    """
    if not held_out:
        raise UserError(
            f"config.loop.validate_every={validate_every} needs passages to validate on: set "
            "config.data.held_out, such as 0.01, or config.loop.validate_every=0"
        )


def make(run: Run, vocabulary: Vocabulary, mesh: jax.sharding.Mesh) -> Callable[[Any], dict[str, float]]:
    """A function from parameters to METRICS over pairs that stay the same.

    Raises:
      UserError: nothing is held out.
    """
    config = run.config
    size = -(-_ROWS // mesh.size) * mesh.size
    pairs = held_out(run, vocabulary)
    count = len(pairs["text"])
    if not count:
        raise UserError(f"config.data.held_out={config.data.held_out} holds no passage out: a larger share is needed")
    random = float(pairs["is_random"].mean())
    _log.info("validation: %d pairs, %.0f %% of them with a random second text", count, 100 * random)
    bound = bind(abstract_model(config, len(vocabulary)))

    @jax.jit
    def totals(params: Any, batch: Mapping[str, jax.Array], real_B: jax.Array) -> jax.Array:
        logits_BPV, logits_B2 = bound(gather(params))(text_of(batch, "text"), batch["positions"], None)
        label_BP, normalizer_BP, hit_BP = losses.of_labels(logits_BPV, batch["labels"])
        log_BP, weights_BP = label_BP - normalizer_BP, batch["weights"] * real_B[:, None]
        hit_B = logits_B2.argmax(axis=-1) == batch["is_random"][:, 0]
        sums = [(weights_BP * log_BP).sum(), (weights_BP * hit_BP).sum(), weights_BP.sum(), (real_B * hit_B).sum()]
        return jax.reshard(jnp.stack(sums), sharding.replicated(mesh))

    def validate(params: Any) -> dict[str, float]:
        rows, sums = sharding.batch_sharding(mesh), np.zeros(4)
        for start in range(0, count, size):
            # The last batch is filled up with its first pair, of no weight.
            at = np.minimum(np.arange(start, start + size), count - 1)
            batch = {name: sharding.place(values[at], rows) for name, values in pairs.items()}
            real = sharding.place((np.arange(start, start + size) < count).astype(np.float32), rows)
            with jax.set_mesh(mesh):
                sums += np.asarray(totals(params, batch, real))
        log, hits, tokens, right = sums.tolist()
        return dict(zip(METRICS, (log / tokens, hits / tokens, right / count)))

    return validate


def held_out(run: Run, vocabulary: Vocabulary) -> dict[str, np.ndarray]:
    """The first pairs of the held-out passages, as many as `loop.validate_queries`, in the fields of a batch."""
    recipe = recipe_of(run.config)
    lengths, converter = recipe.lengths(), recipe.converter(vocabulary.sep_id)
    name, _ = examples.register_tasks(run, vocabulary, validation=True)
    open_dataset = as_written(seqio.get_mixture_or_task(name).get_dataset)
    drawn = open_dataset(lengths, "train", shuffle=False, seed=0, num_epochs=1)
    rows = as_written(converter)(drawn, task_feature_lengths=lengths).as_numpy_iterator()
    pairs = list(itertools.islice(rows, run.config.loop.validate_queries))
    return {name: np.stack([pair[name] for pair in pairs]) for name in pairs[0]} if pairs else {"text": np.zeros(0)}
