"""Tables of behaviour."""

import gc
import importlib
import pkgutil
import sys

import pytest
from support import children

import retrieval
from retrieval.common.errors import UserError
from retrieval.common.registry import Table
from retrieval.config import experiment


def test_entries_are_found_in_registration_order_and_registered_once():
    table: Table[int] = Table("loss")
    table.register("triplet", 2)
    assert table.register("one", 1) == 1
    assert list(table) == ["triplet", "one"] and table.find("one") == table["one"] == 1 and len(table) == 2
    with pytest.raises(UserError, match=r"unknown loss in config.train.loss 'triplets': did you mean triplet\?"):
        table.find("triplets", "config.train.loss")
    with pytest.raises(KeyError):
        table["triplets"]
    with pytest.raises(UserError, match="'triplet' is registered twice"):
        table.register("triplet", 2)


def test_an_entry_is_imported_when_it_is_asked_for(tmp_path, monkeypatch):
    package = tmp_path / "losses_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from retrieval.common.registry import Table\nTABLE = Table('loss', __name__, 'loss_of_a_test')\n"
        "NAMES = {'loss_of_a_test': {'second': 'two both', 'first': 'one'}}\n"
    )
    for file, names in {"second": ("two", "both"), "first": ("one",)}.items():
        lines = [f"TABLE.register('{name}', '{name}!')" for name in names]
        (package / f"{file}.py").write_text("\n".join(["from losses_of_a_test import TABLE", *lines]))
    monkeypatch.syspath_prepend(tmp_path)
    from losses_of_a_test import TABLE  # pyright: ignore[reportMissingImports]

    assert list(TABLE) == ["two", "both", "one"] and "one" in TABLE
    with pytest.raises(UserError, match="'one' is registered twice: rename the one of the plugin"):
        TABLE.register("one", "another")
    assert TABLE.find("both") == "both!" and "losses_of_a_test.first" not in sys.modules
    assert dict(TABLE) == {"two": "two!", "both": "both!", "one": "one!"}


def tables():
    """The tables of the package -> entries that `NAMES` lacks. All of them can be imported."""
    for _, name, _ in pkgutil.walk_packages(retrieval.__path__, "retrieval."):
        if not name.endswith((".main", ".compare", ".study")):  # each defines the flags of a program
            importlib.import_module(name)
    found = [value for value in gc.get_objects() if isinstance(value, Table) and dict(value)]
    return {table.kind: [name for name in table._entries if name not in table._files()] for table in found}


def test_packages_name_what_their_files_register():
    """Only tables whose own file registers entries have others than `NAMES` says."""
    others = children.returned(tables)
    own = {kind for kind, names in others.items() if names}
    assert own == {"start", "metric", "target", "maker of answers"}
    assert {"stage", "loss", "recipe", "task", "index", "encoder family", "kind of refresh"} < others.keys()


def test_a_plugin_may_be_a_folder_as_a_method_is(tmp_path, monkeypatch):
    """Two losses in two files of a package that imports none of them."""
    package = tmp_path / "method_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("from retrieval.common.registry import Table\nTABLE = Table('loss')\n")
    for name in ("loss", "other_loss"):
        (package / f"{name}.py").write_text(f"from method_of_a_test import TABLE\nTABLE.register('{name}', 1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    experiment.load_plugins(["method_of_a_test"])
    from method_of_a_test import TABLE  # pyright: ignore[reportMissingImports]

    assert dict(TABLE) == {"loss": 1, "other_loss": 1}
