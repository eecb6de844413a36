"""docs/reliability.md names tests that are there, and every row one that `mutations.py` has tried."""

import re

import mutations
from conftest import REPOSITORY

TABLE = [
    line
    for line in (REPOSITORY / "docs" / "reliability.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| fault |")
]


def test_every_row_has_a_mutation():
    tests = [protection["test"].partition("::")[2] for protection in mutations.read()]
    assert TABLE
    for row in TABLE:
        assert any(f"`{name}`" in row for name in tests), row
    for name in tests:
        assert any(f"`{name}`" in row for row in TABLE), name


def test_the_tests_are_there():
    for row in TABLE:
        files = re.findall(r"`(\w+_test\.py)`", row)
        sources = [(REPOSITORY / "tests" / file).read_text(encoding="utf-8") for file in files]
        for name in re.findall(r"`(test_\w+)`", row):
            assert any(f"def {name}(" in source for source in sources), name
    for protection in mutations.read():
        source = (REPOSITORY / "retrieval" / protection["file"]).read_text(encoding="utf-8")
        assert source.count(protection["code"]) == 1, protection["fault"]
        file, _, name = protection["test"].partition("::")
        assert f"def {name}(" in (REPOSITORY / "tests" / file).read_text(encoding="utf-8"), name
