"""Prompts by name in sentence-transformers: those of its models here, and those of our exports there."""

import numpy as np
import pytest
from support import exported
from support.packages import package

import retrieval

sentence_transformers = package("sentence_transformers")
modules = package("sentence_transformers.sentence_transformer.modules")

TEXTS = ["the fox", "a dog, 10-9", "the end of the fox", "fox " * 60]
NAMED = {"clustering": "dog fox: ", "STS": "", "nq-query": "the sep: ", "nq-document": "a fox: "}
PROMPTS = {"query": "the fox: ", "document": "a dog: ", **NAMED}


def assert_same(ours, theirs):
    """By every name, where it stands before queries and where it stands before documents."""
    assert ours.prompts == theirs.prompts == PROMPTS
    for name in PROMPTS:
        for here, there in (
            (ours.encode_queries, theirs.encode_query),
            (ours.encode_documents, theirs.encode_document),
        ):
            found, expected = here(TEXTS, prompt_name=name), there(TEXTS, prompt_name=name)
            np.testing.assert_allclose(found, expected, atol=1e-5 * max(1, np.abs(expected).max()), err_msg=name)
    np.testing.assert_allclose(ours.encode_queries(TEXTS), theirs.encode_query(TEXTS), atol=1e-5)
    np.testing.assert_allclose(
        ours.encode_queries(TEXTS, prompt="the sep: "), theirs.encode_query(TEXTS, prompt="the sep: "), atol=1e-5
    )


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
def test_a_saved_model_gives_the_same_by_every_name(tmp_path, include_prompt):
    changes = {"model.tied": True, "model.pooling": "mean", "model.embed_dim": 0}
    encoder = exported.export(exported.work_directory(tmp_path / "run", **changes))
    pooling = modules.Pooling(16, pooling_mode="mean", include_prompt=include_prompt)
    model = sentence_transformers.SentenceTransformer(
        modules=[modules.Transformer(str(encoder)), pooling, modules.Normalize()], device="cpu", prompts=PROMPTS
    )
    model.save(str(tmp_path / "model"))
    assert_same(retrieval.load(tmp_path / "model"), model)
