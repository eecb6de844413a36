"""The stage `inspect`: what training is about to read. What is likely to be a mistake is told in the log, too."""

import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from retrieval import files
from retrieval.data.corpora import source_paths
from retrieval.data.examples import task_kind
from retrieval.data.labelled import grouping
from retrieval.data.labelled.grouping import Example
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Judged
from retrieval.data.tokenizers.prefixes import TextSizes
from retrieval.errors import UserError
from retrieval.evaluation import display
from retrieval.pipeline import records
from retrieval.pipeline.run import Run
from retrieval.pipeline.stage import STAGES, Read, Stage
from retrieval.stages import data_warnings, labelled_groups
from retrieval.stages.collection import CORPUS, open_collection, set_names
from retrieval.stages.data_warnings import DataCount, cut_off
from retrieval.stages.seen_queries import SeenQueries

_NAME = "inspect.json"
_TEXTS = 20_000  # passages and labelled queries that it looks at, the first


class _Learnt(NamedTuple):
    """Labelled examples: the first, and digests of all positives, 8 bytes each."""

    first: list[Example]
    positives: set[bytes]


_NOTHING = _Learnt([], set())


def inspect(run: Run) -> list[dict[str, Any]]:
    """Prints a table of what was found, logs its warnings, and writes `inspect.json`.

    Raises:
      UserError: there is nothing to look at.
    """
    config, most = run.config, _TEXTS
    vocabulary = run.load_vocabulary() if run.vocabulary else None
    texts = list(itertools.islice(open_collection(run, CORPUS).candidates(), most)) if run.passages else []
    is_labelled = bool(source_paths.split(config.pairs.files) or config.pairs.sources) or run.training.exists()
    tasks = task_kind.drawn(config.data.rates, labelled=False) if run.prepares else []
    sets = {name: beir.read_judged(run.sets / name) for name in set_names(run.sets)}
    queries = itertools.chain.from_iterable(value.queries.values() for value in sets.values())
    queried = SeenQueries(queries, vocabulary if tasks else None)
    learnt = _learnt(lambda folder: labelled_groups.opened(run, folder), most, queried) if is_labelled else _NOTHING
    if not (texts or learnt.first):
        raise UserError(f"--stage=inspect: {run.place} has neither a prepared corpus nor labelled examples to look at")
    sizes = TextSizes.of(config.data, vocabulary) if vocabulary else None
    if tasks:
        queried.see_corpus(run.corpus, tasks, config.data.held_out)
    statistics = records.details(run, "prepare") if run.prepares else None
    counts = [
        *data_warnings.of_corpus(statistics, texts, sizes),
        *queried.of_corpus(),
        *(data_warnings.of_labelled(learnt.first, sizes) if learnt.first else ()),
        *itertools.chain.from_iterable(_set(value, run.sets, learnt, queried, sizes) for value in sets.values()),
    ]
    header = ["about", "what", "number", "of", "%", "", "such as, or why"]
    print(display.markdown(header, [_row(count) for count in counts], left=2))
    data_warnings.warn("inspect", counts)
    rows = [count._asdict() for count in counts]
    files.write_json(run.folder / _NAME, rows)
    return rows


def _learnt(opened: Callable[[Path], Any], most: int, queried: SeenQueries) -> _Learnt:
    """Reads all labelled queries: a test query may be the last of them."""
    first: list[Example] = []
    positives = set[bytes]()
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as (groups, _):
        for example in groups:
            if len(first) < most:
                first.append(example)
            queried.see_example(example)
            positives.update(map(grouping.digest, example.positives))
    return _Learnt(first, positives)


def _set(
    value: Judged, folder: Path, learnt: _Learnt, queried: SeenQueries, sizes: TextSizes | None
) -> Iterator[DataCount]:
    """What an evaluation set has in common with what training reads, and how many of its queries are cut."""
    about, queries = f"set {value.name}", list(value.queries.values())
    if sizes:
        yield from cut_off(f"{about}, queries", sizes.of_queries(queries), sizes.query_length, queries)
    yield from queried.of_set(about, queries, is_labelled=bool(learnt.first))
    if not learnt.first:
        return
    relevant = {id for qrels in value.qrels.values() for grades in qrels.values() for id, g in grades.items() if g > 0}
    candidates = beir.read_candidates(folder / value.name / "corpus.jsonl")
    known = sum(text.id in relevant and grouping.digest(text) in learnt.positives for text in candidates)
    yield DataCount(about, "relevant passages that are positives of training", known, len(relevant))


def _row(count: DataCount) -> list[Any]:
    share = f"{100 * count.count / count.of:.1f}" if count.of else ""
    warning = "look" if count.is_warning else ""
    of = count.of if count.of is not None else ""
    return [count.about, count.what, count.count, of, share, warning, count.example]


STAGES.register(
    "inspect",
    Stage(
        inspect,
        uses=("data", "pairs", "split"),
        reads=("prepare", "sets", Read("mine", loose=True), Read("pairs", loose=True)),
        files=lambda run: [*labelled_groups.inputs(run.config), *run.vocabulary_inputs()],
        leaves=(_NAME,),
    ),
)
