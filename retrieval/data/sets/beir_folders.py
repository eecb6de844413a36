"""The format of evaluation sets 'beir': folders as `beir` reads them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from retrieval.data.corpora.source_paths import split
from retrieval.data.sets import beir, relevance
from retrieval.data.sets.set_format import Given, Options, SetFormat, register
from retrieval.errors import unknown_name

_SPLITS, _DIVIDED = "sets.splits", "split.set"
_OF_DIVIDED = ("split.train", "split.dev")


@register
class BeirFolders(SetFormat):
    """Each folder is a set of its name."""

    name = "beir"
    what = "BEIR folders: corpus.jsonl, queries.jsonl, qrels/NAME.tsv"
    setting = "--config.sets.beir=FOLDER,…"
    example = '{"_id": "d1", "title": "T", "text": "words"}'
    of_folders = True
    options = (relevance.UNKNOWN, _SPLITS, _DIVIDED, *_OF_DIVIDED)

    def read(self, value: str, given: Given) -> Iterator[beir.RetrievalSet]:
        for folder in map(Path, split(value)):
            chosen = given.options[_SPLITS] and [name for _, name in _named(folder, given.options)]
            yield beir.read_folder(folder, given.options[relevance.UNKNOWN], chosen)

    def names(self, value: str) -> list[str]:
        return [Path(folder).resolve().name for folder in split(value)]

    def check_path(self, path: Path, options: Options) -> None:
        known = beir.check_beginning(path)
        for field, name in _named(path, options):
            if name not in known:
                raise unknown_name(f"file of {path / 'qrels'} in config.{field}", name, known)

    def has_answers(self, name: str, value: str, options: Options) -> bool:
        folders = map(Path, split(value))
        return any(path.resolve().name == name and beir.answers_file(path) for path in folders)


def _named(folder: Path, options: Options) -> Sequence[tuple[str, str]]:
    """The fields that choose files of a folder's judgements, each with a name in it."""
    of_divided = _OF_DIVIDED if folder.resolve().name == options[_DIVIDED] else ()
    names = [(_SPLITS, name) for name in options[_SPLITS]]
    return names + [(field, options[field]) for field in of_divided if options[field]]
