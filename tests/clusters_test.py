"""Training with batches by clusters, on toy paragraphs of four themes."""

import json
import shutil

import jax
import numpy as np
import pytest
from support.refreshed_runs import assert_same, cut_off, versions_of
from support.tiny import CHEAP, complete, execute, make_run

from retrieval.common.errors import UserError
from retrieval.data.tokenizers import vocabularies
from retrieval.methods.clusters import refresh
from retrieval.recipes.parameters import make_mesh
from retrieval.runs.fitting import versions
from retrieval.runs.fitting.refresh_kind import refresh_of
from retrieval.runs.pipeline import preflight
from retrieval.runs.pipeline.run import Run
from retrieval.search import kmeans

WORDS = "river mountain city king war music plant animal science history water island church battle north".split()
CHANGES = CHEAP | {"stages": ("pairs", "train"), "corpus": "", "data.negatives": 0, "loop.validate_every": 0}
CHANGES |= {"train.steps": 7, "train.batch_size": 8, "train.groups": 2, "train.learning_rate": 1e-2, "split.shards": 4}
CHANGES |= {"loop.log_every": 1, "loop.keep_checkpoints": 20, "encode.shard_size": 12, "mine.refresh_every": 3}
CHANGES |= {"mine.refresh_makes": "clusters", "cluster.count": 5, "cluster.iterations": 10}


@pytest.fixture(scope="module")
def source(prepared, tmp_path_factory):
    """The fields of a base with a vocabulary, and of a file of 30 paragraphs with three questions each."""
    path, random = tmp_path_factory.mktemp("source") / "pairs.jsonl", np.random.default_rng(0)
    with path.open("w") as file:
        for paragraph in range(30):
            text = " ".join(random.choice(WORDS[paragraph % 4 * 3 :][:4], 12))
            for question in range(3):
                positive = {"title": f"T{paragraph}", "text": text}
                negative = {"title": "no", "text": " ".join(random.choice(WORDS, 8))}
                query = f"{text.split()[question]} {paragraph} {question}?"
                file.write(json.dumps({"query": query, "positives": [positive], "negatives": [negative]}) + "\n")
    return {"base": str(prepared), "pairs.files": str(path)}


def clustered(source, inputs, folder, /, **changes):
    return make_run("dpr", inputs, folder, **CHANGES | source | {"sets.reqa": ""} | changes)


@pytest.fixture(scope="module")
def whole(source, inputs, tmp_path_factory):
    """A run with two clusterings that nothing happened to."""
    return complete(clustered(source, inputs, tmp_path_factory.mktemp("whole") / "run"))


def arrays(run, version):
    folder = versions.folder_of(run.folder, version)
    return [np.load(folder / f"{name}.npy") for name in refresh.ARRAYS]


def batches_of(run, version):
    """The document ids of the batches of a version, [T, 8]."""
    batches = refresh_of(run.config).batches(run, vocabularies.load(run.corpus), make_mesh(run.config))
    batches.turn_to(version)
    return np.stack([jax.device_get(next(batches)["document_id"])[:, 0] for _ in range(3)])


@pytest.mark.parametrize("version", [1, pytest.param(2, marks=pytest.mark.long)])
def test_each_group_has_one_cluster_and_distinct_paragraphs(whole, version):
    ids_N, cluster_N, _ = arrays(whole, version)
    cluster_of = dict(zip(ids_N.tolist(), cluster_N.tolist()))
    assert len(cluster_of) == 30 and min(np.bincount(cluster_N)) >= 4
    groups = batches_of(whole, version).reshape(-1, 4).tolist()
    for group in groups:
        assert len({cluster_of[id] for id in group}) == 1 and len(set(group)) == 4
    assert len({cluster_of[group[0]] for group in groups}) > 1


def test_clusters_are_of_the_model_at_their_step(whole):
    """Against an encoder of the checkpoint: every paragraph is next to the centroid of its cluster, if none merged."""
    told = [versions.statistics(whole.folder, version) for version in (1, 2)]
    assert [counts["step"] for counts in told] == [3, 6] and told[0]["seed"] != told[1]["seed"]
    assert not np.array_equal(arrays(whole, 1)[2], arrays(whole, 2)[2])
    lines = [json.loads(line) for line in (whole.folder / "metrics" / "train.jsonl").read_text().splitlines()]
    logged = {line["step"]: line["refresh/clusters"] for line in lines if "refresh/least" in line}
    assert logged == {4: told[0]["clusters"], 7: told[1]["clusters"]}
    assert versions_of(whole) == {2: 0, 3: 0, 4: 1, 6: 1, 7: 2}


@pytest.mark.long
def test_a_run_cut_off_in_clustering_ends_equal(whole, source, inputs, tmp_path, monkeypatch):
    """In the middle of the second, when batches are of the first."""
    run = clustered(source, inputs, tmp_path / "run")
    cut_off(monkeypatch, run, kmeans, "cluster", 2)
    assert [path.name for path in (run.folder / "refreshed").glob("*")] == ["00001"]
    execute(run)
    assert_same(run, whole)


def test_clusters_of_other_pairs_are_refused(whole, tmp_path):
    run = Run(whole.config, shutil.copytree(whole.folder, tmp_path / "run"), whole.lock)
    (run.pairs / "stats.json").write_text((run.pairs / "stats.json").read_text().replace('"pairs": 81', '"pairs": 82'))
    batches = refresh_of(run.config).batches(run, vocabularies.load(run.corpus), make_mesh(run.config))
    with pytest.raises(UserError, match=r"refreshed/00001: clusters of other labelled pairs than .*pairs has now"):
        batches.turn_to(1)


def test_what_does_not_go_with_clusters_is_refused(source, inputs, tmp_path):
    run = clustered(source, inputs, tmp_path / "run", **{"data.pack.query": 0.5, "data.pack.document": 0.5})
    with pytest.raises(UserError, match=r"pack\.query=0\.5: batches by clusters are of all pairs"):
        preflight.check(run, run.config.stages)
