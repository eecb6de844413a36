"""RepBERT through the recipe: its loss over rows as its authors have them, and examples in file order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import SingleDeviceSharding
from support.devices import assert_same_on_any_mesh
from support.modules import spread

from configs import repbert
from retrieval.data.examples.batches import Batches, Drawn
from retrieval.data.examples.example_kind import PAIRS, pair_lengths
from retrieval.data.examples.seqio_classes import Converter
from retrieval.data.examples.seqio_tasks import register
from retrieval.data.examples.task_kind import Stored
from retrieval.data.labelled import labelled_format, pair_shards
from retrieval.data.labelled.labelled_format import Settings
from retrieval.data.tokenizers.vocab import WordPiece
from retrieval.models.text import Text
from retrieval.recipes.parameters import bind, parameters_of
from retrieval.recipes.recipe import build_model, recipe_of
from retrieval.runs.fitting.examples import is_in_order
from retrieval.training.objectives.margins import NO_DOCUMENT

B, L = 8, 6
RANDOM = np.random.default_rng(0)


def tiny_config():
    config = repbert.get_config("local")
    config.data.update(query_length=L, document_length=L, lanes=2)
    config.train.batch_size = B
    config.model.update(num_layers=1, hidden_size=8, num_heads=2, mlp_size=12)
    return config


def texts(*shape):
    """Token ids of texts of 2 to L tokens, padded with -1."""
    lengths = RANDOM.integers(2, L + 1, (*shape, 1))
    return np.where(np.arange(L) < lengths, RANDOM.integers(0, 30, (*shape, L)), -1).astype(np.int32)


@pytest.fixture(scope="module")
def model():
    return spread(build_model(tiny_config(), 30))


@pytest.fixture(scope="module")
def batch():
    """Queries with 0, 1, 2 and 3 positives among the 16 documents of the batch, whose ids are few: some are copies."""
    ids = RANDOM.permutation(np.r_[np.arange(12), 3, 3, 4, 11]).reshape(B, 2).astype(np.int32)
    known = np.full((B, 3), NO_DOCUMENT, np.int32)
    for row in range(B):
        own = RANDOM.choice([id for id in range(12) if id != 3], row % 4, replace=False)
        known[row, : len(own)] = own
    fields = {"query": texts(B), "document": texts(B, 2), "document_id": ids, "positive_ids": known}
    return fields | {"log_q": np.zeros((B, 2), np.float32)}


def loss_of(batch, config, model):
    objective = recipe_of(config).objective(bind(model))

    def mean(params, batch):
        values, metrics = objective(params, batch, jax.random.key(0))
        return values.mean(), (values, metrics["active"])

    return jax.value_and_grad(mean, has_aux=True), parameters_of(model), jax.tree.map(jnp.asarray, batch)


def embedded(model, ids, is_document):
    """Embeddings without the recipe: token types by side, the mean over all tokens."""
    text = Text.from_ids(ids, np.full_like(ids, int(is_document)))
    encode = nnx.jit(lambda encoder, text: encoder(text, dropout_key=None))
    hidden = np.asarray(encode(model.query_tower.encoder, text))
    return np.stack([row[row_ids >= 0].mean(axis=0) for row, row_ids in zip(hidden, np.asarray(ids))])


def margin_loss(scores, positives):
    """torch's MultiLabelMarginLoss: the mean over rows of the sum over pairs, divided by the columns."""
    hinges = np.maximum(0, 1 - (scores[:, :, None] - scores[:, None])) * (positives[:, :, None] & ~positives[:, None])
    return hinges.sum(axis=(1, 2)).mean() / scores.shape[1]


def test_the_loss_equals_the_authors_on_any_mesh(model, batch):
    """Theirs are (query, positive) and (query, negative) for each triple: 16 rows and 16 columns."""
    (loss, (_, active)), _ = assert_same_on_any_mesh(*loss_of(batch, tiny_config(), model))
    queries = np.repeat(embedded(model, batch["query"], False), 2, axis=0)
    scores = queries @ embedded(model, batch["document"].reshape(2 * B, L), True).T
    columns = batch["document_id"].reshape(-1)
    positives = np.array([np.isin(columns, batch["positive_ids"][row // 2]) for row in range(2 * B)])
    assert {0, 1, 3} <= set(positives.sum(axis=1).tolist())
    assert float(loss) == pytest.approx(margin_loss(scores, positives), rel=1e-4)
    assert 0 < np.mean(active) < 1


WORDS = [f"w{number}" for number in range(40)]


def test_batches_have_triples_in_the_order_of_the_file(tmp_path):
    """Triples of ids in an order that is that of no hash; query 2 has two positives."""
    folder = tmp_path / "triples"
    folder.mkdir()
    rows = [(row % 7, row % 7 if row != 9 else 30, 10 + row) for row in range(24)]
    (folder / "ids.tsv").write_text("".join(f"{q}\t{p}\t{n}\n" for q, p, n in rows))
    (folder / "queries.tsv").write_text("".join(f"{q}\tq w{q}\n" for q in range(7)))
    (folder / "collection.tsv").write_text("".join(f"{p}\tp w{p}\n" for p in range(40)))
    vocabulary = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "q", "p", *WORDS])
    settings = Settings("", str(folder / "queries.tsv"), str(folder / "collection.tsv"), 0)
    paths = [folder / "ids.tsv"]
    with labelled_format.grouped(paths, settings, tmp_path, 100) as (groups, _):
        read = lambda: labelled_format.in_order(paths, settings, tmp_path)  # noqa: E731
        held_out = next(iter(groups)).query
        others = groups.where(lambda query: query != held_out)
        statistics = pair_shards.write_pairs(others, vocabulary, tmp_path, 4, apart=read, in_order=True)
    assert is_in_order(tmp_path)
    kept = [row for row in rows if f"q w{row[0]}" != held_out]
    assert statistics["pairs"] == len(kept) and statistics["most positives"] == (1 if held_out == "q w2" else 2)
    found = []
    for batch in batches_of(tmp_path, vocabulary, len(kept) // 4):
        words = [[vocabulary.decode(ids) for ids in batch[name].reshape(-1, 8)] for name in ("query", "document")]
        found.append(sorted(zip(words[0], words[1][::2], words[1][1::2])))
    expected = [sorted((f"q w{q}", f"p w{p}", f"p w{n}") for q, p, n in kept[at : at + 4]) for at in range(0, 20, 4)]
    assert found[:5] == expected


def batches_of(folder, vocabulary, count):
    stored = Stored(folder, {"tasks": {}}, folder)
    name, _ = register(stored, vocabulary, {"pairs": 1.0}, shuffle_buffer=1, negatives=1)
    lengths = pair_lengths(8, 8, 1)
    sharding = SingleDeviceSharding(jax.devices()[0])
    converter = Converter(PAIRS, lengths, vocabulary.sep_id)
    lanes = Drawn(name, lengths, converter, batch_size=4, lanes=4, seed=0).open_lanes(sharding)
    batches = Batches({"": lanes}, sharding)
    return [{name: np.asarray(values) for name, values in next(batches).items()} for _ in range(count)]
