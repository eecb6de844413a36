"""Letter trigrams: tokens by hand, the file, and a corpus of them."""

import json

import pytest
import tensorflow as tf
from conftest import run_here
from support import toy_corpus
from support.tiny import SETTINGS

from retrieval.common.errors import UserError
from retrieval.data.shards import prepared_corpus
from retrieval.data.tokenizers import vocabularies
from retrieval.data.tokenizers.trigrams import Trigrams
from retrieval.data.tokenizers.vocab import SEPARATOR, SPECIAL_TOKENS

TEXTS = ["Good food!", "good C# wood", "a café"]


def by_hand(word):
    return [f"#{word}#"[i : i + 3] for i in range(len(word))]


def test_a_word_is_its_letter_trigrams_with_marked_ends():
    vocabulary = Trigrams.train(TEXTS, 100)
    wanted = [t for word in ("good", "food", "!", "good", "c", "#", "wood", "a", "cafe") for t in by_hand(word)]
    assert [vocabulary.tokens[id] for id in vocabulary.encode(" ".join(TEXTS))] == wanted
    assert vocabulary.tokens == [*SPECIAL_TOKENS, *sorted(set(wanted))]
    assert vocabulary.decode(vocabulary.encode("Good C# wood!")) == "#go goo ood od# #c# ### #wo woo ood od# #!#"
    assert vocabulary.encode("zoo") == [vocabulary.unk_id] * 2 + vocabulary.encode("zoo")[2:]
    parts = vocabulary.encode("good"), vocabulary.encode("food")
    assert vocabulary.encode(f"good {SEPARATOR} food") == [*parts[0], vocabulary.sep_id, *parts[1]]


def test_a_file_gives_the_same_tokens(tmp_path):
    for lower_case in (True, False):
        vocabulary = Trigrams.train(TEXTS, 100, lower_case)
        vocabulary.save(tmp_path / vocabulary.FILE)
        loaded = vocabularies.load(tmp_path)
        assert isinstance(loaded, Trigrams) and loaded.fingerprint == vocabulary.fingerprint
        assert loaded.encode_batch(TEXTS) == vocabulary.encode_batch(TEXTS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab": 3}, "no list of trigrams"),
        ({"vocab": ["[PAD]", "#go"]}, "lacks .UNK."),
        ({"lower_case": "yes"}, "not true or false"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, change, message):
    path = tmp_path / "tokenizer.json"
    Trigrams.train(TEXTS, 100).save(path)
    path.write_text(json.dumps({"model": json.loads(path.read_text())["model"] | change}))
    with pytest.raises(UserError, match=message):
        vocabularies.load(path)


def test_a_corpus_can_have_trigrams_as_its_vocabulary(tmp_path, monkeypatch):
    monkeypatch.setattr("retrieval.data.shards.local_runner.run_tasks", run_here)
    prepared_corpus.prepare(toy_corpus.source(), tmp_path, SETTINGS._replace(vocab_kind="trigrams"))
    vocabulary = vocabularies.load(tmp_path)
    assert isinstance(vocabulary, Trigrams) and len(vocabulary) == SETTINGS.vocab_size
    assert {"the", "#th", "he#"} <= set(vocabulary.tokens) and not (tmp_path / "vocab.txt").exists()
    (shard, *_) = sorted(tmp_path.glob("passages-*.tfrecord"))
    (record, *_) = tf.data.TFRecordDataset(str(shard)).as_numpy_iterator()
    ids = tf.train.Example.FromString(record).features.feature["ids"].int64_list.value
    text = json.loads(shard.with_suffix(".jsonl").read_text().splitlines()[0])["text"]
    assert list(ids) == vocabulary.encode(text)
