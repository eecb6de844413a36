"""The table of stages: the order in which it lists them."""

import pytest

from retrieval.config import fields
from retrieval.errors import UserError
from retrieval.pipeline.stage import STAGES, Stage, StageTable, readers_of


def nothing(run):
    return None


def listed(**stages):
    table = StageTable("stage")
    for name, stage in stages.items():
        table.register(name, stage)
    return list(table)


def test_stages_are_listed_after_what_they_read():
    stages = {
        "alone": Stage(nothing),
        "fourth": Stage(nothing, needs=("third",), wants=("second",)),
        "first": Stage(nothing),
        "third": Stage(nothing, needs=("second", "absent"), after=("first",)),
        "second": Stage(nothing, needs=("first",)),
    }
    order = ["first", "second", "third", "alone", "fourth"]
    assert listed(**stages) == listed(**dict(reversed(stages.items()))) == order


def test_stages_that_read_each_other_are_refused():
    with pytest.raises(UserError, match="stages that read each other's output: "):
        listed(one=Stage(nothing, needs=("two",)), two=Stage(nothing, needs=("one",)))


def test_prepare_is_the_first_of_the_house():
    names = list(STAGES)
    assert names[:2] == ["prepare", "sets"] and names.index("encode") < names.index("index") < names.index("evaluate")


def test_what_is_mined_depends_on_fields_that_a_stage_reads():
    """What no stage reads can be changed behind its back; where the second process runs changes nothing."""
    of_mining = [field for field in fields.declared() if field.startswith("mine.")]
    assert [field for field in of_mining if not readers_of(field)] == ["mine.refresh_env"]
