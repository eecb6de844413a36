"""Collections: the texts that a run encodes, indexes and searches. They are its evaluation sets and its corpus."""

import dataclasses
import itertools
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.config.fields import of_fields
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Candidate, Judged
from retrieval.runs.pipeline.run import Run
from retrieval.search import encoding, vector_codes

_log = logging.getLogger(__name__)

CORPUS = "corpus"  # the name of the collection of all passages, beside those of the sets
NOTES = "notes"  # what `sets` and `evaluate` tell of a set: sentences that the report shows with its table
GENERATED = "generated"  # the folder of what the stage `generate` writes
TRAINED, UNTRAINED, START = "trained", "untrained", "start"
BASELINES = (UNTRAINED, START)


@dataclasses.dataclass(frozen=True)
class Collection:
    """Candidates, and where what is made of them lies.

    Attributes:
      name: of the set, or CORPUS.
      files: the candidates, as BEIR's corpus.jsonl.
      embedded: the folder of its embeddings, one folder a system.
      indexed: the folder of its indexes, one folder a kind.
      generated: the file of what the stage `generate` writes of its candidates.
    """

    name: str
    files: tuple[Path, ...]
    embedded: Path
    indexed: Path
    generated: Path

    def candidates(self) -> Iterator[Candidate]:
        """The candidates, in order, one after the other."""
        return itertools.chain.from_iterable(map(beir.read_candidates, self.files))

    def embeddings(self, system: str = TRAINED) -> Path:
        """The folder of its embeddings by one system."""
        return self.embedded / system

    def has_embeddings(self, system: str = TRAINED) -> bool:
        """Whether the stage `encode` has encoded it."""
        return self.embeddings(system).exists()

    def index(self, kind: str) -> Path:
        """The folder of an index."""
        return self.indexed / kind

    def check_embeddings(self, value: Judged, system: str = TRAINED) -> None:
        """Checks that the embeddings are of a set's candidates and queries as they are now.

        Raises:
          UserError: they are older, and results would be taken for those of other texts; or candidates and queries are
            not of one size and length.
        """
        folder = self.embeddings(system)
        of_queries, there = (vector_codes.read(folder, kind) for kind in ("queries", "candidates"))
        if of_queries and there:
            of = {name: getattr(of_queries, name) for name in ("dim", "truncated_from", "normalised")}
            vector_codes.check(folder, "candidates", dataclasses.replace(there, **of))
        for kind, ids in (("candidates", value.candidates), ("queries", value.queries)):
            embedded = dict.fromkeys(encoding.load_ids(folder, kind))
            for number, (id, other) in enumerate(itertools.zip_longest(ids, embedded), 1):
                if id != other:
                    what = f"number {number} of {len(ids)} {kind} is '{id}' and '{other}' of {len(embedded)} embeddings"
                    raise UserError(f"{folder}: older than the set: {what}; --stage=encode,index makes both again")


def set_names(sets: Path) -> list[str]:
    """The names of the evaluation sets that are written in a folder."""
    return sorted(path.name for path in sets.iterdir() if path.is_dir()) if sets.exists() else []


def open_collection(run: Run, name: str) -> Collection:
    """A set by its name, or the corpus: its passages, or without one those of labelled examples."""
    return Collection(
        name,
        tuple(run.passages) if name == CORPUS else (run.sets / name / "corpus.jsonl",),
        run.embeddings(name, TRAINED).parent,
        run.index(name, "of").parent,
        run.owner("generate").folder / GENERATED / f"{name}.jsonl",
    )


def collections(run: Run) -> list[Collection]:
    """The evaluation sets, and the corpus where it is to be searched."""
    names = [*set_names(run.sets), *([CORPUS] if run.passages and run.config.encode.corpus else [])]
    if run.passages and not names:
        _log.warning("no evaluation set, and config.encode.corpus=False leaves the corpus out: nothing is read")
    return [open_collection(run, name) for name in names]


def repeated(items: Sequence[Collection]) -> dict[str, Collection]:
    """The collections whose candidates an earlier one has too, by name, each with the first that has them.

    Several sets of questions are often asked of one collection. What is made of its texts is made once, and copied.
    """
    by_size: dict[tuple[int, ...], list[Collection]] = {}
    for item in items:
        by_size.setdefault(tuple(path.stat().st_size for path in item.files), []).append(item)
    earlier, first = {}, {}
    for alike in by_size.values():
        for item in alike if len(alike) > 1 else ():
            content = tuple(sum for path in item.files for sum in files.checksums(path.parent, [path]).values())
            if (same := first.setdefault(content, item)) is not item:
                earlier[item.name] = same
    return earlier


def _of_pairs(corpus: bool, base: str, stages: Sequence[str]) -> tuple[str, ...]:
    """`pairs`, where the passages of labelled examples stand in for a prepared corpus."""
    return ("pairs",) if corpus and not base and "prepare" not in stages else ()


of_pairs = of_fields(_of_pairs, "encode.corpus", "base", "stages")
