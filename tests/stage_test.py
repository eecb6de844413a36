"""The table of stages: the order in which it lists them."""

import pytest

from retrieval.common.errors import UserError
from retrieval.config import experiment, fields
from retrieval.runs.pipeline.stage import STAGES, Read, Stage, in_order, readers_of


def nothing(run):
    return None


def listed(own_table, **stages):
    own_table(STAGES, stages)
    return in_order(STAGES, experiment.defaults())


def test_stages_are_listed_after_what_they_read(own_table):
    stages = {
        "alone": Stage(nothing),
        "fourth": Stage(nothing, reads=lambda config: ("third", Read("second", any_version=True))),
        "first": Stage(nothing, reads=(Read("fourth", from_base_if_later=True),)),
        "third": Stage(nothing, reads=("second", "absent")),
        "second": Stage(nothing, reads=("first",)),
    }
    assert listed(own_table, **stages) == ["first", "second", "third", "alone", "fourth"]


def test_stages_that_read_each_other_are_refused(own_table):
    with pytest.raises(UserError, match="stages that read each other's output: "):
        listed(own_table, one=Stage(nothing, reads=("two",)), two=Stage(nothing, reads=("one",)))


def test_what_is_mined_depends_on_fields_that_a_stage_reads():
    """What no stage reads can be changed behind its back."""
    of_mining = [field for field in fields.declared() if field.startswith("mine.")]
    assert not [field for field in of_mining if not readers_of(field)]
