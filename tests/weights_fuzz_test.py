"""Damaged folders of BERT's weights: they are read, or an error names the folder; no other exception comes out."""

import json
import random
import shutil

import pytest
from conftest import REPOSITORY
from flax import nnx
from support.bert_folders import with_modules
from support.mutated import as_json, changed, damaged

from retrieval.data.tokenizers import vocabularies
from retrieval.errors import UserError
from retrieval.models import module_folder
from retrieval.models.hugging_face import BertFolder
from retrieval.models.transformer import Transformer, TransformerConfig
from retrieval.recipes import module_fields

GOLDEN = REPOSITORY / "tests" / "golden"
CONFIG = json.loads((GOLDEN / "bert" / "config.json").read_text())
TOKENIZER = json.loads((GOLDEN / "byte_pairs" / "tokenizer.json").read_text())


@pytest.fixture(params=[300, pytest.param(20_000, marks=pytest.mark.long)])
def rounds(request):
    """How many mutations, and their seed."""
    return request.param


@pytest.fixture(scope="module")
def like():
    """The shapes of the encoder in the folder."""
    sizes = BertFolder.open(GOLDEN / "bert").sizes
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

    fuzz(rounds, folder / "config.json", mutated, lambda: BertFolder.open(folder))


def test_weights(rounds, tmp_path, like):
    folder = shutil.copytree(GOLDEN / "bert_sharded", tmp_path / "bert")
    path = BertFolder.open(folder).files[1]
    content = path.read_bytes()
    fuzz(rounds, path, lambda rng: damaged(rng, content), lambda: BertFolder.open(folder).encoder(like))


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


UNIGRAM = {
    "added_tokens": [],
    "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    "post_processor": {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True}
    | {"add_prefix_space": True},
    "model": {"type": "Unigram", "unk_id": 3}
    | {"vocab": [[piece, -1.0] for piece in ("<s>", "<pad>", "</s>", "<unk>", "▁", "a", "the", "▁the")]},
}


@pytest.mark.parametrize("value", [TOKENIZER, UNIGRAM], ids=["byte pairs", "unigram"])
def test_tokenisers(rounds, tmp_path, value):
    path = tmp_path / "tokenizer.json"

    def mutated(rng):
        return as_json(changed(rng, value)) if rng.random() < 0.5 else damaged(rng, as_json(value))

    def read():
        vocabulary = vocabularies.load(tmp_path)
        assert 0 <= max(vocabulary.encode("a the </s> [SEP] x-y é\x00 xyz")) < len(vocabulary)
        assert vocabulary.fingerprint and vocabulary.to_json(types=2)

    fuzz(rounds, path, mutated, read)
