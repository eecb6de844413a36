"""The stage `inspect`: what training is about to read. What is likely to be a mistake is told in the log, too."""

import itertools
import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from retrieval import files
from retrieval.config.fields import Field, declare, whole
from retrieval.data.corpora import source_paths
from retrieval.data.labelled import grouping
from retrieval.data.labelled.grouping import Example
from retrieval.data.sets import beir, splits
from retrieval.data.sets.beir import Candidate
from retrieval.data.shards.shard_steps import WITHOUT_PAIR
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.evaluation import display
from retrieval.pipeline import records
from retrieval.pipeline.stage import STAGES, Stage
from retrieval.search import languages, near_duplicates
from retrieval.search.alike import are_alike, shingles
from retrieval.search.words import stop_words_by_language
from retrieval.stage_outputs import Run
from retrieval.stages import labelled_groups
from retrieval.stages.collection import CORPUS, open_collection, set_names

_log = logging.getLogger(__name__)

_NAME = "inspect.json"
_CUT, _ALIKE, _FEW = 0.1, 0.05, 0.5  # shares from which on something is told as a warning

declare(
    "inspect",
    texts=Field(20_000, whole(1), "passages and labelled queries that --stage=inspect looks at, the first", was=20_000),
)


class Finding(NamedTuple):
    """One line of the table.

    Attributes:
      about: what was looked at.
      what: was counted.
      count: how many there are, `of` how many; None where the number is not a part of another.
      is_warning: whether it is likely to be a mistake, or to cost much.
    """

    about: str
    what: str
    count: int
    of: int | None = None
    is_warning: bool = False


def inspect(run: Run) -> list[dict[str, Any]]:
    """Prints a table of what was found, logs its warnings, and writes `inspect.json`.

    Raises:
      UserError: there is nothing to look at.
    """
    config, most = run.config, run.config.inspect.texts
    vocabulary = run.load_vocabulary() if run.vocabulary else None
    texts = list(itertools.islice(open_collection(run, CORPUS).candidates(), most)) if run.passages else []
    examples = _examples(lambda folder: labelled_groups.opened(run, folder), most) if _is_labelled(run) else []
    if not (texts or examples):
        raise UserError(f"--stage=inspect: {run.place} has neither a prepared corpus nor labelled examples to look at")
    lengths = config.data.query_length, config.data.document_length
    sets = [run.sets / name for name in set_names(run.sets)]
    findings = [
        *_prepared(records.details(run, "prepare") if run.prepares else None),
        *_texts("passages", texts, config.seed),
        *(_cut_off("passages", map(_whole, texts), lengths[1], vocabulary) if vocabulary else ()),
        *(_labelled(examples, lengths, vocabulary) if examples else ()),
        *itertools.chain.from_iterable(_set(folder, examples, lengths[0], vocabulary) for folder in sets),
    ]
    header = ["about", "what", "number", "of", "%", ""]
    print(display.markdown(header, [_row(finding) for finding in findings], left=2))
    for finding in findings:
        if finding.is_warning:
            share = f" of {finding.of:,}" if finding.of else ""
            _log.warning("inspect: %s: %s: %s%s", finding.about, finding.what, f"{finding.count:,}", share)
    found = [finding._asdict() for finding in findings]
    files.write_json(run.folder / _NAME, found)
    return found


def _is_labelled(run: Run) -> bool:
    return bool(source_paths.split(run.config.pairs.files)) or run.training.exists()


def _examples(opened: Callable[[Path], Any], most: int) -> list[Example]:
    """The first labelled queries, each with its positives and negatives."""
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as (groups, _):
        return list(itertools.islice(groups, most))


def _prepared(statistics: dict[str, Any] | None) -> Iterator[Finding]:
    """Pairs by task, what passages without one lack, and what the cutting into passages lost."""
    if not statistics:
        return
    counts = statistics["counts"]
    passages = counts.get("passages", 0)
    for task, told in statistics["tasks"].items():
        what = f"pairs of {task.upper()}, of {passages:,} passages"
        yield Finding("corpus", what, told["pairs"], None, told["pairs"] < _FEW * passages)
    for what in sorted(counts):
        if what.startswith(WITHOUT_PAIR):
            yield Finding("corpus", what, counts[what], passages)
        elif what.startswith("tokens lost"):
            yield Finding("corpus", what, counts[what], counts["tokens"], counts[what] > _CUT * counts["tokens"])


