"""One run with BM25, two towers, sparse vectors and late interaction: all of them in one report."""

import pytest
from support import tiny
from support.tiny import complete

from retrieval.common import files

TRAINED = {"split.set": "reqa", "split.ratio": 0.9, "split.validation": 0.1, "split.shards": 2, "encode.corpus": False}
ALL = ("prepare", "sets", "pairs", "train", "encode", "sparse", "index", "evaluate", "tokens", "maxsim", "report")


@pytest.mark.long
def test_all_kinds_of_retrievers_stand_in_one_report(inputs, tmp_path):
    first = {"stages": ("prepare", "sets", "pairs", "train"), "train.steps": 4, "train.batch_size": 8}
    first |= {"loop.checkpoint_every": 4, "loop.validate_every": 0, "data.negatives": 0, **TRAINED}
    for name in ("splade", "colbert"):
        run = tiny.make_run(name, inputs, tmp_path / name, **first)
        tiny.execute(run)
    models = {"sparse.model": str(tmp_path / "splade"), "late.model": str(tmp_path / "colbert")}
    systems = {"late.systems": ("bm25", "splade"), "fuse.systems": ("bm25", "splade")}
    run = tiny.make_run("dpr", inputs, tmp_path / "all", **first | models | systems | {"stages": ALL})
    complete(run)
    report = (run.folder / "report.md").read_text()
    rows = files.read_json(run.folder / "results.json") + files.read_json(run.folder / "late" / "results.json")
    found = {row["system"] for row in rows}
    assert {"bm25", "dense", "splade", "bm25+maxsim@100", "splade+maxsim@100"} <= found
    assert any("bm25" in name and "splade" in name for name in found - {"splade+maxsim@100"}), found
    table = report.partition("## Quality and cost")[2].partition("\n## ")[0]
    for name in found:
        lines = [line for line in table.splitlines() if f"| {name} |" in line]  # one for each rule of the set
        assert lines and all("±" in line and "|  |" not in line for line in lines), lines  # every cost is known
