"""Data sets of Hugging Face's hub: `hf:datasets/OWNER/NAME[@REVISION][:CONFIG][:SPLIT]` is Parquet files in its cache.

They are those of the data set itself or, where it has others, those that the hub makes of it (the branch
refs/convert/parquet). The card of a data set says which files are a config's, else their folders and names do.
"""

import fnmatch
import functools
import glob
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from retrieval.common.errors import UserError, listed
from retrieval.common.runtime import hub

_log = logging.getLogger(__name__)

PREFIX = f"{hub.PREFIX}datasets/"
_SUFFIX = ".parquet"
_FORM = f"{PREFIX}OWNER/NAME, with @REVISION, :CONFIG and :SPLIT behind it"
_CONVERTED = "refs/convert/parquet"
_DEFAULT, _TRAIN, _PARTIAL, _CARD = "default", "train", "partial-", "README.md"
_SHARD = re.compile(r"(.+?)-\d+-of-\d+.*")

Files = dict[str, dict[str, list[str]]]  # config -> split -> paths in the repository


def is_name(value: str) -> bool:
    """Whether a value of a field names a data set on the hub."""
    return value.startswith(PREFIX)


def commit(value: str) -> str:
    """The commit of the files of a name; errors are those of `local`."""
    return next(parent.name for parent in local(value)[0].parents if parent.parent.name == "snapshots")


@functools.lru_cache  # a run asks many times, and the hub once
def local(value: str) -> tuple[Path, ...]:
    """The files of a data set in the cache, in order; its train split where the name says no other.

    Without a network what the cache has must do.

    Raises:
      UserError: there is no such data set, revision, config or split, or it has several and none is named; or the hub
        does not answer and the cache lacks it.
    """
    address, *chosen = value.removeprefix(PREFIX).split(":")
    name, _, revision = address.partition("@")
    if len(chosen) > 2 or not all((name, *chosen)):
        raise UserError(f"{value}: no name of a data set; write {_FORM}")
    with hub.explaining(value, "data set", _FORM):
        if not (files := _listed(name, revision)) and not revision:
            files = _listed(name, revision := _CONVERTED)
        if not files:
            raise UserError(f"{value}: no {_SUFFIX} file in it; convert it, or download its files and name these")
        split, paths = _chosen(value, files, chosen)
        download = hub.snapshot(f"{name}@{revision}", "dataset")
        folder = download(allow_patterns=[_CARD, *map(glob.escape, paths)])
    if split.startswith(_PARTIAL):
        _log.warning("%s: the hub has converted a part of it alone, its first gigabytes", value)
    _log.info("%s: commit %s, %d files in %s", value, Path(folder).name, len(paths), folder)
    return tuple(Path(folder) / path for path in paths)


def _listed(name: str, revision: str) -> Files:
    """The files of a revision, as the hub lists them; without a network, those in the cache."""
    import huggingface_hub
    from huggingface_hub import errors

    try:
        info = huggingface_hub.HfApi(endpoint=hub.endpoint()).dataset_info(name, revision=revision or None)
        paths = [file.rfilename for file in info.siblings or ()]
        card: Any = info.card_data.to_dict() if info.card_data else {}
    except errors.HfHubHTTPError as error:
        if revision == _CONVERTED and isinstance(error, errors.RevisionNotFoundError):
            return {}
        raise
    except (errors.OfflineModeIsEnabled, errors.HTTPError):  # pyright: ignore[reportPrivateImportUsage]
        try:
            folder = Path(hub.snapshot(f"{name}@{revision}", "dataset")(allow_patterns=[_CARD], local_files_only=True))
        except errors.LocalEntryNotFoundError:
            if not revision:
                return {}  # it may have none of its own
            raise
        paths = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
        text = (folder / _CARD).read_text(encoding="utf-8") if (folder / _CARD).is_file() else ""
        card = huggingface_hub.DatasetCard(text, ignore_metadata_errors=True).data.to_dict()
    return _by_config(sorted(path for path in paths if path.endswith(_SUFFIX)), card.get("configs") or ())


def _by_config(paths: Sequence[str], configs: Iterable[Mapping[str, Any]]) -> Files:
    files: Files = {}
    for config in configs:
        named = config.get("data_files") or ()
        for part in named if isinstance(named, list) else [named]:
            part = part if isinstance(part, dict) else {"path": part}
            paths_of = part.get("path")
            patterns = paths_of if isinstance(paths_of, list) else [paths_of]
            own = [path for path in paths if any(fnmatch.fnmatchcase(path, str(pattern)) for pattern in patterns)]
            if own:
                config_name = str(config.get("config_name", _DEFAULT))
                files.setdefault(config_name, {})[str(part.get("split", _TRAIN))] = own
    if not files:
        for path in paths:
            config, split = _of_path(PurePosixPath(path))
            files.setdefault(config, {}).setdefault(split, []).append(path)
    return files


def _of_path(path: PurePosixPath) -> tuple[str, str]:
    """The config and the split of a file: CONFIG/SPLIT/0000.parquet, or CONFIG/SPLIT-00000-of-00002.parquet."""
    folders = [name for name in path.parts[:-1] if name != "data"]
    if shard := _SHARD.fullmatch(path.stem):
        split = shard[1]
    else:
        split = folders.pop() if path.stem.isdigit() and folders else path.stem
    return "/".join(folders) or _DEFAULT, split


def _chosen(value: str, files: Files, named: Sequence[str]) -> tuple[str, list[str]]:
    """The split that a name means, and its files: behind it are a config, a split, or both."""
    only = next(iter(files)) if len(files) == 1 else _DEFAULT
    config, split = [*named, "", ""][:2]
    if not split and config not in files and only in files and (not config or config in files[only]):
        config, split = only, config
    if config not in files:
        why = f"no config '{config}'" if config else "several configs"
        raise UserError(f"{value}: {why}; name one, {PREFIX}OWNER/NAME:CONFIG, of {listed(sorted(files))}")
    splits, wanted = files[config], split or _TRAIN
    if not split and len(splits) == 1:
        (wanted,) = splits
    for one in (wanted, f"{_PARTIAL}{wanted}"):
        if one in splits:
            return one, splits[one]
    raise UserError(f"{value}: no split '{wanted}' in its config '{config}'; there are {listed(sorted(splits))}")
