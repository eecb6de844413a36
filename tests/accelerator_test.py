"""A day on an accelerator, at toy size on a CPU: the whole command, twice, and what is wrong with its data."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from conftest import REPOSITORY
from ml_collections import ConfigDict
from support.tiny import make_config

from benchmarks.accelerator import curves, data, outcomes, pack
from benchmarks.accelerator.data import Labelled, Masked, Pack, Pairs
from retrieval.data.examples.masking import PERCENT
from retrieval.data.sets import reqa
from retrieval.errors import UserError
from retrieval.recipes.placement import bind, parameters_of
from retrieval.recipes.recipe import recipe_of
from retrieval.stage_outputs import Run

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
    return [" ".join(names[id] for id in row if id) for row in ids_BL]


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


def test_four_queries_share_a_row(packed):
    loaded = Pack(packed)
    pairs = Pairs(loaded, TOY["rates"], 0, 16, 48)
    one, four = pairs.batch(0, 16, packed=False), pairs.batch(0, 16)
    assert np.array_equal(four["query"].reshape(16, 16), one["query"])
    assert np.array_equal(np.unique(four["query_segments"]), np.arange(5))
    assert np.array_equal(four["query_starts"][0], [0, 16, 32, 48])


def test_masked_tokens_are_those_that_were_there(packed):
    loaded = Pack(packed)
    batch = Masked(loaded, 0, 48, 7, PERCENT).batch(0, 64)
    used = batch["weights"] > 0
    text = np.take_along_axis(batch["text"], batch["positions"], axis=1)
    assert 0.7 < (text[used] == loaded.special("mask")).mean() < 0.9
    assert not np.isin(batch["labels"][used], [0, loaded.special("cls"), loaded.special("sep")]).any()
    assert used.sum(axis=1).min() >= 1


def test_a_question_is_labelled_with_its_sentence(packed, inputs):
    loaded = Pack(packed)
    found = reqa.read_squad([inputs / "squad.json"])
    assert len(loaded["candidate_paragraph"]) == len(found.candidates)
    batch = Labelled(loaded, np.arange(len(loaded.questions)), 0, 99, 99).batch(0, 8)
    queries = texts_of(loaded, batch["query"].reshape(8, -1))
    for query, document in zip(queries, texts_of(loaded, batch["document"].reshape(8, -1))):
        sentence = document.split(" [SEP] ")[0]
        assert ("nobody" in sentence) == ("knows" in query)


def test_the_place_of_the_first_gold_candidate():
    rows = np.array([[4, 2, 9], [1, 2, 3], [7, -1, -1]])
    assert data.ranks(rows, np.array([[9, 2], [8, -1], [7, -1]])).tolist() == [1, 3, 0]


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


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (None, "no pack.json there"),
        ("{", "cannot be read"),
        (json.dumps({"version": 99}), "data of another version"),
    ],
)
def test_data_that_is_none(tmp_path, facts, message):
    if facts is not None:
        (tmp_path / data.FACTS).write_text(facts)
    with pytest.raises(UserError, match=message):
        Pack(tmp_path)


def test_arrays_that_are_cut_off(packed, tmp_path):
    for name in (data.FACTS, data.ARRAYS):
        content = (packed / name).read_bytes()
        (tmp_path / name).write_bytes(content[: len(content) // 2] if name == data.ARRAYS else content)
    with pytest.raises(UserError, match=r"arrays\.npz: cannot be read"):
        Pack(tmp_path)


def test_no_accelerator_is_said(packed, tmp_path):
    said = call(f"--data={packed}", f"--out={tmp_path}")
    assert said.returncode == 1 and "JAX sees no accelerator" in said.stderr and "Traceback" not in said.stderr


def test_results_of_other_settings_are_not_joined(tmp_path):
    outcomes.Outcome(tmp_path, "curves", {"settings": TOY}).save()
    with pytest.raises(UserError, match="measured with other data"):
        outcomes.Outcome(tmp_path, "curves", {"settings": TOY | {"batch": 1}})


def test_an_arm_without_memory_is_tried_in_smaller_chunks_and_the_next_one_goes_on(packed, tmp_path, monkeypatch):
    loaded = Pack(packed)
    outcome = outcomes.Outcome(tmp_path, "curves", {"settings": TOY})
    day = curves.Curves(loaded, outcome, 0, float("inf"), "a card")
    day._chunk = 256
    chunks = []

    def run(name):
        outcome.values["runs"][f"{name}-s0"] = {"label": name, "seed": 0, "points": [], "status": "cut off"}
        chunks.append(day._chunk)
        raise curves.jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr(day, "run", run)
    day.attempt("all")
    assert chunks == [256, 128, 64]
    assert "RESOURCE_EXHAUSTED" in outcomes.read(tmp_path / "curves.json")["failures"]["all-s0"]


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
