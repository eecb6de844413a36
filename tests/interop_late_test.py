"""Folders of late interaction, and what sentence-transformers makes of them."""

import numpy as np
import pytest
from support.packages import package
from support.tiny import make_config

from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.methods.late_interaction.folder import write
from retrieval.methods.late_interaction.maxsim_search import InMemory, of_candidates
from retrieval.methods.late_interaction.trained import LATE_MODELS
from retrieval.recipes.recipe import recipe_of

library = package("sentence_transformers")

WORDS = ["[unused0]", "[unused1]", ".", ",", "?", *"abcdefghij", "fox", "red", "eats", "grass", "the", "what"]
VOCABULARY = WordPiece([*SPECIAL_TOKENS, *WORDS])
QUERIES = ["what eats the fox?", "a", "grass " * 30]
TEXTS = ["The red fox eats grass.", "grass, a b c d e", "...", "fox " * 60]


@pytest.mark.parametrize("expansion", ["unseen", "seen", "none"])
def test_scores_are_those_of_the_library(tmp_path, expansion):
    config = make_config("colbert", **{"model.late.expansion": expansion, "model.hidden_size": 32})
    config.data.update(query_prefix="[unused0]", document_prefix="[unused1]")
    write(tmp_path, recipe_of(config).build(len(VOCABULARY)), config, VOCABULARY)
    theirs = library.MultiVectorEncoder(str(tmp_path), device="cpu")
    queries, documents = theirs.encode_query(QUERIES), theirs.encode_document(TEXTS)
    expected = [[(np.asarray(q) @ np.asarray(d).T).max(axis=1).sum() for d in documents] for q in queries]
    model = LATE_MODELS.read_folder(config, tmp_path)
    assert model
    ours = model.encode_document([Candidate(str(n), "", text) for n, text in enumerate(TEXTS)])
    rows_QK = np.tile(np.arange(len(TEXTS)), (len(QUERIES), 1))
    actual = of_candidates(model.queries(QUERIES), InMemory(ours), rows_QK)
    assert [len(d) for d in ours] == [len(d) for d in documents]
    np.testing.assert_allclose(actual, expected, atol=1e-4)
