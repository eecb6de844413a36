"""Models that sentence-transformers saves, with modules in many orders and prompts by name: the same here."""

import numpy as np
import pytest
from support import embedder_folders, exported
from support.packages import package

import retrieval

torch, sentence_transformers = package("torch"), package("sentence_transformers")
modules = package("sentence_transformers.sentence_transformer.modules")

TEXTS = ["the fox", "a dog, 10-9", "the end of the fox", "", "fox " * 60]
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
    parts = [transformer, pooling, *chain(number)]
    model = sentence_transformers.SentenceTransformer(modules=parts, device="cpu", **rest)
    model.save(str(tmp_path / "model"))
    ours = retrieval.load(tmp_path / "model")
    # Ours have length 1 where scores are cosines, and where theirs have it before they are truncated.
    unit = options.get("similarity_fn_name") != "dot" or isinstance(model[-1], modules.Normalize)
    queries, documents = (e(TEXTS, normalize_embeddings=unit) for e in (model.encode_query, model.encode_document))
    ours = ours.encode_query(TEXTS), ours.encode_document(TEXTS)
    scale = max(1, np.abs(documents).max())
    np.testing.assert_allclose(ours[0], queries, atol=1e-5 * scale)
    np.testing.assert_allclose(ours[1], documents, atol=1e-5 * scale)
    np.testing.assert_allclose(ours[0] @ ours[1].T, model.similarity(queries, documents), atol=1e-4 * scale**2)


OTHER_TEXTS = ["the fox 7 was seen", "a", "Ünïcödé 東京 🦊", "the dog " * 20]


@pytest.mark.parametrize("make", [embedder_folders.qwen3, embedder_folders.modernbert])
@pytest.mark.parametrize("has_modules", [True, False])
def test_embeddings_are_those_of_the_library(tmp_path, make, has_modules):
    """A decoder's are of its last token, those of others the mean, whether the folder says so or not."""
    folder = make(tmp_path / "model")
    if not has_modules:
        embedder_folders.without_modules(folder)
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    expected = theirs.encode(OTHER_TEXTS, normalize_embeddings=True)
    assert np.allclose(retrieval.load(folder).encode_document(OTHER_TEXTS), expected, atol=1e-5)


NAMED = {"clustering": "dog fox: ", "STS": "", "nq-query": "the sep: ", "nq-document": "a fox: "}
ALL = PROMPTS | NAMED


def assert_same(ours, theirs):
    """By every name, where it stands before queries and where it stands before documents."""
    assert ours.prompts == theirs.prompts == ALL
    for name in ALL:
        for here, there in ((ours.encode_query, theirs.encode_query), (ours.encode_document, theirs.encode_document)):
            found, expected = here(TEXTS, prompt_name=name), there(TEXTS, prompt_name=name)
            np.testing.assert_allclose(found, expected, atol=1e-5 * max(1, np.abs(expected).max()), err_msg=name)
    for prompt in ({}, {"prompt": "the sep: "}):
        found, expected = ours.encode_query(TEXTS, **prompt), theirs.encode_query(TEXTS, **prompt)
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("places", [(0, 0), (4, 4)], ids=["pooled", "not pooled"])
def test_an_export_gives_the_same_by_every_name(tmp_path, tied, places):
    """'[CLS] the fox :' and '[CLS] a dog :' are four tokens."""
    changes = {"data.query_prefix": "the fox: ", "data.document_prefix": "a dog: ", "model.pooling": "mean"}
    changes |= {"data.prompts": tuple(f"{name}={text}" for name, text in NAMED.items()), "data.titles": "joined"}
    changes |= {"model.tied": tied, "model.pool_from": places}
    run = exported.work_directory(tmp_path / "run", **changes)
    model = sentence_transformers.SentenceTransformer(str(exported.export(run)), device="cpu")
    for ours in (retrieval.load(run.folder), retrieval.load(run.folder / "export")):
        assert_same(ours, model)


@pytest.mark.parametrize("include_prompt", [True, False])
def test_a_saved_model_gives_the_same_by_every_name(encoder, tmp_path, include_prompt):
    pooling = modules.Pooling(16, pooling_mode="mean", include_prompt=include_prompt)
    parts = [modules.Transformer(encoder), pooling, modules.Normalize()]
    model = sentence_transformers.SentenceTransformer(modules=parts, device="cpu", prompts=ALL)
    model.save(str(tmp_path / "model"))
    assert_same(retrieval.load(tmp_path / "model"), model)
