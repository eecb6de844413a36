"""A run that starts from BERT's weights: which parameters get them, and what is refused before it begins."""

import itertools
import json
import re
import shutil

import jax
import numpy as np
import pytest
from conftest import REPOSITORY
from flax import nnx
from safetensors.numpy import load_file, save_file
from support.bert_folders import with_modules

from configs import ict, mlm, question_generation, seed_encoder
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.errors import UserError
from retrieval.files import fingerprint, write_json
from retrieval.models import two_tower
from retrieval.models.hugging_face import BertFolder
from retrieval.models.mlm import MaskedLanguageModel
from retrieval.models.text import Text
from retrieval.models.two_tower import TwoTower
from retrieval.pipeline import records
from retrieval.recipes import bert_weights, initial_parameters
from retrieval.recipes.recipe import build_model
from retrieval.recipes.towers import build_towers
from retrieval.stage_outputs import Run

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
    initial_parameters.check_start(run)
    model = build_model(run.config, vocab_size)
    initial_parameters.init_from(model, run.config, vocab_size)
    return model


def parameters(module):
    return nnx.to_pure_dict(nnx.state(module, nnx.Param))


def expected(folder, module):
    return BertFolder.open(folder).encoder(parameters(module))


def same(a, b):
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, a, b)))


@pytest.mark.parametrize("tied", [False, True])
def test_one_folder_starts_both_towers(tmp_path, bert, tied):
    run = make_run(tmp_path, bert, **{"model.tied": tied})
    model = started(run)
    towers = [model.query_tower] if tied else [model.query_tower, model.document_tower]
    untrained = build_towers(run.config, 50)
    for tower in towers:
        assert same(parameters(tower.encoder), expected(bert, tower.encoder))
    assert same(parameters(model.query_tower.projection), parameters(untrained.query_tower.projection))


@pytest.mark.parametrize("side", [0, 1])
def test_one_towers_weights_leave_the_other_random(tmp_path, bert, side):
    run = make_run(tmp_path, f"{bert}," if side == 0 else f",{bert}", vocab=str(bert))
    model, untrained = started(run), build_towers(run.config, 50)
    names = ["query_tower", "document_tower"]
    got, left = (getattr(model, names[i]).encoder for i in (side, 1 - side))
    assert same(parameters(got), expected(bert, got))
    assert same(parameters(left), parameters(getattr(untrained, names[1 - side]).encoder))
    assert not same(parameters(left), parameters(got))


@pytest.mark.parametrize("source", [mlm, seed_encoder])
def test_a_masked_language_model_gets_the_head_too(tmp_path, bert, source):
    """A decoder, which BERT has not, starts at random."""
    run = make_run(tmp_path, bert, source=source)
    model, apart = started(run), ("encoder", "decoder")
    assert isinstance(model, MaskedLanguageModel)
    head = {name: value for name, value in parameters(model).items() if name not in apart}
    assert same(head, BertFolder.open(bert).mlm_head(head))
    assert same(parameters(model.encoder), expected(bert, model.encoder))


def test_a_model_that_writes_gets_the_encoder(tmp_path, bert):
    changes = {"recipe": "seq2seq", "model.writer.layers": 1, "data.rates.ict": 0.0, "data.rates.doc2query": 1.0}
    with pytest.raises(UserError, match=r"stand after its sublayers: set config\.model\.writer\.pre_norm=False"):
        started(make_run(tmp_path, bert, **changes))
    model = started(make_run(tmp_path, bert, **changes, **{"model.writer.pre_norm": False}))
    assert same(parameters(model.encoder), expected(bert, model.encoder))


def test_without_a_projection_the_embedding_is_the_hidden_state(tmp_path, bert):
    run = make_run(tmp_path, bert, **{"model.embed_dim": 0, "model.normalize": False})
    model = started(run)
    assert not hasattr(model.query_tower, "projection")
    ids = np.array([[2, 7, 9, 3, 0]], np.int32)
    text = two_tower.Text.from_ids(jax.numpy.asarray(ids), jax.numpy.zeros_like(ids))
    hidden = model.query_tower.encoder(text, dropout_key=None)
    np.testing.assert_allclose(model.encode_queries(text, None), np.asarray(hidden)[:, :4].mean(axis=1), atol=1e-6)


