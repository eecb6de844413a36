"""The stages that make data: `prepare` (a corpus to shards) and `sets` (evaluation sets to BEIR folders)."""

import functools
import itertools
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from retrieval import files
from retrieval.data.corpora import pydocs, sources, tfds_source
from retrieval.data.corpora.passages import Limits
from retrieval.data.labelled import grouping, jsonl_pairs, pair_shards
from retrieval.data.labelled.grouping import Counts, Example
from retrieval.data.sets import beir, open_domain, splits
from retrieval.data.sets.beir import Candidate, RetrievalSet
from retrieval.data.sets.candidate_texts import CandidateTexts
from retrieval.data.shards import prepared_corpus
from retrieval.data.tokenizers import vocabularies
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.pipeline.run import Run
from retrieval.pipeline.stage import STAGES, Stage
from retrieval.stages import formats

_log = logging.getLogger(__name__)

_PART = 2000  # texts whose tokens are counted at a time: of documents, some hundred megabytes


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


def corpus_inputs(run: Run) -> Sequence[Path]:
    """The files that `prepare` reads."""
    paths = [run.lock] if run.config.corpus == "pydocs" else _files(run.config.corpus)
    return _existing([*paths, *vocabularies.files(vocabularies.named(run.config.vocab))])


def write_sets(run: Run) -> dict[str, Any]:
    """Writes `sets/NAME/` for every evaluation set, and `training/` for the one to split; returns their sizes.

    Raises:
      UserError: a set has no query.
    """
    run.sets.mkdir(exist_ok=True)
    values: dict[str, RetrievalSet] = {}
    for value in _sets(run):
        if not value.queries:
            raise UserError(f"evaluation set '{value.name}' has no query")
        values[value.name] = value
    sizes = {name: _size(run, value) for name, value in values.items()}
    split = run.config.split
    if split.set:
        values[split.set], training = splits.split(values[split.set], split.ratio, split.validation, split.seed)
        beir.write_folder(run.training, training)
        sizes[split.set] |= {f"{side} queries": len(qrels) for side, qrels in training.qrels.items()}
        sizes[split.set]["test queries"] = len(values[split.set].queries)
    for name, value in values.items():
        extended = _with_distractors(run, value)
        if more := len(extended.candidates) - len(value.candidates):
            sizes[name]["more candidates from the corpus"] = more
        beir.write_folder(run.sets / name, extended)
        _log.info("set %s: %s", name, sizes[name])
    files.remove_temporaries(run.sets)
    if not sizes:
        _log.warning("the config names no evaluation set (config.sets): there will be nothing to evaluate")
    return sizes


def write_pairs(run: Run) -> dict[str, Any]:
    """Writes `pairs/`, the shards that fine-tuning reads; returns their statistics."""
    config = run.config
    split_set = run.training.exists()
    vocabulary = run.load_vocabulary()
    run.pairs.mkdir(exist_ok=True)
    of_set = _of_set(run) if split_set else ()
    paths = [Path(path) for path in formats.split(config.pairs.files)]
    pool = config.pairs.pool
    if split_set and run.negatives.exists():  # all that were mined
        pool = max(pool, run.holder("mine").config.mine.negatives)
    with formats.grouped(config, paths, run.pairs, pool, of_set) as (groups, counts):
        asked = _asked(run)
        evaluated = sum(splits.wording(group.query) in asked for group in groups)
        formats.log(counts, "pairs")
        held_out = 0 if split_set else splits.held_out(counts.queries, config.split.validation)
        if held_out:
            validation = grouping.evaluation_set("validation", itertools.islice(groups, held_out), splits.VALIDATION)
            beir.write_folder(run.held_out_pairs, validation)
        if not run.prepares:
            beir.write_candidates(run.pairs / "passages.jsonl", grouping.passages(groups))
        statistics = pair_shards.write_pairs(
            groups.after(held_out), vocabulary, run.pairs, config.split.shards, config.pairs.positives
        )
    if behind := statistics.pop("positives left out"):
        what = f"positives behind the first {config.pairs.positives} of their query"
        known = statistics["pairs"] + behind
        share = f"{100 * behind / known:.0f} % of {known}, which is config.pairs.positives"
        _log.warning("pairs: left out %d %s (%s)", behind, what, share)
        counts.left_out[what] = behind
    if evaluated:
        _log.warning(
            "pairs: %d queries are also those of an evaluation set, or held out to validate on: what is measured there "
            "will flatter the model",
            evaluated,
        )
    files.remove_temporaries(run.pairs)
    left_out = {what: number for what, number in counts.left_out.items() if number}
    told = {"validation queries": held_out, "evaluated queries": evaluated, "left out": left_out}
    return statistics | told | {"vocabulary": vocabulary.fingerprint}


