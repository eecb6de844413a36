"""Corpora without capitals and full stops as in English: Japanese and transcribed speech."""

import itertools

import pytest

from retrieval.data.corpora import passages
from retrieval.data.corpora.articles import Article, Paragraph, Section
from retrieval.data.corpora.corpus_kind import Source
from retrieval.data.corpora.passages import Limits
from retrieval.data.shards import prepared_corpus, shard_steps
from retrieval.data.tokenizers import vocabularies
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece

PLACES = {
    "japanese": ("ベルリン", "ガーナ", "パリ", "ドイツ", "東京", "ペルー"),
    "speech": ("berlin", "ghana", "paris", "germany", "tokyo", "peru"),
}
# What is said of a place, with what stands between two sentences.
SENTENCES = {
    "japanese": (
        "",
        "{}は多くの人が訪れる場所である。",
        "古い橋が{}の川にかかっていて、夜になると灯がともる。",
        "なぜ{}には博物館が多いのだろうか？",
        "「ここが好きだ。」と{}の人はよく言う。",
        "冬の{}はとても寒く、雪がたくさん降る！",
        "駅から{}の市場までは歩いて行ける。",
    ),
    "speech": (
        " ",
        "so {} is a place that many people go to every year",
        "and there is this old bridge in {} you know over the river",
        "i went to the market in {} and it was near the water",
        "the winter in {} is um very cold and there is a lot of snow",
        "somebody wrote a book about {} and it is a good one",
        "they built the museum in {} a long time ago i think",
    ),
}
SETTINGS = prepared_corpus.Settings(vocabulary=None, vocab_size=400, num_shards=2, limits=Limits(60, 30, 10))


def source(name: str) -> Source:
    """Six articles, of a lead and a section, each of them one paragraph of 24 sentences."""
    return source_of([article(name, number) for number in range(len(PLACES[name]))])


def source_of(articles: list[Article]) -> Source:
    return Source(lambda: articles, as_list)


def as_list(article: Article) -> list[Article]:
    return [article]


def article(name: str, number: int) -> Article:
    space, *said = SENTENCES[name]
    places = itertools.cycle(PLACES[name][number:] + PLACES[name][:number])
    text = space.join(sentence.format(next(places)) for _ in range(4) for sentence in said)
    sections = (Section("", 1, (Paragraph(text),)), Section("2", 2, (Paragraph(text),)))
    return Article(str(number), PLACES[name][number], sections)


@pytest.fixture(scope="module", params=PLACES)
def corpus(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, folder, prepared_corpus.prepare(source(request.param), folder, SETTINGS)


def test_nothing_is_cut_off_and_passages_have_pairs(corpus):
    _, _, statistics = corpus
    counts, tasks = statistics["counts"], statistics["tasks"]
    assert counts[passages.CUT_OFF] == 0 and counts[passages.LONG_SENTENCES] == 0
    assert counts[passages.DROPPED] < 0.02 * counts[passages.TOKENS]
    assert tasks["mlm"]["tokens"] == counts[passages.TOKENS] - counts[passages.DROPPED]
    assert tasks["ict"]["pairs"] > 0.8 * counts["passages"] > 30
    assert tasks["bfs"]["pairs"] == counts["passages"] // 2
    assert statistics["problems"] == []


def test_words_keep_their_letters(corpus):
    name, folder, _ = corpus
    vocabulary = vocabularies.load(folder)
    text = " ".join(PLACES[name])
    assert vocabulary.folds_accents == (name != "japanese")
    assert vocabulary.decode(vocabulary.encode(text)).replace(" ", "") == text.replace(" ", "")


def test_losses_are_counted_and_told(tmp_path):
    """By hand: of sentences of 21 and 5 tokens passages of 10 have 10 and 5; one of 2 is in none."""
    long, short = " ".join(["The", *["fox"] * 19]) + ".", "A dog ran far."
    leads = [Section("", 1, (Paragraph(f"{long} {short}"),)), Section("", 1, (Paragraph("No."),))]
    items = [Article(str(number), "Fox", (lead,)) for number, lead in enumerate(leads)]
    vocabulary = tmp_path / "vocab.txt"
    WordPiece([*SPECIAL_TOKENS, ".", "the", "fox", "a", "dog", "ran", "far", "no"]).save(vocabulary)
    settings = prepared_corpus.Settings(vocabulary, vocab_size=0, num_shards=1, limits=Limits(10, 5, 4))
    statistics = prepared_corpus.prepare(source_of(items), tmp_path / "corpus", settings)
    counts = statistics["counts"]
    assert counts[passages.SENTENCES] == 3 and counts[passages.LONG_SENTENCES] == 1
    assert (counts[passages.TOKENS], counts[passages.CUT_OFF], counts[passages.DROPPED]) == (21 + 5 + 2, 11, 2)
    assert counts["passages"] == counts[f"{shard_steps.WITHOUT_PAIR} of ICT: one sentence alone"] == 2
    assert counts[f"{shard_steps.WITHOUT_PAIR} of BFS: part of the lead itself"] == 2
    assert counts[f"{shard_steps.WITHOUT_PAIR} of WLP: no link"] == 2
    cut, alone = statistics["problems"]
    assert cut.startswith("39.3% of the tokens are cut off: 1 of 3 sentences are longer than a passage")
    assert alone.startswith("2 of 2 passages are one sentence alone")
