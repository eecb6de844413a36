"""Models that sentence-transformers saves, with modules in many orders: the same embeddings and scores here."""

import numpy as np
import pytest
from support import exported
from support.packages import package

import retrieval

torch, sentence_transformers = package("torch"), package("sentence_transformers")
modules = package("sentence_transformers.sentence_transformer.modules")

TEXTS = ["the fox", "a dog, 10-9", "the end of the fox", ""]
PROMPTS = {"query": "the fox: ", "document": "a dog: "}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    changes = {"model.tied": True, "model.pooling": "mean", "model.embed_dim": 0}
    return str(exported.export(exported.work_directory(tmp_path_factory.mktemp("run") / "run", **changes)))


def chain(number):
    """What follows the pooling: every kind, in an order of its own."""
    dense = modules.Dense
    activations = [torch.nn.Identity, torch.nn.Tanh, torch.nn.ReLU, torch.nn.GELU, torch.nn.Sigmoid, torch.nn.SiLU]
    return [
        [],
        [dense(16, 8, bias=False, activation_function=torch.nn.Identity()), modules.Normalize()],
        [modules.Normalize(), modules.Dropout(0.3), dense(16, 24), modules.LayerNorm(24), dense(24, 5, bias=False)],
        [dense(16, 16, bias=bool(n % 2), activation_function=each()) for n, each in enumerate(activations)],
    ][number]


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize(
    "options",
    [
        {"similarity_fn_name": "cosine"},
        {"similarity_fn_name": "dot"},
        {"prompts": PROMPTS},
        {"prompts": PROMPTS, "pooling_mode": "cls", "include_prompt": False},
        {"prompts": PROMPTS, "pooling_mode": "mean", "include_prompt": False},
        {"prompts": {"query": "the fox: "}, "pooling_mode": "lasttoken", "truncate_dim": 4},
        {"pooling_mode": "cls", "truncate_dim": 3, "similarity_fn_name": "dot"},
        {"prompts": PROMPTS, "pooling_mode": "weightedmean", "include_prompt": False},
    ],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_a_saved_model_gives_the_same(encoder, tmp_path, number, options):
    torch.manual_seed(number)
    transformer = modules.Transformer(encoder)
    pooling = {name: options[name] for name in ("pooling_mode", "include_prompt") if name in options}
    pooling = modules.Pooling(16, **pooling)
    rest = {name: options[name] for name in ("prompts", "similarity_fn_name", "truncate_dim") if name in options}
    model = sentence_transformers.SentenceTransformer(
        modules=[transformer, pooling, *chain(number)], device="cpu", **rest
    )
    model.save(str(tmp_path / "model"))
    ours = retrieval.load(tmp_path / "model")
    # Ours have length 1 where scores are cosines, and where theirs have it before they are truncated.
    unit = options.get("similarity_fn_name") != "dot" or isinstance(model[-1], modules.Normalize)
    queries, documents = (
        encode(TEXTS, normalize_embeddings=unit) for encode in (model.encode_query, model.encode_document)
    )
    ours = ours.encode_queries(TEXTS), ours.encode_documents(TEXTS)
    scale = max(1, np.abs(documents).max())
    np.testing.assert_allclose(ours[0], queries, atol=1e-5 * scale)
    np.testing.assert_allclose(ours[1], documents, atol=1e-5 * scale)
    np.testing.assert_allclose(ours[0] @ ours[1].T, model.similarity(queries, documents), atol=1e-4 * scale**2)
