"""A day on several accelerators, and the plans of its programs, at toy size on eight devices of a CPU."""

import jax
import pytest
from support import packed_data
from support.packed_data import given_of, performed

from benchmarks.accelerator import curves, encoding, outcomes, plans, step, work

LOOP = "L12 H768"


@pytest.fixture(scope="module")
def packed(prepared, inputs, tmp_path_factory):
    return packed_data.write(prepared, inputs, tmp_path_factory.mktemp("packed") / "data")


def test_devices_share_the_batches_of_the_curves(packed, tmp_path, monkeypatch):
    """As many as divide the least of them, which has two rows."""
    monkeypatch.setitem(packed_data.TOY, "arms", ["bow"])
    found = performed(curves, packed, tmp_path, skip=["none-s0", "mlm-s0"])
    assert found["failures"] == {} and found["runs"]["bow-s0"]["devices"] == 2
    assert "| 2 x CPU |" in (tmp_path / "results.md").read_text()


def test_programs_of_the_works_are_planned(packed, tmp_path, monkeypatch):
    """On the devices that are here, whose compiler says what memory they take and estimates no time."""
    monkeypatch.setattr(encoding, "MODELS", (LOOP,))
    monkeypatch.setattr(step, "STEPS", {LOOP: step.STEPS[LOOP]})
    monkeypatch.setattr(curves, "ARMS", {name: curves.ARMS[name] for name in ("none", "bow")})
    given = given_of(packed, tmp_path, "plans_cpu")
    given.open({"topology": "cpu"})
    alike = ["search: exact, int8", "served: candidates", "devices: 8 share rows"]  # programs of others, in other sizes
    work.perform(given, plans.attempts(given, jax.devices()), alike)
    found = outcomes.read(tmp_path / "plans_cpu.json")
    assert found["failures"] == {} and {run["status"] for run in found["runs"].values()} == {"done"}
    assert {name.partition(":")[0] for name in found["runs"]} == {
        *("search", "served", "encoding", "curves", "devices", "step")
    }
    assert all(run["peak, GiB"] > 0 for run in found["runs"].values())
    assert found["runs"]["devices: 8 share rows and parameters"]["devices"] == 8
    assert "## Plans cpu" in (tmp_path / "results.md").read_text()
