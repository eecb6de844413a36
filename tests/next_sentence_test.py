"""BERT's second task: pairs of texts, the head that says whether they belong together, and a run of the recipe."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from conftest import REPOSITORY
from flax import nnx
from support.modules import spread
from support.tiny import execute, make_run

from retrieval.common.errors import UserError
from retrieval.data.examples.task_kind import TASKS
from retrieval.data.examples.token_rows import Specials
from retrieval.data.tokenizers.template import Template
from retrieval.methods.mlm.recipe import NextSentenceModel
from retrieval.methods.mlm.task import make_pair
from retrieval.models.text import Text
from retrieval.models.transformer_config import TransformerConfig
from retrieval.models.warm_start import encoder_of
from retrieval.recipes.parameters import bind, parameters_of
from retrieval.recipes.recipe import build_model, recipe_of
from retrieval.runs.weights import initial_parameters, trained_run

CLS, SEP, MASK = 1, 2, 3
SPECIALS = Specials(Template((CLS,), (SEP,), (SEP,)), MASK, 0, 1000)


def passages(titles):
    """Records in order: sentences of two tokens each, whose ids say which passage and which sentence they are of."""
    for number, (title, sentences) in enumerate(titles):
        ids = [100 * (number + 1) + i for i in range(2 * sentences)]
        lengths, title = tf.fill([sentences], 2), tf.constant([title] if title else [], tf.int32)
        yield {"ids": tf.constant(ids), "lengths": lengths, "title": title}


def streamed(titles):
    """These records as the task's stream has them, each with those before it."""
    specs = {name: tf.TensorSpec([None], tf.int32) for name in ("ids", "lengths", "title")}
    dataset = tf.data.Dataset.from_generator(lambda: passages(titles), output_signature=specs)
    return list(TASKS["next_sentence"].stream(dataset))


def unmasked(example):
    row = example["text"].numpy().copy()
    row[example["positions"].numpy()] = example["labels"].numpy()
    return row.tolist()


def pairs(record, length, count):
    """(first, second, is_random) of so many draws."""
    make = tf.function(lambda seed: make_pair(record, seed, {"text": length}, SPECIALS))
    for i in range(count):
        example = make(tf.constant([5, i]))
        row = unmasked(example)
        assert row[0] == CLS and row[-1] == SEP and row.count(SEP) == 2 and len(row) <= length
        assert not {0, row.index(SEP), len(row) - 1} & set(example["positions"].numpy().tolist())
        yield row[1 : row.index(SEP)], row[row.index(SEP) + 1 : -1], example["is_random"].numpy().tolist() == [1]


def test_the_second_text_follows_or_is_another_articles():
    """Of four passages, the last but one has the title of the last: no random text is of it."""
    *_, record = streamed([(7, 3), (8, 2), (9, 2), (9, 3)])
    drawn = list(pairs(record, 40, 400))
    own = [400, 401, 402, 403, 404, 405]
    assert {len(first) for first, _, _ in drawn} == {2, 4}
    assert all(first + second == own for first, second, is_random in drawn if not is_random)
    others = {tuple(second) for first, second, is_random in drawn if is_random and first == own[: len(first)]}
    whole = tuple(range(100, 106)), tuple(range(200, 204))
    assert others == {whole[0], whole[0][2:], whole[0][4:], whole[1], whole[1][2:]}
    assert sum(is_random for *_, is_random in drawn) == pytest.approx(200, abs=40)


def test_long_pairs_lose_their_two_ends():
    *_, record = streamed([(9, 30)])
    for first, second, _ in pairs(record, 15, 30):
        assert len(first) + len(second) == 12 and min(len(first), len(second)) >= 2
        assert first + second == list(range(first[0], first[0] + 12))  # what lies at the cut stays


def test_both_losses_are_those_of_the_formula():
    sizes = TransformerConfig(vocab_size=30, num_layers=1, hidden_size=8, num_heads=2, mlp_size=12, max_length=10)
    model, random = spread(NextSentenceModel(sizes, rngs=nnx.Rngs(0))), np.random.default_rng(1)
    ids = random.integers(5, 30, (4, 10)).astype(np.int32)
    types = (np.arange(10) > 4).astype(np.int32) + 0 * ids
    batch = {"text": ids, "text_types": types, "is_random": np.array([[0], [1], [1], [0]])}
    batch |= {"positions": random.integers(0, 10, (4, 2)), "labels": random.integers(5, 30, (4, 2))}
    batch |= {"weights": np.ones((4, 2), np.float32)}
    config = make_run("bert", REPOSITORY, REPOSITORY).config
    objective = jax.jit(recipe_of(config).objective(bind(model)))
    loss, metrics = objective(parameters_of(model), jax.tree.map(jnp.asarray, batch), jax.random.key(0))
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), parameters_of(model))
    text = Text.from_ids(jnp.asarray(ids), jnp.asarray(types))
    hidden = nnx.jit(lambda encoder, text: encoder(text, dropout_key=jax.random.key(0)))(model.encoder, text)
    cls = np.asarray(hidden, np.float64)[:, 0]
    pooled = np.tanh(cls @ p["pooler"]["kernel"] + p["pooler"]["bias"])
    logits = pooled @ p["next_sentence"]["kernel"] + p["next_sentence"]["bias"]
    share = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    surprise = -np.log(share[np.arange(4), batch["is_random"][:, 0]])
    np.testing.assert_allclose(metrics["next_sentence"], surprise, rtol=1e-4)
    np.testing.assert_allclose(loss, metrics["mlm"] + surprise, rtol=1e-4)
    right = logits.argmax(axis=1) == batch["is_random"][:, 0]
    np.testing.assert_array_equal(metrics["next_sentence_accuracy"], right.astype(float))


def test_a_run_learns_both_tasks_and_starts_towers(inputs, prepared, tmp_path):
    folder = shutil.copytree(prepared, tmp_path / "bert")
    run = make_run("bert", inputs, folder)
    execute(run, "train")
    lines = [json.loads(line) for line in (folder / "metrics" / "train.jsonl").read_text().splitlines()]
    losses = [line for line in lines if "loss" in line]
    assert losses and all(
        line["loss"] == pytest.approx(line["mlm"] + line["next_sentence"], rel=1e-4) for line in losses
    )
    vocabulary = run.load_vocabulary()
    whole = parameters_of(trained_run.load_parameters(folder, len(vocabulary), run.config.mesh)[1])
    for name in ("ict", "mlm"):
        towers = make_run(name, inputs, tmp_path / name, **{"train.init_from": str(folder)})
        initial_parameters.start_of(towers.config).check(towers)
        model = build_model(towers.config, len(vocabulary))
        initial_parameters.start_of(towers.config).init(model, towers.config, len(vocabulary))
        jax.tree.map(np.testing.assert_array_equal, parameters_of(encoder_of(model)), whole["encoder"])
    kept = (folder / "config.json").read_text()
    (folder / "config.json").write_text(kept.replace('"matmul_dtype"', '"products"'))  # as of an earlier version
    with pytest.raises(UserError, match=r"bert/config\.json: config\.model\.products is gone: .*matmul_dtype now"):
        initial_parameters.start_of(towers.config).check(towers)