def test_roberta_and_xlm_r_with_tokens_of_their_own(tmp_path):
    """The rows of the embeddings follow the tokens of padding and of the beginning, which change places."""
    folder = shutil.copytree(GOLDEN / "roberta", tmp_path / "roberta")
    special = ["<s>", "<pad>", "</s>", "<unk>", *map(chr, range(65, 110)), "<mask>"]
    ends = {"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]}
    pairs = {"type": "BPE", "unk_token": "<unk>", "vocab": {token: i for i, token in enumerate(special)}, "merges": []}
    splitter = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    config = {"version": "1.0", "model": pairs, "pre_tokenizer": splitter, "post_processor": ends}
    write_json(folder / "tokenizer.json", config)
    _rows_follow_their_tokens(tmp_path / "byte pairs", folder)
    pieces = [[token, -1.0] for token in special]
    model = {"type": "Unigram", "unk_id": 3, "vocab": pieces, "byte_fallback": False}
    splitter = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    write_json(folder / "tokenizer.json", config | {"model": model, "pre_tokenizer": splitter})
    write_json(folder / "config.json", json.loads((folder / "config.json").read_text()) | {"model_type": "xlm-roberta"})
    _rows_follow_their_tokens(tmp_path / "pieces", folder)


def _rows_follow_their_tokens(place, folder):
    run = make_run(place, folder, **{"model.type_vocab_size": 1, "model.layer_norm_epsilon": 1e-5})
    table = np.asarray(started(run).query_tower.encoder.token_embedding.embedding[...])
    theirs = BertFolder.open(folder)._tensors["embeddings.word_embeddings.weight"]
    np.testing.assert_array_equal(table, theirs[[1, 0, *range(2, 50)]])


def test_a_change_of_any_file_is_noticed(tmp_path, bert):
    names = {path.name for path in initial_parameters.train_inputs(make_run(tmp_path, bert))}
    assert names == {"config.json", "model.safetensors", "vocab.txt"}


REMEDY = "set --config.vocab={bert}, in a --workdir of its own"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model.hidden_size": 32, "model.mlp_size": 12}, "--config.model.hidden_size=16 --config.model.mlp_size=24"),
        ({"model.encoder": "bow_mlp"}, "config.model.encoder is 'bow_mlp': set config.model.encoder=transformer"),
        ({"vocab": "{other}"}, "trained with another vocabulary than {other}: " + REMEDY),
        ({"train.init_from": "{bert},{bert},{bert}"}, "one folder is needed, or QUERY,DOCUMENT"),
        ({"train.init_from": "{bert},{bert}", "model.tied": True}, "name one, or set config.model.tied=False"),
        (
            {"train.init_from": "{bert},", "recipe": "mlm", "data.rates.mlm": 1.0},
            "a masked language model is one encoder",
        ),
    ],
)
def test_what_does_not_fit_is_said_before_the_run(tmp_path, bert, changes, says):
    WordPiece([*WORDS[:-1], "other"]).save(tmp_path / "other.txt")
    paths = {"{bert}": str(bert), "{other}": str(tmp_path / "other.txt")}

    def fill(value):
        return re.sub(r"{\w+}", lambda match: paths[match[0]], value) if isinstance(value, str) else value

    run = make_run(tmp_path, bert, **{field: fill(value) for field, value in changes.items()})
    with pytest.raises(UserError, match=re.escape(fill(says))):
        initial_parameters.check_start(run)


PLAIN = {"model.embed_dim": 0, "model.pooling": "mean", "model.normalize": False}


@pytest.mark.parametrize(
    ("modules", "changes", "flags"),
    [
        ({}, {"model.pooling": "cls"}, "--config.model.pooling=mean"),
        ({"layers": ["Normalize"]}, {}, "--config.model.normalize=True"),
        ({"layers": ["Dense"]}, {}, "--config.model.embed_dim=6"),
        ({"layers": ["Dense", "Dropout"]}, {"model.embed_dim": 8}, "--config.model.embed_dim=6"),
        (
            {"layers": ["Normalize", "Normalize"]},
            {"model.hidden_size": 32},
            "--config.model.hidden_size=16 --config.model.normalize=True --config.model.head=\"('normalize',)\"",
        ),
        ({"prompts": {"query": "w1 "}}, {}, "--config.data.query_prefix='w1 '"),
        ({"prompts": {"passage": "w1 w2 "}}, {}, "--config.data.document_prefix='w1 w2 '"),
    ],
)
def test_what_modules_do_and_the_config_lacks_is_said_with_its_flags(tmp_path, bert, modules, changes, flags):
    with_modules(bert, **modules)
    run = make_run(tmp_path, bert, **PLAIN | changes)
    message = rf"set\n  {re.escape(flags)}\nor name a copy without modules\.json, for its encoder alone"
    with pytest.raises(UserError, match=message):
        initial_parameters.check_start(run)
    (bert / "modules.json").unlink()
    run.config.model.hidden_size, run.config.train.init_from = 16, str(bert)
    initial_parameters.check_start(run)


