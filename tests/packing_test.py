"""Packed batches: the same examples, the same loss and gradients, in fewer tokens."""

import importlib

import jax
import numpy as np
import pytest
from flax import nnx

from retrieval.common.errors import UserError
from retrieval.data.examples.packing import PackedLane, Packing, Rows, choose_rows
from retrieval.recipes import batch_texts
from retrieval.recipes.parameters import bind, parameters_of
from retrieval.recipes.recipe import build_model, recipe_of
from retrieval.training import sharding

LANES, EXAMPLES = 8, 4  # of a lane in a batch
PACKING = Packing(EXAMPLES, {"query": Rows(2, 16, "share of queries"), "document": Rows(2, 40, "share of documents")})


def padded(random, rows, width, shortest=3):
    ids = random.integers(0, 49, (rows, width))
    return np.where(np.arange(width) < random.integers(shortest, width, rows)[:, None], ids, -1).astype(np.int32)


def pairs(random, rows, negatives=0):
    """Examples as the converter has them, with distinct document ids."""
    document = padded(random, rows * (1 + negatives), 24).reshape(rows, -1, 24)
    query = padded(random, rows, 10)
    return {
        "query": query,
        "query_types": np.zeros_like(query),
        "document": document,
        "document_types": random.integers(0, 2, document.shape).astype(np.int32) * (document >= 0),
        "document_id": np.arange(document[..., 0].size, dtype=np.int32).reshape(rows, -1),
        "log_q": random.normal(size=document.shape[:2]).astype(np.float32),
    }


class Stream:
    """A lane whose position is the number of draws."""

    name = "lane-00007"

    def __init__(self, rows=EXAMPLES, seed=0, **kwargs):
        self.draws, self._rows, self._seed, self._kwargs = 0, rows, seed, kwargs

    def __next__(self):
        examples = pairs(np.random.default_rng([self._seed, self.draws]), self._rows, **self._kwargs)
        examples["document_id"] += self.draws * examples["document_id"].size
        self.draws += 1
        return examples

    def save(self, folder):
        (folder / self.name).write_text(str(self.draws))

    def restore(self, folder):
        self.draws = int((folder / self.name).read_text())


def unpacked(batch, field, rows=0):
    """(ids, types) of every text of a packed lane, read off starts, segments and positions."""
    ids, types, segments, positions = (
        batch[field + part][rows].reshape(-1) for part in ("", "_types", "_segments", "_positions")
    )
    texts = []
    for number, start in enumerate(batch[f"{field}_starts"][rows], 1):
        at = np.flatnonzero(segments == number)
        np.testing.assert_array_equal(at, start + np.arange(len(at)))  # in one piece, in one row
        np.testing.assert_array_equal(positions[at], np.arange(len(at)))
        length = batch[field].shape[-1]
        assert at[0] // length == at[-1] // length
        texts.append((tuple(ids[at]), tuple(types[at])))
    assert (ids[segments == 0] == -1).all() and (segments != 0).sum() == sum(len(text) for text, _ in texts)
    return texts


def plain(examples, field):
    ids, types = (examples[name].reshape(-1, examples[name].shape[-1]) for name in (field, f"{field}_types"))
    return [(tuple(row[row >= 0]), tuple(type_row[row >= 0])) for row, type_row in zip(ids, types)]


def test_no_example_is_lost_changed_or_drawn_twice():
    negatives = 2
    rows = {"query": Rows(2, 16, ""), "document": Rows(2 * (1 + negatives), 40, "")}
    lane = PackedLane(Stream(negatives=negatives), Packing(EXAMPLES, rows))
    batches = [next(lane) for _ in range(200)]
    ids = np.concatenate([batch["document_id"] for batch in batches])[:, 0]
    stream = Stream(negatives=negatives)
    drawn = [next(stream) for _ in range(lane._lane.draws)]
    everything = {name: np.concatenate([part[name] for part in drawn]) for name in drawn[0]}
    order = {id: number for number, id in enumerate(everything["document_id"][:, 0])}
    numbers = [order[id] for id in ids]
    assert len(set(numbers)) == len(ids) == 200 * EXAMPLES
    assert len(order) - len(ids) == len(lane._waiting["query"])  # those that wait are all that is missing
    for batch, some in zip(batches, np.reshape(numbers, (200, -1))):
        assert (np.diff(some) > 0).all()
        examples = {name: values[some] for name, values in everything.items()}
        for field in ("query", "document"):
            assert unpacked(batch, field) == plain(examples, field)
        for name in ("document_id", "log_q"):
            np.testing.assert_array_equal(batch[name], examples[name])
    assert numbers != sorted(numbers)  # else nothing ever had to wait


