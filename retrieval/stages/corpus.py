"""The stages that make data: `prepare` (a corpus to shards) and `sets` (evaluation sets to BEIR folders)."""

import functools
import itertools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from retrieval import files
from retrieval.data import beir, natural_questions, open_domain, pairs, prepare, pydocs, reqa, splits, tfds_source
from retrieval.data.beir import RetrievalSet
from retrieval.data.passages import Limits
from retrieval.data.vocab import WordPiece
from retrieval.errors import UserError, unknown_name
from retrieval.stages.run import Run

_log = logging.getLogger(__name__)


def prepare_corpus(run: Run) -> dict[str, Any]:
    """Writes `corpus/`; returns its statistics."""
    config, limits = run.config, run.config.prepare
    if not config.corpus:
        raise UserError("config.corpus is not set: --config.corpus=DUMP.xml.bz2 (a MediaWiki export), or 'pydocs'")
    settings = prepare.Settings(
        vocabulary=Path(config.vocab) if config.vocab else None,
        vocab_size=config.prepare.vocab_size,
        num_shards=config.prepare.shards,
        limits=Limits(limits.longest_passage, limits.shortest_paragraph, limits.least_passage, limits.across_sections),
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
    paths = [run.lock] if run.config.corpus == "pydocs" else _files(run.config.corpus)
    return _existing([*paths, *_files(run.config.vocab)])


def write_sets(run: Run) -> dict[str, Any]:
    """Writes `sets/NAME/` for every evaluation set, and `training/` for the one to split; returns their sizes.

    Raises:
      UserError: a set has no query, or config.split names none of them.
    """
    run.sets.mkdir(exist_ok=True)
    values: dict[str, RetrievalSet] = {}
    for value in _sets(run):
        if not value.queries:
            raise UserError(f"evaluation set '{value.name}' has no query")
        if value.name in values:
            raise UserError(f"two evaluation sets are named '{value.name}': rename the folder of one")
        values[value.name] = value
    sizes = {name: _size(run, value) for name, value in values.items()}
    split = run.config.split
    if split.set:
        if split.set not in values:
            raise unknown_name("set in config.split.set", split.set, values)
        values[split.set], training = splits.split(values[split.set], split.ratio, split.validation, split.seed)
        beir.write_folder(run.training, training)
        sizes[split.set] |= {f"{side} queries": len(qrels) for side, qrels in training.qrels.items()}
        sizes[split.set]["test queries"] = len(values[split.set].queries)
    for name, value in values.items():
        beir.write_folder(run.sets / name, _with_distractors(run, value))
        _log.info("set %s: %s", name, sizes[name])
    files.remove_temporaries(run.sets)
    if not sizes:
        _log.warning("the config names no evaluation set (config.sets): there will be nothing to evaluate")
    return sizes


def write_pairs(run: Run) -> dict[str, Any]:
    """Writes `pairs/`, the shards that fine-tuning reads; returns their statistics."""
    if not run.training.exists():
        raise UserError("stage 'pairs' needs questions to train on: set config.split.set, such as reqa")
    vocabulary = WordPiece.load(run.corpus / "vocab.txt")
    training = beir.read_folder(run.training)
    statistics = pairs.write_pairs(training, splits.TRAIN, vocabulary, run.pairs, run.config.split.shards)
    files.remove_temporaries(run.pairs)
    return statistics


def set_inputs(run: Run) -> Sequence[Path]:
    """The files that `sets` reads."""
    sets = run.config.sets
    return _existing([path for value in (sets.reqa, sets.nq, sets.beir) for path in _files(value)])


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
        found.append(reqa.read_squad(_split(sets.reqa)))
    if sets.nq:
        found.append(natural_questions.read_nq(_split(sets.nq)))
    return found + [beir.read_folder(Path(path)) for path in _split(sets.beir)]


def _size(run: Run, value: RetrievalSet) -> dict[str, Any]:
    """A row of Table 2; the tokens are those of the run's vocabulary, where it has one."""
    tuples = {f"tuples ({rule})": sum(map(len, qrels.values())) for rule, qrels in value.qrels.items()}
    size = {"queries": len(value.queries), "candidates": len(value.candidates), **tuples}
    if (run.corpus / "vocab.txt").exists():
        count = functools.partial(_tokens, WordPiece.load(run.corpus / "vocab.txt"))
        size["tokens per query"] = round(sum(count(list(value.queries.values()))) / len(value.queries), 2)
        documents = [count([getattr(c, field) for c in value.candidates]) for field in ("title", "text")]
        size["tokens per candidate"] = round(sum(map(sum, documents)) / len(value.candidates), 2)
    return size


def _tokens(vocabulary: WordPiece, texts: Sequence[str]) -> list[int]:
    """The tokens of every text; the candidates of a paragraph share it, so equal texts are tokenised once."""
    distinct = list(dict.fromkeys(texts))
    lengths = dict(zip(distinct, map(len, vocabulary.encode_batch(distinct))))
    return [lengths[text] for text in texts]


def _with_distractors(run: Run, value: RetrievalSet) -> RetrievalSet:
    count = run.config.sets.distractors
    if not count:
        return value
    paths = sorted(run.corpus.glob("passages-*.jsonl"))
    if not paths:
        raise UserError(
            f"config.sets.distractors={count} come from a prepared corpus, and {run.corpus} has no passages"
        )
    passages = itertools.chain.from_iterable(map(beir.read_candidates, paths))
    return open_domain.extend(value, passages, count, run.config.split.seed)


def _split(value: str) -> list[str]:
    return [source for source in value.split(",") if source]


def _files(value: str) -> list[Path]:
    """The sources that are files or folders; what TFDS holds is known by its name and version alone."""
    return [Path(source) for source in _split(value) if not tfds_source.is_source(source)]


def _existing(paths: Sequence[Path]) -> Sequence[Path]:
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
    return paths