def _of_set(run: Run) -> Iterator[Example]:
    """The training questions of a set, with what was mined for them; a base may have mined for others too."""
    training = beir.read_judged(run.training)
    with CandidateTexts(run.training / "corpus.jsonl", set(training.candidates)) as texts:
        yield from grouping.of_set(training, splits.TRAIN, lambda id: texts[texts.row_of[id]])
    if run.negatives.exists():
        asked = {training.queries[id] for id in training.qrels[splits.TRAIN]}
        mined = jsonl_pairs.read(run.negatives / "negatives.jsonl", Counts())
        yield from (example for example in mined if example.query in asked)


def set_inputs(run: Run) -> Sequence[Path]:
    """The files that `sets` reads."""
    return _existing(formats.set_files(run.config))


def pair_inputs(run: Run) -> Sequence[Path]:
    """The files that `pairs` reads."""
    return _existing(formats.pair_files(run.config))


def _asked(run: Run) -> set[str]:
    """The wordings of the queries of the evaluation sets, and of those that are held out to validate on."""
    folders = [path for path in run.sets.iterdir() if path.is_dir()] if run.sets.exists() else []
    asked = {query for folder in folders for query in beir.read_queries(folder / "queries.jsonl").values()}
    if run.training.exists():
        training = beir.read_judged(run.training)
        asked |= {training.queries[id] for id in training.qrels[splits.VALIDATION]}
    return set(map(splits.wording, asked))


def _sets(run: Run) -> Iterator[RetrievalSet]:
    sets = run.config.sets
    if sets.pydocs:
        files_of_articles = sources.article_files(run.corpus)
        yield pydocs.known_items(item for path in files_of_articles for item in sources.read_articles(path))
    yield from formats.read_sets(run.config, run.sets, functools.partial(_passages, run, "config.sets.qa=corpus"))


def _size(run: Run, value: RetrievalSet) -> dict[str, Any]:
    """A row of Table 2; the tokens are those of the run's vocabulary, where it has one."""
    tuples = {
        f"tuples ({rule})": sum(grade > 0 for grades in qrels.values() for grade in grades.values())
        for rule, qrels in value.qrels.items()
    }
    size: dict[str, Any] = {"queries": len(value.queries), "candidates": len(value.candidates), **tuples}
    if run.vocabulary:
        count = functools.partial(_tokens, run.load_vocabulary())
        size["tokens per query"] = round(sum(count(list(value.queries.values()))) / len(value.queries), 2)
        texts = itertools.chain.from_iterable((c.title, c.text) for c in value.candidates)
        tokens = sum(sum(count(part)) for part in iter(lambda: list(itertools.islice(texts, _PART)), []))
        size["tokens per candidate"] = round(tokens / len(value.candidates), 2)
    return size


def _tokens(vocabulary: Vocabulary, texts: Sequence[str]) -> list[int]:
    """The tokens of every text; the candidates of a paragraph share it, so equal texts are tokenised once."""
    distinct = list(dict.fromkeys(texts))
    lengths = dict(zip(distinct, map(len, vocabulary.encode_batch(distinct))))
    return [lengths[text] for text in texts]


def _with_distractors(run: Run, value: RetrievalSet) -> RetrievalSet:
    count = run.config.sets.distractors
    if not (count and value.qrels):  # questions with answers alone have the passages that they are asked of
        return value
    passages = _passages(run, f"config.sets.distractors={count}")
    return open_domain.extend(value, passages, count, run.config.split.seed)


def _passages(run: Run, setting: str) -> Iterator[Candidate]:
    """The passages of the prepared corpus, for a setting that takes them."""
    paths = sorted(run.corpus.glob("passages-*.jsonl"))
    if not paths:
        raise UserError(f"{setting}: that is of a prepared corpus, and {run.corpus} has no passages")
    return itertools.chain.from_iterable(map(beir.read_candidates, paths))


def _files(value: str) -> list[Path]:
    """The sources that are files or folders; what TFDS holds is known by its name and version alone."""
    return [Path(source) for source in formats.split(value) if not tfds_source.is_source(source)]


def _existing(paths: Sequence[Path]) -> Sequence[Path]:
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
    return paths


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
        inputs=corpus_inputs,
        outputs=("corpus",),
        fixed=True,
    ),
)

STAGES.register(
    "sets",
    Stage(
        write_sets,
        reads="evaluation sets of any format",
        writes="`sets/NAME/`: BEIR folders; `training/`",
        settings=("sets", "split", "pairs.format"),
        uses=("pairs.queries", "pairs.collection"),
        needs=("prepare",),
        inputs=set_inputs,
        outputs=("sets", "training"),
    ),
)

STAGES.register(
    "pairs",
    Stage(
        write_pairs,
        reads="`training/`, `negatives/`, labelled examples of any format",
        writes="`pairs/`: TFRecord shards of labelled examples; `pairs/validation/`; `pairs/passages.jsonl`",
        settings=("split", "pairs"),
        needs=("prepare", "sets", "mine"),
        inputs=pair_inputs,
        outputs=("pairs",),
    ),
)
