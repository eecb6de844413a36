"""A run of the program: where its stages write, and the vocabulary that its texts are tokenised with."""

import dataclasses
from pathlib import Path

from retrieval.common.errors import UserError, hub_hint
from retrieval.data.corpora import source_paths
from retrieval.data.tokenizers import vocabularies
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.runs.pipeline.work_directory import WorkDirectory


@dataclasses.dataclass(frozen=True)
class Run(WorkDirectory):
    """A work directory with the outputs of the stages by name, whichever run of the chain has them."""

    @property
    def prepares(self) -> bool:
        """Whether there is a stage, the run's own or one of its base, that prepares a corpus."""
        return "prepare" in self.owner("prepare").config.stages

    @property
    def corpus(self) -> Path:
        """Shards, vocabulary and statistics."""
        return self.owner("prepare").folder / "corpus"

    @property
    def vocabulary(self) -> Path | None:
        """The file of the vocabulary: the prepared corpus's, and without one what `config.vocab` names.

        That is the field of the first of the chain that sets it, and the file may be missing; None where none does.
        """
        runs = [self.owner("prepare")] if self.prepares else self.chain
        value = next((run.config.vocab for run in runs if run.config.vocab), "")
        return vocabularies.find(self.corpus) or vocabularies.named(value)

    def vocabulary_inputs(self) -> list[Path]:
        """The files of a vocabulary from outside, of a run that prepares no corpus.

        Stages that would depend on the corpus have them among their `inputs`.

        Raises:
          UserError: one of them is missing.
        """
        if self.prepares or vocabularies.find(self.corpus):
            return []
        paths = vocabularies.files(self.vocabulary)
        for path in paths:
            if not path.is_file():
                what = "a folder without a vocabulary" if path.is_dir() else "no such file"
                way = f"put it back, or set config.vocab to where it is{hub_hint(str(path))}"
                raise UserError(f"{path}: {what}, in config.vocab; {way}")
        return paths

    def check_vocabulary(self) -> None:
        """Checks that there is a vocabulary which can be read; one that is yet to be prepared passes."""
        if not self.prepares:
            source_paths.checked("config.vocab", source_paths.split(str(self.vocabulary or "")))
            self.load_vocabulary()

    def load_vocabulary(self) -> Vocabulary:
        """The vocabulary that texts are tokenised with.

        Raises:
          UserError: there is none, or it is none, or it has no token that config.data.append_eos asks for.
        """
        if not (self.vocabulary or self.prepares):
            way = "set config.vocab to one or to a folder of BERT's weights, or config.base to a run that has one"
            raise UserError(f"there is no vocabulary, for no stage prepares a corpus: {way}, or add 'prepare'")
        vocabulary = vocabularies.load(self.vocabulary or self.corpus)
        if self.owner("train").config.data.append_eos:
            vocabulary.append_eos()
        return vocabulary

    @property
    def vocab_size(self) -> int:
        """The tokens of the vocabulary that the run trains with; of one that is yet to be trained, those it is to have.

        Raises:
          UserError: it cannot be read.
        """
        return len(self.load_vocabulary()) if self.vocabulary else self.owner("prepare").config.prepare.vocab_size

    @property
    def sets(self) -> Path:
        """One BEIR folder per evaluation set."""
        return self.owner("sets").folder / "sets"

    @property
    def training(self) -> Path:
        """The judgements for fine-tuning, a BEIR folder: those to train on and those held out of them."""
        return self.owner("sets").folder / "training"

    @property
    def negatives(self) -> Path:
        """Mined negatives of the training questions, as JSON lines."""
        return self.owner("mine").folder / "negatives"

    @property
    def pairs(self) -> Path:
        """The shards for fine-tuning."""
        return self.owner("pairs").folder / "pairs"

    def labelled(self, stage: str) -> Path:
        """The shards of labelled examples that a stage writes, such as `pairs` or `spans`."""
        return self.owner(stage).folder / stage

    @property
    def teacher_scores(self) -> Path | None:
        """The scores of a teacher: those that the config names, or those of the stage `teacher`; None without one."""
        if self.config.pairs.teacher:
            return Path(self.config.pairs.teacher)
        teacher = self.owner("teacher")
        return teacher.folder / "teacher" / "scores.jsonl" if "teacher" in teacher.config.stages else None

    @property
    def held_out_pairs(self) -> Path:
        """The labelled queries that are validated on where no set is split, a BEIR folder."""
        return self.pairs / "validation"

    @property
    def passages(self) -> list[Path]:
        """The collection to search, as BEIR's corpus.jsonl: the passages of the corpus, or of labelled examples."""
        labelled = self.pairs / "passages.jsonl"
        return sorted(self.corpus.glob("passages-*.jsonl")) or ([labelled] if labelled.exists() else [])

    def embeddings(self, name: str, system: str) -> Path:
        """Embeddings of a set (or of the corpus) by one model."""
        return self.owner("encode").folder / "embeddings" / name / system

    def index(self, name: str, kind: str) -> Path:
        """An index over the candidates of a set (or over the corpus)."""
        return self.owner("index").folder / "index" / name / kind
