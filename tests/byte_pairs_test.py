"""Byte pairs: the published ids with padding at 0, and vocabularies of whichever kind."""

import json
import shutil

import pytest
from conftest import REPOSITORY

from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers import vocabularies
from retrieval.data.tokenizers.published import PublishedTokenizer
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.errors import UserError
from retrieval.methods.reader.reader_rows import RowLengths, question_tokens, row_of

GOLDEN = REPOSITORY / "tests" / "golden" / "byte_pairs"


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.json"])
def test_ids_are_those_of_transformers_but_for_padding(name):
    vocabulary = vocabularies.load(GOLDEN / name)
    assert vocabulary.pad_id == 0 and vocabulary.tokens[:2] == ["<pad>", "<s>"] and vocabulary.cls_id == 1
    records = json.loads((GOLDEN / "expected.json").read_text())
    ours = vocabulary.encode_batch([text * times for text, times, _ in records])
    assert [[vocabulary.published_ids[i] for i in ids] for ids in ours] == [expected for *_, expected in records]


def test_text_round_trips():
    vocabulary = vocabularies.load(GOLDEN / "tokenizer.json")
    for text in ("The Naïve café", " two  spaces\n", "< /s> [SEP]", "😀"):
        assert vocabulary.decode(vocabulary.encode(text)) == text


def test_a_token_stands_behind_the_blank_before_its_word():
    vocabulary, text = vocabularies.load(GOLDEN / "tokenizer.json"), "The note  now\n"
    ids, places = vocabulary.encode_with_places(text)
    held = {vocabulary.tokens[id]: text[start:end] for id, (start, end) in zip(ids, places)}
    assert held["Ġn"] == "n" and held["Ġ"] == " " and held["Ċ"] == "\n"  # a token of blanks alone keeps its place
    lengths = RowLengths(8, 40)
    row = row_of(vocabulary, question_tokens(vocabulary, "what", lengths), Candidate("1", "", text), lengths)
    for start, end in ((4, 8), (10, 13)):
        assert row.characters_of(*row.tokens_of(start, end)) == (start, end)


def test_saved_in_our_order_it_is_the_same(tmp_path):
    vocabulary = vocabularies.load(GOLDEN)
    vocabulary.save(tmp_path / vocabulary.FILE)
    again = vocabularies.load(tmp_path)
    assert isinstance(again, PublishedTokenizer) and again.tokens == vocabulary.tokens
    assert again.published_ids == list(range(len(again)))
    assert again.encode("unaffable café") == vocabulary.encode("unaffable café")


def test_tokenizer_json_and_vocab_txt_agree(tmp_path):
    vocabulary = WordPiece([*SPECIAL_TOKENS, "the", "##y", "cat"])
    (tmp_path / "tokenizer.json").write_text(vocabulary._tokenizer.to_str())
    again = vocabularies.load(tmp_path)
    assert isinstance(again, WordPiece) and again.tokens == vocabulary.tokens


def changed(change):
    config = json.loads((GOLDEN / "tokenizer.json").read_text())
    change(config)
    return json.dumps(config)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "no tokenizer.json, which has a model with a vocab"),
        ("[", "not valid JSON"),
        (changed(lambda c: c["model"].update(type="Other")), "damaged"),
        (changed(lambda c: c["model"]["vocab"].update(more=10**9)), "its ids are not one number for each token"),
        (changed(lambda c: c["model"].update(merges=[["zzz", "a"]])), "copy it again"),
        (changed(lambda c: c.update(added_tokens=[3])), "damaged"),
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
    with pytest.raises(UserError, match=r"vocab\.json needs merges\.txt beside it"):
        vocabularies.load(tmp_path)
    assert vocabularies.named("") is None and vocabularies.named("nowhere").name == "nowhere"
