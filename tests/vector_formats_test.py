"""What is handed over, read back by parsers of the formats; what is refused."""

import itertools
import json
import struct
import uuid

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from support import toy_store
from support.handed_over import DTYPES, KINDS, block_of, checks, made, questions, verify, written

from retrieval.errors import UserError
from retrieval.handover import avro_file, folder
from retrieval.handover.target import TARGETS, Target, register
from retrieval.handover.vectors import BIT, FLOAT16, FLOAT32, INT8
from retrieval.stages.handover_codes import Codes

COLUMNS = ("lang", "tags", "year", "weight", "draft")


def lines(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]  # `splitlines` takes U+2028 for a line break


def bits_of(stored):
    """Vectors of numbers, of bits 1 and -1."""
    return np.unpackbits(stored, axis=1) * 2.0 - 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_table_comes_back(dtype, tmp_path):
    vectors, embeddings = made(dtype=dtype, columns=COLUMNS)
    path = written("table", tmp_path, vectors, embeddings, vectors) / "vectors"
    table, block = parquet.read_table(path), block_of(vectors)
    assert table.schema.names == ["id", "bits" if dtype == BIT else "vector", "title", "text", "metadata", *COLUMNS]
    assert [table[name].to_pylist() for name in ("id", "title", "text")] == [block.ids, block.titles, block.texts]
    assert list(map(json.loads, table["metadata"].to_pylist())) == block.metadata
    for name in COLUMNS:
        assert table[name].to_pylist() == [of.get(name) for of in block.metadata]
    if dtype == BIT:
        assert table["bits"].to_pylist() == [row.tobytes() for row in block.vectors]
    else:
        kind = {FLOAT32: pyarrow.float32(), FLOAT16: pyarrow.float16(), INT8: pyarrow.int8()}[dtype]
        assert table.schema.field("vector").type == pyarrow.list_(kind, 16)
        found = table["vector"].combine_chunks().flatten().to_numpy().reshape(-1, 16)
        assert found.tobytes() == block.vectors.tobytes()
    said = json.loads((tmp_path / "table" / "vectors.json").read_text())
    assert said == json.loads(table.schema.metadata[b"retrieval.vectors"]) | {"parts": 1}
    assert said | {"rows": 40, "dimension": 16, "dtype": dtype, "side": "document"} == said
    assert (tmp_path / "table" / "queries" / "part-00000.parquet").exists()


def test_only_texts_are_compressed(tmp_path):
    path = written("table", tmp_path, *made()) / "vectors" / "part-00000.parquet"
    columns = parquet.ParquetFile(path).metadata.row_group(0)
    kinds = {columns.column(place).path_in_schema: columns.column(place).compression for place in range(5)}
    assert kinds.pop("vector.list.element") == "UNCOMPRESSED" and set(kinds.values()) == {"ZSTD"}


def test_a_row_group_is_a_block_and_parts_end_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr("support.handed_over.BLOCK", 7)
    monkeypatch.setattr("retrieval.handover.neutral_table._MOST_BYTES", 4000)
    path = written("table", tmp_path, *made()) / "vectors"
    parts = [parquet.ParquetFile(part) for part in sorted(path.iterdir())]
    groups = [part.metadata.row_group(n).num_rows for part in parts for n in range(part.num_row_groups)]
    assert len(parts) > 1 and groups == [7] * 5 + [5]


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_expected_are_the_best_of_all(dtype, tmp_path):
    vectors, embeddings = made(dtype=dtype, rows=300)
    path = written("table", tmp_path, vectors, embeddings)
    block = block_of(vectors)
    rows = bits_of(block.vectors) if dtype == BIT else block.vectors.astype(np.float64)
    for vector, expected, scores in questions(path):
        asked = np.array([2.0 * int(bit) - 1 for bit in vector] if dtype == BIT else vector)
        found = rows @ asked
        best = np.argsort(-found, kind="stable")[:10]
        if dtype == BIT:
            found = (16 - found) / 2
        np.testing.assert_allclose(scores, found[best], rtol=1e-5, atol=1e-5)
        assert len(expected) == 10 and {block.ids.index(id) for id in expected} == set(best)


