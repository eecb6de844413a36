"""The stage `inspect`: what training is about to read. What is likely to be a mistake is told in the log, too."""

import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.data.corpora import source_paths
from retrieval.data.examples import task_kind
from retrieval.data.examples.task_kind import TASKS
from retrieval.data.examples.tasks.corpus_tasks import PASSAGES, read_training
from retrieval.data.labelled import grouping
from retrieval.data.labelled.grouping import Example
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Judged
from retrieval.data.sets.held_out_texts import LEAST, Occurrences, Words, words
from retrieval.data.tokenizers.prefixes import TextSizes
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.evaluation import display
from retrieval.runs.fitting import data_warnings
from retrieval.runs.fitting.data_warnings import DataCount, cut_off
from retrieval.runs.pairs import labelled_groups
from retrieval.runs.pipeline import records
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Read, Stage
from retrieval.runs.ranking.collection import CORPUS, open_collection, set_names

_NAME = "inspect.json"
_TEXTS = 20_000  # passages and labelled queries that it looks at, the first


_LONG = f"queries of {LEAST} words or more"


class SeenQueries:
    """Takes what training reads, once for all sets, and counts the queries of each. It holds these alone."""

    def __init__(self, queries: Iterable[str], vocabulary: Vocabulary | None):
        """Args:
        vocabulary: that of the corpus; None where none is read.
        """
        texts = list(dict.fromkeys(queries))
        self._words = dict(zip(texts, map(words, texts)))
        self._tokens: dict[str, Words] = {}
        if vocabulary:
            self._tokens = dict(zip(texts, map(tuple, vocabulary.encode_batch(texts))))
        self._known, self._occurrences = set(self._words.values()), Occurrences(self._words.values())
        self._asked, self._in_positives = set[Words](), set[Words]()
        self._in_corpus: set[Words] | None = None
        self._left_out = self._sentences = 0

    def see_example(self, example: Example) -> None:
        """Takes a labelled query and its positives."""
        if (query := words(example.query)) in self._known:
            self._asked.add(query)
        for text in (part for positive in example.positives for part in (positive.title, positive.text)):
            self._in_positives.update(self._occurrences.inside(words(text)))

    def see_corpus(self, corpus: Path, tasks: Sequence[str], share: float) -> None:
        """Takes what tasks read of a prepared corpus: passages, titles and leads, without what is held out."""
        occurrences, self._in_corpus = Occurrences(self._tokens.values()), set()
        for shards in dict.fromkeys(TASKS[task].shards for task in tasks):
            for record in read_training(corpus, shards, share):
                for name in ("ids", "title", "lead_ids"):
                    self._in_corpus.update(occurrences.inside(record[name]))
                if shards is PASSAGES:
                    self._left_out += record["sentences"] - len(record["lengths"])
                    self._sentences += record["sentences"]

    def of_corpus(self) -> Iterator[DataCount]:
        """What the corpus lost to what is held out."""
        if self._left_out:
            what = "sentences that are not trained on, for what is held out has them too"
            yield DataCount("corpus", what, self._left_out, self._sentences)

    def of_set(self, about: str, queries: Sequence[str], is_labelled: bool) -> Iterator[DataCount]:
        """What training reads of the queries of a set.

        Args:
          is_labelled: whether there are labelled examples.
        """
        if is_labelled:
            trained = [query for query in queries if self._words[query] in self._asked]
            yield _count(about, "queries that are trained on", trained, len(queries), is_warning=True)
            inside = [query for query in queries if self._words[query] in self._in_positives]
            yield _count(about, f"{_LONG} that stand in a positive of training", inside, len(queries), is_warning=False)
        if self._in_corpus is not None:
            inside = [query for query in queries if self._tokens[query] in self._in_corpus]
            what = "queries that stand in a passage, a title or a lead of the corpus that is trained on"
            yield _count(about, what, inside, len(queries), is_warning=True)


def _count(about: str, what: str, queries: Sequence[str], number: int, is_warning: bool) -> DataCount:
    return DataCount(about, what, len(queries), number, is_warning and bool(queries), queries[0] if queries else "")


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
        raise UserError(
            f"--stage=inspect: {run.display_path} has neither a prepared corpus nor labelled examples to look at"
        )
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
        also_reads=("data", "pairs", "split"),
        reads=("prepare", "sets", Read("mine", any_version=True), Read("pairs", any_version=True)),
        files=lambda run: [*labelled_groups.inputs(run.config), *run.vocabulary_inputs()],
        side_outputs=(_NAME,),
    ),
)
