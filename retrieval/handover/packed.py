"""Records in files of at most so many, or of so many bytes: the bodies of requests."""

from collections.abc import Iterable
from pathlib import Path


def packed(
    folder: Path, name: str, records: Iterable[str], most: int, most_bytes: int, marks: tuple[str, str, str]
) -> dict[str, int]:
    """Writes records; a file has one at least. Returns the records of each file, by its name.

    Args:
      name: of a file, with the place of its number, such as 'points-{:05}.json'.
      most, most_bytes: records of a file, and their bytes in UTF-8.
      marks: what stands before the first record of a file, between two, and behind the last.
    """
    before, between, behind = marks
    counts: dict[str, int] = {}
    waiting: list[bytes] = []
    size = 0

    def write() -> None:
        path = folder / name.format(len(counts))
        path.write_bytes(before.encode() + between.encode().join(waiting) + behind.encode())
        counts[path.name] = len(waiting)
        waiting.clear()

    for record in records:
        encoded = record.encode()
        if waiting and (len(waiting) == most or size + len(encoded) > most_bytes):
            write()
            size = 0
        waiting.append(encoded)
        size += len(encoded)
    if waiting:
        write()
    return counts
