"""SentencePiece's unigram vocabularies, as XLM-R has them: the ids of the sentencepiece library."""

import io
import json
import random

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from retrieval.data.tokenizers import vocabularies
from retrieval.data.tokenizers.prefixes import Prefixes
from retrieval.data.tokenizers.published import PublishedTokenizer
from retrieval.data.tokenizers.tokenizer_json import ROBERTA

TEXTS = [
    *("The owl sees at night.", "An owl sleeps by day.", "Die Eule sieht nachts im Wald.", "Eulen schlafen am Tag."),
    *(
        "Сова видит ночью.",
        "Совы спят днём.",
        "猫头鹰在夜里看见。",
        "猫头鹰白天睡觉。",
        "\ufb01ne \u00bd",
        "a < b > c / d: mask, pad, s",
    ),
]


@pytest.fixture(scope="module")
def pieces():
    """A model that the library has trained on texts of four scripts."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 20), model_writer=written, vocab_size=200, hard_vocab_limit=False, minloglevel=2
    )
    return sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())


@pytest.fixture(scope="module")
def folder(pieces, tmp_path_factory):
    """The same as a published `tokenizer.json`, with the ids of XLM-R's special tokens."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(pieces.serialized_model_proto())
    vocab = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    vocab += [(piece.piece, piece.score) for piece in proto.pieces[3:]] + [("<mask>", 0.0)]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=3))
    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    charsmap = normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)
    tokenizer.normalizer = normalizers.Sequence([charsmap, normalizers.Strip(), spaces])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always", split=True)
    tokenizer.add_special_tokens(list(ROBERTA))
    folder = tmp_path_factory.mktemp("published")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def texts():
    drawn = random.Random(0)
    words = [*sorted({word for text in TEXTS for word in text.split()}), "ｗｉｄｅ", "x", "½", "ночь"]
    return [*TEXTS, *(" ".join(drawn.choices(words, k=6)) for _ in range(50)), "  two   spaces ", ""]


def test_pieces_are_those_of_the_library(pieces, folder):
    vocabulary = vocabularies.load(folder)
    assert isinstance(vocabulary, PublishedTokenizer) and vocabulary.pad_id == 1
    for text, ids in zip(texts(), vocabulary.encode_batch(texts())):
        theirs = [pieces.id_to_piece(id) for id in pieces.encode(text)]
        assert [vocabulary.tokens[id] for id in ids] == theirs
    assert vocabulary.decode(vocabulary.encode(TEXTS[2])) == TEXTS[2]
    published = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert [piece for piece, _ in published] == vocabulary.tokens


def test_a_prefix_and_a_text_are_one_text(folder):
    vocabulary = vocabularies.load(folder)
    prefixes = Prefixes.of({"query_prefix": "The owl: ", "document_prefix": "猫头鹰 "}, vocabulary)
    queries = prefixes.encode_queries(vocabulary, texts())
    documents = prefixes.encode_documents(vocabulary, [""] * len(queries), texts())
    for text, query, (title, document) in zip(texts(), queries, documents, strict=True):
        whole = vocabulary.single(vocabulary.encode(f"The owl: {text}"), 99)
        assert prefixes.query_row(vocabulary, query, 99) == whole
        whole = vocabulary.single(vocabulary.encode(f"猫头鹰 {text}"), 99)
        assert prefixes.document_rows(vocabulary, title, document, 99) == [whole]


def test_what_is_saved_and_exported_gives_the_same_ids(folder, tmp_path):
    vocabulary = vocabularies.load(folder)
    vocabulary.save(tmp_path / vocabulary.FILE)
    again = vocabularies.load(tmp_path)
    assert again.fingerprint == vocabulary.fingerprint
    (tmp_path / "export").mkdir()
    vocabulary.export(tmp_path / "export", length=16, types=1)
    theirs = Tokenizer.from_file(str(tmp_path / "export" / "tokenizer.json"))
    expected = vocabulary.encode_batch(texts())
    assert [theirs.encode(text, add_special_tokens=False).ids for text in texts()] == expected
    assert again.encode_batch(texts()) == expected
