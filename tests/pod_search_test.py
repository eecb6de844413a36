"""Exact search by several hosts, which each hold their share of the embeddings. The long one evaluates a whole pod:

.venv/bin/python -m pytest -m long tests/pod_search_test.py
"""

import gc
import json
import shutil
import subprocess
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import REPOSITORY
from support import tiny
from support.pods import SMALL, ending, environment, processes

from retrieval.common.errors import UserError
from retrieval.runs.ranking import indexes, pod_search
from retrieval.search import encoding, scann, sharded_map
from retrieval.search.encoding import StoredRows
from retrieval.search.exact import ExactIndex, recall
from retrieval.search.index_kind import INDEXES
from retrieval.search.index_shards import IndexShards
from retrieval.search.scann import ScannIndex
from retrieval.search.windows import WindowIndex, owners


def write(folder, ids, embeddings, shard_size):
    """Embeddings as the stage `encode` writes them."""
    folder.mkdir(parents=True)
    count = -(-len(ids) // shard_size)
    for shard in range(count):
        part = slice(shard * shard_size, (shard + 1) * shard_size)
        path = folder / f"candidates-{shard:05d}-of-{count:05d}.npy"
        encoding.write(path, encoding.Shard(ids[part], embeddings[part]))
        sharded_map.seal(path)


def collection(folder, candidates=700, most=1, shard_size=300):
    """Candidates of one window or more, and queries."""
    rng = np.random.default_rng(0)
    ids = [str(number) for number in range(candidates) for _ in range(rng.integers(1, most + 1))]
    embeddings = rng.integers(-2, 3, (len(ids), 6)).astype(np.float32)  # many ties
    write(folder / "trained", ids, embeddings, shard_size)
    return ids, embeddings, rng.integers(-2, 3, (9, 6)).astype(np.float32)


def test_a_host_reads_the_shards_of_its_rows_alone(tmp_path):
    _, embeddings, queries = collection(tmp_path)
    stored = StoredRows(tmp_path / "trained", "candidates")
    assert stored.shape == (700, 6) and len(stored) == 700
    for rows in (slice(0, 0), slice(0, 700), slice(299, 301), slice(300, 600), slice(650, 900)):
        np.testing.assert_array_equal(stored[rows], embeddings[rows])
    (tmp_path / "trained" / "candidates-00002-of-00003.npy").write_bytes(b"damaged")
    stored = StoredRows(tmp_path / "trained", "candidates")
    np.testing.assert_array_equal(stored[10:600], embeddings[10:600])
    with pytest.raises(UserError, match=r"candidates-00002-of-00003\.npy: damaged"):
        ExactIndex(stored).search(queries, 3)


def test_embeddings_of_one_system_are_on_the_devices_at_a_time(tmp_path):
    _, embeddings, queries = collection(tmp_path)
    shutil.copytree(tmp_path / "trained", tmp_path / "untrained")
    part = pod_search._Part(lambda name: SimpleNamespace(embeddings=lambda system: tmp_path / system))
    part.open(["toy", "exact", "untrained"])
    first = weakref.ref(part._open["toy", "exact", "untrained"].__self__)
    part.open(["toy", "exact", "trained"])
    gc.collect()
    assert first() is None
    for found, expected in zip(
        part.search(["toy", "exact", "trained"], queries, 900), ExactIndex(embeddings).search(queries, 900)
    ):
        np.testing.assert_array_equal(found, expected)


SCRIPT = """
import json
import sys
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from retrieval.common.errors import UserError
from retrieval.common.runtime import ending, hosts
from retrieval.search.index_kind import INDEXES
from retrieval.methods.reader import answer_stage, recipe
from retrieval.runs.ranking import pod_search

hosts.connect()
folder = Path(sys.argv[1])
there = SimpleNamespace(name="toy", embeddings=lambda system: folder / system)
pod_search._AT_ONCE = 4

def say(what):
    print(">", what, flush=True)  # Gloo says something too

def work(together):
    queries = np.load(folder / "queries.npy")
    np.savez(folder / "found.npz", *together(INDEXES["exact"], there, "trained").search(queries, 50))
    coded = together(INDEXES["quantised"], there, "trained", json.loads(sys.argv[2]))
    np.savez(folder / "coded.npz", *coded.search(queries, 50))
    return {"queries": len(queries)}

def fail(together):
    raise UserError("no such set")

def embedded(*arguments):
    say("embedded")
    return np.load(folder / "queries.npy")

say(pod_search.lead(lambda name: there, work))
source = SimpleNamespace(config=None)
answer_stage.open_collection = lambda run, name: there
answer_stage._embedded_by = recipe.towers_of = lambda run: source
recipe.embedded = embedded
reader = SimpleNamespace(model=None, vocabulary=None, config=None)
value = SimpleNamespace(queries=dict.fromkeys("abcdefghi", ""), candidates=range(700), own={"c": 3, "i": 650})
there.check_embeddings = lambda value: None
lists = answer_stage.tuned_lists(source, reader, there, value, 20)
np.savez(folder / f"tuned-{hosts.number()}.npz", lists.scores, lists.rows)
try:
    pod_search.lead(lambda name: there, fail)
except UserError as error:
    say(error)
ending.leave(0)
"""


def check_tuned(folder, alone):
    """What a reader's question tower retrieves is in both hosts what one finds: two queries are candidates."""
    scores, rows = alone
    keep = rows != np.array([[{2: 3, 8: 650}.get(query, -1)] for query in range(9)])
    expected = [np.stack([values[q][keep[q]][:20] for q in range(9)]) for values in (scores, rows)]
    for host in range(2):
        for ours, theirs in zip(np.load(folder / f"tuned-{host}.npz").values(), expected):
            np.testing.assert_array_equal(ours, theirs)
            assert ours.dtype == theirs.dtype


def test_two_hosts_find_what_one_finds(tmp_path):
    ids, embeddings, queries = collection(tmp_path, most=3)
    np.save(tmp_path / "queries.npy", queries)
    options = {"index.precision": "int8", "index.rescore": 2}
    with ending(processes(["-c", SCRIPT, str(tmp_path), json.dumps(options)], 2, devices=2)) as started:
        said = [process.communicate(timeout=100) for process in started]
    assert [[line[2:] for line in out.splitlines() if line.startswith("> ")] for out, _ in said] == [
        ["{'queries': 9}", "embedded", "no such set"],
        ["{'queries': 9}", "the first host stopped: no such set"],
    ], said
    check_tuned(tmp_path, WindowIndex(ExactIndex(embeddings), owners(ids)).search(queries, 21))
    found = np.load(tmp_path / "found.npz")
    for ours, expected in zip(found.values(), WindowIndex(ExactIndex(embeddings), owners(ids)).search(queries, 50)):
        np.testing.assert_array_equal(ours, expected)
    there = SimpleNamespace(embeddings=lambda system: tmp_path / system)
    alone = indexes.build_dense(INDEXES["quantised"], there, options).search(queries, 50)
    for ours, expected in zip(np.load(tmp_path / "coded.npz").values(), alone):
        np.testing.assert_array_equal(ours, expected)


SHARDS = """
import sys
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from retrieval import cli
from retrieval.common.runtime import ending, hosts
from retrieval.search.index_kind import INDEXES
from retrieval.runs.ranking import pod_search
from retrieval.stages import index

folder, task = Path(sys.argv[1]), sys.argv.pop(2)
queries = np.load(folder / "queries.npy")
there = SimpleNamespace(
    name="toy",
    embeddings=lambda system="trained": folder / system,
    index=lambda kind: folder / kind,
)
scann = INDEXES["scann"]

def work(together):
    found = together(scann, there, "trained").search(queries[200:], 20)
    np.savez(folder / "found.npz", *found)

def main(_):
    hosts.connect()
    if task == "build":
        print(index._build_dense(scann, {"index.rescore": 0}, there), flush=True)
    pod_search.lead(lambda name: there, work)
    ending.leave(0)

sys.argv.pop()
cli.run(main)
"""


@pytest.mark.long
@pytest.mark.skipif(not scann.Scann().available(), reason="ScaNN cannot be imported here")
def test_two_hosts_build_and_search_a_shard_each(tmp_path):
    rng = np.random.default_rng(0)
    points = rng.normal(size=(150, 24))[rng.integers(0, 150, 12_500)] + 0.7 * rng.normal(size=(12_500, 24))
    embeddings, queries = np.split(points.astype(np.float32), [12_000])
    write(tmp_path / "trained", list(map(str, range(12_000))), embeddings, 5000)
    np.save(tmp_path / "queries.npy", queries)

    def pod(task):
        with ending(processes(["-c", SHARDS, str(tmp_path), task], 2, devices=2)) as started:
            said = [process.communicate(timeout=200) for process in started]
        return [process.returncode for process in started], said

    codes, said = pod("build")
    assert codes == [0, 0] and all("2 shards, the first of them" in out for out, _ in said), said
    found = np.load(tmp_path / "found.npz")
    whole = IndexShards.load(tmp_path / "scann", ScannIndex.load).search(queries[200:], 20)
    for ours, expected in zip(found.values(), whole):
        np.testing.assert_array_equal(ours, expected)
    assert recall(ExactIndex(embeddings).search(queries[200:], 20)[1], found["arr_1"]) >= 0.94
    shutil.rmtree(tmp_path / "scann" / "shard-00001-of-00002")
    codes, said = pod("search")
    assert codes == [2, 2] and all("00001-of-00002: this shard of the index is missing" in err for _, err in said), said


@pytest.mark.long
def test_a_pod_evaluates_as_one_host(inputs, tmp_path):
    sources = {"corpus": inputs / "dump.xml", "sets.reqa": inputs / "squad.json", "sets.pydocs": False}
    flags = ["--config=configs/ict_bfs_wlp.py:local", *tiny.as_flags(**SMALL, **sources)]
    main = ["-m", "retrieval.main", *flags]

    def run_alone(stages):
        command = [sys.executable, *main, f"--stage={stages}", f"--workdir={tmp_path / 'one'}"]
        subprocess.run(command, cwd=REPOSITORY, env=environment(), check=True)

    run_alone("prepare,sets,train,encode,index")
    shutil.copytree(tmp_path / "one", tmp_path / "pod")
    run_alone("evaluate")
    command = [*main, "--stage=evaluate"]
    with ending(processes([*command, f"--workdir={tmp_path / 'pod'}", "--multihost"], 2, devices=4)) as started:
        for process in started:
            _, said = process.communicate(timeout=600)
            assert process.returncode == 0, said
    runs = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one" / "runs").rglob("*.trec"))
    assert {path.stem for path in runs} >= {"bm25", "dense", "untrained", "hybrid"}
    for path in runs:
        assert (tmp_path / "pod" / path).read_bytes() == (tmp_path / "one" / path).read_bytes(), path
    one, pod = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("one", "pod"))
    assert len(one) > 10 and [row | {"seconds": 0} for row in one] == [row | {"seconds": 0} for row in pod]
