"""A guide: its embeddings beside the labelled examples, in the batches, and what names none."""

import importlib
import json
import shutil

import numpy as np
import pytest
from conftest import REPOSITORY
from support import embedder_folders
from support.tiny import CHEAP, complete, execute

from retrieval.api.loading import load
from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.recipes.parameters import make_mesh
from retrieval.runs.fitting import examples
from retrieval.runs.pairs import guided_pairs
from retrieval.runs.pipeline import preflight
from retrieval.runs.pipeline.run import Run

pytestmark = pytest.mark.usefixtures("one_device")

QUERY, DOCUMENT = "ask: ", "find: "
WORDS = [f"w{number}" for number in range(45)]


def of(root, folder, guide, **changes):
    """A run of 40 questions, each with two passages that answer it and two that do not."""
    config = importlib.import_module("configs.dpr").get_config("local")
    config.vocab, config.pairs.files = str(root / "vocab.txt"), str(root / "p.jsonl")
    config.model.update(hidden_size=16, mlp_size=24, embed_dim=8)
    config.data.update(query_length=8, document_length=16, lanes=2, negatives=1)
    config.split.update(shards=2)
    config.train.update(steps=2, batch_size=8, guide=str(guide), log_q=False)
    config.loop.update(checkpoint_every=2, log_every=1, validate_every=0)
    config.stages = ("pairs", "train")
    config.update_from_flattened_dict(CHEAP | changes)
    return Run(config, folder, REPOSITORY / "requirements.lock")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("guide")
    WordPiece([*SPECIAL_TOKENS, *WORDS]).save(root / "vocab.txt")
    lines = [
        {"query": f"w{i}", "positives": [f"w{i} w{i + k}" for k in (1, 2)], "negatives": [f"w{i + k}" for k in (3, 4)]}
        for i in range(40)
    ]
    (root / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    embedder_folders.modernbert(root / "embedder", {"query": QUERY, "document": DOCUMENT})
    return root


@pytest.fixture(scope="module")
def trained(root, tmp_path_factory):
    return complete(of(root, tmp_path_factory.mktemp("trained") / "run", root / "embedder"))


def texts(ids):
    return [" ".join(WORDS[id - len(SPECIAL_TOKENS)] for id in row if id >= len(SPECIAL_TOKENS)) for row in ids]


def test_a_batch_has_what_the_guide_says_of_its_texts(trained, root):
    """By the guide's own tokenizer and prompts, whatever the run's are."""
    batch = next(examples.make_batches(trained, trained.load_vocabulary(), make_mesh(trained.config)))
    assert batch["guide"].shape == (8, 3, 16) and batch["guide"].dtype == np.float32
    model = load(root / "embedder")
    query, document = (np.asarray(batch[side]) for side in ("query", "document"))
    expected = model.encode_query(texts(query))
    np.testing.assert_allclose(batch["guide"][:, 0], expected, atol=1e-5)
    expected = model.encode_document(texts(document.reshape(16, -1))).reshape(8, 2, 16)
    np.testing.assert_allclose(batch["guide"][:, 1:], expected, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(expected, axis=2), 1, rtol=1e-5)
    assert expected.std(axis=0).max() > 0.01


def test_the_log_counts_what_is_left_out(trained):
    lines = [json.loads(line) for line in (trained.folder / "metrics" / "train.jsonl").read_text().splitlines()]
    assert all(0 < line["masked_guide"] < 16 and line["masked_ids"] >= 0 for line in lines if line["step"])


@pytest.mark.long
def test_each_text_is_embedded_once_and_a_killed_stage_goes_on(root, tmp_path, monkeypatch, trained):
    monkeypatch.setattr(guided_pairs, "_SHARD", 25)
    run = of(root, tmp_path / "run", root / "embedder")
    embed, seen = guided_pairs.guide.TextEmbedder.documents, []

    def documents(self, given):
        seen.extend(text.text for text in given)
        if len(seen) == 75:
            raise KeyboardInterrupt
        return embed(self, given)

    monkeypatch.setattr(guided_pairs.guide.TextEmbedder, "documents", documents)
    with pytest.raises(KeyboardInterrupt):
        execute(run, "pairs")
    parts = sorted(path.name for path in (run.pairs / "guide").glob("*.npy"))
    assert parts == [*(f"documents-{n:05d}.npy" for n in range(2)), *(f"queries-{n:05d}.npy" for n in range(2))]
    execute(run, "pairs")
    assert sorted(set(seen)) == sorted(set(seen[:50] + seen[75:])) and len(seen[:50] + seen[75:]) == len(set(seen))
    assert not (run.pairs / "guide").exists()
    for name in ("guide_rows.npy", "pairs-00000-of-00002.tfrecord"):
        ours, theirs = ((of_run.pairs / name).read_bytes() for of_run in (run, trained))
        assert ours == theirs if name.startswith("pairs") else len(ours) == len(theirs)
    ours, theirs = (files.read_array(of_run.pairs / "guide_rows.npy", "") for of_run in (run, trained))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def refused(run, message):
    with pytest.raises(UserError, match=message):
        preflight.check(run, run.config.stages)


def test_what_is_no_guide_is_refused(root, tmp_path, trained):
    refused(of(root, tmp_path / "run", "nowhere"), r"train\.guide=nowhere: no embedder there; name a work directory")
    refused(of(root, tmp_path / "run", root), r"train\.guide=.*: not a work directory")
    reranker = of(root, tmp_path / "reranker", "", recipe="reranker")
    reranker.folder.mkdir()
    files.write_json(reranker.folder / "config.json", json.loads(reranker.config.to_json()))
    reranker.own_record("train").parent.mkdir()
    shutil.copy(trained.own_record("train"), reranker.own_record("train"))
    refused(of(root, tmp_path / "run", reranker.folder), "reranker.* name the work directory of a embedder")


def test_what_has_no_embeddings_of_the_guide_is_refused(root, tmp_path, trained):
    guide = root / "embedder"
    corpus = {"data.rates.ict": 1.0, "data.rates.pairs": 0.0, "data.negatives": 0, "corpus": "x.xml"}
    refused(of(root, tmp_path / "run", guide, **corpus), "train.guide=.* embeds labelled examples, and task 'ict'")
    refused(of(root, tmp_path / "run", guide, **{"mine.refresh_every": 1}), "negatives mined anew would lack it")
    several = {"pairs.files": "", "pairs.sources": f'[one]\nfiles = "{root / "p.jsonl"}"'}
    refused(of(root, tmp_path / "run", guide, **several), r"train\.guide=.* does not go with config\.pairs\.sources")
    bare = of(root, tmp_path / "bare", "", stages=("pairs",))
    execute(bare)
    changes = {"base": str(bare.folder), "stages": ("train",), "pairs.files": ""}
    refused(of(root, tmp_path / "run", guide, **changes), r"the labelled pairs of .*bare have not its embeddings")
    preflight.check(of(root, tmp_path / "run", guide, **changes | {"base": str(trained.folder)}), ("train",))
    bare.config.train.guide = str(guide)
    with pytest.raises(UserError, match=r"made without the embeddings of config\.train\.guide"):
        examples.make_batches(bare, bare.load_vocabulary(), make_mesh(bare.config))
