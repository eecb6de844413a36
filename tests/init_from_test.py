"""A run that starts from BERT's weights: which parameters get them, and what is refused before it begins."""

import re
import shutil

import jax
import numpy as np
import pytest
from conftest import REPOSITORY
from flax import nnx
from safetensors.numpy import load_file, save_file

from configs import ict, mlm, seed_encoder
from retrieval.common.errors import UserError
from retrieval.common.files import write_json
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.mlm import MaskedLanguageModel
from retrieval.models.text import Text
from retrieval.models.two_tower import TwoTower
from retrieval.recipes.recipe import build_model
from retrieval.recipes.towers import build_towers
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import initial_parameters, trained_run

pytestmark = pytest.mark.usefixtures("one_device")
GOLDEN = REPOSITORY / "tests" / "golden"
WORDS = [*SPECIAL_TOKENS, *(f"w{number}" for number in range(45))]
SIZES = dict(num_layers=2, hidden_size=16, num_heads=4, mlp_size=24, embed_dim=6, tied=False)


@pytest.fixture
def bert(tmp_path):
    """A folder with a vocabulary, as transformers would save it."""
    folder = shutil.copytree(GOLDEN / "bert", tmp_path / "bert")
    WordPiece(WORDS).save(folder / "vocab.txt")
    return folder


def make_run(folder, init_from, source=ict, **changes):
    config = source.get_config("local")
    config.model.update(SIZES)
    config.data.update(query_length=10, document_length=20)
    config.train.init_from, config.vocab = str(init_from), str(init_from)
    config.update_from_flattened_dict(changes)
    return Run(config, folder / "run", REPOSITORY / "requirements.lock")


def started(run, vocab_size=50):
    """The model that the run trains, before the first step."""
    initial_parameters.start_of(run.config).check(run)
    model = build_model(run.config, vocab_size)
    initial_parameters.start_of(run.config).init(model, run.config, vocab_size)
    return model


def parameters(module):
    return nnx.to_pure_dict(nnx.state(module, nnx.Param))


def expected(folder, module):
    return EncoderFolder.open(folder).encoder(parameters(module))


def same(a, b):
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, a, b)))


def test_one_folder_starts_both_towers(tmp_path, bert):
    run = make_run(tmp_path, bert)
    model = started(run)
    untrained = build_towers(run.config, 50)
    for tower in (model.query_tower, model.document_tower):
        assert same(parameters(tower.encoder), expected(bert, tower.encoder))
    assert same(parameters(model.query_tower.projection), parameters(untrained.query_tower.projection))


def test_one_towers_weights_leave_the_other_random(tmp_path, bert):
    run = make_run(tmp_path, f",{bert}", vocab=str(bert))
    model, untrained = started(run), build_towers(run.config, 50)
    assert same(parameters(model.document_tower.encoder), expected(bert, model.document_tower.encoder))
    assert same(parameters(model.query_tower.encoder), parameters(untrained.query_tower.encoder))


@pytest.mark.parametrize("source", [mlm, seed_encoder])
def test_a_masked_language_model_gets_the_head_too(tmp_path, bert, source):
    """A decoder, which BERT has not, starts at random."""
    run = make_run(tmp_path, bert, source=source)
    model, apart = started(run), ("encoder", "decoder")
    assert isinstance(model, MaskedLanguageModel)
    head = {name: value for name, value in parameters(model).items() if name not in apart}
    assert same(head, EncoderFolder.open(bert).mlm_head(head))
    assert same(parameters(model.encoder), expected(bert, model.encoder))


