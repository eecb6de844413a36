"""What BM25 takes for words: of every script, with and without accents, stop words and endings."""

import time

import bm25s
import numpy as np
import pytest
import Stemmer

from retrieval.common.errors import UserError
from retrieval.search.bm25 import Bm25Index
from retrieval.search.hit_texts import marked
from retrieval.search.words import STEMMERS, STOP_WORDS, Words

ALL = Words(stop_words="none")


def words(text, settings=ALL):
    (found,) = settings.of([text])
    return list(found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The cat's _init_ in 1961, C a x2!", "the cat _init_ in 1961 x2"),
        ("ベルリンの壁", "ベル ルリ リン ンの の壁"),
        ("1961年、Berlinで壁 (C語)", "1961 年 berlin で壁 語"),
        ("ﾍﾞﾙﾘﾝ ＢＥＲＬＩＮ", "ベル ルリ リン berlin"),
        ("ハ\u3099ス", "バス"),  # a letter and its voicing mark as two characters
        ("서울에서 삼성", "서울 울에 에서 삼성"),
        ("กำแพงเบอร์ลิน", "ก\u0e4dา าแ แพ พง งเ เบ บอ อร์ ร์ลิ ลิน"),
        ("ကမ္ဘာ", "ကမ္ မ္ဘာ"),
        ("𠮷野家", "𠮷野 野家"),
        ("हिन्दी में खोज", "हिन्दी में खोज"),
        ("Ọdún CAFE\u0301 café", "odun cafe cafe"),
        ("", ""),
    ],
)
def test_words_of_every_script(text, expected):
    assert words(text) == expected.split()


@pytest.mark.parametrize(
    ("text", "query", "marks"),
    [
        ("The Cat sat: CATS and cat's.", "cat", ["Cat", "cat"]),
        ("The Cat sat: CATS and cat's.", "a cat", ["Cat", "CATS", "cat"]),
        ("Ein Café, ein cafe\u0301.", "cafe", ["Café", "cafe\u0301"]),
        ("東京は日本の首都", "日本", ["日本"]),
        ("東京は日本の首都", "日本の", ["日本", "の"]),
        ("", "cat", []),
        ("nothing here", "", []),
    ],
)
def test_what_a_query_matches_is_marked(text, query, marks):
    settings = Words(stemmer="english" if query == "a cat" else "none")
    pieces, _ = marked([text, "another cat"], set(words(query, settings)), settings)
    assert [piece for piece, matched in pieces if matched] == marks
    assert "".join(piece for piece, _ in pieces) == text and all(piece for piece, _ in pieces)


def test_accents_are_folded_or_kept():
    assert words("Ọdún café", Words(fold_accents=False)) == ["ọdún", "café"]
    for fold, found in ((True, [0, 1]), (False, [1])):
        index = Bm25Index.build(["un café noir", "un cafe noir", "du thé"], "text", words=Words(fold_accents=fold))
        assert sorted(row for row in index.search(["CAFE"], 3)[1][0].tolist() if row >= 0) == found


def test_stop_words_are_left_out_despite_accents():
    for text in ("l'été était là", "l'ete etait la"):
        assert words(text, Words("french")) == []
    assert words("the cat was with me", Words("english")) == ["cat", "me"]
    assert words("the cat was with me", Words("english_plus")) == ["cat"]


def test_words_that_differ_in_accents_alone_have_one_stem():
    for text in ("opérations résumés", "operations resumes"):
        assert words(text, Words("none", "english")) == ["oper", "resum"]
    assert words("новый новые", Words("none", "russian")) == ["нов", "нов"]


def test_every_list_and_stemmer_there_is_can_be_had():
    for name in STOP_WORDS:
        assert words("xylophon", Words(name)) == ["xylophon"]
    for name in STEMMERS:
        assert len(words("xylophon", Words("none", name))) == 1


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(UserError, match=r"list of stop words 'englsh': did you mean english.*known: .*swedish"):
        Words("englsh")
    with pytest.raises(UserError, match=r"stemmer 'klingon': .*known: .*porter"):
        Words(stemmer="klingon")


def test_a_loaded_index_knows_its_words(tmp_path):
    settings = Words("none", "english", fold_accents=False)
    Bm25Index.build(["the cafés", "a cafe", "running"], "text", words=settings).save(tmp_path / "index")
    index = Bm25Index.load(tmp_path / "index")
    for query, row in (("the", 0), ("café", 0), ("cafes", 1), ("runs", 2)):
        assert index.search([query], 3)[1][0].tolist() == [row, -1, -1]
    assert "no stop words, stemmed by Snowball's 'english', accents kept" in index.description


@pytest.mark.parametrize(
    ("stop_words", "theirs", "stemmer"),
    [
        ("none", [], "english"),
        ("english", "en", "none"),
        ("english_plus", "en_plus", "porter"),
        ("german", "german", "none"),
    ],
)
def test_words_of_ascii_texts_are_those_of_bm25s(stop_words, theirs, stemmer):
    """Its own tokeniser and stemming; Zipf's words with English endings."""
    rng = np.random.default_rng(0)
    stems = ["run", "walk", "the", "relat", "nation", "with", "und", "happ", "cat", "der", "I", "of", "generaliz"]
    ends = ["", "s", "ing", "ed", "ational", "iness", "ly"]

    drawn = [rng.zipf(1.3, (rng.integers(5, 60), 2)) % 91 for _ in range(80)]
    texts = [" ".join(stems[i % 13] + ends[j % 7] for i, j in places) for places in drawn]
    snowball = None if stemmer == "none" else Stemmer.Stemmer(stemmer)
    tokens = bm25s.tokenize(texts, stopwords=theirs, stemmer=snowball, show_progress=False, return_ids=False)
    assert [words(text, Words(stop_words, stemmer)) for text in texts] == tokens


@pytest.mark.parametrize("piece", ["a", "a1", "A", "Ab", "é", "字", "a.", "1", "_", "\u0315\u0300"])
def test_time_is_linear_in_the_length_of_a_word(piece):
    start = time.process_time()
    for _ in next(Words().of([piece * 100_000])):
        pass
    assert time.process_time() - start < 2
