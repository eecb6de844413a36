"""How long training will take is said before it begins, where that is days."""

import pytest

from configs import ict_bfs_wlp
from retrieval.recipes.parameters import make_mesh
from retrieval.runs.fitting import training_length


@pytest.fixture
def config():
    config = ict_bfs_wlp.get_config("local")
    config.data.update(query_length=8, document_length=16)
    config.model.update(num_layers=1, hidden_size=16, num_heads=2, mlp_size=32, embed_dim=8)
    config.train.update(batch_size=32, steps=1000)
    return config


def told(config, caplog):
    caplog.clear()
    training_length.warn_of_days(config, lambda: 100, make_mesh(config))
    return caplog.text


def test_days_of_training_are_told_before_it_begins(config, caplog, monkeypatch):
    monkeypatch.setattr(training_length, "_FEW", 0)
    operations = 1000 * training_length.step_operations(config, 100, make_mesh(config))
    # A layer has 4 * 16 * 16 + 2 * 16 * 32 weights of products, for 32 * (8 + 16) tokens; three times with gradients.
    assert operations > 1000 * 3 * 2 * 32 * 24 * (4 * 16 * 16 + 2 * 16 * 32)
    monkeypatch.setattr(training_length, "step_operations", lambda *_: operations / 1000)
    for days in (3, 0.9):
        monkeypatch.setattr(training_length, "operations_per_second", lambda _: operations / (days * 24 * 3600))  # noqa: B023
        text = told(config, caplog)
        assert ("train: 1000 steps are" in text and ": 3 days or more; " in text) if days == 3 else text == ""
