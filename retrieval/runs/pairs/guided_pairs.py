"""A guide's embeddings of all texts of labelled examples, as a table beside the shards that fine-tuning reads.

guide_rows.npy    float32 [Q + N, H], of length 1: the queries, then the documents; records have the numbers of rows

Each text is embedded once, with the guide's own tokenizer, whatever the number of epochs. A step reads rows.
"""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from retrieval.common import files
from retrieval.common.runtime import hashing
from retrieval.data.examples.example_kind import GUIDE
from retrieval.data.labelled import grouping
from retrieval.data.labelled.grouping import Example
from retrieval.data.sets.candidate import Candidate
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import guide
from retrieval.runs.weights.text_embedder import EMBEDDERS, Distinct, T, TextEmbedder

_log = logging.getLogger(__name__)

_SHARD = 8192  # texts of a file of it


def rows_of(run: Run, examples: Callable[[], Iterable[Example]]) -> Callable[[str, Sequence[Candidate]], list[int]]:
    """Writes the table; returns what gives the rows of a query and of documents in it.

    Args:
      examples: gives those that are trained on, each time that it is called.
    """
    queries = Distinct(lambda: (example.query for example in examples()), hashing.number)
    texts = lambda: ((*example.positives, *example.negatives) for example in examples())  # noqa: E731
    documents = Distinct(lambda: itertools.chain.from_iterable(texts()), grouping.number)
    path = run.pairs / f"{GUIDE}.npy"
    if not path.exists():
        opened = TextEmbedder(EMBEDDERS.towers(run, run.config.train.guide, guide.FIELD))
        parts = run.pairs / "guide"
        parts.mkdir(exist_ok=True)
        of_queries = list(_embedded(parts, "queries", queries, opened.queries))
        _join([*of_queries, *_embedded(parts, "documents", documents, opened.documents)], path)
        files.remove(parts)
    first = len(queries)
    _log.info("pairs: %s has embedded %d queries and %d documents", run.config.train.guide, first, len(documents))
    return lambda query, texts: [queries.number(query), *(first + documents.number(text) for text in texts)]


def _embedded(
    folder: Path, name: str, texts: Distinct[T], embed: Callable[[Sequence[T]], np.ndarray]
) -> Iterator[Path]:
    """Writes embeddings, so many texts a file; those that are there are kept. Gives the files in order."""
    remaining = iter(texts)
    for number in range(-(-len(texts) // _SHARD)):
        members = list(itertools.islice(remaining, _SHARD))
        path = folder / f"{name}-{number:05d}.npy"
        if not path.exists():
            with files.atomic(path) as temporary, temporary.open("wb") as file:
                np.save(file, guide.unit(embed(members)), allow_pickle=False)
        yield path


def _join(parts: Sequence[Path], path: Path) -> None:
    """Writes the rows of some files as one."""
    opened = [files.read_array(part, "--stage=pairs makes it again", mapped=True) for part in parts]
    files.write_rows(path, (sum(map(len, opened)), opened[0].shape[1]), opened)
