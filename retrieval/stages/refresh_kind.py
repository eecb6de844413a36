"""What a refresh makes, and the table of all kinds. `config.mine.refresh_makes` names one; one file of `refreshes` has
each, or a plugin.

A refresh makes a *version* of the labelled pairs with the parameters that the model has at that step. A version is a
folder of shards as the stage `pairs` writes them. The kind says which records these have; `refresh` and `versions` do
the rest: when one is made, where it lies, which batches are of it, and how a run that was cut off goes on.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from retrieval.data.tokenizers.prefixes import Prefixes
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.pipeline.run import Run
from retrieval.recipes.towers import Embedder
from retrieval.registry import Table

Counts = Mapping[str, Any]
# Writes a version into an empty folder, and returns what was counted.
Write = Callable[[Path], Counts]


class Given(NamedTuple):
    """What a version is made with.

    Attributes:
      embedder: of the run's towers, on the mesh.
      params: of the model, as they are at the refresh.
      version: its number, from 1 on.
    """

    vocabulary: Vocabulary
    prefixes: Prefixes
    embedder: Embedder
    mesh: jax.sharding.Mesh
    params: Any
    version: int


class RefreshKind:
    """A kind of refresh. One of your own overrides `make` and `told`, and what else differs.

    Attributes:
      name: in `config.mine.refresh_makes`, and in messages: a plural, such as 'negatives'.
      what: it is, in a line.
      needs: the stages that it reads besides `pairs`.
      settings: fields of the config that decide what it makes, beside those of training.
    """

    name: str
    what: str
    needs: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()

    def check(self, config: ConfigDict) -> None:
        """Checks the config of a run that refreshes.

        Raises:
          UserError: fields do not fit each other.
        """

    def check_run(self, run: Run) -> None:
        """Checks, before the first stage of a run begins, that there will be what it reads."""

    def check_pairs(self, config: ConfigDict, pairs: Path) -> None:
        """Checks, before training begins, that a version can be made of the run's labelled pairs, in shards."""

    def check_version(self, pairs: Path, folder: Path, counts: Counts) -> None:
        """Checks that a version which is there was made from the run's labelled pairs as they are now.

        Args:
          pairs: the folder of these.
          folder: that of the version.
          counts: what was counted when it was made.
        """

    def make(self, run: Run, given: Given, publish: Callable[[Write], None]) -> None:
        """Makes a version. Every process of the mesh takes its part.

        Its randomness is of the run's seed and the version alone.

        Args:
          publish: is called once, with what writes the shards and their `stats.json`; the first host does so, whole or
            not at all. Where the order of the shards is that of the batches, `StoredPairs.write` writes them.

        Raises:
          UserError: no batch would come of it.
        """
        raise NotImplementedError(f"the refresh '{self.name}' makes nothing")

    def told(self, counts: Counts) -> tuple[str, dict[str, float]]:
        """What the log says of a version, from what was counted: in words, and as numbers by their names."""
        raise NotImplementedError(f"the refresh '{self.name}' tells nothing")


REFRESHES: Table[RefreshKind] = Table("kind of refresh", "retrieval.stages.mined_negatives", "refresh")


def kind_of(name: str) -> RefreshKind:
    """The kind that `config.mine.refresh_makes` names."""
    return REFRESHES.find(name, "config.mine.refresh_makes")
