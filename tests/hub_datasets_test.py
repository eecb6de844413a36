"""Data sets of Hugging Face's hub by name, `hf:datasets/NAME`. A server on this machine stands for it."""

import io

import pyarrow
import pytest
from pyarrow import parquet
from support import toy_hub

from retrieval.common.errors import UserError
from retrieval.common.runtime import hub_datasets
from retrieval.data.labelled import labelled_format
from retrieval.data.labelled.labelled_format import Settings

NONE = Settings("", "", "", 0)
OF_NLI = [
    {"config_name": "pair", "data_files": [{"split": "train", "path": "pair/train-*"}]},
    {
        "config_name": "triplet",
        "data_files": [{"split": "train", "path": ["triplet/train-*"]}, {"split": "dev", "path": "triplet/dev-*"}],
    },
]


def table(*values):
    file = io.BytesIO()
    parquet.write_table(pyarrow.table({"anchor": values, "positive": [value.upper() for value in values]}), file)
    return file.getvalue()


@pytest.fixture(scope="module")
def sets():
    lines = {"train.jsonl.gz": b"", "README.md": b""}
    return {
        "me/nli": {
            "README.md": b"a card",
            "pair/train-00000-of-00002.parquet": table("a"),
            "pair/train-00001-of-00002.parquet": table("b"),
            "triplet/train-00000-of-00001.parquet": table("c"),
            "triplet/dev-00000-of-00001.parquet": table("d"),
        },
        "me/plain": {"data/train-00000-of-00001.parquet": table("e"), "data/test-00000-of-00001.parquet": table("f")},
        "me/folders": {"en/train-0-of-1.parquet": table("g"), "de/train-0-of-1.parquet": table("h")},
        "me/lines": lines,
        f"me/lines@{toy_hub.CONVERTED}": {
            "default/train/0000.parquet": table("i"),
            "default/test/0000.parquet": table("j"),
            "large/partial-train/0000.parquet": table("k"),
        },
        "me/text": lines,
    }


@pytest.fixture
def served(sets, tmp_path, monkeypatch):
    with toy_hub.served(sets, tmp_path / "cache", monkeypatch) as server:
        server.configs["me/nli"] = OF_NLI
        yield server


def queries(value):
    paths = labelled_format.files(value)
    return "".join(example.query for path in paths for example in labelled_format.sample(path, NONE))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("me/nli:pair", "ab"),
        ("me/nli@main:triplet", "c"),
        ("me/nli:triplet:dev", "d"),
        ("me/plain", "e"),
        ("me/plain:test", "f"),
        ("me/folders:de", "h"),
        ("me/lines", "i"),
        ("me/lines:large", "k"),
    ],
)
def test_a_name_is_the_files_of_a_config_and_a_split(served, tmp_path, name, expected):
    assert queries(f"hf:datasets/{name}") == expected
    commit = toy_hub.OF_BRANCH if "lines" in name else toy_hub.COMMIT
    assert hub_datasets.commit(f"hf:datasets/{name}") == commit
    assert all(tmp_path / "cache" in path.parents for path in hub_datasets.local(f"hf:datasets/{name}"))


def test_only_the_files_of_the_split_are_downloaded_and_once(served):
    for _ in range(2):
        assert queries("hf:datasets/me/nli:triplet,hf:datasets/me/nli:pair") == "cab"
    asked = [path.rpartition("/")[2] for command, path in served.asked if command == "GET" and "/resolve/" in path]
    assert sorted(name for name in asked if name.endswith(".parquet")) == [
        "train-00000-of-00001.parquet",
        "train-00000-of-00002.parquet",
        "train-00001-of-00002.parquet",
    ]


@pytest.mark.parametrize("name", ["me/plain", "me/lines:large", "me/nli:triplet:dev"])
def test_without_a_network_the_cache_does(sets, tmp_path, monkeypatch, name):
    with toy_hub.served(sets, tmp_path / "cache", monkeypatch) as server:
        server.configs["me/nli"] = OF_NLI
        here = hub_datasets.local(f"hf:datasets/{name}")
    assert hub_datasets.local(f"hf:datasets/{name}") == here
    with pytest.raises(UserError, match="hf:datasets/me/none: the hub does not answer, and the cache has no such data"):
        hub_datasets.local("hf:datasets/me/none")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("me/none", "the hub has no such data set, or it is private"),
        ("me/plain@missing", "the data set has no such revision"),
        ("me/no name", "no name of a data set; write hf:datasets/OWNER/NAME, with @REVISION, :CONFIG and :SPLIT"),
        ("me/nli", "several configs; name one, .* of pair, triplet"),
        ("me/nli:dev", "no config 'dev'; name one, .* of pair, triplet"),
        ("me/nli:pair:dev", "no split 'dev' in its config 'pair'; there are train"),
        ("me/text", r"no \.parquet file in it; convert it"),
    ],
)
def test_a_name_that_cannot_be_is_one_sentence(served, name, message):
    with pytest.raises(UserError, match=f"hf:datasets/{name}: {message}") as refused:
        hub_datasets.local(f"hf:datasets/{name}")
    assert "\n" not in str(refused.value)
