import jax
import numpy as np
import pytest
from support import packed_data
from support.packed_data import given_of, performed

from benchmarks.accelerator import __main__ as command
from benchmarks.accelerator import data, encoding, outcomes, search, served, step, work
from benchmarks.accelerator.data import Pack, Pairs
from benchmarks.worker import MissingError
from retrieval.common.errors import UserError
from retrieval.common.runtime.filler import FILLER

"""A day on an accelerator, at toy size on a CPU: its data, its loss, every work, and what goes wrong."""


QUICK = ("late interaction, L12 H768",)  # whose pairs differ most from those of other works


@pytest.fixture(scope="module")
def packed(prepared, inputs, tmp_path_factory):
    """The packed data of the toy corpus."""
    return packed_data.write(prepared, inputs, tmp_path_factory.mktemp("packed") / "data")


class InThisProcess:
    """A system as `contest.Process` runs it, without a process."""

    def __init__(self, system, python, environment):
        if system.name != "ours":
            raise MissingError(f"{system.name} is not here")
        self.turn = step.prepare(system.settings)

    def close(self):
        pass


def texts_of(loaded, ids_BL):
    names = (loaded.folder / data.VOCABULARY).read_text().splitlines()
    return [" ".join(names[id] for id in row if id != FILLER) for row in ids_BL]


def test_pairs_are_those_of_the_tasks(packed):
    loaded = Pack(packed)
    whole = texts_of(loaded, loaded.rows(loaded.whole(loaded.passages, np.arange(len(loaded.passages))), length=99)[0])
    for task in data.TASKS:
        batch = Pairs(loaded, {task: 1.0}, 0, 16, 99).batch(0, 64, packed=False)
        queries, documents = texts_of(loaded, batch["query"]), texts_of(loaded, batch["document"][:, 0])
        passages = [whole[id] for id in batch["document_id"][:, 0]]
        if task == "ict":
            for query, document, passage in zip(queries, documents, passages):
                _, body = document.removesuffix(" [SEP]").split(" [SEP] ")
                sentence = query.removeprefix("[CLS] ").removesuffix(" [SEP]")
                assert sentence in passage and sentence not in body
                assert len(f"{sentence} {body}") >= len(passage) - len("[CLS]  [SEP] ") or len(query.split()) == 16
        else:
            assert documents == passages
        assert np.isfinite(batch["log_q"]).all()
    one, again = (Pairs(loaded, {"ict": 1.0}, 0, 16, 48).batch(3, 8)["query"] for _ in range(2))
    assert np.array_equal(one, again)


@pytest.mark.parametrize("names", [QUICK, pytest.param(tuple(step.STEPS), marks=pytest.mark.long)])
def test_models_take_their_steps(packed, tmp_path, monkeypatch, names):
    monkeypatch.setattr(step, "Process", InThisProcess)
    monkeypatch.setattr(step, "STEPS", {name: step.STEPS[name] for name in names})
    found = performed(step, packed, tmp_path)
    ours = [f"ours: {name}" for name in step.STEPS]
    assert {name: found["failures"].get(name) for name in ours} == dict.fromkeys(ours)
    assert all(found["runs"][name]["tokens/s"] > 0 and found["runs"][name]["turns"] == 3 for name in ours)
    peers = [f"{each.peer}: {name}" for name, each in step.STEPS.items() if each.peer]
    assert [name for name in found["failures"] if name in peers] == peers  # they are not here, and said to be missing
    page = (tmp_path / "results.md").read_text()
    assert all(f"| {name} |" in page for name in ours) and "L12 H768: PyLate is not here" in page


@pytest.mark.parametrize("module", [encoding, search, pytest.param(served, marks=pytest.mark.long)])
def test_works_find_numbers(packed, tmp_path, module):
    found = performed(module, packed, tmp_path)
    assert found["failures"] == {} and {run["status"] for run in found["runs"].values()} == {"done"}
    if module is search:
        assert found["runs"]["exact, float32"]["recall of float64's"] == 1.0
        assert found["runs"]["exact, int8"]["recall of float64's"] > 0.8
    if module is served:
        assert all(run["p50, ms"] <= run["p99, ms"] for run in found["runs"].values())


def test_a_failure_is_noted_and_the_rest_goes_on(packed, tmp_path):
    given = given_of(packed, tmp_path, "search")
    given.open({})
    done = []

    def attempts(fails):
        def first():
            yield {"queries/s": 1.0}
            if fails:
                raise fails

        yield work.Attempt("first", first)
        yield work.Attempt("second", lambda: [done.append(1) or {"queries/s": 2.0}])

    memory = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes")
    work.perform(given, attempts(memory), [])
    values = outcomes.read(tmp_path / "search.json")
    assert values["failures"] == {"first": "the device has not enough memory"}
    assert values["runs"]["second"] == {"status": "done", "card": "CPU", "queries/s": 2.0}
    work.perform(given, attempts(None), [])  # again what failed, and nothing else
    values = outcomes.read(tmp_path / "search.json")
    assert values["failures"] == {} and values["runs"]["first"]["status"] == "done" and done == [1]
    with pytest.raises(KeyboardInterrupt):  # as if the process had been killed
        given.outcome.values["runs"].clear()
        work.perform(given, attempts(KeyboardInterrupt()), [])
    assert command._cut_off(tmp_path / "search.json") == "first"
    work.perform(given, attempts(None), ["first"])
    assert outcomes.read(tmp_path / "search.json")["runs"]["second"]["status"] == "done"
    assert "- first: cut off" in (tmp_path / "results.md").read_text()


def test_a_machine_without_an_accelerator_and_an_unknown_card_are_named(packed, tmp_path, monkeypatch, capsys):
    with pytest.raises(UserError, match="sees no accelerator"):
        command.main([f"--data={packed}", f"--out={tmp_path}", "--minutes=1"])
    performed_works = []
    monkeypatch.setattr(command, "_work", lambda name, given, card, *rest: performed_works.append((name, card)))
    monkeypatch.setattr(command, "_SEES", "print('0.11.2|gpu|NVIDIA B9|8000000000')")
    command.main([f"--data={packed}", f"--out={tmp_path}", "--minutes=60"])
    assert performed_works == [(name, "NVIDIA B9") for name in command.WORKS]
    assert "'NVIDIA B9' is not in the table of cards" in (tmp_path / "results.md").read_text()
