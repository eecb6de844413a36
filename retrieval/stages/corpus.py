"""The stages that make data: `prepare` (a corpus to shards) and `sets` (evaluation sets to BEIR folders)."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from retrieval import files
from retrieval.data import beir, prepare, pydocs, reqa
from retrieval.data.beir import RetrievalSet
from retrieval.data.passages import Limits
from retrieval.errors import UserError
from retrieval.stages.run import Run

_log = logging.getLogger(__name__)


def prepare_corpus(run: Run) -> dict[str, Any]:
    """Writes `corpus/`; returns its statistics."""
    config = run.config
    if not config.corpus:
        raise UserError("config.corpus is not set: --config.corpus=DUMP.xml.bz2 (a MediaWiki export), or 'pydocs'")
    settings = prepare.Settings(
        vocabulary=Path(config.vocab) if config.vocab else None,
        vocab_size=config.prepare.vocab_size,
        num_shards=config.prepare.shards,
        limits=Limits(config.prepare.longest_passage, config.prepare.shortest_paragraph, config.prepare.least_passage),
        held_out=config.prepare.held_out,
        runner=config.prepare.runner,
        beam_options=tuple(config.prepare.beam_options),
        workers=config.prepare.workers,
    )
    source = prepare.open_source(config.corpus, run.lock, config.prepare.held_out)
    statistics = prepare.prepare(source, run.corpus, settings)
    for problem in statistics["problems"]:
        _log.warning("the corpus is not whole: %s", problem)
    return statistics


def corpus_inputs(run: Run) -> Sequence[Path]:
    """The files that `prepare` reads."""
    paths = [run.lock] if run.config.corpus == "pydocs" else _paths(run.config.corpus)
    return _existing([*paths, *_paths(run.config.vocab)])


def write_sets(run: Run) -> dict[str, Any]:
    """Writes `sets/NAME/` for every evaluation set of the config; returns their sizes."""
    run.sets.mkdir(exist_ok=True)
    sizes = {}
    for value in _sets(run):
        if not value.queries:
            raise UserError(f"evaluation set '{value.name}' has no query")
        beir.write_folder(run.sets / value.name, value)
        sizes[value.name] = {"queries": len(value.queries), "candidates": len(value.candidates)} | {
            f"judgements ({rule})": sum(map(len, qrels.values())) for rule, qrels in value.qrels.items()
        }
        _log.info("set %s: %s", value.name, sizes[value.name])
    files.remove_temporaries(run.sets)
    if not sizes:
        _log.warning("the config names no evaluation set (config.sets): there will be nothing to evaluate")
    return sizes


def set_inputs(run: Run) -> Sequence[Path]:
    """The files that `sets` reads."""
    sets = run.config.sets
    return _existing([*_paths(sets.reqa), *_paths(sets.beir)])


def _sets(run: Run) -> list[RetrievalSet]:
    sets = run.config.sets
    found = []
    if sets.pydocs:
        if run.config.corpus != "pydocs":
            raise UserError(
                "config.sets.pydocs is held out of the corpus 'pydocs': set config.corpus=pydocs, or turn it off"
            )
        files_of_articles = prepare.article_files(run.corpus)
        found.append(pydocs.known_items(item for path in files_of_articles for item in prepare.read_articles(path)))
    if sets.reqa:
        found.append(reqa.read_squad(_paths(sets.reqa)))
    return found + [beir.read_folder(path) for path in _paths(sets.beir)]


def _paths(value: str) -> list[Path]:
    return [Path(path) for path in value.split(",") if path]


def _existing(paths: Sequence[Path]) -> Sequence[Path]:
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
    return paths
