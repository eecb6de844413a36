"""The losses that `config.train.loss` names. A loss is one file of `objectives`, or of a plugin:

    LOSSES.register("two_way_nll", Loss(two_way_nll, SCORES, "the positive against one negative", needs_negatives=True))

Letters of shapes: B examples of the global batch, K documents of each (the positive, then its hard negatives), C
classes of a document (not relevant, relevant), E embedding size.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax

from retrieval.config.tree import declared
from retrieval.errors import UserError
from retrieval.registry import Table

Batch = Mapping[str, jax.Array]
Metrics = dict[str, jax.Array]
Options = Mapping[str, Any]

# What a loss compares, and how its function begins; each gives the loss [B] and metrics [B]. The caller owns the mean.
EMBEDDINGS = "embeddings"  # (query_BE, document_BKE, batch, **options)
SCORES = "scores"  # (score_BK, batch, **options)
CLASSES = "classes"  # (logit_BKC, batch, **options), C = 2

TEMPERATURE = "train.temperature"


@dataclasses.dataclass(frozen=True)
class Loss:
    """A loss: an entry of LOSSES.

    Attributes:
      function: as what it compares has it; the last part of an option's name is its keyword.
      compares: EMBEDDINGS, SCORES, CLASSES, or what a method's models alone give.
      help: what it is, in a line.
      options: the fields of the config that it reads, as dotted names.
      needs_negatives: whether an example must have hard negatives.
      needs_teacher: whether a batch must have a teacher's scores of an example's documents, `teacher` [B, K].
      of_scored_pairs: whether it learns how alike two texts are, a score each, and needs no right document.
      score_limits: the lowest and the highest score that it takes; None for any.
      takes_positives: from its options, whether it takes the ids of a query's known positives, `positive_ids` [B, P].
        A batch has them only where some query has more than one.
      guide: from its options, the model whose embeddings of an example's query and documents it takes, `guide`
        [B, 1 + K, H]; '' for none.
      counts_copies: from its options, the field by which a copy of a query's positive counts as a second one, or ''.
      learns_scale: whether it takes a learned factor of the scores, `scale` [], in place of the temperature.
      of_cosines: whether it compares directions alone. Search ranks by inner products, so embeddings need length 1.
      neutral: of options, the values that only leave something out. They may stay set for a loss that lacks the option.
      check: refuses options that do not fit each other.
    """

    function: Callable[..., tuple[jax.Array, Metrics]]
    compares: str
    help: str
    options: tuple[str, ...] = (TEMPERATURE,)
    needs_negatives: bool = False
    needs_teacher: bool = False
    learns_scale: bool = False
    of_scored_pairs: bool = False
    score_limits: tuple[float, float] | None = None
    of_cosines: bool = False
    takes_positives: Callable[[Options], bool] = lambda options: False
    guide: Callable[[Options], str] = lambda options: ""
    counts_copies: Callable[[Options], str] = lambda options: ""
    neutral: Mapping[str, Collection[Any]] = dataclasses.field(default_factory=dict)
    check: Callable[[Options], None] = lambda options: None

    def bind(self, options: Options) -> Callable[..., tuple[jax.Array, Metrics]]:
        """The function with its options."""
        return functools.partial(self.function, **{name.rpartition(".")[2]: options[name] for name in self.options})


LOSSES: Table[Loss] = Table("loss", "retrieval.training.objectives", "loss")


def option_names() -> set[str]:
    """The options of all losses."""
    return {option for loss in LOSSES.values() for option in loss.options}


def check(name: str, label: str, gives: Collection[str], options: Options, negatives: int) -> None:
    """Checks that a model can be trained with a loss.

    Args:
      label: the model, for errors.
      gives: what the model gives to compare.
      options: the values of `option_names()`.
      negatives: hard negatives of an example.

    Raises:
      UserError: it cannot, or the options of the loss do not fit each other.
    """
    loss = LOSSES[name]
    fitting = {other: LOSSES[other] for other in sorted(LOSSES) if LOSSES[other].compares in gives}
    if name not in fitting:
        raise UserError(
            f"config.train.loss={name} compares {loss.compares}, and {label} gives {' and '.join(gives)}: set "
            f"config.train.loss to one of {', '.join(fitting)}"
        )
    if loss.needs_negatives and not negatives:
        others = [other for other, entry in fitting.items() if not entry.needs_negatives]
        raise UserError(
            f"config.train.loss={name} compares a positive with hard negatives, and config.data.negatives=0 has none: "
            "set config.data.negatives=1 or more (of labelled examples)"
            + (f", or config.train.loss={' or '.join(others)}" if others else "")
        )
    if loss.of_scored_pairs and negatives:
        raise UserError(
            f"config.train.loss={name} compares two texts, and config.data.negatives={negatives}: set that to 0"
        )
    loss.check(options)


def check_unread(options: Options, read: Collection[str], why: str) -> None:
    """Checks that no option of a loss is set that is not read.

    Args:
      options: the values of `option_names()`.
      read: the names of those that are.
      why: the others are not, for the error.

    Raises:
      UserError: one is.
    """
    for other in sorted(LOSSES):  # the order of imports has no say in messages
        entry = LOSSES[other]
        for option in sorted(set(entry.options) - set(read)):
            default, value = declared()[option].default, options[option]
            if value != default and value not in entry.neutral.get(option, ()):
                raise UserError(
                    f"config.{option}={value} is a part of config.train.loss={other}, and {why}: set config.{option}="
                    f"{default}"
                )
