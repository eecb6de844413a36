"""What a run is: a work directory, its config, and the stages that it lists.

A run may stand on another one, its base: what the stages write that its own config does not list is read from there. So
one corpus, one set of questions and one BM25 index serve many runs.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval import files
from retrieval.data.tokenizers import vocabularies
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.runtime import mirror
from retrieval.runtime.mirror import Copy, Mirror
from retrieval.runtime.store import is_url


@dataclasses.dataclass(frozen=True)
class Run:
    """Where everything of a run lives.

    Attributes:
      lock: the file of pinned versions whose packages make up the pydocs corpus.
      query: what `--stage=search` looks for.
      copy: of a work directory on a store what brings its files into `folder`; a `Mirror` where the run writes to it.
    """

    config: ConfigDict
    folder: Path
    lock: Path
    query: str = ""
    copy: Copy | None = None

    @functools.cached_property
    def base(self) -> "Run | None":
        """The run that `config.base` names.

        Raises:
          UserError: that is not a work directory.
        """
        if not self.config.get("base"):  # a work directory may be older than the field
            return None
        return open_read(self.config.base, "config.base", self.lock)

    @functools.cached_property
    def chain(self) -> "list[Run]":
        """This run, its base, the base of that, and so on.

        Raises:
          UserError: one of them stands on itself.
        """
        runs: list[Run] = [self]
        while base := runs[-1].base:
            if base.folder.resolve() in [run.folder.resolve() for run in runs]:
                raise UserError(f"config.base of {runs[-1].place} leads back to {base.place}: take another base")
            runs.append(base)
        return runs

    @property
    def mirror(self) -> Mirror | None:
        """What copies up what the run writes, where its work directory is on a store."""
        return self.copy if isinstance(self.copy, Mirror) else None

    @property
    def place(self) -> str:
        """Where the work directory is, for people."""
        return self.copy.url if self.copy else str(self.folder)

    def before(self, stage: str) -> "Run":
        """The run as a stage sees it: with the stages alone that come before it, for the others have no output yet.

        So a base's index can be read by a run that is to make one of its own.
        """
        stages = tuple(self.config.stages)
        if stage not in stages:
            return self
        config = self.config.copy_and_resolve_references()
        config.stages = stages[: stages.index(stage)]
        return dataclasses.replace(self, config=config)

    def holder(self, stage: str) -> "Run":
        """The run whose folder has what a stage writes: the first of the chain whose config lists the stage."""
        return next((run for run in self.chain if stage in run.config.stages), self)

    @property
    def prepares(self) -> bool:
        """Whether there is a stage, the run's own or one of its base, that prepares a corpus."""
        return "prepare" in self.holder("prepare").config.stages

    @property
    def corpus(self) -> Path:
        """Shards, vocabulary and statistics."""
        return self.holder("prepare").folder / "corpus"

    @property
    def vocabulary(self) -> Path | None:
        """The file of the vocabulary: the prepared corpus's, and without one what `config.vocab` names.

        That is the field of the first of the chain that sets it, and the file may be missing; None where none does.
        """
        runs = [self.holder("prepare")] if self.prepares else self.chain
        value = next((run.config.vocab for run in runs if run.config.vocab), "")
        return vocabularies.find(self.corpus) or vocabularies.named(value)

    def load_vocabulary(self) -> Vocabulary:
        """The vocabulary that texts are tokenised with.

        Raises:
          UserError: there is none, or it is none.
        """
        if not (self.vocabulary or self.prepares):
            raise UserError(
                "there is no vocabulary, for no stage prepares a corpus: set config.vocab to a vocabulary or to a "
                "folder of BERT's weights, or config.base to a run that has one, or add 'prepare' to config.stages"
            )
        return vocabularies.load(self.vocabulary or self.corpus)

    @property
    def sets(self) -> Path:
        """One BEIR folder per evaluation set."""
        return self.holder("sets").folder / "sets"

    @property
    def training(self) -> Path:
        """The judgements for fine-tuning, a BEIR folder: those to train on and those held out of them."""
        return self.holder("sets").folder / "training"

    @property
    def negatives(self) -> Path:
        """Mined negatives of the training questions, as JSON lines."""
        return self.holder("mine").folder / "negatives"

    @property
    def pairs(self) -> Path:
        """The shards for fine-tuning."""
        return self.holder("pairs").folder / "pairs"

    @property
    def held_out_pairs(self) -> Path:
        """The labelled queries that are validated on where no set is split, a BEIR folder."""
        return self.pairs / "validation"

    @property
    def checkpoints(self) -> Path:
        """Orbax steps."""
        return self.holder("train").folder / "checkpoints"

    @property
    def passages(self) -> list[Path]:
        """The collection to search, as BEIR's corpus.jsonl: the passages of the corpus, or of labelled examples."""
        own = self.pairs / "passages.jsonl"
        return sorted(self.corpus.glob("passages-*.jsonl")) or ([own] if own.exists() else [])

    def embeddings(self, name: str, system: str) -> Path:
        """Embeddings of a set (or of the corpus) by one model."""
        return self.holder("encode").folder / "embeddings" / name / system

    def index(self, name: str, kind: str) -> Path:
        """An index over the candidates of a set (or over the corpus)."""
        return self.holder("index").folder / "index" / name / kind

    def record(self, stage: str) -> Path:
        """What a finished stage was made from, how long it took and what it has to tell the report."""
        return self.holder(stage).own_record(stage)

    def own_record(self, stage: str) -> Path:
        """The same for a stage of this run, whichever of the chain it is read from."""
        return self.folder / "stages" / f"{stage}.json"


def open_read(value: str, field: str, lock: Path) -> Run:
    """The run of a work directory that a field of the config names, to be read.

    Raises:
      UserError: that is none.
    """
    folder = mirror.local(value)
    if not (folder / "config.json").exists():
        raise UserError(f"{field}={value}: not a work directory (no config.json)")
    return Run(kept_config(folder), folder, lock, copy=mirror.copy_of(value) if is_url(value) else None)


def kept_config(folder: Path) -> ConfigDict:
    """The config that a work directory keeps, with tuples where JSON has lists, as the config files have them.

    Raises:
      UserError: the file is missing, or no JSON.
    """
    return ConfigDict(_with_tuples(files.read_json(folder / "config.json")))


def _with_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_tuples(item) for name, item in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value
