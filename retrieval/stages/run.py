"""A run: a work directory, its config, and stages that are skipped when nothing they read has changed.

A run may stand on another one, its base: what the stages write that its own config does not list is read from there. So
one corpus, one set of questions and one BM25 index serve many runs.
"""

import dataclasses
import functools
import json
import logging
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval import files, hosts, mirror
from retrieval.errors import UserError
from retrieval.mirror import Copy, Mirror
from retrieval.store import is_url

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Run:
    """Where everything of a run lives.

    Attributes:
      lock: the file of pinned versions whose packages make up the pydocs corpus.
      query: what `--stage=search` looks for.
      copy: of a work directory on a store what brings its files into `folder`; a `Mirror` where the run writes to it.
    """

    config: ConfigDict
    folder: Path
    lock: Path
    query: str = ""
    copy: Copy | None = None

    @functools.cached_property
    def base(self) -> "Run | None":
        """The run that `config.base` names.

        Raises:
          UserError: that is not a work directory.
        """
        if not self.config.get("base"):  # a work directory may be older than the field
            return None
        return open_read(self.config.base, "config.base", self.lock)

    @functools.cached_property
    def chain(self) -> "list[Run]":
        """This run, its base, the base of that, and so on.

        Raises:
          UserError: one of them stands on itself.
        """
        runs = [self]
        while base := runs[-1].base:
            if base.folder.resolve() in [run.folder.resolve() for run in runs]:
                raise UserError(f"config.base of {runs[-1].place} leads back to {base.place}: take another base")
            runs.append(base)
        return runs

    @property
    def mirror(self) -> Mirror | None:
        """What copies up what the run writes, where its work directory is on a store."""
        return self.copy if isinstance(self.copy, Mirror) else None

    @property
    def place(self) -> str:
        """Where the work directory is, for people."""
        return self.copy.url if self.copy else str(self.folder)

    def before(self, stage: str) -> "Run":
        """The run as a stage sees it: without the stages that come after it, for it cannot read their output.

        So a base's index can be read by a run that is to make one of its own.
        """
        stages = tuple(self.config.stages)
        if stage not in stages:
            return self
        config = self.config.copy_and_resolve_references()
        config.stages = stages[: stages.index(stage)]
        return dataclasses.replace(self, config=config)

    def holder(self, stage: str) -> "Run":
        """The run whose folder has what a stage writes: the first of the chain whose config lists the stage."""
        return next((run for run in self.chain if stage in run.config.stages), self)

    @property
    def corpus(self) -> Path:
        """Shards, vocabulary and statistics."""
        return self.holder("prepare").folder / "corpus"

    @property
    def sets(self) -> Path:
        """One BEIR folder per evaluation set."""
        return self.holder("sets").folder / "sets"

    @property
    def training(self) -> Path:
        """The judgements for fine-tuning, a BEIR folder: those to train on and those held out of them."""
        return self.holder("sets").folder / "training"

    @property
    def negatives(self) -> Path:
        """Mined negatives of the training questions, as JSON lines."""
        return self.holder("mine").folder / "negatives"

    @property
    def pairs(self) -> Path:
        """The shards for fine-tuning."""
        return self.holder("pairs").folder / "pairs"

    @property
    def held_out_pairs(self) -> Path:
        """The labelled queries that are validated on where no set is split, a BEIR folder."""
        return self.pairs / "validation"

    @property
    def checkpoints(self) -> Path:
        """Orbax steps."""
        return self.holder("train").folder / "checkpoints"

    def embeddings(self, name: str, system: str) -> Path:
        """Embeddings of a set (or of the corpus) by one model."""
        return self.holder("encode").folder / "embeddings" / name / system

    def index(self, name: str, kind: str) -> Path:
        """An index over the candidates of a set (or over the corpus)."""
        return self.holder("index").folder / "index" / name / kind

    def record(self, stage: str) -> Path:
        """What a finished stage was made from, how long it took and what it has to tell the report."""
        return _own_record(self.holder(stage), stage)


@dataclasses.dataclass(frozen=True)
class Stage:
    """A step of a run.

    Attributes:
      function: does the work; what it returns (JSON) is kept in the stage's record, for the report.
      settings: the fields of the config, as dotted names, that its output depends on.
      needs: stages whose output it reads.
      also: further ones, which depend on the config.
      wants: stages whose output it reads where there is any.
      looks_back: it reads nothing of a stage that comes after it in config.stages, but what the base has of that.
      inputs: files outside of the work directory that it reads.
      outputs: what it writes, below the work directory; deleted before it runs on other inputs or settings. The record
        keeps the SHA-256 of these files: they are verified before another stage reads them.
      leaves: what else it writes there, of which the record says nothing.
      sealed: its outputs have sums of their own, which those who read them verify.
      fixed: its settings cannot change within a work directory (the output is dear, and later stages build on it).
      always: it runs whenever it is asked for.
      everywhere: every host of a pod takes its part; otherwise the first does it all, and the others wait.
      reads: what it reads, in words.
      writes: what it writes below the work directory, in words.
    """

    function: Callable[[Run], Any]
    settings: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    also: Callable[[ConfigDict], tuple[str, ...]] = lambda config: ()
    wants: tuple[str, ...] = ()
    looks_back: bool = False
    inputs: Callable[[Run], Sequence[Path]] = lambda run: ()
    outputs: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    sealed: bool = False
    fixed: bool = False
    always: bool = False
    everywhere: bool = False
    reads: str = ""
    writes: str = ""


