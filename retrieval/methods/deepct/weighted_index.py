"""The kind of index 'deepct': BM25 whose term frequencies a model weighed (Dai and Callan 2019).

    {"_id": "d7", "frequencies": {"project": 46, "essay": 31, "bomb": 6}}
    {"id": "2", "contents": "essay essay bomb project project"}

A line has the words of a passage, each with how often it counts, or so many times over, as the authors' files have it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from retrieval.common.errors import UserError
from retrieval.common.parsing import foreign_json, scalars, text_files
from retrieval.search import passage_files
from retrieval.search.bm25 import MOST, WORDS, Bm25Index, Bm25Kind, words_of
from retrieval.search.index_kind import Options, Texts, register

_NEEDED = 'a line such as {"_id": "d7", "frequencies": {"bomb": 6}} is needed'


@register
class DeepCt(Bm25Kind):
    """The words of a file alone: a passage that it has not is never found."""

    name, title, system = "deepct", "BM25 over weighted words", "deepct"
    options = ("index.term_weights", *WORDS)

    def inputs(self, options: Options) -> Sequence[Path]:
        return passage_files.inputs("config.index.term_weights", options["index.term_weights"])

    def preview(self, options: Options) -> None:
        for path in self.inputs(options):
            next(read(path), None)

    def parameters(self, options: Options) -> tuple[float, float]:
        return 10.0, 0.9  # the authors': frequencies go up to 100

    def build(self, contents: Texts, options: Options) -> Bm25Index:
        path = passage_files.path_of(options["index.term_weights"], contents.name)
        weighted, counts = passage_files.by_passage(path, read(path), contents)
        for id, passages in weighted.items():
            if any(passage != passages[0] for passage in passages):
                raise UserError(f"{path}: passage '{id}' has {len(passages)} lines that differ; keep one")
        frequencies = [weighted[id][0] if weighted[id] else {} for id in passage_files.ids(contents)]
        settings = (f"weighted words ({counts})", *self.parameters(options), words_of(contents, options))
        try:
            return Bm25Index.from_frequencies(frequencies, *settings)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error


def read(path: Path) -> Iterator[tuple[str, dict[str, int]]]:
    """The id of each passage of a file, and how often each of its words counts.

    Raises:
      UserError: the file cannot be read, or a line is not what it should be.
    """
    for at, line in text_files.lines(path):
        try:
            record = foreign_json.parse(line, at, _NEEDED)
            id = record["_id"] if "_id" in record else record["id"]
            of_words = record["frequencies"] if "frequencies" in record else Counter(record["contents"].split())
            frequencies = dict(of_words.items())
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{at}: not the words of a passage; {_NEEDED}") from error
        id = scalars.of_value(id, "_id", at)
        text_files.refuse_surrogates(" ".join([id, *frequencies]), "_id or a word", at)
        for word, count in frequencies.items():
            if type(count) is not int or not 1 <= count <= MOST:
                raise UserError(f"{at}: the word '{word}' counts {count!r} times; 1 to {MOST} times are allowed")
        yield id, frequencies
