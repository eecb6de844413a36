"""SentencePiece's unigram vocabularies, as XLM-R has them: the ids of the sentencepiece library."""

import io
import json
import random

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from retrieval.data.tokenizers import vocabularies
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