def test_the_layers_behind_the_pooling_come_along(tmp_path, bert):
    run = make_run(tmp_path, with_modules(bert, ["Dense"]), **PLAIN | {"model.embed_dim": 6})
    model, kernel = started(run), np.arange(96).reshape(6, 16).T
    for tower in (model.query_tower, model.document_tower):
        np.testing.assert_array_equal(tower.projection.kernel[...], kernel)
    names = {path.relative_to(bert).as_posix() for path in initial_parameters.train_inputs(run)}
    assert {"modules.json", "2_Dense/config.json", "2_Dense/model.safetensors", "1_Pooling/config.json"} < names
    model = started(make_run(tmp_path / "mlm", bert, source=mlm))  # which has no place for them
    assert same(parameters(model.encoder), expected(bert, model.encoder))


def test_layers_of_a_config_are_random_where_the_folder_has_none(tmp_path, bert):
    model = started(make_run(tmp_path, with_modules(bert), **PLAIN | {"model.head": ("dense:4:tanh", "normalize")}))
    assert model.query_tower.projection.kernel.shape == (16, 4)


def test_a_remade_vocabulary_under_a_model_is_noticed(tmp_path, bert):
    """With as many tokens, so that no size tells; also where the model is the run's own."""
    run = make_run(tmp_path, bert)
    WordPiece(WORDS).save(run.corpus / "vocab.txt")
    write_json(run.folder / "config.json", json.loads(run.config.to_json()))
    told = {"vocabulary": fingerprint(WordPiece(WORDS).tokens)}
    records.write_record(run, "train", {"done": True, "inputs": {}, "details": told})
    initial_parameters.check_vocabulary(run, run.folder, "config.base")
    *words, one, other = WORDS
    WordPiece([*words, other, one]).save(run.corpus / "vocab.txt")
    with pytest.raises(
        UserError, match=r"config\.base=.*vocab\.txt has now, which was made anew since: train it again"
    ):
        initial_parameters.check_vocabulary(run, run.folder, "config.base")


def test_the_record_knows_the_vocabulary_of_a_lost_base(tmp_path, bert):
    """Moved, deleted, or named from another folder."""
    run, start = make_run(tmp_path, bert), make_run(tmp_path / "start", bert, base=str(tmp_path / "gone"))
    write_json(start.folder / "config.json", json.loads(start.config.to_json()))
    start.config.base = ""  # while its record is written

    def check(words):
        told = {"vocabulary": fingerprint(WordPiece(words).tokens)}
        records.write_record(start, "train", {"done": True, "inputs": {}, "details": told})
        initial_parameters.check_vocabulary(run, start.folder, "config.train.init_from")

    check(WORDS)
    with pytest.raises(UserError, match=r"init_from=.*: trained with another vocabulary than .* has now"):
        check([*WORDS[:-2], WORDS[-1], WORDS[-2]])


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("hidden_act", "gelu_new", "hidden_act is 'gelu_new'; only 'gelu'"),
        ("position_embedding_type", "relative_key", "position_embedding_type is 'relative_key'"),
        ("model_type", "electra", "model_type is 'electra'; one of bert, roberta, xlm-roberta, distilbert"),
        ("hidden_size", "16", "hidden_size is '16'"),
        ("vocab_size", 51, "vocab_size is 51, and in model.safetensors embeddings.word_embeddings.weight is"),
    ],
)
def test_a_field_that_our_model_cannot_express_is_named(tmp_path, bert, field, value, says):
    config = json.loads((bert / "config.json").read_text())
    (bert / "config.json").write_text(json.dumps(config | {field: value}))
    with pytest.raises(UserError, match=re.escape(says)):
        initial_parameters.check_start(make_run(tmp_path, bert))


def test_a_cased_model_keeps_its_case(tmp_path, bert):
    (bert / "tokenizer_config.json").write_text('{"do_lower_case": false, "strip_accents": null}')
    run = make_run(tmp_path, bert)
    initial_parameters.check_start(run)
    vocabulary = run.load_vocabulary()
    assert not vocabulary.lower_case and vocabulary.encode("w1 W1") == [6, vocabulary.unk_id]
    (tmp_path / "uncased").mkdir()
    WordPiece(WORDS).save(tmp_path / "uncased" / "vocab.txt")
    run.config.vocab = str(tmp_path / "uncased")
    with pytest.raises(UserError, match=r"trained with another vocabulary than .*vocab\.txt"):
        initial_parameters.check_start(run)


