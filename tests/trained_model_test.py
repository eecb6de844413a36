"""Models that a field names: what an error says of each kind."""

from types import SimpleNamespace

import pytest
from ml_collections import ConfigDict

from retrieval.errors import UserError
from retrieval.recipes import readers, rerankers

FIELD = "config.answer.model"


@pytest.mark.parametrize(
    ("kind", "also"),
    [(readers.KIND, ""), (rerankers.KIND, ", or a folder that sentence_transformers.CrossEncoder loads")],
)
@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (("sets",), "=: no {0}, for no stage trains one here: name the work directory of one"),
        (("train",), ": HERE trains a model of two towers; name the work directory of a {0} (config.recipe={0})"),
    ],
)
def test_where_there_is_no_model_an_error_says_what_to_name(kind, also, stages, message):
    here = SimpleNamespace(config=ConfigDict(dict(recipe="two_tower", stages=stages)), place="HERE")
    run = SimpleNamespace(holder=lambda stage: here)
    assert not kind.is_there(run, "")
    with pytest.raises(UserError) as raised:
        kind.check(run, "", FIELD)
    assert str(raised.value) == FIELD + message.format(kind.name) + also
