"""What a stage is, and the table of all stages. A stage's file in `retrieval/stages/` registers it."""

import dataclasses
import graphlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval.errors import UserError
from retrieval.registry import Table


@dataclasses.dataclass(frozen=True)
class Stage:
    """A step of a run.

    Functions of a run take `retrieval.stage_outputs.Run`.

    Attributes:
      function: does the work; what it returns (JSON) is kept in the stage's record, for the report.
      settings: the fields of the config, as dotted names, that its output depends on.
      uses: further fields that it reads; nothing is made anew when they change.
      needs: stages whose output it reads.
      also: further stages, which depend on the config.
      requires: those of `needs` that it can do nothing without; of the others there may be none in a run.
      needs_if_made: stages whose output it reads where there is any, and which then has to fit as that of `needs` does.
      wants: stages whose output it reads where there is any, whatever that was made from.
      after: further stages that come before it where both are asked for.
      looks_back: it reads nothing of a stage that comes after it in config.stages, but what the base has of that.
      texts_of: stages whose texts it looks up in what others made of them. What a base made of other texts is refused.
      inputs: files outside of the work directory that it reads.
      fetch: brings what it reads of other work directories than those of the chain, where these are on a store.
      outputs: what it writes, below the work directory; deleted before it runs on other inputs or settings. The record
        keeps the SHA-256 of these files: they are verified before another stage reads them.
      leaves: what else it writes there, which no stage reads. The record keeps the sums of reports and of lines.
      exchanged: those of `leaves` that the hosts of a pod read of each other's.
      sealed: by what `function` returned, the folders that it wrote with a manifest of their own. Of these the record
        keeps the sums of the manifests, and those who read them verify the rest.
      fixed: its settings cannot change within a work directory (the output is dear, and later stages build on it).
      grows: fields of a fixed stage that say how long it is. Raised once it is done, it goes on from where it ended.
        Lowered before, it ends early, if its record says what was "planned".
      reads_only: it writes nothing, not even its record: another process may write to the work directory meanwhile.
      always: it runs whenever it is asked for.
      everywhere: every host of a pod takes its part; otherwise the first does it all, and the others wait.
      of_model: its output is of one trained model. A stage reads no output of one model beside that of another.
      decides: by the config that it ran with, the fields whose values hold for all who read its output.
      check_settings: refuse fields that do not fit each other; `fields.of_fields` hands a check what it looks at alone.
      check_inputs: refuse what comes from outside, by its beginnings, before anything is copied from a store.
      check: refuse what it could make nothing of, before the first stage of the run begins. A check of any kind that
        several stages have runs once.
      reads: what it reads, in words.
      writes: what it writes below the work directory, in words.
    """

    function: Callable[[Any], Any]
    settings: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    also: Callable[[ConfigDict], tuple[str, ...]] = lambda config: ()
    requires: tuple[str, ...] = ()
    needs_if_made: tuple[str, ...] = ()
    wants: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    looks_back: bool = False
    texts_of: tuple[str, ...] = ()
    inputs: Callable[[Any], Sequence[Path]] = lambda run: ()
    fetch: Callable[[Any], None] = lambda run: None
    outputs: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    exchanged: tuple[str, ...] = ()
    sealed: Callable[[Any, Any], Sequence[Path]] | None = None
    fixed: bool = False
    grows: tuple[str, ...] = ()
    reads_only: bool = False
    always: bool = False
    everywhere: bool = False
    of_model: bool = False
    decides: Callable[[ConfigDict], tuple[str, ...]] = lambda config: ()
    check_settings: tuple[Callable[[ConfigDict], None], ...] = ()
    check_inputs: tuple[Callable[[Any], None], ...] = ()
    check: tuple[Callable[[Any], None], ...] = ()
    reads: str = ""
    writes: str = ""


class StageTable(Table[Stage]):
    """The stages. They are listed in an order in which they can run, whoever registered them."""

    def __iter__(self) -> Iterator[str]:
        """The names: each after the stages that it reads, and those that nobody reads at the end.

        Raises:
          UserError: stages read each other's output.
        """
        reads = {name: self._reads(name) for name in sorted(super().__iter__())}
        sorter = graphlib.TopologicalSorter(reads)
        try:
            sorter.prepare()
        except graphlib.CycleError as error:
            raise UserError(f"stages that read each other's output: {' -> '.join(error.args[1])}") from error
        order: list[str] = []
        while ready := sorted(sorter.get_ready()):
            order += ready
            sorter.done(*ready)
        readers = {need for needs in reads.values() for need in needs}
        return iter(sorted(order, key=lambda name: name not in readers))

    def _reads(self, name: str) -> list[str]:
        stage = self[name]
        return [other for other in (*stage.needs, *stage.needs_if_made, *stage.wants, *stage.after) if other in self]


STAGES = StageTable("stage", "retrieval.stages", "stage")


def readers_of(field: str) -> list[str]:
    """The stages that name a field, or a group that it is in, among what they read."""
    return [name for name, stage in STAGES.items() if is_among((*stage.settings, *stage.uses), field)]


def is_among(fields: Collection[str], field: str) -> bool:
    """Whether a field, or a group that it is in, is one of these."""
    return any(f"{field}.".startswith(f"{other}.") for other in fields)
