"""Which test queries stand in what training reads: a model that has learnt them looks better than it is."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from retrieval.data.examples.task_kind import TASKS
from retrieval.data.examples.tasks.corpus_tasks import PASSAGES, read_training
from retrieval.data.labelled.grouping import Example
from retrieval.data.sets.held_out_texts import LEAST, Occurrences, Words, words
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.stages.data_warnings import DataCount

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
