"""A recipe: all that training knows about a family of models, in one object. `config.recipe` names it."""

from __future__ import annotations

import abc
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
from flax import nnx
from ml_collections import ConfigDict

from retrieval.common.errors import UserError, next_to, unknown_name
from retrieval.common.registry import Table
from retrieval.config.fields import GENERAL, declared, values_of
from retrieval.data.examples.example_kind import GUIDE, PAIRS, ExampleKind, pair_lengths
from retrieval.data.examples.packing import Packing, Rows, rows_for
from retrieval.data.labelled import sources
from retrieval.data.tokenizers import prefixes
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.models.transformer_config import TransformerConfig
from retrieval.models.warm_start import copy_encoder, copy_parameters, encoder_of
from retrieval.recipes.encoder_sizes import check_encoder, encoder_sizes
from retrieval.recipes.parameters import gather
from retrieval.training import loss_kind
from retrieval.training.loop import Objective
from retrieval.training.loss_kind import LOSSES, TEMPERATURE, Loss

if TYPE_CHECKING:
    from retrieval.models.encoder_folder import EncoderFolder
    from retrieval.runs.pipeline.run import Run


LossAndMetrics = tuple[jax.Array, dict[str, jax.Array]]

POOL_METRICS = ("Success@1", "Success@10", "Success@100", "RR", "nDCG@10")  # of retrieval over a small pool


class Validator(NamedTuple):
    """How checkpoints are validated.

    Attributes:
      check: checks that a config holds something out to validate on.
      make: from a run to a function from parameters to metrics.
    """

    check: Callable[[ConfigDict], None]
    make: Callable[[Run, Vocabulary, jax.sharding.Mesh], Callable[[Any], dict[str, float]]]


VALIDATORS: Table[Validator] = Table("validator", "retrieval.runs.fitting", "validator")


