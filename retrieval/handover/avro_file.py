"""Avro's object container files, and the few of its types that one record of ours needs (Avro 1.11 specification).

Numbers are zigzag varints, texts and arrays have their length before them, and a union the number of its branch.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO

_BLOCK = 1 << 20  # bytes, about, of records in a block


def long(value: int) -> bytes:
    """A whole number."""
    value = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def text(value: str) -> bytes:
    """A string."""
    encoded = value.encode()
    return long(len(encoded)) + encoded


def array(items: Sequence[bytes]) -> bytes:
    """An array of items that are encoded already."""
    return long(len(items)) + b"".join(items) + long(0) if items else long(0)


def optional(value: bytes | None, branch: int = 1) -> bytes:
    """A union whose first branch is null."""
    return long(0) if value is None else long(branch) + value


def write(file: BinaryIO, schema: Any, records: Iterable[bytes]) -> int:
    """Writes a container of records that are encoded already; returns how many there are."""
    said = json.dumps(schema)
    mark = hashlib.md5(said.encode(), usedforsecurity=False).digest()  # any 16 bytes: the same input, the same file
    header = [text("avro.schema") + text(said), text("avro.codec") + text("null")]
    file.write(b"Obj\x01" + array(header) + mark)
    waiting: list[bytes] = []
    count = size = 0

    def flush() -> None:
        if waiting:
            file.write(long(len(waiting)) + long(size) + b"".join(waiting) + mark)
            waiting.clear()

    for record in records:
        waiting.append(record)
        count, size = count + 1, size + len(record)
        if size >= _BLOCK:
            flush()
            size = 0
    flush()
    return count