def test_a_saved_position_gives_the_same_batches(tmp_path):
    lane = PackedLane(Stream(), PACKING)
    PackedLane(Stream(), PACKING).save(tmp_path)
    for _ in range(7):
        next(lane)
    assert len(lane._waiting["query"])
    lane.save(tmp_path)
    again = PackedLane(Stream(), PACKING)
    again.restore(tmp_path)
    for _ in range(20):
        expected, actual = next(lane), next(again)
        assert expected.keys() == actual.keys()
        for name in expected:
            np.testing.assert_array_equal(actual[name], expected[name])
    (tmp_path / "lane-00007.waiting.npz").unlink()
    with pytest.raises(UserError, match=r"waiting\.npz is missing: the run began without packed rows"):
        again.restore(tmp_path)


def test_rows_that_are_too_few_are_named():
    packing = Packing(EXAMPLES, {"query": Rows(2, 16, "share of queries"), "document": Rows(1, 40, "documents'")})
    lane = PackedLane(Stream(), packing)
    with pytest.raises(
        UserError,
        match=r"lane-00007: \d+ examples wait.*needs \d\d % of .* 1\d\d % of what documents'.*raise documents'",
    ):
        for _ in range(200):
            next(lane)


BOW = {"model.encoder": "bow_mlp"}  # is compiled soon


def make_config(**changes):
    config = importlib.import_module("configs.ict_bfs_wlp").get_config("local")
    config.model.update(num_layers=1, hidden_size=12, num_heads=2, mlp_size=20, embed_dim=6)
    config.data.update(query_length=10, document_length=24)
    config.train.update(temperature=0.5)
    config.update_from_flattened_dict(changes)
    return config


def make_model(config):
    """A model and parameters far from the start, where all texts are alike."""
    model, random = nnx.eval_shape(lambda: build_model(config, 50)), np.random.default_rng(3)
    return model, jax.tree.map(lambda x: random.normal(0, 0.3, x.shape).astype(x.dtype), parameters_of(model))


def both(random, packing, examples):
    """A batch with a text per row, and the same examples packed, lane by lane."""
    lanes = [examples(random) for _ in range(LANES)]
    packed = [packing.pack(lane)[0] for lane in lanes]
    return [{name: np.concatenate([part[name] for part in parts]) for name in parts[0]} for parts in (lanes, packed)]


def assert_same_loss_and_gradients(config, batch, packed):
    """Of a text per row on one device, and packed on eight."""
    model, params = make_model(config)
    objective = recipe_of(config).objective(bind(model))

    def step(params, batch):
        def loss(params):
            values, metrics = objective(params, batch, jax.random.key(0))
            return values.mean(), {name: value.mean() for name, value in metrics.items()}

        return jax.value_and_grad(loss, has_aux=True)(params)

    expected = jax.jit(step)(params, batch)
    mesh = sharding.make_mesh()
    with jax.set_mesh(mesh):
        placed = jax.device_put(params, jax.P()), jax.device_put(packed, sharding.batch_sharding(mesh))
        actual = jax.block_until_ready(jax.jit(step)(*placed))
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected[1]))
    assert largest > 1e-4
    for part, scale in ((0, 1), (1, largest)):
        for a, b in zip(jax.tree.leaves(actual[part]), jax.tree.leaves(expected[part]), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-4 * scale)


def test_packed_loss_and_gradients_equal_unpacked_ones():
    changes = {"model.pooling": "cls", "model.tied": False, "train.symmetric": True}
    batch, packed = both(np.random.default_rng(0), Packing(EXAMPLES, roomy(1)), lambda r: pairs(r, EXAMPLES))
    assert_same_loss_and_gradients(make_config(**changes), batch, packed)


def roomy(documents):
    return {"query": Rows(3, 16, ""), "document": Rows(3 * documents, 40, "")}


COSINES = {"train.loss": "quadruplet", "data.negatives": 2, "train.margin": 0.5, "train.temperature": 1.0}


def test_hard_negatives_are_packed_too():
    """Also where rows of both sides have one length, which one call could take if they were not packed."""
    rows = {**roomy(3), "query": Rows(3, 40, "")}
    batch, packed = both(np.random.default_rng(1), Packing(EXAMPLES, rows), lambda r: pairs(r, EXAMPLES, 2))
    assert_same_loss_and_gradients(make_config(**BOW, **COSINES), batch, packed)


def test_chunks_are_whole_lanes():
    packing = Packing(EXAMPLES, roomy(1))
    batch, packed = both(np.random.default_rng(0), packing, lambda r: pairs(r, EXAMPLES))
    for name in ("query", "document"):
        assert len(packed[name]) == LANES
    double = {name: np.concatenate([values, values]) for name, values in batch.items()}
    packed = {name: np.concatenate([values, values]) for name, values in packed.items()}
    chunk = LANES * EXAMPLES  # a lane of every device, twice
    assert_same_loss_and_gradients(make_config(**BOW, **{"train.chunk_size": chunk}), double, packed)


