"""Trained models, opened for a stage that works with them: a run's own or its base's, or another work directory's."""

import abc
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.common.registry import Table
from retrieval.common.runtime import artefacts, hub
from retrieval.common.runtime.model_folder import DOCUMENT, QUERY
from retrieval.common.runtime.store import is_url
from retrieval.data.sets.candidate import Candidate
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.encoders.family import is_encoder
from retrieval.models.warm_start import replace_parameters
from retrieval.recipes import towers
from retrieval.recipes.recipe import Recipe, recipe_of
from retrieval.runs.pipeline import records
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import published_weights as bert_weights
from retrieval.runs.weights.published_weights import hub_hint
from retrieval.runs.weights.trained_run import check_towers, check_vocabulary, fetch_model, load_parameters
from retrieval.search.fusion import Run as Lists
from retrieval.search.side_by_side import Search


class Trained(NamedTuple):
    """A trained model.

    Attributes:
      config: that it was trained with, and the mesh of this run.
      model: its best validated step, or its last one.
    """

    config: ConfigDict
    vocabulary: Vocabulary
    model: Any


class TextEncoder(abc.ABC):
    """A model that makes no embeddings of texts, but a vector for every token, or weights of terms.

    Attributes:
      config: that the model was trained with, with how it encodes here.
      similarity: of a query and a document: 'MaxSim' or 'dot'.
    """

    similarity: ClassVar[str]

    def __init__(self, run: ConfigDict, trained: Trained):
        """Args are the run's config and the model."""
        self.config, self.vocabulary, self.model = trained
        self.config = self.config.copy_and_resolve_references()
        self.config.update({"encode": run.encode, "mesh": run.mesh})
        self.config.encode.windows = 1  # of long documents the beginning is encoded, as in training

    def rows(self, side: str, items: Iterable[Any], room: int = 0) -> list[list[int]]:
        """Queries or documents as token ids, for `embed`; as `towers.rows_of`."""
        return towers.rows_of(self.config, self.vocabulary, side, list(items), room)

    @abc.abstractmethod
    def embed(self, side: str, rows: Sequence[Sequence[int]], /) -> Any:
        """What is compared of the rows of a side: arrays [T, E] of each, or a sparse matrix [N, V]."""

    def encode_query(self, texts: Sequence[str], /) -> Any:
        """What `embed` gives of queries."""
        return self.embed(QUERY, self.rows(QUERY, texts))

    def encode_document(self, items: Iterable[Candidate], /) -> Any:
        """The same of documents."""
        return self.embed(DOCUMENT, self.rows(DOCUMENT, items))

    @abc.abstractmethod
    def over(self, documents: Any, /) -> Callable[[Any, int], Lists]:
        """Exact search among encoded documents: from encoded queries and k to scores and rows [Q, k]."""


@dataclasses.dataclass(frozen=True)
class TrainedKind:
    """A kind of model that a field names: by a work directory, or by '' as that of the run or its base.

    A method registers its own in `TRAINED`: so the trunk and other methods use a model of it by `open` alone.

    Attributes:
      name: of the model, and of its recipe.
      is_of: whether a recipe trains it.
      otherwise: what else the field may name, for errors.
      stage: where `open` gives a `TextEncoder`, the stage that encodes the passages of a run.
    """

    name: str
    is_of: Callable[[Recipe], bool]
    otherwise: str = ""
    stage: str = ""

    def is_there(self, run: Run, value: str) -> bool:
        """Whether the field names one, or the run or its base trains one."""
        trainer = run.owner("train")
        return bool(value) or (trainer.lists("train") and self.is_of(recipe_of(trainer.config)))

    def trainer(self, run: Run, value: str, field: str) -> Run:
        """The run whose folder has the checkpoint."""
        trainer = Run.opened(value, field, run.lock).owner("train") if value else run.owner("train")
        if not trainer.lists("train"):
            way = f"name the work directory of one{self.otherwise}"
            raise UserError(f"{field}={value}: no {self.name}, for no stage trains one here: {way}")
        if value and not records.is_done(trainer, "train"):
            raise UserError(f"{field}={value}: its stage 'train' is not finished; train it first")
        return trainer

    def inputs(self, run: Run, value: str, field: str) -> Sequence[Path]:
        """The files outside of the run's work directory that tell whether the model has changed."""
        return (self.trainer(run, value, field).own_record("train"),) if value else ()

    def fetch(self, run: Run, value: str, field: str) -> None:
        """Copies the model down, where the field is the address of a work directory on a store."""
        if is_url(value):
            fetch_model(self.trainer(run, value, field))

    def check(self, run: Run, value: str, field: str) -> Any:
        """Checks that there is a model, with a vocabulary that is its own; returns the run that trained it."""
        trainer = self.trainer(run, value, field)
        if not self.is_of(recipe_of(trainer.config)):
            way = f"name the work directory of a {self.name} (config.recipe={self.name}){self.otherwise}"
            raise UserError(f"{field}: {trainer.display_path} trains {recipe_of(trainer.config).label}; {way}")
        check_vocabulary(trainer, trainer.folder, field)
        return trainer

    def load(self, run: Run, value: str, field: str) -> Trained:
        """The model that `check` has looked at."""
        return _load(self.trainer(run, value, field), run)

    def open(self, run: Run, value: str, field: str) -> Any:
        """The model as what others use, such as a `PairScorer`."""
        raise NotImplementedError(f"others do not use a model of the kind '{self.name}'")

    def read_folder(self, config: ConfigDict, folder: Path) -> TextEncoder | None:
        """The model of a folder that others wrote; None where that has another kind.

        Args:
          config: all fields, of which those of the model and its texts are replaced in a copy.
        """
        return None

    def over_passages(self, run: Run, words: Mapping[str, Search]) -> tuple[str, Search] | None:
        """A system and its search among the passages of a run; None where the kind's stage has not encoded them.

        Args:
          words: indexes of words by their names, whose first results the system may rank; without one it searches all.
        """
        return None