def open_read(value: str, field: str, lock: Path) -> Run:
    """The run of a work directory that a field of the config names, to be read.

    Raises:
      UserError: that is none.
    """
    folder = mirror.local(value)
    if not (folder / "config.json").exists():
        raise UserError(f"{field}={value}: not a work directory (no config.json)")
    config = ConfigDict(files.read_json(folder / "config.json"))
    return Run(config, folder, lock, copy=mirror.copy_of(value) if is_url(value) else None)


def open_run(run: Run, stages: Mapping[str, Stage]) -> None:
    """Makes the work directory and writes `config.json`, after `check_run`."""
    check_run(run, stages)
    run.folder.mkdir(parents=True, exist_ok=True)
    files.write_json(run.folder / "config.json", json.loads(run.config.to_json()))
    if run.mirror:
        run.mirror.put("config.json")


def take_run(run: Run, stages: Mapping[str, Stage]) -> None:
    """As `open_run`, and no other process can take the work directory until this one ends.

    Raises:
      UserError: another process has it.
    """
    check_run(run, stages)
    run.folder.mkdir(parents=True, exist_ok=True)
    files.lock(run.folder)
    files.remove_temporaries(run.folder)  # what a killed run was writing; nobody else writes now
    open_run(run, stages)


def check_run(run: Run, stages: Mapping[str, Stage]) -> None:
    """Checks that the work directory, where there is one, is of the same experiment.

    Raises:
      UserError: a fixed stage ran there, or began to, with other settings; the message lists them. Or the folder is
        no work directory.
    """
    path = run.folder / "config.json"
    if not path.exists():
        found = run.folder.iterdir() if run.folder.exists() else ()
        if not all(item.name in (files.LOCK, files.MIRROR) or files.is_temporary(item) for item in found):
            raise UserError(
                f"{run.folder} is not empty and not a work directory (no config.json): use another --workdir"
            )
        return
    old, new = files.read_json(path), json.loads(run.config.to_json())
    started = [stage for name, stage in stages.items() if stage.fixed and _own_record(run, name).exists()]
    fields = sorted({field for stage in started for field in stage.settings})
    changes = [c for field in fields for c in _changes(field, _field_of(old, field), get_field(new, field))]
    if changes:
        raise UserError(
            f"{run.place} is the work directory of another config:\n  "
            + "\n  ".join(changes[:3])
            + "\nuse another --workdir, or the old settings"
        )


def run_stage(run: Run, name: str, stages: Mapping[str, Stage]) -> None:
    """Runs one stage, or skips it when its record says that it ran on the same inputs and settings.

    Raises:
      UserError: a stage that it needs has not run, or a fixed stage ran on inputs that have changed since.
    """
    stage = stages[name]
    inputs = hosts.on_first(lambda: _begin(run, name, stages))
    if inputs is None:
        _log.info("%s: up to date", name)
        return
    _log.info("%s: started", name)
    began = time.perf_counter()
    details = stage.function(run) if stage.everywhere else hosts.on_first(lambda: stage.function(run))
    seconds = time.perf_counter() - began
    record = {"inputs": inputs, "done": True, "seconds": round(seconds, 1), "peak_memory_mb": _peak_memory_mb()}
    hosts.on_first(lambda: _finish(run, name, stage, record | {"details": details}))
    _log.info("%s: done in %.0f s", name, seconds)


def needs(run: Run, name: str, stages: Mapping[str, Stage]) -> list[tuple[str, Run]]:
    """The stages whose output a stage reads, each with the run that has it."""
    stage = stages[name]
    seen = run.before(name) if stage.looks_back else run
    return [(need, seen.holder(need)) for need in (*stage.needs, *stage.also(run.config))]


def is_current(run: Run, name: str, stages: Mapping[str, Stage]) -> bool:
    """Whether what a finished stage was made from has not changed since."""
    return is_done(run, name) and read_record(run, name)["inputs"] == _inputs(run, name, stages)


def is_done(run: Run, stage: str) -> bool:
    """Whether a stage has run to its end."""
    return bool(record := read_record(run, stage)) and record["done"]


def details(run: Run, stage: str) -> Any:
    """What a finished stage told the report, or None."""
    return read_record(run, stage)["details"] if is_done(run, stage) else None


