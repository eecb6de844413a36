"""What systems cost: the operations to encode a text, and the table of a report."""

import pytest
from support.tiny import make_config

from retrieval.runs.fitting.encoding_cost import operations
from retrieval.runs.ranking import costs

H, M, LAYERS, V = 16, 32, 3, 50  # sizes of the model below
SIZES = {"model.hidden_size": H, "model.mlp_size": M, "model.num_layers": LAYERS, "model.num_heads": 2}


def of_encoder(length):
    """Multiplications and additions of a BERT, by hand: four projections and the MLP of a token, and attention."""
    of_token = 2 * (4 * H * H + 2 * H * M) * length
    return LAYERS * (of_token + 2 * 2 * length * length * H)


@pytest.mark.parametrize("length", [8, 24])
def test_operations_are_those_of_the_formula(length):
    rows = [[[1] * (length - 2), [1] * (length + 2)]]  # a text of two windows
    late = make_config("colbert", **SIZES, **{"model.embed_dim": 8})
    found = operations(late, V, lambda model, text: model(text, None), rows)
    assert found == 2 * (of_encoder(length) + 2 * H * 8 * length)
    sparse = make_config("splade", **SIZES)
    found = operations(sparse, V, lambda model, text: model.encode_document(text, None), rows)
    assert found == 2 * (of_encoder(length) + 2 * (H * H + H * V) * length)
    towers = make_config("dpr", **SIZES, **{"model.embed_dim": 0})
    assert operations(towers, V, lambda model, text: model.encode_query(text, None), rows) == pytest.approx(
        2 * of_encoder(length), rel=0.01
    )


def test_costs_add_up_what_systems_stand_on():
    told = {
        "nq, bm25": {costs.BYTES: 100.0, "milliseconds": 2.0, **costs.FREE},
        "nq, dense": {costs.BYTES: 3072.0, "milliseconds": 1.0, costs.QUERY: 3e6, costs.PASSAGE: 5e6},
        "nq, both": {"milliseconds": 4.0, costs.PARTS: ["bm25", "dense"]},
        "nq, both+maxsim@5": {costs.BYTES: 9000.0, "milliseconds": 7.0, costs.QUERY: 1e6, costs.PASSAGE: 2e6},
        "nq, other+bm25": {"milliseconds": 1.0, costs.PARTS: ["other", "bm25"]},
        "nq, other": {},
    }
    told["nq, both+maxsim@5"][costs.AFTER] = "both"
    found = {name.removeprefix("nq, "): list(of.values()) for name, of in costs.of_systems(told).items()}
    assert found["bm25"] == [100.0, 2.0, 0, 0]
    assert found["dense"] == [3072.0, 1.0, 3, 5]
    assert found["both"] == [3172.0, 4.0, 3, 5]
    assert found["both+maxsim@5"] == [12172.0, 11.0, 4, 7]
    assert found["other+bm25"] == [None, 1.0, None, None] and found["other"] == [None] * 4