class PublishedKind(TrainedKind):
    """A kind of which a field may also name published weights: a folder, or a name on the hub."""

    def published(self, value: str, field: str) -> Path | None:
        """The folder of weights that a field names; None for a work directory, or nothing."""
        if not value:
            return None
        is_named = hub.is_name(value)
        folder = hub.local(value) if is_named else artefacts.local(value)
        if is_encoder(folder):
            return folder
        if is_named or not folder.exists():
            way = f"name a work directory of one{self.otherwise}{hub_hint(value)}"
            raise UserError(f"{field}={value}: no {self.name} there; {way}")
        return None

    def check_folder(self, run: Run, folder: Path, field: str) -> Sequence[Path]:
        """Checks a folder's settings; returns the files that say what its model does."""
        raise NotImplementedError

    def inputs(self, run: Run, value: str, field: str) -> Sequence[Path]:
        """As `TrainedKind.inputs`, or the files of a folder."""
        folder = self.published(value, field)
        return self.check_folder(run, folder, field) if folder else super().inputs(run, value, field)

    def check(self, run: Run, value: str, field: str) -> Any:
        """As `TrainedKind.check`, or `check_folder`."""
        folder = self.published(value, field)
        return self.check_folder(run, folder, field) if folder else super().check(run, value, field)


class EncoderKind(PublishedKind):
    """A kind that opens a `TextEncoder`, of a run or of a folder that others wrote.

    Attributes:
      says_so: whether a folder says that it has such a model.
      opened: looks at a folder; its `files` say what the model does.
      encoder: of the config of a run and a model.
    """

    says_so: Callable[[Path], bool]
    opened: Callable[[Path], Any]
    encoder: Callable[[ConfigDict, Trained], Any]

    def check_folder(self, run: Run, folder: Path, field: str) -> Sequence[Path]:
        """As `PublishedKind.check_folder`."""
        return self.opened(folder).files

    def read(self, config: ConfigDict, folder: Path) -> Trained:
        """The model of a folder, whose sizes, lengths and prompts replace those of `config` in a copy."""
        raise NotImplementedError

    def load(self, run: Run, value: str, field: str) -> Trained:
        """As `TrainedKind.load`, once `check` has looked at it."""
        self.check(run, value, field)
        folder = self.published(value, field)
        return self.read(run.config, folder) if folder else super().load(run, value, field)

    def open(self, run: Run, value: str, field: str) -> Any:
        """As `TrainedKind.open`."""
        return self.encoder(run.config, self.load(run, value, field))

    def read_folder(self, config: ConfigDict, folder: Path) -> Any:
        """As `TrainedKind.read_folder`."""
        return self.encoder(config, self.read(config, folder)) if self.says_so(folder) else None


def published_model(
    config: ConfigDict,
    fields: Mapping[str, Any],
    encoder: EncoderFolder,
    head: Callable[[Mapping[str, Any]], Mapping[str, Any]],
) -> Trained:
    """The model of an encoder's folder with a head of its own.

    Args:
      config: all fields, of which `fields` are replaced in a copy.
      fields: by their dotted names, the recipe among them.
      head: from all parameters of the model, for their shapes, to those beside the encoder's.
    """
    own = config.copy_and_resolve_references()
    own.update_from_flattened_dict(dict(fields))
    own.model.update(encoder="transformer", remat="none", positions=encoder.sizes["max_length"], dropout=0.0)
    vocabulary = bert_weights.vocabulary_of(encoder)
    model = recipe_of(own).build(len(vocabulary))
    replace_parameters(model, lambda like: {**like, "encoder": encoder.encoder(like["encoder"]), **head(like)})
    bert_weights.log_spare_rows(encoder, vocabulary)
    return Trained(own, vocabulary, model)


TRAINED: Table[TrainedKind] = Table("kind of trained model", word="trained")


def is_place(value: str) -> bool:
    """Whether a value names a model by a folder, an address or the hub's name, and not a system or nothing."""
    return "/" in value or is_url(value) or hub.is_name(value) or (bool(value) and Path(value).is_dir())


def open_trained(run: Run) -> Trained:
    """The model of the run or of its base.

    Raises:
      UserError: there is no finished checkpoint, or it was trained with another vocabulary than the run's.
    """
    check_towers(run)
    return _load(run.owner("train"), run, run.load_vocabulary())


def _load(trainer: Run, run: Run, vocabulary: Vocabulary | None = None) -> Trained:
    vocabulary = vocabulary or trainer.load_vocabulary()
    config, model = load_parameters(trainer.folder, len(vocabulary), run.config.mesh)
    return Trained(config, vocabulary, model)


def check_kind(run: Run, kind: str, needs: str, recipe: str) -> None:
    """Checks that the model of the run or of its base is of a kind.

    Args:
      kind: the name of its `Recipe.kind`.
      needs: the stage and what it needs, for the error.
      recipe: one that trains such a model.
    """
    trainer = run.owner("train")
    trained = recipe_of(trainer.config)
    if trained.kind.name != kind:
        way = f"set config.recipe={recipe}, or config.base to a run of one"
        raise UserError(f"{needs}, and {trainer.display_path} has {trained.label}: {way}")