def test_codes_are_as_close_as_their_step():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(50, 16)).astype(np.float32)
    codes = Codes(INT8, 16, float(np.abs(rows).max()))
    stored = codes.encode(rows)
    assert stored.dtype == np.int8 and abs(stored).max() == 127
    assert np.abs(stored * codes.scale - rows).max() <= codes.scale * 0.5001
    with pytest.raises(UserError, match="float16 ends at 65504"):
        Codes(FLOAT16, 16, 7e4)
    with pytest.raises(UserError, match="8 dimensions a byte"):
        Codes(BIT, 12, 1)


@pytest.mark.parametrize("name", list(TARGETS))
def test_the_same_input_gives_the_same_bytes(name, tmp_path):
    for part in ("a", "b"):
        written(name, tmp_path / part, *made(breaks=False, columns=COLUMNS))
    sums = [json.loads((tmp_path / part / name / "manifest.json").read_text()) for part in ("a", "b")]
    assert sums[0] == sums[1] and all(each["bytes"] for each in sums[0]["files"])
    rows = {each["file"]: each.get("rows") for each in sums[0]["files"]}
    assert rows["check.jsonl"] == 50 and 40 in rows.values() and rows["README.md"] is None


def read_copy(path):
    """The rows of COPY's binary format, as its documentation says."""
    data = path.read_bytes()
    assert data[:19] == b"PGCOPY\n\xff\r\n\0" + bytes(8)
    place, rows = 19, []
    while (fields := struct.unpack_from(">h", data, place)[0]) != -1:
        place += 2
        row = []
        for _ in range(fields):
            (size,) = struct.unpack_from(">i", data, place)
            row.append(data[place + 4 : place + 4 + size])
            place += 4 + size
        rows.append(row)
    assert place == len(data) - 2
    return rows


@pytest.mark.parametrize(("dtype", "size"), ((FLOAT32, ">f4"), (FLOAT16, ">f2"), (BIT, "u1")))
def test_pgvector_rows_come_back(dtype, size, tmp_path):
    vectors, embeddings = made(dtype=dtype, columns=("lang",))
    path, block = written("pgvector", tmp_path, vectors, embeddings), block_of(vectors)
    for row, id, stored, metadata in zip(read_copy(path / "passages.bin"), block.ids, block.vectors, block.metadata):
        assert row[0].decode() == id and row[3][:1] == b"\x01" and json.loads(row[3][1:]) == metadata
        assert row[4][:4] == (struct.pack(">i", 16) if dtype == BIT else struct.pack(">hh", 16, 0))
        assert np.frombuffer(row[4][4:], size).astype(stored.dtype).tobytes() == stored.tobytes()
    assert "metadata->'lang'" in (path / "index.sql").read_text()


@pytest.mark.parametrize(
    ("dtype", "dimension", "on"),
    (
        (FLOAT32, 2000, "(embedding vector_ip_ops)"),
        (FLOAT32, 2001, "((embedding::halfvec(2001)) halfvec_ip_ops)"),
        (FLOAT32, 4001, "((binary_quantize(embedding)::bit(4001)) bit_hamming_ops)"),
        (FLOAT16, 4000, "(embedding halfvec_ip_ops)"),
        (BIT, 64_000, "(embedding bit_hamming_ops)"),
    ),
)
def test_pgvector_indexes_what_it_can(dtype, dimension, on, tmp_path):
    vectors, embeddings = made(rows=2, dtype=dtype, dimension=dimension)
    assert f"USING hnsw {on};" in (written("pgvector", tmp_path, vectors, embeddings) / "index.sql").read_text()


def test_qdrant_bodies_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr("retrieval.handover.qdrant._POINTS", 15)
    vectors, embeddings = made(dtype=FLOAT16, columns=("lang", "year"))
    path, block = written("qdrant", tmp_path, vectors, embeddings), block_of(vectors)
    bodies = [json.loads(body.read_text(encoding="utf-8"))["points"] for body in sorted(path.glob("points-*.json"))]
    assert list(map(len, bodies)) == [15, 15, 10]
    for place, point in enumerate(itertools.chain.from_iterable(bodies)):
        assert point["id"] == str(uuid.uuid5(uuid.NAMESPACE_URL, "retrieval:" + block.ids[place]))
        assert np.array(point["vector"]["dense"], np.float16).tobytes() == block.vectors[place].tobytes()
        texts = {"id": block.ids[place], "title": block.titles[place], "text": block.texts[place]}
        assert point["payload"] == texts | block.metadata[place]
    dense = {"size": 16, "distance": "Dot", "datatype": "float16"}
    assert json.loads((path / "collection.json").read_text()) == {"vectors": {"dense": dense}}
    assert json.loads((path / "payload-index-1.json").read_text()) == {"field_name": "year", "field_schema": "integer"}


