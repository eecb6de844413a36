"""BERT, RoBERTa and DistilBERT against the real libraries, live; `pretrained_golden_test` is the same without them."""

import random

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.bert_folders import load
from support.packages import package
from support.pipelines import NAMES, PIPELINES, TEXTS, ids_of

from retrieval.data.tokenizers import vocabularies
from retrieval.methods.mlm.recipe import NextSentenceModel
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.pooling import mean
from retrieval.models.text import Text
from retrieval.models.transformer_config import TransformerConfig

torch, transformers = package("torch"), package("transformers")

SIZES = dict(vocab_size=50, num_hidden_layers=2, hidden_size=32, num_attention_heads=4, intermediate_size=64)


def bert(**changes):
    return transformers.BertModel(transformers.BertConfig(**SIZES, max_position_embeddings=80, **changes))


def masked_bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, max_position_embeddings=80))


def roberta():
    config = transformers.RobertaConfig(
        **SIZES, max_position_embeddings=82, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1
    )
    return transformers.RobertaModel(config)


def distilbert():
    config = transformers.DistilBertConfig(
        vocab_size=50, n_layers=2, dim=32, n_heads=4, hidden_dim=64, max_position_embeddings=80
    )
    return transformers.DistilBertModel(config)


@pytest.mark.parametrize("length", [3, 80])
@pytest.mark.parametrize(
    "make", [lambda: bert(layer_norm_eps=1e-6, type_vocab_size=4), masked_bert, roberta, distilbert]
)
def test_hidden_states_are_those_of_transformers(tmp_path, make, length):
    torch.manual_seed(length)
    model = make().eval()
    for parameter in model.parameters():
        parameter.data += torch.randn_like(parameter) * 0.2
    model.save_pretrained(tmp_path)
    padding = 1 if "Roberta" in type(model).__name__ else 0
    real = torch.arange(length) < torch.randint(1, length + 1, (6, 1))
    ids = torch.where(real, torch.randint(2, 50, (6, length)), padding)
    types = torch.randint(0, getattr(model.config, "type_vocab_size", 1), (6, length)) * real
    given = dict(input_ids=ids, attention_mask=real.long(), output_hidden_states=True)
    with torch.no_grad():
        known = {} if "Distil" in type(model).__name__ else {"token_type_ids": types}
        wanted = model(**given, **known).hidden_states[-1].numpy()
    ours = np.where(real, ids, -1)
    text = Text.from_ids(jnp.asarray(ours, jnp.int32), jnp.asarray(types.numpy(), jnp.int32))
    hidden = nnx.jit(lambda model, text: model.encoder(text, dropout_key=None))(load(tmp_path), text)
    real = real.numpy()
    np.testing.assert_allclose(np.asarray(hidden)[real], wanted[real], rtol=0, atol=1e-5)
    pooled = (wanted * real[:, :, None]).sum(axis=1) / real.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(mean(hidden, text), pooled, rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", ["safetensors", "shards", "bin"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_every_form_and_type_of_weights_is_read(tmp_path, form, dtype):
    model = masked_bert().to(dtype)
    if form == "bin":
        model.config.save_pretrained(tmp_path)
        torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    else:
        model.save_pretrained(tmp_path, max_shard_size="30KB" if form == "shards" else "1GB")
    ours = load(tmp_path)
    wanted = model.float().bert
    np.testing.assert_array_equal(
        ours.encoder.token_embedding.embedding[...], wanted.embeddings.word_embeddings.weight.detach()
    )
    np.testing.assert_array_equal(
        ours.encoder.layers.mlp_in.kernel[1], wanted.encoder.layer[1].intermediate.dense.weight.detach().T
    )


def random_texts(count):
    """Texts of every kind of character, with words that are too long and none that is a special token."""
    draw = random.Random(0)
    kinds = [
        (0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x590), (0x590, 0x700), (0x900, 0xE80), (0x1E00, 0x2100),
        (0x3040, 0x3100), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0xFF00, 0xFFEF), (0x1F300, 0x1F650), (0x20000, 0x20100),
    ]  # fmt: skip
    for _ in range(count):
        words = []
        for _ in range(draw.randrange(1, 12)):
            kind = draw.choice(kinds)
            words.append("".join(chr(draw.randrange(*kind)) for _ in range(draw.choice([1, 2, 5, 9, 120]))))
        yield draw.choice([" ", "", "\t", "\u3000"]).join(words)


