"""The stage `prepare`: a corpus to shards."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval.config.fields import SHARE_BELOW, SWITCH, TEXTS, Field, Kind, declare, whole
from retrieval.data.corpora import source_paths, sources, tfds_source, wikipedia
from retrieval.data.corpora.passages import Limits
from retrieval.data.shards import prepared_corpus
from retrieval.data.shards.shard_steps import LOCAL
from retrieval.data.tokenizers import vocabularies
from retrieval.errors import UserError
from retrieval.pipeline.run import Run
from retrieval.pipeline.stage import STAGES, Stage

_log = logging.getLogger(__name__)

PYDOCS = "pydocs"  # the corpus of the installed packages

RUNNERS = (LOCAL, *("DirectRunner", "DataflowRunner", "FlinkRunner", "SparkRunner", "PortableRunner", "PrismRunner"))
declare(
    "prepare",
    runner=Field(
        LOCAL,
        Kind("runner", lambda value: value in RUNNERS or "." in value, RUNNERS),  # Beam takes any class
        "local, or a Beam runner, such as DataflowRunner or a class's dotted name",
    ),
    beam_options=Field((), TEXTS, "flags for Beam, such as ('--region=europe-west4',)"),
    workers=Field(2, whole(1), "processes of the local runner"),
    shards=Field(1024, whole(1), "files of each kind that the corpus is written to"),
    vocab_size=Field(30522, whole(100), "tokens of a vocabulary that is trained on the corpus"),
    longest_passage=Field(256, whole(1), "tokens of a passage at most; with its title it fits data.document_length"),
    shortest_paragraph=Field(96, whole(0), "a paragraph of fewer tokens is joined with the next"),
    least_passage=Field(16, whole(1), "tokens of a passage at least"),
    across_sections=Field(False, SWITCH, "whether a passage goes on behind a heading"),
    held_out=Field(0.0, SHARE_BELOW, "pydocs: share of the functions that are kept for evaluation"),
)


def prepare_corpus(run: Run) -> dict[str, Any]:
    """Writes `corpus/`; returns its statistics."""
    config, limits = run.config, run.config.prepare
    settings = prepared_corpus.Settings(
        vocabulary=vocabularies.named(config.vocab),
        vocab_size=config.prepare.vocab_size,
        num_shards=config.prepare.shards,
        limits=Limits(limits.longest_passage, limits.shortest_paragraph, limits.least_passage, limits.across_sections),
        runner=config.prepare.runner,
        beam_options=tuple(config.prepare.beam_options),
        workers=config.prepare.workers,
    )
    source = sources.open_source(config.corpus, run.lock, config.prepare.held_out)
    statistics = prepared_corpus.prepare(source, run.corpus, settings)
    for problem in statistics["problems"]:
        _log.warning("the corpus: %s", problem)
    return statistics


def inputs(run: Run) -> Sequence[Path]:
    """The files that `prepare` reads."""
    corpus = run.config.corpus
    paths = [run.lock] if corpus == PYDOCS else source_paths.local(source_paths.split(corpus))
    return source_paths.existing([*paths, *vocabularies.files(vocabularies.named(run.config.vocab))])


def check(config: ConfigDict, with_files: bool = True) -> None:
    """Checks that the settings of the corpus fit each other, and its files and the vocabulary's by their beginnings.

    Args:
      with_files: whether the files are still to be read.

    Raises:
      UserError: settings do not fit, or a file is missing or not what it should be.
    """
    _check_settings(config)
    if with_files:
        _check_files(config)


def _check_settings(config: ConfigDict) -> None:
    prepare = config.prepare
    if not config.corpus:
        raise UserError("config.corpus is not set: --config.corpus=DUMP.xml.bz2 (a MediaWiki export), or 'pydocs'")
    for name in ("shortest_paragraph", "least_passage"):
        if prepare[name] > prepare.longest_passage:
            raise UserError(
                f"config.prepare.{name}={prepare[name]} is more than config.prepare.longest_passage="
                f"{prepare.longest_passage}: lower the first or raise the second"
            )
    for option in prepare.beam_options:
        if not option.startswith("--"):
            raise UserError(
                f"config.prepare.beam_options: '{option}' is no flag: write it as --config.prepare.beam_options="
                "\"('--region=europe-west4',)\""
            )


def _check_files(config: ConfigDict) -> None:
    if config.corpus != PYDOCS:
        parts = config.corpus.split(",")
        if len(parts) > 1 and any(map(tfds_source.is_source, parts)):
            raise UserError(
                f"config.corpus={config.corpus}: a corpus of TFDS stands alone, and here another is beside it; prepare "
                "one of them"
            )
        for path in source_paths.checked(
            "config.corpus", source_paths.split(config.corpus), tfds="wikipedia", words=[PYDOCS]
        ):
            wikipedia.read_pages(path)  # which looks at the first page
    for path in source_paths.checked("config.vocab", source_paths.split(str(vocabularies.named(config.vocab) or ""))):
        vocabularies.load(path)


STAGES.register(
    "prepare",
    Stage(
        prepare_corpus,
        reads="a dump, or the installed packages",
        writes="`corpus/`: articles, vocabulary, TFRecord shards, `stats.json`",
        settings=(
            "corpus",
            "vocab",
            *(f"prepare.{name}" for name in ("shards", "vocab_size", "held_out", "longest_passage")),
            *(f"prepare.{name}" for name in ("shortest_paragraph", "least_passage", "across_sections")),
        ),
        inputs=inputs,
        outputs=("corpus",),
        fixed=True,
    ),
)
