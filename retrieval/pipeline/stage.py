"""What a stage is, and the table of all stages. A stage's file in `retrieval/stages/` registers it."""

import dataclasses
import graphlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval.errors import UserError
from retrieval.pipeline.run import Run
from retrieval.registry import Table


@dataclasses.dataclass(frozen=True)
class Stage:
    """A step of a run.

    Attributes:
      function: does the work; what it returns (JSON) is kept in the stage's record, for the report.
      settings: the fields of the config, as dotted names, that its output depends on.
      uses: further fields that it reads; nothing is made anew when they change.
      needs: stages whose output it reads.
      also: further stages, which depend on the config.
      wants: stages whose output it reads where there is any.
      after: further stages that come before it where both are asked for.
      looks_back: it reads nothing of a stage that comes after it in config.stages, but what the base has of that.
      inputs: files outside of the work directory that it reads.
      outputs: what it writes, below the work directory; deleted before it runs on other inputs or settings. The record
        keeps the SHA-256 of these files: they are verified before another stage reads them.
      leaves: what else it writes there, of which the record says nothing.
      sealed: by what `function` returned, the folders that it wrote with a manifest of their own. Of these the record
        keeps the sums of the manifests, and those who read them verify the rest.
      fixed: its settings cannot change within a work directory (the output is dear, and later stages build on it).
      grows: fields of a fixed stage that may be raised once it is done: it then goes on from where it ended.
      always: it runs whenever it is asked for.
      everywhere: every host of a pod takes its part; otherwise the first does it all, and the others wait.
      check_settings: refuses fields that do not fit each other, before anything else is looked at.
      check: refuses what it could make nothing of, before the first stage of the run begins.
      reads: what it reads, in words.
      writes: what it writes below the work directory, in words.
    """

    function: Callable[[Run], Any]
    settings: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    also: Callable[[ConfigDict], tuple[str, ...]] = lambda config: ()
    wants: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    looks_back: bool = False
    inputs: Callable[[Run], Sequence[Path]] = lambda run: ()
    outputs: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    sealed: Callable[[Run, Any], Sequence[Path]] | None = None
    fixed: bool = False
    grows: tuple[str, ...] = ()
    always: bool = False
    everywhere: bool = False
    check_settings: Callable[[ConfigDict], None] = lambda config: None
    check: Callable[[Run], None] = lambda run: None
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
        return [other for other in (*stage.needs, *stage.wants, *stage.after) if other in self]


STAGES = StageTable("stage", "retrieval.stages")
