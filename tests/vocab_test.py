"""WordPiece: the published tokens, reproducible training, and bad vocabularies."""

import json
import sys
from random import Random

import pytest
from tokenizers import Tokenizer

from retrieval.common.errors import UserError
from retrieval.data.tokenizers import vocab, vocabularies
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, Vocabulary, WordPiece

TEXTS = ["the cat sat on the mat .", "the cats sit on mats", "a cat and a hat , that is that"] * 3


def test_training_is_reproducible_and_covers_the_text():
    first, second = WordPiece.train(TEXTS, 80), WordPiece.train(list(reversed(TEXTS)), 80)
    assert first.tokens == second.tokens
    assert tuple(first.tokens[:5]) == SPECIAL_TOKENS and len(first) <= 80
    for text in TEXTS:
        assert first.unk_id not in first.encode(text)
        assert first.decode(first.encode(text)).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("word", ["0123456789abcdef" * 20_000, "ÄÖ" * 60, "漢字かな" * 30])
def test_words_that_are_too_long_for_pieces_are_left_out_of_training(caplog, word):
    """Of one of 320,000 characters the library would count pairs for a minute."""
    expected = WordPiece.train(TEXTS, 80)
    vocabulary = WordPiece.train([*TEXTS, f"{word}, {word}"], 80)
    is_too_long = "漢" not in word  # BERT makes each of these a word
    assert (vocabulary.tokens == expected.tokens) == is_too_long
    assert ("2 words of over 100 characters left out" in caplog.text) == is_too_long
    assert vocabulary.encode(word) == by_the_library(vocabulary, [word])[0]
    with pytest.raises(UserError, match="holds no word of 1 to 100 characters"):
        WordPiece.train(["x" * 101], 80)


def by_the_library(vocabulary, texts):
    return Vocabulary.encode_batch(vocabulary, texts)


def test_kept_words_are_those_of_the_whole_text(monkeypatch):
    """Characters beside a space, a mark and within a word: the library, which sees the whole text, gives the same ids.

    Every character of Unicode has been compared once, in half a minute; here those of a script's size apart.
    """
    monkeypatch.setattr(vocab, "_KEPT", 1000)
    vocabulary = WordPiece.train([*TEXTS, "Ärger über Σίσυφος — 漢字, don't!"] * 2, 200)
    codes = [*range(0x3400), *range(0x3400, sys.maxunicode + 1, 101)]
    characters = [chr(code) for code in codes if not 0xD800 <= code < 0xE000 and chr(code) != vocab.SEPARATOR]
    texts = [f"a{c}t {c} {c}at, the{c}-{c} ({c}{c})  .{c}cat" for c in characters]
    assert vocabulary.encode_batch(texts) == by_the_library(vocabulary, texts)
    assert 0 < len(vocabulary._words) <= 1000


def test_windows_cut_the_second_text_without_gap_or_overlap():
    vocabulary = WordPiece.train(TEXTS, 80)
    cls, sep = vocabulary.cls_id, vocabulary.sep_id
    windows = [[cls, 7, sep, *body, sep] for body in ((10, 11), (12, 13), (14,))]
    assert vocabulary.windows([7], [10, 11, 12, 13, 14], 6, 9) == windows
    assert vocabulary.windows([], [10, 11, 12], 4, 9) == [[cls, 10, 11, sep], [cls, 12, sep]]
    random = Random(0)
    for _ in range(500):
        first, second = ([random.randrange(10, 80) for _ in range(random.choice((0, 1, 5, 30)))] for _ in range(2))
        length, most = random.randrange(5, 20), random.randrange(1, 9)
        rows = vocabulary.windows(first, second, length, most)
        assert rows[0] == vocabulary.pair(first, second, length)  # the first is the text as it is without windows
        assert len(rows) <= most and all(len(row) <= length for row in rows)
        assert all(len(row) == length for row in rows[:-1])
        head = rows[0][: rows[0].index(sep) + 1] if first else [cls]
        assert all(row[: len(head)] == head and row[-1] == sep for row in rows)
        read = [id for row in rows for id in row[len(head) : -1]]
        assert read == second[: len(read)] and (len(read) == len(second) or len(rows) == most)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nb\nc\nb\n", r"line 8 repeats the token 'b'"),
        (b"\xff\xfe\x00", "cannot be read as UTF-8"),
    ],
)
def test_damaged_vocabularies(tmp_path, content, message):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        WordPiece.load(path)


