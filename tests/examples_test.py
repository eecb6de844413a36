"""What a run trains on: how many known positives its batches have room for."""

from types import SimpleNamespace

import pytest

from configs import reqa
from retrieval.common import files
from retrieval.runs.fitting import examples


@pytest.fixture
def run(tmp_path):
    """A run whose pairs have a query of three positives, and a version of them that was mined anew, with one of two."""
    for name, count in (("pairs", 3), ("version", 2)):
        (tmp_path / name).mkdir()
        files.write_json(tmp_path / name / "stats.json", {"most positives": count})
    return SimpleNamespace(config=reqa.get_config("local"), pairs=tmp_path / "pairs")


# The loss `two_way_nll` compares with an example's own negatives alone.
WITHOUT = [{"train.other_positives": "negatives"}, {"train.loss": "two_way_nll"}, {"data.rates.pairs": 0.0}]


@pytest.mark.parametrize("change", [{}, *WITHOUT])
def test_a_batch_has_room_for_the_most_positives_where_a_loss_asks(run, change):
    run.config.update_from_flattened_dict(change)
    assert examples.known_positives(run) == (0 if change else 3)
