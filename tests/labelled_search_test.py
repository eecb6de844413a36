"""A run made of labelled files alone is searched: its collection is the passages of their examples."""

import json

import pytest
from conftest import REPOSITORY
from support import tiny
from support.tiny import execute

from retrieval.data.labelled import grouping
from retrieval.data.labelled.grouping import Example
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.errors import UserError
from retrieval.pipeline import preflight
from retrieval.stage_outputs import Run
from retrieval.stages.collection import CORPUS

ANIMALS = "fox dog owl hen cow pig rat elk emu yak ape bee ant cat fly gnu".split()
CHANGES = tiny.CHEAP | {
    "data.query_length": 8,
    "data.document_length": 16,
    "data.lanes": 1,
    "train.batch_size": 8,
    "train.steps": 2,
    "loop.validate_every": 0,
    "encode.corpus": True,
    "encode.untrained": False,
    "index.dense": "exact",
    "split.shards": 2,
}
STEPS = ("sets", "pairs", "train", "encode", "index")


def make_run(folder, **changes):
    WordPiece([*SPECIAL_TOKENS, *ANIMALS, "the", "where", "is", "of", "tale", "lives"]).save(folder / "vocab.txt")
    examples = [
        {
            "query": f"where is the {name}",
            "positive_passages": [{"docid": f"p{i}", "title": f"the {name}", "text": f"the {name} lives"}],
            "negative_passages": [{"docid": f"n{i}", "title": "", "text": f"tale of the {ANIMALS[i - 1]}"}],
        }
        for i, name in enumerate(ANIMALS)
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(example) + "\n" for example in examples))
    files = {"vocab": str(folder / "vocab.txt"), "pairs.files": str(folder / "train.jsonl"), "stages": STEPS}
    config = tiny.make_config("dpr", **CHANGES | files | changes)
    return Run(config, folder / "run", REPOSITORY / "requirements.lock", "where is the owl")


def test_its_passages_are_found_with_ids_and_texts(tmp_path, capsys):
    run = make_run(tmp_path)
    preflight.check(run, STEPS)
    execute(run)
    preflight.check(run, ["search"])
    execute(run, "search")
    told = capsys.readouterr().out
    assert "\ndense\n" in told and "\nBM25\n" in told and "\nmerged\n" in told
    words = told.partition("\nBM25\n")[2].splitlines()
    assert "[p2]  the owl" in words[0] and words[1].strip() == "the owl lives"
    assert "[n3]" in words[2] and words[3].strip() == "tale of the owl"
    texts = list(beir.read_candidates(run.passages[0]))
    assert sorted(text.id for text in texts) == sorted(f"{side}{i}" for side in "pn" for i in range(len(ANIMALS)))
    assert (run.embeddings(CORPUS, "trained")).exists() and not (run.folder / "corpus").exists()


def test_without_its_index_it_says_what_makes_one(tmp_path):
    run = make_run(tmp_path, **{"encode.corpus": False})
    execute(run)
    assert not run.embeddings(CORPUS, "trained").exists()
    with pytest.raises(UserError, match=r"no index of the corpus: run the stages encode and index with encode\.corpus"):
        execute(run, "search")


def test_a_passage_is_there_once_and_no_id_twice():
    one, other, nameless = Candidate("1", "", "a"), Candidate("1", "", "b"), Candidate("", "", "c")
    found = list(grouping.passages([Example("q", (one, nameless), (other,)), Example("r", (other,), (one,))]))
    assert [text.text for text in found] == ["a", "c", "b"]
    assert found[0].id == "1" and len({text.id for text in found}) == 3 and all(text.id for text in found)
