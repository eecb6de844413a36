"""Tables of behaviour."""

import sys

import pytest

from retrieval.config import experiment
from retrieval.errors import UserError
from retrieval.registry import Table


def test_entries_are_found_in_registration_order():
    table: Table[int] = Table("loss")
    table.register("two", 2)
    assert table.register("one", 1) == 1
    assert list(table) == ["two", "one"] and table.find("one") == 1 and table["two"] == 2 and len(table) == 2


def test_an_unknown_name_is_answered_with_near_names():
    table: Table[int] = Table("loss")
    table.register("triplet", 1)
    with pytest.raises(UserError, match=r"unknown loss in config.train.loss 'triplets': did you mean triplet\?"):
        table.find("triplets", "config.train.loss")
    with pytest.raises(KeyError):
        table["triplets"]


def test_a_name_is_registered_once():
    table: Table[int] = Table("loss")
    table.register("triplet", 1)
    with pytest.raises(UserError, match="'triplet' is registered twice"):
        table.register("triplet", 2)


def test_reading_a_table_registers_its_packages_modules(tmp_path, monkeypatch):
    package = tmp_path / "losses_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("from retrieval.registry import Table\nTABLE = Table('loss', __name__)\n")
    for name in ("second", "first"):
        (package / f"{name}.py").write_text(
            f"from losses_of_a_test import TABLE\nTABLE.register('{name}', '{name}!')\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    from losses_of_a_test import TABLE  # pyright: ignore[reportMissingImports]

    assert "losses_of_a_test.first" not in sys.modules
    assert dict(TABLE) == {"first": "first!", "second": "second!"}


def test_a_plugin_may_be_a_folder_as_a_method_is(tmp_path, monkeypatch):
    """Two losses in two files of a package that imports none of them."""
    package = tmp_path / "method_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("from retrieval.registry import Table\nTABLE = Table('loss')\n")
    for name in ("loss", "other_loss"):
        (package / f"{name}.py").write_text(f"from method_of_a_test import TABLE\nTABLE.register('{name}', 1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    experiment.load_plugins(["method_of_a_test"])
    from method_of_a_test import TABLE  # pyright: ignore[reportMissingImports]

    assert dict(TABLE) == {"loss": 1, "other_loss": 1}
