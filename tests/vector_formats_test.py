"""What is handed over, read back by parsers of the formats; what is refused."""

import dataclasses
import json

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from support import toy_store
from support.handed_over import block_of, checks, made, questions, verify, written

from retrieval.common.errors import UserError
from retrieval.export.vectors import folder
from retrieval.export.vectors.targets import TARGETS


def lines(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]  # `splitlines` takes U+2028 for a line break


def test_the_table_comes_back(tmp_path):
    vectors, embeddings = made()
    path = written("table", tmp_path, vectors, embeddings, vectors) / "vectors"
    table, block = parquet.read_table(path), block_of(vectors)
    assert table.schema.names == ["id", "vector", "title", "text", "metadata"]
    assert [table[name].to_pylist() for name in ("id", "title", "text")] == [block.ids, block.titles, block.texts]
    assert list(map(json.loads, table["metadata"].to_pylist())) == block.metadata
    assert table.schema.field("vector").type == pyarrow.list_(pyarrow.float32(), 16)
    assert table["vector"].combine_chunks().flatten().to_numpy().tobytes() == block.vectors.tobytes()
    said = json.loads((tmp_path / "table" / "vectors.json").read_text())
    assert said == json.loads(table.schema.metadata[b"retrieval.vectors"]) | {"parts": 1}
    assert said | {"rows": 40, "dimension": 16, "dtype": "float32", "side": "document"} == said
    assert (tmp_path / "table" / "queries" / "part-00000.parquet").exists()
    columns = parquet.ParquetFile(path / "part-00000.parquet").metadata.row_group(0)
    kinds = {columns.column(place).path_in_schema: columns.column(place).compression for place in range(5)}
    assert kinds.pop("vector.list.element") == "UNCOMPRESSED" and set(kinds.values()) == {"ZSTD"}


def test_a_part_is_a_block(tmp_path, monkeypatch):
    monkeypatch.setattr("support.handed_over.BLOCK", 7)
    path = written("table", tmp_path, *made()) / "vectors"
    assert [parquet.ParquetFile(part).metadata.num_rows for part in sorted(path.iterdir())] == [7] * 5 + [5]


def test_what_is_expected_are_the_best_of_all(tmp_path):
    vectors, embeddings = made(rows=300)
    path = written("table", tmp_path, vectors, embeddings)
    ids = block_of(vectors).ids
    for vector, expected, scores in questions(path):
        products = embeddings.astype(np.float64) @ vector
        best = np.argsort(-products, kind="stable")[:10]
        np.testing.assert_allclose(scores, products[best], rtol=1e-5, atol=1e-5)
        assert [ids.index(id) for id in expected] == best.tolist()


@pytest.mark.parametrize("name", list(TARGETS))
def test_the_same_input_gives_the_same_bytes(name, tmp_path):
    for part in ("a", "b"):
        written(name, tmp_path / part, *made(breaks=False))
    sums = [json.loads((tmp_path / part / name / "manifest.json").read_text()) for part in ("a", "b")]
    assert sums[0] == sums[1] and all(each["bytes"] for each in sums[0]["files"])
    rows = {each["file"]: each.get("rows") for each in sums[0]["files"]}
    assert rows["check.jsonl"] == 50 and 40 in rows.values() and rows["README.md"] is None


def test_vertex_and_its_index(tmp_path):
    vectors, embeddings = made()
    path, block = written("vertex", tmp_path, vectors, embeddings), block_of(vectors)
    assert sorted(item.name for item in (path / "data").iterdir()) == ["data-00000.json"]
    for place, record in enumerate(map(json.loads, lines(path / "data" / "data-00000.json"))):
        metadata = block.metadata[place]
        assert record["id"] == block.ids[place]
        assert np.array(record["embedding"], np.float32).tobytes() == block.vectors[place].tobytes()
        assert record["embedding_metadata"] == {"title": block.titles[place], **metadata}
        assert record.get("crowding_tag") == metadata.get("parent", metadata.get("document"))
    index = json.loads((path / "index.json").read_text())
    assert index["config"]["dimensions"] == 16 and index["config"]["shardSize"] == "SHARD_SIZE_SMALL"


def test_a_folder_of_something_else_stays(tmp_path):
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "thesis.md").write_text("mine")
    with pytest.raises(UserError, match="something else is there"):
        written("table", tmp_path, *made(rows=2))
    assert (tmp_path / "table" / "thesis.md").read_text() == "mine"


def test_a_store_gets_the_manifest_last(tmp_path):
    bucket = toy_store.bucket(tmp_path / "store")
    vectors, embeddings = made(breaks=False)
    local = written("vertex", tmp_path / "local", vectors, embeddings)

    def write():
        arguments = TARGETS["vertex"], vectors, None, checks(vectors, embeddings)
        return folder.write("s3://bucket/x", *arguments, scratch=tmp_path)

    bucket.fails = toy_store.dies_at("write", "index.json")
    with pytest.raises(UserError, match=r"x/vertex/.*cannot be written"):
        write()
    bucket.fails = lambda kind, name: None
    assert "bucket/x/vertex/manifest.json" not in bucket.names()
    for _ in range(2):
        write()
        assert toy_store.contents(bucket.folder / "bucket" / "x", ["vertex"]) == toy_store.contents(
            local.parent, ["vertex"]
        )
        done = [each for each in bucket.log if each[0] != "list"]
        assert done[-1] == ("write", "bucket/x/vertex/manifest.json") and len(done) > 4
    assert done[-6] == ("delete", "bucket/x/vertex/manifest.json")
    bucket.path("bucket/x/vertex/manifest.json").unlink()
    bucket.path("bucket/x/vertex/thesis.md").write_text("mine")
    with pytest.raises(UserError, match="something else is there"):
        write()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["local", "store"]


def test_a_hand_over_takes_the_place_of_the_one_before(tmp_path):
    path = written("vertex", tmp_path, *made(rows=8)) / "data" / "data-00000.json"
    vectors, embeddings = made(rows=1)
    broken = [block_of(vectors)._replace(titles=["\ud800"])]
    with pytest.raises(UnicodeEncodeError):
        written("vertex", tmp_path, dataclasses.replace(vectors, blocks=lambda: iter(broken)), embeddings)
    verify(path.parents[1])
    assert len(lines(path)) == 8 and len(list(tmp_path.iterdir())) == 1
    written("vertex", tmp_path, *made(rows=9))
    assert len(lines(path)) == 9