class Recipe(abc.ABC):
    """How one family of models is built and trained, with the settings of a config.

    Attributes:
      kind: the kind of examples that it trains on. Only tasks of that kind may be drawn.
      label: what it trains, for errors, such as 'a masked language model'.
      has_towers: whether the model has a query tower and a document tower. A model without them is a transformer,
        and gives its encoder to towers.
      has_prefixes: whether queries and documents have prefixes, and titles may be joined with texts.
      reranks: whether the model scores a query and a document that it reads together.
      published_by: the kind of `TRAINED` whose models write themselves for other libraries; '' for towers and others.
      examples_of: the stage that writes the labelled examples which it trains on, into a folder of its own name.
      outputs: what its model gives to the loss that `train.loss` names, as in `loss_kind`; none with a loss of its own.
      options: fields of the config that it reads and that other recipes may leave unread, beside those of its loss.
      metrics: of its validation; `loop.best` names one. Empty where checkpoints cannot be validated.
      validator: the entry of `VALIDATORS` that validates its checkpoints; '' where it does so itself, or nothing does.
      head: the fields of the config on which the sizes depend of what the model has beside its encoder.
    """

    kind: ClassVar[ExampleKind]
    label: ClassVar[str]
    has_towers: ClassVar[bool] = False
    has_prefixes: ClassVar[bool] = False
    reranks: ClassVar[bool] = False
    published_by: ClassVar[str] = ""
    examples_of: ClassVar[str] = "pairs"
    outputs: ClassVar[Sequence[str]] = ()
    options: ClassVar[tuple[str, ...]] = ()
    metrics: ClassVar[Sequence[str]] = ()
    validator: ClassVar[str] = ""
    head: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: ConfigDict):
        self.config = config

    @abc.abstractmethod
    def build(self, vocab_size: int) -> nnx.Module:
        """The untrained model.

        Raises:
          UserError: the sizes of the config do not fit each other.
        """

    def objective(self, bound: Callable[[Any], Any]) -> Objective:
        """From parameters and a batch to `loss_of`; `bound` is from parameters to the model that has them."""
        return lambda params, batch, key: self.loss_of(bound(gather(params)), batch, key)

    def loss_of(self, model: Any, batch: Mapping[str, jax.Array], key: jax.Array) -> LossAndMetrics:
        """The loss of each example of a batch, and the metrics of training; `key` is that of dropout."""
        raise NotImplementedError

    def sizes(self, vocab_size: int) -> TransformerConfig:
        """The sizes of its encoder."""
        return TransformerConfig(**encoder_sizes(self.config, vocab_size))

    def start_from(self, model: Any, trained: nnx.Module) -> None:
        """Gives a model all parameters of a trained one of its kind, or the encoder of another: of two towers, the
        documents'.

        Raises:
          UserError: they do not fit.
        """
        if isinstance(trained, type(model)):
            copy_parameters(trained, model)
        else:
            copy_encoder(encoder_of(trained), model.encoder, self.label)

    def check_run(self, run: Run) -> None:  # noqa: B027 (most take nothing)
        """Checks that what a run takes of others, its labelled examples and what `begin` takes, fits its config.

        Raises:
          UserError: it is not there, or does not fit.
        """

    def begin(self, run: Run, model: Any) -> None:  # noqa: B027
        """Gives a model, beside what `train.init_from` gives it, what it takes of other runs before the first step."""

    def framed(self, vocabulary: Vocabulary) -> ExampleKind:
        """Its kind, of examples whose texts are of a vocabulary's tokens, and have some around them."""
        return self.kind

    def own_head(self, folder: EncoderFolder, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The parameters, or shapes, that a published folder has for a model beside its encoder, by their names.

        Raises:
          UserError: they do not fit, or cannot be read.
        """
        return {}

    @abc.abstractmethod
    def lengths(self, positives: int = 0) -> dict[str, int]:
        """The lengths of the fields of an example, before anything is packed.

        Args:
          positives: ids of known positives that an example has room for.
        """

    def check(self) -> None:
        """Checks the settings that training reads.

        Raises:
          UserError: they do not fit each other.
        """
        config = self.config
        check_encoder(config.model)
        if not self.has_towers and (encoder := config.model.encoder) != "transformer":
            raise UserError(f"config.model.encoder={encoder}: {self.label} needs a transformer: set 'transformer'")
        if self.outputs:
            loss_kind.check(config, self.label, self.outputs)

    def check_validation(self) -> None:
        """Checks that checkpoints can be validated, and that there is a metric to choose the best step by.

        Raises:
          UserError: they cannot, or there is not.
        """
        if not self.metrics:
            raise UserError(f"{self.label} has no towers to validate: set config.loop.validate_every=0")
        if (best := self.config.loop.best) not in self.metrics:
            raise unknown_name(f"metric of {self.label} in config.loop.best", best, self.metrics)
        if self.validator:
            VALIDATORS.find(self.validator).check(self.config)

    def validation(
        self, run: Run, vocabulary: Vocabulary, mesh: jax.sharding.Mesh
    ) -> Callable[[Any], dict[str, float]]:
        """A function from parameters to metrics.

        Raises:
          UserError: as `check_validation`.
        """
        self.check_validation()
        return VALIDATORS.find(self.validator).make(run, vocabulary, mesh)

    @property
    def loss(self) -> Loss | None:
        """The loss that `train.loss` names; None where the recipe has a loss of its own."""
        return self.named_loss if self.outputs else None

    @property
    def named_loss(self) -> Loss:
        """The loss that `train.loss` names, with its options."""
        return LOSSES.find(self.config.train.loss, "config.train.loss").of(self.config)

    def takes_encoder(self, other: Recipe) -> bool:
        """Whether a model starts from the encoder alone of one of another recipe; otherwise all sizes must fit."""
        return type(other) is not type(self)

    @property
    def pre_norm(self) -> bool:
        """Whether the encoder's norms stand before its sublayers: such an encoder starts no other model."""
        return False

    @property
    def tables(self) -> Mapping[str, tuple[str, int]]:
        """Fields of a batch that are rows of a table: name -> the field with their numbers, and the size of a row.

        The stage that writes the examples writes the table beside them, FIELD.npy of the field with the numbers.
        """
        return {}

    def chunk_sizes(self, devices: int) -> list[int]:
        """The values that `train.chunk_size` may have, but 0; none where the model takes the whole batch at a time."""
        return []

    def packing(self) -> Packing | None:
        """How the texts of a lane are packed; None where each has a row.

        Raises:
          UserError: one side would be packed without the other, or a share or a row length does not fit.
        """
        data, pack = self.config.data, self.config.data.pack
        if not any(pack[side] for side in self.kind.sides.values()):
            return None
        examples = self.config.train.batch_size // data.lanes
        counts = {"query": examples, "document": examples * (1 + data.negatives)}
        texts = {}
        for field, side in self.kind.sides.items():
            share, length = pack[side], data[f"{side}_length"]
            texts[field] = rows_for(counts[side], length, share, pack[f"{side}_row"], f"config.data.pack.{side}")
        return Packing(examples, texts, self.places(texts))

    def places(self, texts: Mapping[str, Rows]) -> Rows | None:
        """The places for masked tokens that packed texts have; None where nothing is masked."""
        return None


class PairRecipe(Recipe):
    """Examples are a query with its positive and `data.negatives` hard negatives. A batch may go in chunks of them."""

    kind = PAIRS
    options = ("data.negatives",)

    def lengths(self, positives: int = 0) -> dict[str, int]:
        """As `Recipe.lengths`."""
        data = self.config.data
        lengths = data.query_length, data.document_length
        return pair_lengths(*lengths, data.negatives, positives, has_teacher(self), bool(guide_of(self)))

    @property
    def tables(self) -> dict[str, tuple[str, int]]:
        """The embeddings of a guide."""
        if not guide_of(self):
            return {}
        guide = importlib.import_module("retrieval.runs.weights.guide")  # a run without one reads no published models
        return {"guide": (GUIDE, guide.size(self.config))}

    def chunk_sizes(self, devices: int) -> list[int]:
        """As many examples for every device, in whole lanes where these are packed; up to the whole batch."""
        rows, packed = self.config.train.batch_size, self.packing()
        unit = devices * (packed.examples if packed else 1)
        return [size for size in range(unit, rows + 1, unit) if rows % size == 0]


RECIPES: Table[type[Recipe]] = Table("recipe", "retrieval.recipes", "recipe")


def recipe_of(config: ConfigDict) -> Recipe:
    """The recipe that a config names.

    Raises:
      UserError: there is none of that name.
    """
    return RECIPES.find(config.recipe, "config.recipe")(config)


def check_recipe(config: ConfigDict) -> None:
    """Checks the settings that a config's recipe reads, and that no others are set.

    Raises:
      UserError: they do not fit each other, or one would be ignored.
    """
    for name, own in ({"": config} | sources.configs_of(config)).items():
        with sources.naming(name):
            recipe_of(own).check()
    recipes = [recipe_of(own) for own in sources.each(config).values()]
    losses = {recipe.config.train.loss: recipe.loss for recipe in recipes if recipe.loss}
    for recipe in recipes:
        _check_unread(recipe, losses)


def _check_unread(recipe: Recipe, losses: Mapping[str, Loss]) -> None:
    """Checks that no field is set that only other recipes or losses read.

    `Recipe.check` lets such fields be: what was trained with one can be used.

    Args:
      losses: those of all sources of examples, by name.
    """
    read = _own_fields(type(recipe)).union(*(loss.options() for loss in losses.values()))
    read |= set() if losses else {TEMPERATURE}  # configs of one size share it, whatever they train
    some = (declared().keys() - GENERAL) | _own_fields(RECIPES["two_tower"])  # that not all recipes and losses read
    values = values_of(recipe.config, sorted(some - read))
    if all(value == declared()[field].default for field, value in values.items()):
        return  # as in most runs, which need not read what other recipes and losses do
    others = {field for other in RECIPES.values() for field in _own_fields(other)} - read
    for field, value in values_of(recipe.config, sorted(others)).items():
        if value != (default := declared()[field].default):
            raise UserError(f"config.{field}={value}: {recipe.label} does not read it: set config.{field}={default}")
    why = f"the loss is {' or '.join(losses)}" if losses else f"{recipe.label} has a loss of its own"
    loss_kind.check_unread(recipe.config, read, why)


def _own_fields(recipe: type[Recipe]) -> set[str]:
    """Its options, and the fields that it reads because of its sides, its towers or a loss that a config names."""
    prefixed = (*(f"data.{name}" for name in prefixes.NAMES), "data.titles")
    packed = (f"data.pack.{side}" for side in recipe.kind.sides.values())
    by_trait = (recipe.outputs, {"train.loss"}), (recipe.has_towers, {"data.prompts"}), (recipe.has_prefixes, prefixed)
    return {*recipe.options, *packed}.union(*(fields for is_read, fields in by_trait if is_read))


def has_teacher(recipe: Recipe) -> bool:
    """Whether examples have a teacher's scores."""
    return recipe.loss is not None and recipe.loss.needs_teacher


def guide_of(recipe: Recipe) -> str:
    """The guide whose embeddings examples have; '' for none."""
    return recipe.loss.guided_by if recipe.loss else ""


def check_chunks(recipe: Recipe, devices: int) -> None:
    """Checks `train.chunk_size`: chunks must divide the batch; devices and packed lanes must divide chunks.

    Raises:
      UserError: the model does not take a batch in such chunks.
    """
    size, rows, sizes = recipe.config.train.chunk_size, recipe.config.train.batch_size, recipe.chunk_sizes(devices)
    if not size or size in sizes:
        return
    if not sizes:
        raise UserError(f"config.train.chunk_size={size}: {recipe.label} takes the whole batch at a time: set 0")
    what = f"must divide config.train.batch_size={rows}, and have whole lanes on each of {devices} devices"
    raise UserError(f"config.train.chunk_size={size} {what}: take {next_to(size, sizes)}")


def build_model(config: ConfigDict, vocab_size: int) -> Any:
    """The untrained model that the train stage trains."""
    return recipe_of(config).build(vocab_size)


def abstract_model(config: ConfigDict, vocab_size: int) -> Any:
    """As `build_model`, with shapes in place of parameters: it takes no memory."""
    return nnx.eval_shape(lambda: build_model(config, vocab_size))