def test_word_pieces_are_those_of_bert_tokenizer(shared_data):
    path = shared_data / "vocab" / "bert-base-uncased-vocab.txt"
    vocabulary, tokenizer = vocabularies.load(path), transformers.BertTokenizer(str(path))
    texts = [*random_texts(2000), "a" * 100_000, "é" * 100_000, "word " * 20_000, "\x00\x01\ufffd\u200b\u00ad"]
    for text, ids in zip(texts, vocabulary.encode_batch(texts)):
        assert ids == tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)), ascii(text[:200])


@pytest.mark.parametrize("saved", ["BertTokenizer", "BertTokenizerFast"])
def test_a_saved_tokenizer_is_our_vocabulary(tmp_path, shared_data, saved):
    path = shared_data / "vocab" / "bert-base-uncased-vocab.txt"
    getattr(transformers, saved)(str(path)).save_pretrained(tmp_path)
    assert vocabularies.load(tmp_path).tokens == vocabularies.load(path).tokens
    if (tmp_path / "tokenizer.json").exists():
        assert vocabularies.load(tmp_path / "tokenizer.json").tokens == vocabularies.load(path).tokens


@pytest.mark.parametrize("name", PIPELINES)
def test_ids_of_a_saved_pipeline_are_those_of_transformers(tmp_path, name):
    transformers.PreTrainedTokenizerFast(tokenizer_object=PIPELINES[name], **NAMES).save_pretrained(tmp_path)
    theirs, texts = transformers.AutoTokenizer.from_pretrained(tmp_path), [*TEXTS, *random_texts(200)]
    assert ids_of(vocabularies.load(tmp_path), texts) == theirs(texts)["input_ids"]


def test_both_heads_of_pre_training_are_those_of_transformers(tmp_path):
    torch.manual_seed(0)
    model = transformers.BertForPreTraining(transformers.BertConfig(**SIZES, max_position_embeddings=80)).eval()
    for parameter in model.parameters():
        parameter.data += torch.randn_like(parameter) * 0.2
    model.save_pretrained(tmp_path)
    ids, types = torch.randint(2, 50, (4, 20)), torch.randint(0, 2, (4, 20))
    with torch.no_grad():
        wanted = model(input_ids=ids, token_type_ids=types)
    bert = EncoderFolder.open(tmp_path)
    ours = NextSentenceModel(TransformerConfig(**bert.sizes, dropout=0.0), rngs=nnx.Rngs(0))
    state = nnx.state(ours, nnx.Param)
    params = nnx.to_pure_dict(state)
    token_head = {name: params[name] for name in ("dense", "norm", "bias")}
    pair_head = {name: params[name] for name in ("pooler", "next_sentence")}
    loaded = {**(bert.mlm_head(token_head) or {}), **(bert.next_sentence_head(pair_head) or {})}
    nnx.replace_by_pure_dict(state, {"encoder": bert.encoder(params["encoder"]), **loaded})
    nnx.update(ours, state)
    text = Text.from_ids(jnp.asarray(ids.numpy(), jnp.int32), jnp.asarray(types.numpy(), jnp.int32))
    places = jnp.tile(jnp.arange(20), (4, 1))
    tokens, classes = nnx.jit(lambda model, text: model(text, places, None))(ours, text)
    np.testing.assert_allclose(tokens, wanted.prediction_logits.numpy(), rtol=0, atol=2e-5)
    np.testing.assert_allclose(classes, wanted.seq_relationship_logits.numpy(), rtol=0, atol=1e-5)
