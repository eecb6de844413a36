"""The stage `inspect`: what training is about to read. What is likely to be a mistake is told in the log, too."""

import itertools
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.data.corpora import source_paths
from retrieval.data.examples import task_kind
from retrieval.data.examples.task_kind import TASKS
from retrieval.data.examples.tasks.corpus_tasks import PASSAGES, read_training
from retrieval.data.labelled import grouping
from retrieval.data.labelled.grouping import Example
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Candidate, Judged
from retrieval.data.sets.held_out_texts import Occurrences, Words, words
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


class SeenQueries:
    """Takes what training reads, once for all sets, and counts the queries of each. It holds these alone.

    Attributes:
      first: the first labelled examples.
    """

    def __init__(self, queries: Iterable[str], vocabulary: Vocabulary | None):
        """Args:
        vocabulary: that of the corpus; None where none is read.
        """
        texts = list(dict.fromkeys(queries))
        self._words = dict(zip(texts, map(words, texts)))
        self._tokens: dict[str, Words] = {}
        if vocabulary:
            self._tokens = dict(zip(texts, map(tuple, vocabulary.encode_batch(texts))))
        self.first: list[Example] = []
        self._known, self._asked = set(self._words.values()), set[Words]()
        self._positives: set[bytes] = set()  # digests, 8 bytes each
        self._in_corpus: set[Words] | None = None
        self._left_out = self._sentences = 0

    def see_example(self, example: Example) -> None:
        """Takes a labelled query and its positives."""
        if len(self.first) < _TEXTS:
            self.first.append(example)
        if (query := words(example.query)) in self._known:
            self._asked.add(query)
        self._positives.update(map(grouping.digest, example.positives))

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

    def of_set(self, value: Judged, candidates: Iterable[Candidate], sizes: TextSizes | None) -> Iterator[DataCount]:
        """What an evaluation set has in common with what training reads, and how many of its queries are cut."""
        about, queries = f"set {value.name}", list(value.queries.values())
        if sizes:
            yield from cut_off(f"{about}, queries", sizes.of_queries(queries), sizes.query_length, queries)
        trained: dict[str, list[str]] = {}
        if self.first:
            trained["queries that are trained on"] = [query for query in queries if self._words[query] in self._asked]
        if self._in_corpus is not None:
            what = "queries that stand in a passage, a title or a lead of the corpus that is trained on"
            trained[what] = [query for query in queries if self._tokens[query] in self._in_corpus]
        for what, inside in trained.items():
            yield DataCount(about, what, len(inside), len(queries), bool(inside), inside[0] if inside else "")
        if self.first:
            judged = (grades for qrels in value.qrels.values() for grades in qrels.values())
            relevant = {id for grades in judged for id, grade in grades.items() if grade > 0}
            known = sum(text.id in relevant and grouping.digest(text) in self._positives for text in candidates)
            yield DataCount(about, "relevant passages that are positives of training", known, len(relevant))


def inspect(run: Run) -> list[dict[str, Any]]:
    """Prints a table of what was found, logs its warnings, and writes `inspect.json`.

    Raises:
      UserError: there is nothing to look at.
    """
    config, vocabulary = run.config, run.load_vocabulary() if run.vocabulary else None
    texts = list(itertools.islice(open_collection(run, CORPUS).candidates(), _TEXTS)) if run.passages else []
    tasks = task_kind.drawn(config.data.rates, labelled=False) if run.prepares else []
    sets = {name: beir.read_judged(run.sets / name) for name in set_names(run.sets)}
    queries = itertools.chain.from_iterable(value.queries.values() for value in sets.values())
    queried = SeenQueries(queries, vocabulary if tasks else None)
    if source_paths.split(config.pairs.files) or config.pairs.sources or run.training.exists():
        with tempfile.TemporaryDirectory() as folder, labelled_groups.opened(run, Path(folder)) as (groups, _):
            for example in groups:  # all of them: a test query may be the last
                queried.see_example(example)
    if not (texts or queried.first):
        raise UserError(f"--stage=inspect: {run.display_path} has no prepared corpus and no labelled examples")
    sizes = TextSizes.of(config.data, vocabulary) if vocabulary else None
    if tasks:
        queried.see_corpus(run.corpus, tasks, config.data.held_out)
    candidates = {name: beir.read_candidates(run.sets / name / "corpus.jsonl") for name in sets}
    counts = [
        *data_warnings.of_corpus(records.details(run, "prepare") if run.prepares else None, texts, sizes),
        *queried.of_corpus(),
        *(data_warnings.of_labelled(queried.first, sizes) if queried.first else ()),
        *(count for name, value in sets.items() for count in queried.of_set(value, candidates[name], sizes)),
    ]
    header = ["about", "what", "number", "of", "%", "", "such as, or why"]
    print(display.markdown(header, [_row(count) for count in counts], left=2))
    data_warnings.warn("inspect", counts)
    rows = [count._asdict() for count in counts]
    files.write_json(run.folder / _NAME, rows)
    return rows


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
