"""The stage `prepare`: a corpus to shards."""

import contextlib
import importlib.util
import logging
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval.common import libraries
from retrieval.common.errors import UserError
from retrieval.config.fields import values_of
from retrieval.data.corpora import corpus_kind, source_paths
from retrieval.data.corpora.passages import Limits
from retrieval.data.shards import prepared_corpus
from retrieval.data.shards.shard_steps import LOCAL
from retrieval.data.tokenizers import vocabularies
from retrieval.runs.fitting import data_warnings
from retrieval.runs.fitting.examples import check_shards, unlabelled
from retrieval.runs.pipeline.records import details, is_done
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import ADOPT, STAGES, Protected, Stage

_log = logging.getLogger(__name__)


def prepare_corpus(run: Run) -> dict[str, Any]:
    """Writes `corpus/`; returns its statistics."""
    config, fields = run.config, run.config.prepare
    settings = prepared_corpus.Settings(
        vocabulary=vocabularies.named(config.vocab),
        vocab_size=fields.vocab_size,
        lower_case=fields.lower_case,
        vocab_kind=fields.vocab_kind,
        num_shards=number_of_shards(config, run.lock),
        limits=Limits(fields.longest_passage, fields.shortest_paragraph, fields.least_passage, fields.across_sections),
        runner=fields.runner,
        beam_options=tuple(fields.beam_options),
        workers=fields.workers,
        trains=ADOPT not in config.stages,
    )
    kind, _ = corpus_kind.kind_of(config.corpus)
    source = corpus_kind.open_source(config.corpus, values_of(config, kind.options), run.lock)
    statistics = prepared_corpus.prepare(source, run.corpus, settings)
    for what, example in statistics["examples"].items():
        _log.info("the corpus: %s: %s, such as %s", what, f"{statistics['counts'][what]:,}", example)
    for problem in statistics["problems"]:
        _log.warning("the corpus: %s", problem)
    if "train" in config.stages and (tasks := unlabelled(config)):
        with contextlib.suppress(UserError):  # of prefixes without room, which who reads the corpus says
            data_warnings.warn_of_corpus(run, statistics, tasks)
    return statistics


def number_of_shards(config: ConfigDict, lock: Path) -> int:
    """How many shards the corpus of a config is written to: `prepare.shards`, or fewer of a small corpus."""
    most, least = config.prepare.shards, config.prepare.shard_size
    kind, parts = corpus_kind.kind_of(config.corpus)
    if not least or (size := kind.size(parts, lock)) is None:
        return most
    enough = min(most, max(1, int(size / (least * 2**20))))
    return max(count for count in range(1, enough + 1) if most % count == 0)


def shards_of(run: Run) -> int:
    """How many shards the corpus that a run reads has, or will have."""
    summary = details(run, "prepare") or {}
    return summary.get("shards") or number_of_shards(run.owner("prepare").config, run.lock)


def check_reader(writer: Run, reader: Run) -> None:
    """Checks that there are, or will be, shards for a run that trains on the corpus, and that its lanes divide them."""
    if ADOPT in writer.config.stages:
        raise UserError(
            f"the corpus of {writer.display_path} was prepared for a model that is not trained ('adopt' in "
            "config.stages), without what training reads: prepare it again in another --workdir"
        )
    check_shards(reader.config.data.lanes, shards_of(reader), "the corpus, config.prepare.shards")


def inputs(run: Run) -> list[Path]:
    """The files that `prepare` reads."""
    kind, parts = corpus_kind.kind_of(run.config.corpus)
    vocabulary = vocabularies.files(vocabularies.named(run.config.vocab))
    return [*kind.inputs(parts, run.lock), *source_paths.existing(vocabulary)]


def check_settings(config: ConfigDict) -> None:
    """Checks that the settings of the corpus fit each other."""
    fields, longest = config.prepare, config.prepare.longest_passage
    corpus_kind.kind_of(config.corpus)
    for name in ("shortest_paragraph", "least_passage"):
        if fields[name] > longest:
            raise UserError(f"config.prepare.{name}={fields[name]}: at most config.prepare.longest_passage={longest}")
    if fields.runner != LOCAL and not importlib.util.find_spec("apache_beam"):
        raise libraries.missing(f"config.prepare.runner={fields.runner}", "apache-beam", "beam")
    if wrong := [option for option in fields.beam_options if not option.startswith("--")]:
        raise UserError(f"config.prepare.beam_options: '{wrong[0]}' is no flag such as '--region=europe-west4'")


def check_packages(run: Run) -> None:
    """Checks that there is what writes shards for training, where they are to be."""
    if ADOPT not in run.config.stages:
        libraries.check_training(run)


def check_inputs(run: Run) -> None:
    """Checks the files of a corpus that is yet to be prepared, and of the vocabulary, by their beginnings."""
    if is_done(run, "prepare"):
        return
    kind, parts = corpus_kind.kind_of(run.config.corpus)
    kind.check(parts, values_of(run.config, kind.options))
    vocabulary = source_paths.split(str(vocabularies.named(run.config.vocab) or ""))
    for path in source_paths.checked("config.vocab", vocabulary):
        vocabularies.load(path)


STAGES.register(
    "prepare",
    Stage(
        prepare_corpus,
        check_config=(check_settings,),
        check=(check_packages, check_inputs),
        check_reader=check_reader,
        fields=(
            *("corpus", "vocab", "prepare.shard_size"),
            *(f"documents.{name}" for name in ("id", "title", "text", "url")),
            *(f"prepare.{name}" for name in ("shards", "vocab_size", "held_out", "longest_passage", "lower_case")),
            *(f"prepare.{name}" for name in ("shortest_paragraph", "least_passage", "across_sections", "vocab_kind")),
        ),
        files=inputs,
        writes=("corpus",),
        protected=Protected(is_trained_on=True),
    ),
)
