"""What a stage is, and the table of all stages. A stage's file, `stages/NAME.py` or a method's, registers it."""

import dataclasses
import graphlib
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.common.registry import Table


class Read(NamedTuple):
    """A stage whose output another one reads. A run that lists the stage nowhere has none, unless it is `required`.

    Attributes:
      required: nothing can be done without it.
      optional: it is read only where it has run.
      any_version: it is read where it has run, whatever it was made from.
      must_match: all else that is read has to be made from this very output, where it is made from one at all.
      from_base_if_later: where the stage comes later in config.stages, the base's output is read: what is mined with
        one model trains the next.
    """

    stage: str
    required: bool = False
    optional: bool = False
    any_version: bool = False
    must_match: bool = False
    from_base_if_later: bool = False

    @property
    def is_optional(self) -> bool:
        """Whether it is read only where it has run."""
        return self.optional or self.any_version


Reads = Sequence[str | Read]


class Protected(NamedTuple):
    """Of a stage whose output is dear: with other fields or inputs it is refused in place of being made anew.

    Attributes:
      extendable: fields that say how long the stage is. Raised once it is done, it goes on from where it ended. Lowered
        before, it ends early, if its record says what was "planned".
      decides: by the config that it ran with, the fields whose values hold for all who read its output.
      is_trained_on: whether it is dear only for the model that is trained on it: a run that adopts one makes it anew.
    """

    extendable: tuple[str, ...] = ()
    decides: Callable[[ConfigDict], tuple[str, ...]] = lambda config: ()
    is_trained_on: bool = False


@dataclasses.dataclass(frozen=True)
class Stage:
    """A step of a run. One that writes nothing which others read runs whenever it is asked for.

    Functions of a run take `retrieval.runs.pipeline.run.Run`.

    Attributes:
      function: does the work; what it returns (JSON) is kept in the stage's record. `SEALED` in it names the folders,
        below the work directory, that it wrote with a manifest of their own: the record keeps the manifests' sums.
      fields: of the config, as dotted names, on which its output depends.
      also_reads: further fields that it reads; nothing is made anew when they change.
      reads: the stages whose output it reads, or a function from the config to them.
      writes: what it writes below the work directory for other stages. It is deleted before the stage runs on other
        inputs; the record keeps the SHA-256 of these files, which are verified before another stage reads them.
      side_outputs: what else it writes there, which no stage reads. The record keeps the sums of reports and of lines.
      reuses: whether what it wrote last lies in `OLDER` while it runs anew, for it copies what is still right.
      shared_between_hosts: those of `side_outputs` that the hosts of a pod read of each other's.
      files: those from outside of the work directory that it reads.
      fetch: copies down what it reads of other work directories than those of the chain, where these are on a store.
      check_config: refuse fields that do not fit each other, before anything is read.
      check: refuse what the stage could make nothing of, before the first stage of a run begins. A check that several
        stages have runs once.
      check_reader: of the run that writes the output and one that trains on it, refuses what the second could not read,
        before it is written.
      protected: whether it is refused in place of being made anew, and how far it can change.
      on_every_host: every host of a pod takes its part; otherwise the first does it all, and the others wait.
    """

    function: Callable[[Any], Any]
    fields: tuple[str, ...] = ()
    also_reads: tuple[str, ...] = ()
    reads: Reads | Callable[[ConfigDict], Reads] = ()
    writes: tuple[str, ...] = ()
    side_outputs: tuple[str, ...] = ()
    reuses: bool = False
    shared_between_hosts: tuple[str, ...] = ()
    files: Callable[[Any], Sequence[Path]] = lambda run: ()
    fetch: Callable[[Any], None] = lambda run: None
    check_config: tuple[Callable[[ConfigDict], None], ...] = ()
    check: tuple[Callable[[Any], object], ...] = ()
    check_reader: Callable[[Any, Any], None] = lambda writer, reader: None
    protected: Protected | None = None
    on_every_host: bool = False

    @property
    def always_runs(self) -> bool:
        """Whether it runs whenever it is asked for."""
        return not self.writes and not self.protected

    @property
    def reads_only(self) -> bool:
        """Whether it writes nothing, not even its record: another process may write to the work directory meanwhile."""
        return self.always_runs and not self.side_outputs


SEALED = "sealed"
OLDER = "older"  # the folder below the work directory

# The stages that give a run its model, of which a config lists one: `train`, and `adopt` for a model as it is. Whoever
# reads a model reads "train", and gets the output of the one that is listed.
TRAIN, ADOPT = "train", "adopt"

STAGES: Table[Stage] = Table("stage", "retrieval.stages", "stage")


def reads_of(name: str, config: ConfigDict) -> list[Read]:
    """What a stage reads with a config, each stage once; a model of the stage that the config lists."""
    reads = STAGES[name].reads
    listed = reads(config) if callable(reads) else reads
    named = [read if isinstance(read, Read) else Read(read) for read in listed]
    own = [read._replace(stage=listed_as(read.stage, config.stages)) for read in named]
    return list({read.stage: read for read in reversed(own)}.values())[::-1]


def listed_as(name: str, stages: Collection[str]) -> str:
    """A stage's own name, or that of the other one that gives a model, where these stages have that alone."""
    other = {TRAIN: ADOPT, ADOPT: TRAIN}.get(name, name)
    return other if other in stages and name not in stages else name


def in_order(names: Iterable[str], config: ConfigDict) -> list[str]:
    """Stages in an order in which they can run with a config: each after those that it reads.

    Raises:
      UserError: stages read each other's output.
    """
    chosen = sorted(set(names))
    reads = {name: [read.stage for read in reads_of(name, config) if not read.from_base_if_later] for name in chosen}
    sorter = graphlib.TopologicalSorter({name: [of for of in reads[name] if of in chosen] for name in chosen})
    try:
        order = list(sorter.static_order())
    except graphlib.CycleError as error:
        raise UserError(f"stages that read each other's output: {' -> '.join(error.args[1])}") from error
    readers = {of for read in reads.values() for of in read}
    return sorted(order, key=lambda name: name not in readers)


def readers_of(field: str, names: Iterable[str] = STAGES) -> list[str]:
    """The stages, of these or of all, that name a field, or a group that it is in, among what they read."""
    return [name for name in names if is_among((*STAGES[name].fields, *STAGES[name].also_reads), field)]


def is_among(fields: Collection[str], field: str) -> bool:
    """Whether a field, or a group that it is in, is one of these."""
    return any(f"{field}.".startswith(f"{other}.") for other in fields)
