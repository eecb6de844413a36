"""Sorting by runs on disk against Python's own sort."""

import random

import pytest

from retrieval.data.shards.external_sort import Sorter


@pytest.mark.parametrize("memory", [0, 5_000, 1 << 20])
def test_sorts_as_python_does_and_keeps_what_is_equal(tmp_path, memory):
    generator = random.Random(0)
    records = [(f"key {generator.randrange(100)}", generator.randrange(3), generator.randbytes(9)) for _ in range(400)]
    records += records[:50]
    with Sorter(tmp_path, memory) as sorter:
        for record in records:
            sorter.add(record)
        assert list(sorter) == sorted(records)
        assert list(tmp_path.iterdir()) == []
