"""The losses that `config.train.loss` names. A loss is a frozen dataclass in a file of `objectives`, or of a plugin:

    @dataclasses.dataclass(frozen=True)
    class TwoWayNLL(Loss):
        inputs = SCORES
        needs_negatives = True

        temperature: float = 1.0

        def __call__(self, score_BK, batch): ...

    LOSSES.register("two_way_nll", TwoWayNLL)

Letters of shapes: B examples of the global batch, K documents of each (the positive, then its hard negatives), C
classes of a document (not relevant, relevant), E embedding size.
"""

import abc
import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.common.registry import Table
from retrieval.config.fields import check_value, declared

Batch = Mapping[str, jax.Array]
Metrics = dict[str, jax.Array]

# What a loss takes, and with what it is called; each gives the loss [B] and metrics [B]. The caller owns the mean.
EMBEDDINGS = "embeddings"  # (query_BE, document_BKE, batch)
SCORES = "scores"  # (score_BK, batch)
CLASSES = "classes"  # (logit_BKC, batch), C = 2

TEMPERATURE = "train.temperature"
AS_NEGATIVES = "negatives"  # what a query's other positives are to a loss that does not know of them


@dataclasses.dataclass(frozen=True)
class Loss(abc.ABC):
    """A loss with its options, the fields of the dataclass: each is the field of that name in `config.train`.

    Attributes:
      inputs: EMBEDDINGS, SCORES, CLASSES, or what a method's models alone give.
      needs_negatives: whether an example must have hard negatives.
      needs_teacher: whether a batch must have a teacher's scores of an example's documents, `teacher` [B, K].
      of_scored_pairs: whether it learns how alike two texts are, a score each, and needs no right document.
      score_limits: the lowest and the highest score that it takes; None for any.
      of_cosines: whether it compares directions alone. Search ranks by inner products, so embeddings need length 1.
      neutral: of options, the values that only leave something out. They may stay set for a loss that lacks the option.
    """

    inputs: ClassVar[str]
    needs_negatives: ClassVar[bool] = False
    needs_teacher: ClassVar[bool] = False
    of_scored_pairs: ClassVar[bool] = False
    score_limits: ClassVar[tuple[float, float] | None] = None
    of_cosines: ClassVar[bool] = False
    neutral: ClassVar[Mapping[str, Collection[Any]]] = {}

    def __post_init__(self) -> None:
        """Checks the options by their declarations. Losses whose options must fit each other add to it."""
        for path in self.options():
            check_value(path, getattr(self, path.removeprefix("train.")), declared()[path].kind)

    @abc.abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> tuple[jax.Array, Metrics]:
        """The loss [B] and metrics [B] of a batch; what it is called with depends on `inputs`."""

    @classmethod
    def options(cls) -> tuple[str, ...]:
        """The fields of the config that it reads, as dotted names."""
        return tuple(f"train.{field.name}" for field in dataclasses.fields(cls))

    @classmethod
    def of(cls, config: ConfigDict) -> Self:
        """The loss with the options of a config."""
        values = {field.name: config.train[field.name] for field in dataclasses.fields(cls)}
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})

    @property
    def takes_positives(self) -> bool:
        """Whether it takes the ids of a query's known positives, `positive_ids` [B, P].

        A batch has them only where some query has more than one.
        """
        return getattr(self, "other_positives", AS_NEGATIVES) != AS_NEGATIVES

    @property
    def counts_copies(self) -> str:
        """The field by which a copy of a query's positive counts as a second one; '' where none does."""
        return "train.other_positives" if getattr(self, "other_positives", "") == "mean" else ""

    @property
    def guided_by(self) -> str:
        """The model whose embeddings of an example's texts it takes, `guide` [B, 1 + K, H]; '' for none."""
        return getattr(self, "guide", "")

    def check_batch(self, batch_size: int, negatives: int) -> None:  # noqa: B027 (most take any)
        """Checks that batches of so many examples with so many hard negatives each suit the options."""


def teacher_scores(batch: Batch) -> jax.Array:
    """What a batch has of a teacher, or of people: the scores of an example's documents, float32 [B, K]."""
    if "teacher" not in batch:
        raise UserError("a loss of a teacher's scores, but the labelled examples have none")
    return batch["teacher"].astype(jnp.float32)


LOSSES: Table[type[Loss]] = Table("loss", "retrieval.training.objectives", "loss")


def check(config: ConfigDict, label: str, outputs: Collection[str]) -> None:
    """Checks that a model can be trained with the loss that a config names.

    Args:
      label: the model, for errors.
      outputs: what the model gives to a loss.

    Raises:
      UserError: it cannot, or the options of the loss do not fit each other.
    """
    name, negatives = config.train.loss, config.data.negatives
    entry = LOSSES[name]

    def fitting() -> list[str]:  # imports them all
        return [other for other in sorted(LOSSES) if LOSSES[other].inputs in outputs]

    if entry.inputs not in outputs:
        raise UserError(
            f"config.train.loss={name} compares {entry.inputs}, and {label} gives {' and '.join(outputs)}: set "
            f"config.train.loss to one of {', '.join(fitting())}"
        )
    loss = entry.of(config)
    if loss.needs_negatives and not negatives:
        problem = f"config.train.loss={name} compares a positive with hard negatives; config.data.negatives=0 has none"
        others = " or ".join(other for other in fitting() if not LOSSES[other].needs_negatives)
        raise UserError(f"{problem}: set it to 1 or more{others and f', or config.train.loss={others}'}")
    if loss.of_scored_pairs and negatives:
        raise UserError(f"config.train.loss={name} compares two texts: set config.data.negatives={negatives} to 0")
    loss.check_batch(config.train.batch_size, negatives)


def check_unread(config: ConfigDict, read: Collection[str], why: str) -> None:
    """Checks that no option of a loss is set that is not read.

    Args:
      read: the names of those that are.
      why: the others are not, for the error.
    """
    for other in sorted(LOSSES):  # the order of imports has no say in messages
        entry = LOSSES[other]
        for option in sorted(set(entry.options()) - set(read)):
            default, value = declared()[option].default, config.train[option.removeprefix("train.")]
            if value != default and value not in entry.neutral.get(option, ()):
                is_alone = sum(option in of.options() for of in LOSSES.values()) == 1
                owner = f"config.train.loss={other}" if is_alone else "other losses"
                problem = f"config.{option}={value} is a part of {owner}, and {why}"
                raise UserError(f"{problem}: set config.{option}={default}")
