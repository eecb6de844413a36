"""Losses of a student that learns a teacher's embeddings of the queries.

Letters of shapes: B examples of the global batch, K documents of each, E embedding size, H that of the teacher. A batch
has the teacher's embeddings of a query and its documents, `guide` [B, 1 + K, H], of the model that `train.guide` names.
"""

import abc
import dataclasses

import jax
import jax.numpy as jnp

from retrieval.common.errors import UserError
from retrieval.training.loss_kind import EMBEDDINGS, LOSSES, Batch, Loss, Metrics


@dataclasses.dataclass(frozen=True)
class OfTeacher(Loss):
    """A loss of the student's embeddings of a query and its positive, both against the teacher's of the query.

    So a student of several languages learns from a teacher of one (Reimers & Gurevych 2020): the query is a sentence
    that the teacher knows, and the positive its translation. For a smaller student of one language both are one text.
    """

    inputs = EMBEDDINGS

    guide: str = ""

    def check_batch(self, batch_size: int, negatives: int) -> None:
        """Checks that there is a teacher, whatever the batch."""
        if not self.guide:
            raise UserError("config.train.guide names no model, and the loss learns its embeddings: set it to one")

    def __call__(self, query_BE: jax.Array, document_BKE: jax.Array, batch: Batch) -> tuple[jax.Array, Metrics]:
        """The loss [B], and 'cosine' [B]: the mean of both texts' cosines with the teacher's embedding."""
        target_BH = batch["guide"][:, 0].astype(jnp.float32)
        texts = [x_BE.astype(jnp.float32) for x_BE in (query_BE, document_BKE[:, 0])]
        if (size := texts[0].shape[1]) != target_BH.shape[1]:
            way = f"set config.model.embed_dim={target_BH.shape[1]}, or take another teacher"
            raise UserError(
                f"config.train.guide={self.guide} gives {target_BH.shape[1]} numbers, the model {size}: {way}"
            )
        mean_B = [jnp.mean(jnp.stack([of(x_BE, target_BH) for x_BE in texts]), 0) for of in (self.distance, _cosine)]
        return mean_B[0], {"cosine": mean_B[1]}

    @abc.abstractmethod
    def distance(self, student_BE: jax.Array, teacher_BE: jax.Array) -> jax.Array:
        """Of two embeddings each, [B]."""


@dataclasses.dataclass(frozen=True)
class EmbeddingMSE(OfTeacher):
    """The teacher's embeddings, by squared error.

        loss = mean over the query, its positive and dimensions of (student - teacher of the query)^2

    sentence-transformers' MSELoss. Take it for a student that is to stand in the place of its teacher, in its space.
    """

    def distance(self, student_BE: jax.Array, teacher_BE: jax.Array) -> jax.Array:
        """As `OfTeacher.distance`."""
        return jnp.square(student_BE - teacher_BE).mean(axis=1)


@dataclasses.dataclass(frozen=True)
class EmbeddingCosine(OfTeacher):
    """The directions of the teacher's embeddings.

        loss = 1 - mean over the query and its positive of cos(student, teacher of the query)

    sentence-transformers' EmbedDistillLoss with cosines. Take it where embeddings are compared by cosines.
    """

    def distance(self, student_BE: jax.Array, teacher_BE: jax.Array) -> jax.Array:
        """As `OfTeacher.distance`."""
        return 1 - _cosine(student_BE, teacher_BE)


def _cosine(one_BE: jax.Array, other_BE: jax.Array) -> jax.Array:
    lengths = [jax.lax.rsqrt(jnp.square(x_BE).sum(axis=1) + 1e-12) for x_BE in (one_BE, other_BE)]
    return (one_BE * other_BE).sum(axis=1) * lengths[0] * lengths[1]


LOSSES.register("embedding_mse", EmbeddingMSE)
LOSSES.register("embedding_cosine", EmbeddingCosine)
