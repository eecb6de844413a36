"""The format of evaluation sets 'beir': folders as `beir` reads them."""

from collections.abc import Iterator
from pathlib import Path

from retrieval.data.corpora.source_paths import split
from retrieval.data.sets import beir, relevance
from retrieval.data.sets.set_format import Given, Options, SetFormat, register
from retrieval.errors import UserError


@register
class BeirFolders(SetFormat):
    """Each folder is a set of its name."""

    name = "beir"
    what = "BEIR folders: corpus.jsonl, queries.jsonl, qrels/NAME.tsv"
    setting = "--config.sets.beir=FOLDER,…"
    example = '{"_id": "d1", "title": "T", "text": "words"}'
    of_folders = True
    options = (relevance.UNKNOWN,)

    def read(self, value: str, given: Given) -> Iterator[beir.RetrievalSet]:
        yield from (beir.read_folder(Path(folder), given.options[relevance.UNKNOWN]) for folder in split(value))

    def names(self, value: str) -> list[str]:
        return [Path(folder).resolve().name for folder in split(value)]

    def check_path(self, path: Path, options: Options) -> None:
        for name in ("corpus.jsonl", "queries.jsonl"):
            if not any((path / f"{name}{ending}").is_file() for ending in ("", ".gz")):
                parts = sorted(found.parent for found in path.glob(f"*/{name}*"))  # CQADupStack has twelve
                remedy = f"name the folders in it, such as {parts[0]}" if parts else "a folder of it has one of them"
                raise UserError(f"{path}: neither {name} nor {name}.gz is there, in config.sets.beir; {remedy}")
        if not (beir.judgement_files(path) or beir.answers_file(path)):
            raise UserError(f"{path / 'qrels'}: no .tsv file with relevance judgements, such as test.tsv")

    def preview(self, value: str) -> None:
        for folder in map(Path, split(value)):
            beir.check_beginning(folder)

    def has_answers(self, name: str, value: str, options: Options) -> bool:
        folders = map(Path, split(value))
        return any(path.resolve().name == name and beir.answers_file(path) for path in folders)
