import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from conftest import REPOSITORY
from ml_collections import ConfigDict
from support.tiny import make_config

from benchmarks.accelerator import data, outcomes, pack
from benchmarks.accelerator.data import Pack, Pairs
from retrieval.data.sets import reqa
from retrieval.pipeline.run import Run
from retrieval.recipes.placement import bind, parameters_of
from retrieval.recipes.recipe import recipe_of
from retrieval.runtime.filler import FILLER

"""A day on an accelerator, at toy size on a CPU: its data, its loss, and the whole command."""


TOY = pack.SETTINGS | {
    "arms": ["none", "mlm", "bow"],
    "batch": 64,
    "chunk": 32,
    "steps": 8,
    "fine_tuning": {"steps": 3, "batch_size": 8, "learning_rate": 5e-4, "share": 0.4},
    "data": {"query_length": 16, "document_length": 48},
    "model": pack.SETTINGS["model"]
    | dict(num_layers=1, hidden_size=16, num_heads=2, mlp_size=32, embed_dim=8, dtype="float32", unroll=1),
    "bow": {"hidden_size": 8, "mlp_size": 8},
    "encode": 16,
    "step": {"batch": 8, "batches": 2, "query_length": 16, "document_length": 48, "model": "L2 H128"},
}


# As on a machine that has neither TensorFlow nor seqio.
WITHOUT = (
    "import sys, runpy; sys.modules.update(dict.fromkeys(('tensorflow', 'seqio', 'scann'))); "
    "sys.argv[:] = sys.argv[1:]; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


@pytest.fixture(scope="module")
def packed(prepared, inputs, tmp_path_factory):
    """The packed data of the toy corpus."""
    folder = tmp_path_factory.mktemp("packed") / "data"
    pack.write(Run(make_config(), prepared, folder), reqa.read_squad([inputs / "squad.json"]), folder, TOY)
    return folder


def call(*arguments, **options):
    """The command in a process of its own, on one CPU device."""
    command = [sys.executable, "-c", WITHOUT, "benchmarks.accelerator", *map(str, arguments)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=1200, **options)


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


@pytest.mark.long
def test_the_whole_command_goes_on_where_it_was_cut_off(packed, tmp_path):
    first = call(f"--data={packed}", f"--out={tmp_path}", "--minutes=20", "--cpu", "--works=curves")
    assert first.returncode == 0, first.stdout + first.stderr
    values = outcomes.read(tmp_path / "curves.json")
    assert values["failures"] == {}
    assert {run["status"] for run in values["runs"].values()} == {"done"}
    steps = [point["step"] for point in values["runs"]["bow-s0"]["points"]]
    assert steps == [2, 4, 6, 8]
    # As if the process had been killed in an arm: that one begins again, and the others stay as they are.
    values["runs"]["bow-s0"]["status"] = "cut off"
    values["runs"]["bow-s0"]["points"] = []
    (tmp_path / "curves.json").write_text(json.dumps(values))
    second = call(f"--data={packed}", f"--out={tmp_path}", "--minutes=20", "--cpu")
    assert second.returncode == 0, second.stdout + second.stderr
    again = outcomes.read(tmp_path / "curves.json")
    assert again["runs"]["mlm-s0"] == values["runs"]["mlm-s0"]
    assert [point["step"] for point in again["runs"]["bow-s0"]["points"]] == steps
    step = outcomes.read(tmp_path / "base-step.json")
    assert len(step["runs"]["ours, packed"]["turns"]) == 3
    page = (tmp_path / "results.md").read_text()
    assert "| BoW-MLP, ICT+BFS+WLP | 0 | 8 |" in page and "| ours, packed |" in page and "CPU" in page


def test_packed_pairs_have_the_loss_of_texts_in_rows_of_their_own(packed):
    loaded = Pack(packed)
    config = ConfigDict(loaded.facts["config"])
    config.data.update(TOY["data"])
    config.data.pack.update(query=0.0, document=0.0)
    config.model.update(TOY["model"])
    config.train.update(batch_size=16, chunk_size=0)
    model = recipe_of(config).build(loaded.vocab_size)
    objective, params = recipe_of(config).objective(bind(model)), parameters_of(model)
    source = Pairs(loaded, TOY["rates"], 0, 16, 48)
    losses = []
    for is_packed in (True, False):
        batch = {name: jax.numpy.asarray(x) for name, x in source.batch(0, 16, packed=is_packed).items()}
        losses.append(jax.jit(objective)(params, batch, jax.random.key(0))[0])
    np.testing.assert_allclose(*losses, rtol=1e-5)
