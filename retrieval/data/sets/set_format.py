"""The formats of evaluation sets: `config.sets.NAME` takes what the format NAME reads.

A format is one class of this package, or of a plugin:

    @register
    class Squad(SetFormat):
        name, what, setting, example = "reqa", "SQuAD as ReQA", "--config.sets.reqa=FILE.json,…", '{"data": …}'

        def read(self, value, context):
            yield read_squad(split(value))
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from retrieval.common.errors import UserError, unknown_name
from retrieval.config.fields import values_of
from retrieval.data.corpora import source_paths, tfds_source
from retrieval.data.formats import Format, Formats, Options
from retrieval.data.sets import beir, relevance
from retrieval.data.sets.beir import RetrievalSet

NOT_PREPARED = "is of a prepared corpus: add 'prepare' to config.stages, or set config.base to a run that has it"
_SPLITS, _DIVIDED = "sets.splits", "split.set"
_OF_DIVIDED = ("split.train", "split.dev")


class Context(NamedTuple):
    """What a run gives to a format.

    Attributes:
      options: the values of the fields that the format names as its own.
      corpus: the folder of the prepared corpus, which may be missing.
      folder: where temporary files may lie.
    """

    options: Options
    corpus: Path
    folder: Path


class SetFormat(Format[Any, Context, RetrievalSet]):
    """A format of evaluation sets. A format of one's own overrides `read`, and what else differs.

    Methods take the value of `config.sets.NAME`, which is neither empty nor False. The set has the name of the format
    unless `names` says otherwise.

    Attributes:
      is_judged: whether its queries have judgements. Without them no set can be divided for training.
      is_answered: whether its queries have answers, texts that a passage may hold.
      of_folders: whether the field takes folders instead of files.
      tfds: the data set of TFDS that the field takes too.
      parts: what each file is, where the field takes files of different kinds.
      repeats_last: whether there may be several files of the last kind.
      holds_out: whether it asks with texts of the corpus that training is not to read.
    """

    is_judged: bool = True
    is_answered: bool = False
    of_folders: bool = False
    tfds: str = ""
    parts: Sequence[str] = ()
    repeats_last: bool = False
    holds_out: bool = False

    def names(self, value: Any) -> list[str]:
        """The names of the sets."""
        return [self.name]

    def sources(self, value: Any) -> list[str]:
        """The files, the folders and the data sets of TFDS that the field names."""
        return [] if self.holds_out else source_paths.split(value)

    def inputs(self, value: Any, options: Options) -> list[Path]:
        """The files and folders that are read."""
        return source_paths.local(self.sources(value))

    def check(self, value: Any, options: Options, has_corpus: bool) -> None:
        """Checks what the field names, in seconds: a mistake is said before hours of work.

        Args:
          has_corpus: whether there is a prepared corpus, or a stage that makes one.

        Raises:
          UserError: a file is missing, is not what it should be, or is one too many.
        """
        count = len(source_paths.split(value)) if self.parts else 0
        if count < len(self.parts) or (count > len(self.parts) and not self.repeats_last):
            needed = f"{len(self.parts)} are needed, of {', '.join(self.parts)}: {self.setting}"
            raise UserError(f"config.sets.{self.name}={value}: {count} file{'s' * (count != 1)}, but {needed}")
        for path in source_paths.checked(f"config.sets.{self.name}", self.sources(value), self.of_folders, self.tfds):
            self.check_path(path, options)
        tfds_source.open_all(self.sources(value), self.tfds)

    def check_path(self, path: Path, options: Options) -> None:
        """Checks the beginning of a file, or what a folder holds."""

    def has_answers(self, name: str, value: Any, options: Options) -> bool:
        """Whether the questions of the set `name` have answers."""
        return self.is_answered and name in self.names(value)


SETS: Formats[SetFormat] = Formats("format of evaluation sets", "retrieval.data.sets", "set", group="sets")
register = SETS.add


def all_sets() -> list[SetFormat]:
    """The formats by name: the order of imports has no say in that of the sets."""
    return [SETS[name] for name in sorted(SETS)]


@register
class BeirFolders(SetFormat):
    """Each folder is a set of its name."""

    name = "beir"
    what = "BEIR folders: corpus.jsonl, queries.jsonl, qrels/NAME.tsv"
    setting = "--config.sets.beir=FOLDER,…"
    example = '{"_id": "d1", "title": "T", "text": "words"}'
    of_folders = True
    options = (relevance.UNKNOWN, _SPLITS, _DIVIDED, *_OF_DIVIDED)

    def read(self, value: str, context: Context) -> Iterator[RetrievalSet]:
        for folder in map(Path, source_paths.split(value)):
            chosen = context.options[_SPLITS] and [name for _, name in _named(folder, context.options)]
            yield beir.read_folder(folder, context.options[relevance.UNKNOWN], chosen)

    def names(self, value: str) -> list[str]:
        return [Path(folder).resolve().name for folder in source_paths.split(value)]

    def check_path(self, path: Path, options: Options) -> None:
        known = beir.check_beginning(path)
        for field, name in _named(path, options):
            if name not in known:
                raise unknown_name(f"file of {path / 'qrels'} in config.{field}", name, known)

    def has_answers(self, name: str, value: str, options: Options) -> bool:
        folders = map(Path, source_paths.split(value))
        return any(path.resolve().name == name and beir.answers_file(path) for path in folders)


def _named(folder: Path, options: Options) -> Sequence[tuple[str, str]]:
    """The fields that choose files of a folder's judgements, each with a name in it."""
    of_divided = _OF_DIVIDED if folder.resolve().name == options[_DIVIDED] else ()
    names = [(_SPLITS, name) for name in options[_SPLITS]]
    return names + [(field, options[field]) for field in of_divided if options[field]]


class NamedSets(NamedTuple):
    """What a config says about the evaluation sets of one format.

    Attributes:
      value: of the format's field in `config.sets`.
      options: the fields that the format reads beside it.
    """

    form: SetFormat
    value: Any
    options: Options


def named_sets(config: ConfigDict) -> list[NamedSets]:
    """The formats of the evaluation sets that a config names, each with what the config says about its sets."""
    return [
        NamedSets(form, value, values_of(config, form.options))
        for form in all_sets()
        if (value := config.sets.get(form.name))
    ]


def any_answers(named: Sequence[NamedSets], name: str) -> bool:
    """Whether the questions of a judged evaluation set have answers."""
    return any(form.has_answers(name, value, options) for form, value, options in named)
