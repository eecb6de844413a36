"""TensorFlow Datasets as a source of what is otherwise read from files: SQuAD and Natural Questions.

A source is written `tfds:NAME[/CONFIG][:VERSION][?data_dir=FOLDER&split=SPLIT]`, such as 'tfds:squad/v1.1' or
'tfds:squad?data_dir=/data/tfds'. Without a folder it is TFDS's own, ~/tensorflow_datasets. What is
prepared there is read without a network.
"""

import contextlib
import glob
import importlib.util
import json
import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from retrieval.common import files, libraries
from retrieval.common.errors import UserError, first_line, unknown_name

_PREFIX = "tfds:"
_NAME = re.compile(r"(\w+)(?:/[\w.-]+)?(?::\d+\.\d+\.\d+)?")
_OPTIONS = ("data_dir", "split")
_CLASS_KEYS = ("pythonClassName", "python_class_name", "type")
_log = logging.getLogger(__name__)


# The split and the features of each.
_KNOWN = {
    "squad": ("train+validation", {"id", "title", "context", "question", "answers"}),
    "natural_questions": ("train", {"id", "document", "question", "annotations"}),
}


def is_source(value: Path | str) -> bool:
    """Whether `value` names a data set of TFDS, not a file."""
    return str(value).startswith(_PREFIX)


def check_source(source: str, name: str) -> None:
    """Checks how a source is written, without TFDS.

    Raises:
      UserError: it is not of the form above, of another data set than `name`, or its folder is not there; or TFDS is
        not installed.
    """
    _parse(source, name)
    for package in ("tensorflow_datasets", "importlib_resources"):
        if not importlib.util.find_spec(package):
            raise libraries.missing(source, package, "tfds")


def examples(source: str, name: str) -> Iterator[dict[str, Any]]:
    """The examples of a source as plain values (str, int, bool, lists, dicts), in the order of the prepared files.

    A sequence of records is a list of dicts, as in the JSON files that TFDS was made from.

    Args:
      source: as at the top of this file.
      name: the data set that is expected: 'squad' or 'natural_questions'.

    Raises:
      UserError: not such a source, an unknown config, version or split, no prepared data, or damaged data.
    """
    features, dataset = _open(source, name)
    with _explained(f"{source}: the prepared data is damaged", "prepare it again"):
        for example in dataset:
            yield _plain(features, _listed(example))


def open_all(sources: Iterable[str], name: str) -> None:
    """Opens those of some sources that are of TFDS."""
    for source in filter(is_source, sources):
        next(examples(source, name), None)


def _open(source: str, name: str) -> tuple[Any, Any]:
    """The features of a source and its `tf.data.Dataset`: one file after the other, so that the order never changes."""
    spec, options = _parse(source, name)
    if "data_dir" in options:
        _refuse_strange_features(source, Path(options["data_dir"]).expanduser() / name)
    import tensorflow_datasets as tfds  # with TensorFlow it takes seconds, and only this source needs it

    with _explained(f"{source}: TFDS cannot open '{spec}'", "see the configs and versions in its catalogue"):
        builder: Any = tfds.builder(spec, data_dir=options.get("data_dir"), try_gcs=False)
    if not builder.info.splits:
        raise UserError(
            f"{source}: nothing is prepared at {builder.data_path}; prepare it with `tfds build "
            f"{builder.info.full_name.rpartition('/')[0]} --data_dir={builder.data_dir_root}` with a network, "
            "or give ?data_dir= the folder where it is prepared"
        )
    if missing := _KNOWN[name][1] - set(builder.info.features):
        raise UserError(f"{source}: a config without the features {', '.join(sorted(missing))}; use the default one")
    split = options.get("split", _KNOWN[name][0])
    order = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
    with _explained(f"{source}: no split '{split}'", f"known: {', '.join(builder.info.splits)}"):
        return builder.info.features, builder.as_dataset(split=split, read_config=order)


def _parse(source: str, name: str) -> tuple[str, dict[str, str]]:
    """(NAME[/CONFIG][:VERSION], options). Other names never reach TFDS: it looks for some of them on the network."""
    spec, _, query = source.removeprefix(_PREFIX).partition("?")
    match = _NAME.fullmatch(spec)
    if not is_source(source) or not match:
        raise UserError(f"'{source}' is not of the form tfds:NAME[/CONFIG][:VERSION][?data_dir=FOLDER&split=SPLIT]")
    if match[1] != name:
        raise unknown_name("TFDS data set", match[1], [name])
    parts = [part.partition("=") for part in query.split("&")] if query else []
    options = {option: value for option, _, value in parts}
    if unknown := [option for option in options if option not in _OPTIONS]:
        raise unknown_name(f"option of {source.partition('?')[0]}", unknown[0], _OPTIONS)
    folder = options.get("data_dir", "tfds://")
    if "://" not in folder and not (folder and Path(folder).expanduser().is_dir()):
        raise UserError(f"{source}: the data_dir '{folder}' is not a folder; it is the one that holds '{name}/'")
    return spec, options


def _refuse_strange_features(source: str, folder: Path) -> None:
    """TFDS imports the module of every feature that prepared data names, so the names must be of its own features."""
    for path in glob.glob(f"{glob.escape(str(folder))}/**/features.json", recursive=True):
        pairs: list[tuple[str, Any]] = []  # of all objects within each other
        json.loads(json.dumps(files.read_json(Path(path))), object_pairs_hook=pairs.extend)
        for name in (value for key, value in pairs if key in _CLASS_KEYS and isinstance(value, str)):
            if not name.startswith("tensorflow_datasets.core.features."):
                raise UserError(f"{source}: {path} asks for the code of '{name[:100]}', which is not of TFDS")


@contextlib.contextmanager
def _explained(problem: str, advice: str) -> Iterator[None]:
    """Makes a UserError of any error: those of every library below TFDS come through it."""
    try:
        yield
    except Exception as error:
        raise UserError(f"{problem} ({type(error).__name__}: {first_line(error)}); {advice}") from error


def _listed(value: Any) -> Any:
    """Tensors, also ragged ones, as Python values."""
    if isinstance(value, dict):
        return {name: _listed(part) for name, part in value.items()}
    if hasattr(value, "to_list"):
        return value.to_list()
    value = value.numpy()
    return value if isinstance(value, bytes) else value.tolist()


def _plain(feature: Any, value: Any) -> Any:
    """Bytes become strings, and the columns of a sequence of records its rows."""
    if isinstance(value, bytes):
        return value.decode()
    inner = getattr(feature, "feature", None)
    if inner is not None:
        rows = _rows(value) if isinstance(value, dict) else value
        return [_plain(inner, row) for row in rows]
    return {name: _plain(feature[name], part) for name, part in value.items()} if isinstance(value, dict) else value


def _rows(columns: Any) -> Any:
    if not isinstance(columns, dict):
        return columns
    names, parts = list(columns), [_rows(part) for part in columns.values()]
    return [dict(zip(names, row)) for row in zip(*parts, strict=True)]