@pytest.mark.parametrize("dtype", (FLOAT32, INT8, BIT))
def test_bulk_bodies_come_back(dtype, tmp_path, monkeypatch):
    monkeypatch.setattr("retrieval.handover.bulk._BYTES", 5000)
    vectors, embeddings = made(dtype=dtype)
    path, block = written("bulk", tmp_path, vectors, embeddings), block_of(vectors)
    bodies = sorted(path.glob("bulk-*.ndjson"))
    assert len(bodies) > 1 and all(body.read_bytes()[-1:] == b"\n" for body in bodies)
    assert all(body.stat().st_size <= 5100 for body in bodies)
    pairs = [line for body in bodies for line in lines(body)]
    for place, (action, document) in enumerate(zip(pairs[::2], map(json.loads, pairs[1::2]), strict=True)):
        assert json.loads(action) == {"index": {"_id": block.ids[place]}}
        kind = {FLOAT32: np.float32, INT8: np.int8, BIT: np.int8}[dtype]
        assert np.array(document.pop("vector"), kind).tobytes() == block.vectors[place].tobytes()
        assert document == {"title": block.titles[place], "text": block.texts[place], **block.metadata[place]}


def test_mappings_fit_the_vectors(tmp_path):
    def mappings(**options):
        vectors, embeddings = made(rows=3, **options)
        path = written("bulk", tmp_path / str(options), vectors, embeddings)
        found = {item.name: json.loads(item.read_text()) for item in path.glob("*search.json")}
        return {name: of["mappings"]["properties"] for name, of in found.items()}

    found = mappings()
    assert found["elasticsearch.json"]["vector"]["similarity"] == "max_inner_product"
    assert found["elasticsearch.json"]["lang"]["type"] == "keyword" and set(KINDS) < set(found["opensearch.json"])
    assert found["opensearch.json"]["vector"] == {"type": "knn_vector", "dimension": 16, "space_type": "innerproduct"}
    assert mappings(unit=True)["elasticsearch.json"]["vector"]["similarity"] == "dot_product"
    assert mappings(dtype=BIT)["opensearch.json"]["vector"]["data_type"] == "binary"
    assert set(mappings(dimension=4097)) == {"opensearch.json"}


def test_a_faiss_folder_comes_back(tmp_path):
    vectors, embeddings = made(breaks=False)
    path = written("faiss", tmp_path, vectors, embeddings)
    data = (path / "index").read_bytes()
    assert data[:4] == b"IxFI" and struct.unpack_from("<iq", data, 4) == (16, 40)
    assert data[-embeddings.nbytes :] == embeddings.tobytes()
    assert struct.unpack_from("<Q", data, len(data) - embeddings.nbytes - 8) == (40 * 16,)


def test_vertex_json_and_its_index(tmp_path):
    vectors, embeddings = made(columns=COLUMNS)
    path, block = written("vertex_json", tmp_path, vectors, embeddings), block_of(vectors)
    assert sorted(item.name for item in (path / "data").iterdir()) == ["data-00000.json"]
    for place, record in enumerate(map(json.loads, lines(path / "data" / "data-00000.json"))):
        metadata = block.metadata[place]
        assert record["id"] == block.ids[place]
        assert np.array(record["embedding"], np.float32).tobytes() == block.vectors[place].tobytes()
        assert record["embedding_metadata"] == {"title": block.titles[place], **metadata}
        allowed = {one["namespace"]: one["allow"] for one in record.get("restricts", ())}
        wanted = {"lang": [metadata.get("lang")], "tags": metadata.get("tags")}
        wanted |= {"draft": [str(metadata.get("draft")).lower()]}
        assert allowed == {name: of for name, of in wanted.items() if name in metadata}
        values = {one.pop("namespace"): one for one in record.get("numeric_restricts", ())}
        wanted = {"year": "value_int", "weight": "value_double"}
        assert values == {name: {kind: metadata[name]} for name, kind in wanted.items() if name in metadata}
        assert record.get("crowding_tag") == metadata.get("document")
    index = json.loads((path / "index.json").read_text())
    assert index["config"]["dimensions"] == 16 and index["config"]["shardSize"] == "SHARD_SIZE_SMALL"


