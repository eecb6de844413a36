"""Why a run keeps a text per row where `data.pack.auto` would choose packed ones."""

import pytest
from conftest import REPOSITORY
from support.tiny import make_config

from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.recipes import packed_rows
from retrieval.stage_outputs import Run


@pytest.mark.parametrize(
    ("changes", "level", "reason"),
    [
        ({"recipe": "reader"}, "INFO", "a reader takes no packed texts"),
        ({"data.lanes": 8, "examples": 2047}, "INFO", "2047 examples for 8 lanes are too few to choose rows by"),
        ({"data.lanes": 6, "saves": False}, "INFO", "packed rows would save too little"),
        ({"data.lanes": 6}, "WARNING", "data.lanes=6 is no multiple of the 4 devices: take 4 or 8"),
    ],
)
def test_a_run_whose_rows_are_not_chosen_says_why(tmp_path, monkeypatch, caplog, changes, level, reason):
    count, saves = changes.pop("examples", 10_000), changes.pop("saves", True)
    run = Run(
        make_config(**{"data.pack.auto": True, "train.batch_size": 48} | changes),
        tmp_path,
        REPOSITORY / "requirements.lock",
    )
    monkeypatch.setattr(packed_rows.examples, "drawn", lambda *_: ({}, count))
    monkeypatch.setattr(packed_rows.examples, "is_in_order", lambda _: False)
    monkeypatch.setattr(packed_rows.batches, "first_of_a_lane", lambda count: [])
    monkeypatch.setattr(packed_rows.row_choice, "choose", lambda packing, *_: packing if saves else None)
    with caplog.at_level("INFO"):
        assert packed_rows.with_rows(run, WordPiece([*SPECIAL_TOKENS]), 4) is run
    (record,) = caplog.records
    assert record.levelname == level and reason in record.getMessage()