def masked_texts(random, rows=EXAMPLES):
    """MLM's examples: 1 to 3 masked tokens in every text."""
    text = padded(random, rows, 24, shortest=6)
    weights = (np.arange(3) < random.integers(1, 4, rows)[:, None]).astype(np.float32)
    positions = np.sort([random.permutation(np.arange(1, 6))[:3] for _ in range(rows)], axis=1)
    return {
        "text": text,
        "positions": (positions * weights).astype(np.int32),
        "labels": (random.integers(1, 50, (rows, 3)) * weights).astype(np.int32),
        "weights": weights,
        "text_types": (np.arange(24) > 3).astype(np.int32) * (text >= 0),
        "is_random": random.integers(0, 2, (rows, 1)),
    }


@pytest.mark.parametrize("recipe", [pytest.param("autoencoder", marks=pytest.mark.long), "bert"])
def test_masked_texts_are_packed_with_their_masked_tokens(recipe):
    packing = Packing(EXAMPLES, {"text": Rows(3, 40, "")}, Rows(1, 11, ""))
    batch, packed = both(np.random.default_rng(0), packing, masked_texts)
    assert packed["labels"].shape == packed["weights"].shape == packed["positions"].shape == (LANES, 11)
    assert sorted(packed["labels"][packed["weights"] == 1]) == sorted(batch["labels"][batch["weights"] == 1])
    own = "next_sentence" if recipe == "bert" else "mlm"
    rates = {"data.rates.ict": 0.0, "data.rates.bfs": 0.0, "data.rates.wlp": 0.0, f"data.rates.{own}": 1.0}
    config = make_config(recipe=recipe, **rates)
    assert_same_loss_and_gradients(config, batch, packed)


def test_a_device_encodes_only_its_lanes():
    config = make_config(**{"model.pooling": "cls"})
    _, packed = both(np.random.default_rng(0), Packing(EXAMPLES, roomy(1)), lambda r: pairs(r, EXAMPLES))
    model, params = make_model(config)
    bound = bind(model)

    def encode(params, batch):
        return batch_texts.embed(bound(params).encode_document, batch, "document", None, 0)

    mesh = jax.make_mesh((8,), ("data",))
    with jax.set_mesh(mesh):
        placed = jax.device_put(params, jax.P()), jax.device_put(packed, jax.P("data"))
        program = jax.jit(encode).lower(*placed).compile().as_text()
    assert not [line for line in program.splitlines() if "all-gather" in line or "all-reduce" in line]


def test_rows_are_chosen_so_that_a_sample_keeps_up():
    random = np.random.default_rng(0)
    sample = [pairs(random, 16) for _ in range(32)]
    plain = Packing(16, {"query": Rows(16, 10, ""), "document": Rows(16, 24, "")})
    chosen = choose_rows(plain, {"query": (10, 16), "document": (24, 48)}, sample)
    assert chosen and chosen == choose_rows(plain, {"query": (10, 16), "document": (24, 48)}, sample)
    sizes = {field: rows.count * rows.length for field, rows in chosen.texts.items()}
    assert sizes["query"] < 16 * 10 and sizes["document"] < 16 * 24
    lane = PackedLane(Stream(16), chosen)
    assert {next(lane)["document_starts"].shape for _ in range(60)} == {(1, 16)}


def test_rows_of_masked_texts_have_places_for_their_masks():
    config = make_config(recipe="mlm", **{"data.document_length": 24, "data.pack.document": 1.0})
    places, random = recipe_of(config).places, np.random.default_rng(0)
    sample, text = [masked_texts(random, 16) for _ in range(32)], {"text": Rows(16, 24, "")}
    chosen = choose_rows(Packing(16, text, places(text)), {"text": (24, 48)}, sample, places)
    assert chosen and chosen.predictions == places(chosen.texts)
    assert chosen.texts["text"].count * chosen.texts["text"].length < 24 * 16
    packed, _ = chosen.pack({name: np.concatenate([each[name] for each in sample]) for name in sample[0]}) or ({}, 0)
    assert packed["weights"].shape == (1, chosen.predictions.length)


def queries(*lengths, length=8):
    return {"query": np.where(np.arange(length) < np.array(lengths)[:, None], 0, -1).astype(np.int32)}


def test_long_texts_in_front_do_not_stop_a_lane():
    class Queries(Stream):
        def __next__(self):
            self.draws += 1
            return queries(*([8, 8, 8, 1] if self.draws == 1 else [1, 1, 1, 1]))

    lane = PackedLane(Queries(), Packing(4, {"query": Rows(2, 8, "share")}))
    assert [(next(lane)["query"] >= 0).sum() for _ in range(4)] == [11, 11, 11, 4]
