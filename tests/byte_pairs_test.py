"""Byte pairs: the published ids, and vocabularies of whichever kind."""

import json
import shutil

import pytest
from conftest import REPOSITORY

from retrieval.common.errors import UserError
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers import vocabularies
from retrieval.methods.reader.task import Rows

GOLDEN = REPOSITORY / "tests" / "golden" / "byte_pairs"


def test_a_token_stands_behind_the_blank_before_its_word():
    vocabulary, text = vocabularies.load(GOLDEN / "tokenizer.json"), "The note  now\n"
    ids, places = vocabulary.encode_with_places(text)
    held = {vocabulary.tokens[id]: text[start:end] for id, (start, end) in zip(ids, places)}
    assert held["Ġn"] == "n" and held["Ġ"] == " " and held["Ċ"] == "\n"  # a token of blanks alone keeps its place
    making = Rows(vocabulary, 8, 40)
    row = making.of(making.begin("what"), Candidate("1", "", text))
    for start, end in ((4, 8), (10, 13)):
        assert row.characters_of(*row.tokens_of(start, end)) == (start, end)


def changed(change):
    config = json.loads((GOLDEN / "tokenizer.json").read_text())
    change(config)
    return json.dumps(config)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "no tokenizer.json, which has a model with a vocab"),
        ("[", "not valid JSON"),
        (changed(lambda c: c["model"]["vocab"].update(more=10**9)), "its ids are not one number for each token"),
        (changed(lambda c: c["model"].update(merges=[["zzz", "a"]])), "copy it again"),
        (
            changed(lambda c: c.update(added_tokens=[3])),
            r"json: added_tokens is \[3\], and a list of objects is needed",
        ),
        (changed(lambda c: c.update(pre_tokenizer={"pattern": 5})), "json: pattern is 5, and an object is needed"),
        (changed(lambda c: c["model"]["vocab"].update(more="a")), r"json: .*vocab has \['more', 'a'\]"),
        (changed(lambda c: c["added_tokens"][0].pop("id")), "json: .*without id"),
    ],
)
def test_other_tokenisers_and_damaged_ones_are_refused(tmp_path, content, message):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match=message):
        vocabularies.load(tmp_path)


def test_a_vocabulary_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"no such file, nor a folder with one of tokenizer\.json"):
        vocabularies.load(tmp_path)
    shutil.copy(GOLDEN / "vocab.json", tmp_path)
    with pytest.raises(UserError, match=r"AutoTokenizer\.from_pretrained"):
        vocabularies.load(tmp_path)
    assert vocabularies.named("") is None and vocabularies.named("nowhere").name == "nowhere"
