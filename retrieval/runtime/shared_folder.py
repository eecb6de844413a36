"""Hosts with a disk each work as if they had one: at every `hosts.on_first` they exchange the files of some folders.

The files go over the store that the work directory is on. What another host should have of the first one's files goes
there as well. Every file is verified by its SHA-256 when it has arrived.
"""

from collections.abc import Collection, Mapping
from typing import Any

from retrieval import files
from retrieval.errors import UserError
from retrieval.runtime import hosts
from retrieval.runtime.store_copy import Copy


class SharedFolder:
    """Files below a work directory of which each host writes its own; where two have one, the first host's counts.

    All hosts call the same methods in the same order.
    """

    def __init__(self, copy: Copy, tops: Collection[str]):
        """Begins with what is there; `tops` are files and folders by their paths below the work directory."""
        self._copy, self._tops = copy, tops
        self._sums: dict[str, str] = {}
        self._looks: dict[str, tuple[int, int]] = {}  # by which a file is known to be the same
        self._stored: dict[str, str] = {}  # in the first: the sums of what went over the store

    def gather(self) -> None:
        """Brings to the first host what the others have written.

        Raises:
          UserError: a file cannot be copied, or is not what was written.
        """
        self._look()
        sums_of_hosts: list[Mapping[str, str]] = hosts.to_first({} if hosts.is_first() else self._sums)
        wanted: list[list[str]] = hosts.tell_all(lambda: self._wanted(sums_of_hosts))
        self._copy.give(wanted[hosts.number()])
        hosts.to_first(None)  # it is there
        if hosts.is_first():
            for names, sums in zip(wanted, sums_of_hosts):
                self._take(names, sums)
                self._stored |= {name: sums[name] for name in names}
        self._look()

    def spread(self) -> None:
        """Brings to the others what the first one has, and deletes there what it has not.

        Raises:
          UserError: as `gather`.
        """
        self._look()
        sums: dict[str, str] = hosts.tell_all(lambda: self._sums)
        lacking = [name for name, sum in sums.items() if self._sums.get(name) != sum]
        asked = {name for names in hosts.to_first(lacking) for name in names}
        hosts.tell_all(lambda: self._store({name: sums[name] for name in sorted(asked)}))
        if not hosts.is_first():
            self._copy.drop(self._sums.keys() - sums.keys())
            self._take(lacking, sums)
        self._look()

    def _wanted(self, sums_of_hosts: list[Mapping[str, str]]) -> list[list[str]]:
        """Of every host the names that no host before it has, and the first has not."""
        known, wanted = set(self._sums), []
        for sums in sums_of_hosts:
            wanted.append(sorted(sums.keys() - known))
            known |= sums.keys()
        return wanted

    def _store(self, sums: Mapping[str, str]) -> None:
        self._copy.give([name for name, sum in sums.items() if self._stored.get(name) != sum])
        self._stored |= sums

    def _take(self, names: Collection[str], sums: Mapping[str, str]) -> None:
        self._copy.take(names)
        arrived = files.checksums(self._copy.folder, [self._copy.folder / name for name in names])
        for name in names:
            if arrived.get(name) != sums[name]:
                raise UserError(
                    f"{self._copy.url}/{name}: not what another host wrote; see that nobody else writes there, and "
                    "give the same command again"
                )

    def _look(self) -> None:
        """Takes up the sums of what has changed."""
        looks = self._copy.looks(self._tops)
        changed = [name for name, look in looks.items() if self._looks.get(name) != look]
        paths: list[Any] = [self._copy.folder / name for name in changed]
        sums = self._sums | files.checksums(self._copy.folder, paths)
        self._sums, self._looks = {name: sums[name] for name in looks if name in sums}, looks