def test_numbers_of_avro():
    """The examples of Avro's specification."""
    assert [avro_file.long(value) for value in (0, -1, 1, -64, 64)] == [b"\0", b"\x01", b"\x02", b"\x7f", b"\x80\x01"]
    assert (
        avro_file.text("foo") == b"\x06foo"
        and avro_file.array([avro_file.long(3), avro_file.long(27)]) == b"\x04\x06\x36\0"
    )
    assert avro_file.long(-(2**63)) == b"\xff" * 9 + b"\x01" and avro_file.long(2**31 - 1) == b"\xfe\xff\xff\xff\x0f"


def test_vertex_as_avro_has_the_vectors(tmp_path):
    vectors, embeddings = made()
    path = written("vertex", tmp_path, vectors, embeddings) / "data" / "data-00000.avro"
    data = path.read_bytes()
    mark = data.split(b"avro.codec\x08null\0")[1][:16]
    assert data[:4] == b"Obj\x01" and data[-16:] == mark
    assert all(row.tobytes() in data for row in embeddings) and all(id.encode() in data for id in block_of(vectors).ids)


REFUSED = (
    (
        "qdrant",
        {"dtype": INT8},
        "config.handover.dtype=int8: 'qdrant', for Qdrant, takes float32 or float16: take float16",
    ),
    ("vertex", {"dtype": BIT}, "takes float32"),
    (
        "pgvector",
        {"dimension": 16_001},
        "the most for pgvector are 16,000 dimensions of float32, and embeddings have 16,001",
    ),
    ("bulk", {"dimension": 16_001}, "config.encode.truncate"),
    ("faiss", {"breaks": True}, r"the id 'a\\nb' .*pyserini"),
)


@pytest.mark.parametrize(("name", "options", "message"), REFUSED)
def test_what_a_target_refuses(name, options, message, tmp_path):
    with pytest.raises(UserError, match=message):
        written(name, tmp_path, *made(rows=8, **options))
    assert not list(tmp_path.iterdir())


def changed(vectors, **changes):
    """The vectors with other ids, texts or metadata."""

    def blocks():
        yield block_of(vectors)._replace(**changes)

    return vectors.__class__(**{**vars(vectors), "blocks": blocks, "rows": 1})


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    (
        ("bulk", {"ids": ["é" * 257]}, "has 514 bytes, and the most for Elasticsearch and OpenSearch are 512"),
        ("pgvector", {"ids": ["é" * 1301]}, "has 2,602 bytes"),
        ("pgvector", {"texts": ["a\0b"]}, "the passage .* has a NUL character"),
        ("pgvector", {"metadata": [{"lang": "\\\0"}]}, "has a NUL character"),
        ("vertex", {"metadata": [{"year": 1 << 31}]}, "year=2147483648 of .* is no whole number of 32 bits"),
    ),
)
def test_what_a_row_may_not_be(name, changes, message, tmp_path):
    vectors, embeddings = made(rows=1, columns=("year",))
    with pytest.raises(UserError, match=message):
        written(name, tmp_path, changed(vectors, **changes), embeddings)
    assert not list(tmp_path.iterdir())


def test_names_that_a_target_has_itself(tmp_path):
    vectors, embeddings = made(rows=2)
    taken = vectors.__class__(**{**vars(vectors), "kinds": {"title": "text"}, "columns": ("title",)})
    for name in ("qdrant", "bulk", "table"):
        with pytest.raises(UserError, match="'title'"):
            written(name, tmp_path, taken, embeddings)


def test_a_folder_of_something_else_stays(tmp_path):
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "thesis.md").write_text("mine")
    with pytest.raises(UserError, match="something else is there"):
        written("table", tmp_path, *made(rows=2))
    assert (tmp_path / "table" / "thesis.md").read_text() == "mine"