def test_tensors_are_checked_before_the_run(tmp_path, bert):
    run = make_run(tmp_path, bert)
    bert_weights.check_tensors(run.config)
    bert_weights.check_tensors(make_run(tmp_path, bert, source=mlm).config)
    tensors = load_file(bert / "model.safetensors")
    del tensors["bert.encoder.layer.1.output.dense.bias"]
    save_file(tensors, bert / "model.safetensors")
    with pytest.raises(UserError, match=r"encoder\.layer\.1\.output\.dense\.bias is missing"):
        bert_weights.check_tensors(run.config)


def test_an_untied_output_layer_is_refused(tmp_path, bert):
    tensors = load_file(bert / "model.safetensors")
    table = tensors["bert.embeddings.word_embeddings.weight"]
    save_file({**tensors, "cls.predictions.decoder.weight": table}, bert / "model.safetensors")
    started(make_run(tmp_path, bert, source=mlm))
    save_file({**tensors, "cls.predictions.decoder.weight": table + 1}, bert / "model.safetensors")
    with pytest.raises(UserError, match="an output layer of its own"):
        started(make_run(tmp_path, bert, source=mlm))


KINDS = {
    "towers": {"data.rates.ict": 1.0},
    "mlm": {"recipe": "mlm", "data.rates.ict": 0.0, "data.rates.mlm": 1.0},
    "autoencoder": {"recipe": "autoencoder", "data.rates.ict": 0.0, "data.rates.mlm": 1.0},
    "deepct": {"recipe": "deepct"},
    "reader": {"recipe": "reader", "train.loss": "span_likelihood"},
    "reranker": {"recipe": "reranker", "train.loss": "binary_cross_entropy", "data.negatives": 1},
    "seq2seq": {"recipe": "seq2seq", "model.writer.pre_norm": False},
}


def of_length(kind, length, folder):
    return make_run(folder, "start", **KINDS[kind] | {"data.document_length": length})


def encoders(model):
    return [model.query_tower.encoder, model.document_tower.encoder] if isinstance(model, TwoTower) else [model.encoder]


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        ("towers", "towers"),
        ("mlm", "towers"),
        ("autoencoder", "autoencoder"),
        ("towers", "autoencoder"),
        ("towers", "mlm"),
        *itertools.product(("deepct", "reader", "reranker", "seq2seq"), ("towers", "mlm")),
    ],
)
def test_a_model_of_shorter_texts_takes_the_first_positions(tmp_path, monkeypatch, start, kind):
    """And gives of such texts what the model gives that it starts from, whatever either is trained for."""
    longer, run = of_length(start, 32, tmp_path).config, of_length(kind, 16, tmp_path)
    longer.seed = 1
    trained = build_model(longer, 50)
    monkeypatch.setattr(initial_parameters, "load_parameters", lambda *_: (longer, nnx.clone(trained)))
    write_json(tmp_path / "start" / "config.json", {})
    monkeypatch.chdir(tmp_path)
    initial_parameters.check_sizes(run.config, longer)
    model = build_model(run.config, 50)
    initial_parameters.init_from(model, run.config, 50)
    text = Text.from_ids(
        jax.numpy.asarray([[2, *range(5, 18), 3, 0], [2, *range(9, 23), 3]]), jax.numpy.zeros((2, 16), int)
    )
    given = encoders(trained) if start == kind else 2 * encoders(trained)[-1:]  # of two towers, the documents'
    for ours, theirs in zip(encoders(model), given):
        assert ours.position_embedding.embedding.shape == (16, 16)
        np.testing.assert_array_equal(ours(text, dropout_key=None), theirs(text, dropout_key=None))
    if start == kind == "autoencoder":
        ours, theirs = (each.decoder.position_embedding.embedding[...] for each in (model, trained))
        np.testing.assert_array_equal(ours, theirs[:16])


@pytest.mark.parametrize("kind", ["towers", "mlm", "deepct"])
def test_an_encoder_with_norms_before_its_sublayers_starts_no_other_model(tmp_path, kind):
    writer = of_length("seq2seq", 16, tmp_path).config
    writer.model.writer.pre_norm = True
    with pytest.raises(UserError, match=r"norms stand before its sublayers, .*writer\.pre_norm=False"):
        initial_parameters.check_sizes(of_length(kind, 16, tmp_path).config, writer)


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [(question_generation, "data.query_length", 24), (seed_encoder, "model.decoder.layers", 5)],
)
def test_other_sizes_of_a_head_are_said_before_the_run(config, field, value):
    start, ours = config.get_config("local"), config.get_config("local")
    initial_parameters.check_sizes(ours, start)
    with ours.unlocked():
        ours.update_from_flattened_dict({field: value})
    with pytest.raises(UserError, match=r"a model of other sizes .*" + field.removesuffix(".layers")):
        initial_parameters.check_sizes(ours, start)