def test_roberta_with_tokens_of_its_own(tmp_path):
    """The rows of the embeddings are in the order of the folder, in which padding is not the first token."""
    folder = shutil.copytree(GOLDEN / "roberta", tmp_path / "roberta")
    special = ["<s>", "<pad>", "</s>", "<unk>", *map(chr, range(65, 110)), "<mask>"]
    ends = {"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]}
    pairs = {"type": "BPE", "unk_token": "<unk>", "vocab": {token: i for i, token in enumerate(special)}, "merges": []}
    splitter = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    config = {"version": "1.0", "model": pairs, "pre_tokenizer": splitter, "post_processor": ends}
    write_json(folder / "tokenizer.json", config)
    sizes = {"model.family": "roberta", "model.type_vocab_size": 1, "model.layer_norm_epsilon": 1e-5}
    run = make_run(tmp_path, folder, **sizes)
    table = np.asarray(started(run).query_tower.encoder.token_embedding.embedding[...])
    theirs = EncoderFolder.open(folder)._tensors["embeddings.word_embeddings.weight"]
    np.testing.assert_array_equal(table, theirs)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model.hidden_size": 32, "model.mlp_size": 12}, "--config.model.hidden_size=16 --config.model.mlp_size=24"),
        ({"vocab": "{other}"}, "trained with another vocabulary than {other}: set --config.vocab={bert}, in a"),
        ({"train.init_from": "{bert},{bert}", "model.tied": True}, "name one, or set config.model.tied=False"),
    ],
)
def test_what_does_not_fit_is_said_before_the_run(tmp_path, bert, changes, says):
    WordPiece([*WORDS[:-1], "other"]).save(tmp_path / "other.txt")
    paths = {"{bert}": str(bert), "{other}": str(tmp_path / "other.txt")}

    def fill(value):
        return re.sub(r"{\w+}", lambda match: paths[match[0]], value) if isinstance(value, str) else value

    run = make_run(tmp_path, bert, **{field: fill(value) for field, value in changes.items()})
    with pytest.raises(UserError, match=re.escape(fill(says))):
        initial_parameters.start_of(run.config).check(run)


def test_an_untied_output_layer_is_refused(tmp_path, bert):
    tensors = load_file(bert / "model.safetensors")
    table = tensors["bert.embeddings.word_embeddings.weight"]
    save_file({**tensors, "cls.predictions.decoder.weight": table}, bert / "model.safetensors")
    started(make_run(tmp_path, bert, source=mlm))
    save_file({**tensors, "cls.predictions.decoder.weight": table + 1}, bert / "model.safetensors")
    with pytest.raises(UserError, match="an output layer of its own"):
        started(make_run(tmp_path, bert, source=mlm))


KINDS = {"towers": {"data.rates.ict": 1.0}, "mlm": {"recipe": "mlm", "data.rates.ict": 0.0, "data.rates.mlm": 1.0}}
KINDS |= {"autoencoder": {"recipe": "autoencoder", "data.rates.ict": 0.0, "data.rates.mlm": 1.0}}
KINDS |= {"deepct": {"recipe": "deepct"}, "late": {"recipe": "late_interaction", "train.loss": "maxsim_softmax"}}
KINDS |= {"reader": {"recipe": "reader", "train.loss": "span_likelihood"}}
KINDS |= {"reranker": {"recipe": "reranker", "train.loss": "binary_cross_entropy", "data.negatives": 1}}
KINDS |= {"seq2seq": {"recipe": "seq2seq", "model.writer.pre_norm": False}}


def encoders(model):
    return [model.query_tower.encoder, model.document_tower.encoder] if isinstance(model, TwoTower) else [model.encoder]


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        ("towers", "towers"),
        ("autoencoder", "autoencoder"),
        ("towers", "mlm"),
        *(pytest.param(start, "towers", marks=pytest.mark.long) for start in ("deepct", "late", "reader", "reranker")),
        ("seq2seq", "towers"),
        ("mlm", "late"),
    ],
)
def test_a_model_of_shorter_texts_takes_the_first_positions(tmp_path, monkeypatch, start, kind):
    """And gives of such texts what the model gives that it starts from, whatever either is trained for."""
    longer = make_run(tmp_path, "start", **KINDS[start], **{"data.document_length": 32, "seed": 1}).config
    run = make_run(tmp_path, "start", **KINDS[kind], **{"data.document_length": 16})
    trained = build_model(longer, 50)
    monkeypatch.setattr(trained_run, "load_parameters", lambda *_: (longer, nnx.clone(trained)))
    write_json(tmp_path / "start" / "config.json", {})
    monkeypatch.chdir(tmp_path)
    trained_run.check_sizes(run.config, longer)
    model = build_model(run.config, 50)
    initial_parameters.start_of(run.config).init(model, run.config, 50)
    ids = jax.numpy.asarray([[2, *range(5, 18), 3, -1], [2, *range(9, 23), 3]])
    text = Text.from_ids(ids, jax.numpy.zeros((2, 16), int))
    given = encoders(trained) if start == kind else 2 * encoders(trained)[-1:]  # of two towers, the documents'
    for ours, theirs in zip(encoders(model), given):
        assert ours.position_embedding.embedding.shape == (16, 16)
        np.testing.assert_array_equal(ours(text, dropout_key=None), theirs(text, dropout_key=None))
    if start == kind == "autoencoder":
        ours, theirs = (each.decoder.position_embedding.embedding[...] for each in (model, trained))
        np.testing.assert_array_equal(ours, theirs[:16])