def read_record(run: Run, stage: str) -> dict[str, Any] | None:
    """The record of a stage that has begun, or None.

    Raises:
      UserError: the file is not what was written.
    """
    path = run.record(stage)
    if not path.exists():
        return None
    record = files.read_json(path)
    if not isinstance(record, dict) or record.pop("sum", None) != files.fingerprint([stage, record]):
        holder = run.holder(stage)
        copy = f" and its copy {path}" if holder.mirror else ""  # of which one would put the other back
        raise UserError(
            f"{holder.place}/stages/{path.name}: damaged, or of another version; delete it{copy}: --stage={stage} "
            "makes it anew"
        )
    return record


def write_record(run: Run, name: str, record: Mapping[str, Any]) -> None:
    """Writes the record of a stage, as `read_record` reads it."""
    record = json.loads(json.dumps(record))  # as it will be read: the sum is of that
    files.write_json(run.record(name), record | {"sum": files.fingerprint([name, record])})
    if run.mirror:
        run.mirror.put(f"stages/{name}.json")


def get_field(config: Any, field: str) -> Any:
    """The value of a dotted name in nested dicts.

    Raises:
      KeyError: there is no such field.
    """
    for name in field.split("."):
        config = config[name]
    return config


def _begin(run: Run, name: str, stages: Mapping[str, Stage]) -> dict[str, str] | None:
    """Makes way for a stage, and notes that it began: what it reads, or None where there is nothing to do."""
    stage = stages[name]
    if run.holder(name) is not run:
        raise UserError(
            f"stage '{name}' is one of the base, {run.holder(name).place}: run it there, or add it to config.stages"
        )
    for need, holder in needs(run, name, stages):
        if need in holder.config.stages and not is_done(holder, need):
            where = f" in {holder.place}" if holder.folder != run.folder else ""
            raise UserError(
                f"stage '{name}' reads what stage '{need}' writes, which has not run{where}: --stage={need} first"
            )
    inputs = _inputs(run, name, stages)
    before = read_record(run, name)
    good = not before or not before["done"] or _is_undamaged(run, name, before)
    if before and before["inputs"] == inputs and before["done"] and good and not stage.always:
        return None
    _verify_needs(run, name, stages)
    if before and (before["inputs"] != inputs or not good):
        if stage.fixed and good:
            raise UserError(
                f"stage '{name}': what it reads has changed since it ran in {run.place}; use another --workdir, or "
                f"delete {run.place} to start afresh"
            )
        for output in stage.outputs:
            files.remove(run.folder / output)
    write_record(run, name, {"inputs": inputs, "done": False})
    return inputs


def _finish(run: Run, name: str, stage: Stage, record: Mapping[str, Any]) -> None:
    """Writes the record of a stage that is done, after all that it is about."""
    if run.mirror:
        run.mirror.up((*stage.outputs, *stage.leaves))
    write_record(run, name, record | {"outputs": _sums(run, stage)})


def _sums(run: Run, stage: Stage) -> dict[str, str]:
    if stage.sealed:
        return {}
    paths = [run.folder / output for output in stage.outputs]
    below = [item for path in paths for item in ([path] if path.is_file() else path.rglob("*")) if item.is_file()]
    return files.checksums(run.folder, below)


def _verify_needs(run: Run, name: str, stages: Mapping[str, Stage]) -> None:
    """Raises `UserError` where what the stage reads is not what was written."""
    for need, holder in needs(run, name, stages):
        if record := read_record(holder, need):
            where = f" in {holder.place}" if holder.folder != run.folder else ""
            remedy = f"--stage={need} makes it again{where}"
            files.verify_checksums(holder.folder, record.get("outputs", {}), remedy)


def _is_undamaged(run: Run, name: str, record: Mapping[str, Any]) -> bool:
    try:
        files.verify_checksums(run.folder, record["outputs"], "it is made again")
    except UserError as error:
        _log.warning("%s: %s", name, error)
        return False
    return True


def _own_record(run: Run, stage: str) -> Path:
    return run.folder / "stages" / f"{stage}.json"


def _inputs(run: Run, name: str, stages: Mapping[str, Stage]) -> dict[str, str]:
    config, stage = json.loads(run.config.to_json()), stages[name]
    # On another machine a file has another time, and a copy another place.
    describe = files.digest if run.copy or is_url(run.config.train.init_from) else files.describe
    outside = [describe(path) for path in stage.inputs(run)]
    needed = [record["inputs"] for need, holder in needs(run, name, stages) if (record := read_record(holder, need))]
    return {
        "settings": files.fingerprint({field: get_field(config, field) for field in stage.settings}),
        "files": files.fingerprint(outside),
        "stages": files.fingerprint(needed),
    }


def _field_of(config: Any, field: str) -> Any:
    """As `get_field`; None for a field that the version which wrote the config did not have."""
    try:
        return get_field(config, field)
    except KeyError:
        return None


def _changes(field: str, old: Any, new: Any) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        names = sorted({*old, *new})
        return [change for name in names for change in _changes(f"{field}.{name}", old.get(name), new.get(name))]
    return [] if old == new else [f"config.{field}: {old!r} there, {new!r} now"]


def _peak_memory_mb() -> int:
    """Of this process, or of its largest child where that is more, since the start of the program."""
    kilobytes = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max(kilobytes) // 1024
