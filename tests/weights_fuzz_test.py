"""Damaged folders of BERT's weights: they are read, or an error names the folder; no other exception comes out."""

import json
import random
import shutil

import pytest
from conftest import REPOSITORY
from flax import nnx
from support.bert_folders import with_modules
from support.mutated import as_json, changed, damaged

from retrieval.common.errors import UserError
from retrieval.data.tokenizers import vocabularies
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.models import module_folder
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.transformer import Transformer
from retrieval.models.transformer_config import TransformerConfig
from retrieval.runs.weights import module_fields

GOLDEN = REPOSITORY / "tests" / "golden"
CONFIG = json.loads((GOLDEN / "bert" / "config.json").read_text())
TOKENIZER = json.loads((GOLDEN / "byte_pairs" / "tokenizer.json").read_text())
MUTATIONS = [300, pytest.param(20_000, marks=pytest.mark.long)]  # how many, and their seed
rounds = pytest.fixture(params=MUTATIONS)(lambda request: request.param)


@pytest.fixture(scope="module")
def like():
    """The shapes of the encoder in the folder."""
    sizes = EncoderFolder.open(GOLDEN / "bert").sizes
    encoder = nnx.eval_shape(lambda: Transformer(TransformerConfig(**sizes), rngs=nnx.Rngs(0)))
    return nnx.to_pure_dict(nnx.state(encoder, nnx.Param))


def fuzz(rounds, path, mutated, read):
    rng, refused = random.Random(rounds), 0
    for _ in range(rounds):
        path.write_bytes(mutated(rng))
        try:
            read()
        except UserError as error:
            assert path.name in str(error) or str(path.parent) in str(error), error
            refused += 1
    assert 0 < refused <= rounds


def test_configs(rounds, tmp_path):
    folder = shutil.copytree(GOLDEN / "bert", tmp_path / "bert")

    def mutated(rng):
        return as_json(changed(rng, CONFIG)) if rng.random() < 0.5 else damaged(rng, as_json(CONFIG))

    fuzz(rounds, folder / "config.json", mutated, lambda: EncoderFolder.open(folder))


@pytest.mark.parametrize("name", ["bert", "bert_sharded"])
def test_weights(rounds, tmp_path, like, name):
    folder = shutil.copytree(GOLDEN / name, tmp_path / name)
    path = EncoderFolder.open(folder).files[1]
    content = path.read_bytes()
    fuzz(rounds, path, lambda rng: damaged(rng, content), lambda: EncoderFolder.open(folder).encoder(like))


@pytest.mark.parametrize("name", ["modules.json", "1_Pooling/config.json"])
def test_modules(rounds, tmp_path, name):
    folder = with_modules(shutil.copytree(GOLDEN / "bert", tmp_path / "bert"), ["Dense", "Normalize"], {"query": "a "})
    path = folder / name
    content = json.loads(path.read_text())

    def mutated(rng):
        return as_json(changed(rng, content)) if rng.random() < 0.5 else damaged(rng, as_json(content))

    def read():
        query, _ = module_fields.open_towers(folder)
        settings = module_folder.settings(folder)
        module_fields.prompts(folder, settings)
        module_fields.fields_of(query, settings)

    fuzz(rounds, path, mutated, read)


def word_pieces():
    tokens = [*SPECIAL_TOKENS, *"abcdexyz", "the", "##e"]
    config = json.loads(WordPiece(tokens, tokens_in_text=True).to_json(types=2))
    flags = {"single_word": False, "lstrip": True, "rstrip": False, "normalized": True, "special": False}
    config["added_tokens"].append({"id": len(tokens), "content": "x-y", **flags})
    return config


SETTINGS = {
    "tokenizer_class": "BertTokenizer",
    **{"do_lower_case": True, "strip_accents": None, "pad_token": "[PAD]", "cls_token": {"content": "[CLS]"}},
    **{"additional_special_tokens": ["[Q]"], "added_tokens_decoder": {"15": {"content": "z"}}},
}


@pytest.mark.parametrize("name", ["byte pairs", "settings"])
def test_tokenisers(rounds, tmp_path, name):
    path, value = tmp_path / "tokenizer.json", {"byte pairs": TOKENIZER}.get(name, word_pieces())
    if name == "settings":
        path.write_bytes(as_json(value))
        path, value = tmp_path / "tokenizer_config.json", SETTINGS

    def mutated(rng):
        return as_json(changed(rng, value)) if rng.random() < 0.5 else damaged(rng, as_json(value))

    def read():
        vocabulary = vocabularies.load(tmp_path)
        assert 0 <= max(vocabulary.encode("a the </s> [SEP] x-y é\x00 xyz")) < len(vocabulary)
        assert vocabulary.fingerprint and vocabulary.to_json(types=2)

    fuzz(rounds, path, mutated, read)