def test_a_hand_over_takes_the_place_of_the_one_before(tmp_path):
    path = written("pgvector", tmp_path, *made(rows=8)) / "passages.bin"
    vectors, embeddings = made(rows=1)
    with pytest.raises(UserError, match="NUL"):
        written("pgvector", tmp_path, changed(vectors, texts=["\0"]), embeddings)
    verify(path.parent)
    assert len(read_copy(path)) == 8 and len(list(tmp_path.iterdir())) == 1
    written("pgvector", tmp_path, *made(rows=9))
    assert len(read_copy(path)) == 9


@pytest.mark.parametrize("seed", range(5))
def test_any_ids_texts_and_vectors(seed, tmp_path):
    vectors, embeddings = made(rows=60, dimension=24, seed=seed, columns=COLUMNS)
    block, paths = (
        block_of(vectors),
        {name: written(name, tmp_path, vectors, embeddings) for name in set(TARGETS) - {"faiss"}},
    )
    table = parquet.read_table(paths["table"] / "vectors")
    copied = read_copy(paths["pgvector"] / "passages.bin")
    points = json.loads((paths["qdrant"] / "points-00000.json").read_text(encoding="utf-8"))["points"]
    documents = lines(paths["bulk"] / "bulk-00000.ndjson")
    records = list(map(json.loads, lines(paths["vertex_json"] / "data" / "data-00000.json")))
    ids = (
        table["id"].to_pylist(),
        [row[0].decode() for row in copied],
        [point["payload"]["id"] for point in points],
        [json.loads(line)["index"]["_id"] for line in documents[::2]],
        [record["id"] for record in records],
    )
    numbers = (
        table["vector"].combine_chunks().flatten().to_numpy(),
        [np.frombuffer(row[4][4:], ">f4") for row in copied],
        [point["vector"]["dense"] for point in points],
        [json.loads(line)["vector"] for line in documents[1::2]],
        [record["embedding"] for record in records],
    )
    assert all(each == block.ids for each in ids)
    assert all(np.array(each, np.float32).tobytes() == embeddings.tobytes() for each in numbers)


def test_a_store_gets_the_manifest_last(tmp_path):
    bucket = toy_store.bucket(tmp_path / "store")
    vectors, embeddings = made(breaks=False)
    local = written("faiss", tmp_path / "local", vectors, embeddings)

    def write():
        arguments = TARGETS["faiss"], vectors, None, checks(vectors, embeddings)
        return folder.write("s3://bucket/x", *arguments, scratch=tmp_path)

    bucket.fails = toy_store.dies_at("write", "docid")
    with pytest.raises(UserError, match=r"x/faiss/.*cannot be written"):
        write()
    bucket.fails = lambda kind, name: None
    assert "bucket/x/faiss/manifest.json" not in bucket.names()
    for _ in range(2):
        write()
        assert toy_store.contents(bucket.folder / "bucket" / "x", ["faiss"]) == toy_store.contents(
            local.parent, ["faiss"]
        )
        done = [each for each in bucket.log if each[0] != "list"]
        assert done[-1] == ("write", "bucket/x/faiss/manifest.json") and len(done) > 4
    assert done[-6] == ("delete", "bucket/x/faiss/manifest.json")
    bucket.path("bucket/x/faiss/manifest.json").unlink()
    bucket.path("bucket/x/faiss/thesis.md").write_text("mine")
    with pytest.raises(UserError, match="something else is there"):
        write()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["local", "store"]


def test_a_plugin_adds_a_target(tmp_path):
    class Lines(Target):
        name, title, dtypes = "lines", "lines of ids", DTYPES

        def write(self, place, vectors, queries):
            (place.folder / "ids.json").write_text(json.dumps(block_of(vectors).ids))
            return {"ids.json": vectors.rows}

    register(Lines)
    try:
        assert (
            json.loads((written("lines", tmp_path, *made(dtype=BIT)) / "ids.json").read_text())
            == block_of(made()[0]).ids
        )
    finally:
        TARGETS._entries.pop("lines")


def test_the_name_of_a_nul_is_none(tmp_path):
    vectors, embeddings = made(rows=1)
    path = written("pgvector", tmp_path, changed(vectors, metadata=[{"lang": "\\u0000"}]), embeddings)
    assert json.loads(read_copy(path / "passages.bin")[0][3][1:]) == {"lang": "\\u0000"}