def _texts(about: str, texts: Sequence[Candidate], seed: int) -> Iterator[Finding]:
    """Empty texts, those that are there twice, those that are nearly the same, and languages."""
    if not texts:
        return
    number, bodies = len(texts), [text.text for text in texts]
    yield Finding(about, "looked at", number)
    empty = sum(not body.strip() for body in bodies)
    yield Finding(about, "empty", empty, number, empty > 0)
    same = number - len({grouping.digest(text) for text in texts})
    yield Finding(about, "the same as an earlier one", same, number, same > _ALIKE * number)
    firsts = near_duplicates.first_alike(bodies, seed=seed)
    alike = sum(first != place for place, first in enumerate(firsts)) - same
    what = "nearly the same as an earlier one (4 of 5 runs of three words)"
    yield Finding(about, what, max(0, alike), number, alike > _ALIKE * number)
    yield from _languages(about, bodies)


def _languages(about: str, texts: Sequence[str]) -> Iterator[Finding]:
    lists = stop_words_by_language()
    for name, count in Counter(languages.language(text, lists) for text in texts).most_common():
        yield Finding(about, f"language, guessed by script and stop words: {name}", count, len(texts))


def _cut_off(about: str, texts: Iterable[str], longest: int, vocabulary: Vocabulary) -> Iterator[Finding]:
    """How many texts are cut to a length, and how many tokens that loses; [CLS] and [SEP] count."""
    sizes = [len(ids) + 2 for ids in vocabulary.encode_batch(list(texts))]
    if not sizes:
        return
    cut, lost = sum(size > longest for size in sizes), sum(max(0, size - longest) for size in sizes)
    yield Finding(about, f"cut to {longest} tokens", cut, len(sizes), cut > _CUT * len(sizes))
    yield Finding(about, f"tokens behind the first {longest}", lost, sum(sizes), lost > _CUT * sum(sizes))


def _labelled(
    examples: Sequence[Example], lengths: tuple[int, int], vocabulary: Vocabulary | None
) -> Iterator[Finding]:
    """Labelled queries, their texts, and negatives that are likely to be positives."""
    about = "labelled examples"
    positives = sum(len(example.positives) for example in examples)
    negatives = sum(len(example.negatives) for example in examples)
    yield Finding(about, "queries", len(examples))
    yield Finding(about, "pairs of a query and a positive", positives)
    yield Finding(about, "hard negatives", negatives)
    if negatives:
        likely = sum(map(_likely_positives, examples))
        what = "hard negatives nearly the same as a positive of their query: likely no negatives"
        yield Finding(about, what, likely, negatives, likely > 0)
    if vocabulary:
        yield from _cut_off("labelled queries", (example.query for example in examples), lengths[0], vocabulary)
        texts = (_whole(text) for example in examples for text in example.positives)
        yield from _cut_off("labelled positives", texts, lengths[1], vocabulary)
    yield from _languages("labelled queries", [example.query for example in examples])


def _likely_positives(example: Example) -> int:
    positives = [shingles(text.text) for text in example.positives]
    return sum(any(are_alike(shingles(text.text), own) for own in positives) for text in example.negatives)


def _set(
    folder: Path, examples: Sequence[Example], query_length: int, vocabulary: Vocabulary | None
) -> Iterator[Finding]:
    """What an evaluation set has in common with the labelled examples, and how many of its queries are cut."""
    about = f"set {folder.name}"
    value = beir.read_judged(folder)
    queries = list(value.queries.values())
    if vocabulary:
        yield from _cut_off(f"{about}, queries", queries, query_length, vocabulary)
    if not examples:
        return
    trained = {splits.wording(example.query) for example in examples}
    asked = sum(splits.wording(query) in trained for query in queries)
    yield Finding(about, "queries that are trained on", asked, len(queries), asked > 0)
    relevant = {id for qrels in value.qrels.values() for grades in qrels.values() for id, g in grades.items() if g > 0}
    positives = {grouping.digest(text) for example in examples for text in example.positives}
    candidates = beir.read_candidates(folder / "corpus.jsonl")
    known = sum(text.id in relevant and grouping.digest(text) in positives for text in candidates)
    yield Finding(about, "relevant passages that are positives of training", known, len(relevant))


def _whole(text: Candidate) -> str:
    return f"{text.title} {text.text}".strip()


def _row(finding: Finding) -> list[Any]:
    share = f"{100 * finding.count / finding.of:.1f}" if finding.of else ""
    warning = "look" if finding.is_warning else ""
    return [finding.about, finding.what, finding.count, finding.of if finding.of is not None else "", share, warning]


STAGES.register(
    "inspect",
    Stage(
        inspect,
        reads="passages, labelled examples, evaluation sets",
        writes="`inspect.json`; prints what training is about to read, and warns of likely mistakes",
        uses=("inspect", "seed", "data", "pairs", "split"),
        needs=("prepare", "sets"),
        wants=("mine", "pairs"),
        inputs=lambda run: [*labelled_groups.inputs(run.config), *run.vocabulary_inputs()],
        leaves=(_NAME,),
        always=True,
    ),
)
