"""Declared fields of a config, and what they may be."""

import pytest
from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.config import experiment, fields
from retrieval.config.fields import Field, declare, of_fields, one_of, whole


@pytest.fixture(autouse=True)
def own_fields(monkeypatch):
    fields.declared()  # which loads those of the house, once
    monkeypatch.setattr(fields, "DECLARED", {})
    declare("", seed=Field(0, fields.SEED, "the seed of everything random"))
    declare("train.adam", beta=Field(0.9, fields.SHARE, "decay"))
    declare("pairs", files=Field("", fields.PATHS, "examples"), names=Field((), fields.TEXTS, "their names"))
    declare("train", loss=Field("triplet", one_of("loss", {"triplet": 1}), "what is minimised"))


def test_defaults_are_nested():
    groups = {"pairs": {"files": "", "names": ()}, "train": {"adam": {"beta": 0.9}, "loss": "triplet"}}
    assert fields.nested(fields.defaults()) == {"seed": 0, **groups}


def test_a_field_is_declared_once():
    with pytest.raises(UserError, match=r"config\.train\.loss is declared twice"):
        declare("train", loss=Field(1, whole(1), ""))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sed": 0}, r"unknown field 'config.sed': did you mean config.seed or"),
        ({"plan": {"tune": True}}, "^config.plan.tune is gone: Plan each setting by itself"),
        ({"seed": -1}, "config.seed=-1: a whole number from 0 to 4294967295 is needed"),
        ({"seed": 0}, "config.train.adam.beta is missing"),
        ({"train": {"loss": "triple"}}, r"unknown loss in config.train.loss 'triple': did you mean triplet\?"),
        ({"pairs": {"files": "caf\udce9"}}, r"config.pairs.files=caf\\udce9: this is not UTF-8, or has half"),
        ({"train": {"loss": 3}}, "config.train.loss=3: a text, one of triplet, is needed"),
    ],
)
def test_an_unfit_value_is_named_with_its_need(values, message):
    whole_config = values if values == {"seed": 0} else _merged(fields.nested(fields.defaults()), values)
    with pytest.raises(UserError, match=message):
        experiment.check(ConfigDict(whole_config))


def _merged(old, new):
    return old | {name: _merged(old.get(name, {}), v) if isinstance(v, dict) else v for name, v in new.items()}


def test_a_function_of_fields_gets_their_values():
    config = ConfigDict({"mine": {"first": 1}, "data": {"negatives": 2}})
    assert of_fields(lambda *values: values, "data.negatives", "mine")(config) == (2, config.mine)
    assert of_fields(max, "mine.first") == of_fields(max, "mine.first") != of_fields(max, "mine")