JAPANESE = ["ベルリンの壁が崩れた", "ガラスの橋とパンの店", "ベルリンでパンを食べた"] * 3


def test_accents_are_kept_where_they_are_letters(tmp_path):
    vocabulary = WordPiece.train(JAPANESE, 200)
    assert vocabulary.decode(vocabulary.encode("ベルリン")).replace(" ", "") == "ベルリン"
    assert vocabulary.encode("ベルリン") != vocabulary.encode("ヘルリン")
    vocabulary.save(tmp_path / vocabulary.FILE)
    again = vocabularies.load(tmp_path)
    assert again.encode_batch(JAPANESE) == vocabulary.encode_batch(JAPANESE) == by_the_library(vocabulary, JAPANESE)
    assert again.fingerprint == vocabulary.fingerprint != WordPiece(vocabulary.tokens).fingerprint
    assert not again.folds_accents and vocabulary.FILE == "tokenizer.json"


@pytest.mark.parametrize("size, most", [(20_000, 3996), (10_000, 2500)])
def test_scripts_of_many_characters_have_a_piece_for_each(size, most):
    """4,000 characters, each as often as the others: 1,000 of them are a quarter of the text.

    There are pieces for 999 of 1,000, in a quarter of the vocabulary at most. Of equals the first are taken, always.
    """
    characters = [chr(0x4E00 + i) for i in range(4000)]
    texts = ["".join(characters[start : start + 100]) for start in range(0, 4000, 100)] * 2
    tokens = set(WordPiece.train(texts, size).tokens)
    assert tokens.intersection(characters) == set(characters[:most])


def pieces(word, tokens):
    """Greedy word pieces, the longest first (Wu et al. 2016)."""
    found, start = [], 0
    while start < len(word):
        prefix = "##" if start else ""
        ends = (end for end in range(len(word), start, -1) if prefix + word[start:end] in tokens)
        if (end := next(ends, None)) is None:
            return ["[UNK]"]
        found.append(prefix + word[start:end])
        start = end
    return found


def test_a_cased_vocabulary_keeps_case_and_accents(tmp_path):
    texts = ["The Cat sat on the MAT", "Ärger über the cat", "Zürich and the Café of Москва 漢字"] * 3
    vocabulary = WordPiece.train(texts, 300, lower_case=False)
    assert {"T", "M", "Ä", "é", "М"} <= set(vocabulary.tokens) and not vocabulary.folds_accents
    for text in ["the CAT Über Mat", "Café cafe ärger Москва", "漢 字 THE"]:
        expected = [token for word in text.split() for token in pieces(word, set(vocabulary.tokens))]
        assert [vocabulary.tokens[id] for id in vocabulary.encode(text)] == expected
    uncased = WordPiece(vocabulary.tokens)
    assert vocabulary.FILE == "tokenizer.json" and vocabulary.fingerprint != uncased.fingerprint
    vocabulary.save(tmp_path / vocabulary.FILE)
    again = vocabularies.load(tmp_path)
    assert again.fingerprint == vocabulary.fingerprint and again.encode("The Café") == vocabulary.encode("The Café")
    exported = Tokenizer.from_str(vocabulary.to_json(types=2))
    assert exported.encode("The Café", add_special_tokens=False).ids == vocabulary.encode("The Café")


@pytest.mark.parametrize(
    ("words", "config", "lowers"),
    [
        (["Owl"], None, True),  # a few capitals are names of special tokens
        ([f"W{number}" for number in range(101)], None, False),
        (["Owl"], {"do_lower_case": False}, False),
        (["owl"], {"do_lower_case": True}, True),
    ],
)
def test_config_or_tokens_tell_whether_vocab_is_cased(tmp_path, words, config, lowers):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *words]))
    if config:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    vocabulary = vocabularies.load(tmp_path)
    assert (vocabulary.lower_case, vocabulary.folds_accents) == (lowers, lowers)
