"""Models of late interaction as folders of PyLate's and Stanford's, in and out."""

import shutil

import jax
import numpy as np
import pytest
from conftest import REPOSITORY
from safetensors.numpy import load_file, save_file
from support.command_flags import one_line
from support.tiny import complete, make_config, make_run

import retrieval
from retrieval.common.errors import UserError
from retrieval.common.files import read_json, write_json
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.methods.late_interaction.folder import LateFolder, write
from retrieval.methods.late_interaction.maxsim_search import InMemory, of_candidates
from retrieval.methods.late_interaction.trained import LATE_MODELS, LateModel
from retrieval.recipes.parameters import parameters_of
from retrieval.recipes.recipe import recipe_of
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import initial_parameters
from retrieval.runs.weights.trained_model import Trained

WORDS = ["[unused0]", "[unused1]", ".", ",", "?", *"abcdefghij", "fox", "red", "eats", "grass", "the", "what"]
VOCABULARY = WordPiece([*SPECIAL_TOKENS, *WORDS])
TEXTS = ["The red fox eats grass.", "grass, a b c d e", "...", "fox " * 40]


@pytest.fixture(scope="module")
def made():
    """A model, and its config."""
    config = make_config("colbert", **{"data.query_prefix": "[unused0]", "data.document_prefix": "[unused1]"})
    return config, recipe_of(config).build(len(VOCABULARY))


@pytest.fixture
def folder(made, tmp_path):
    (place := tmp_path / "model").mkdir()
    write(place, made[1], made[0], VOCABULARY)
    return place


def scores(model):
    queries = model.queries(["what eats the fox?", "", "a b"])
    rows_QK = np.tile(np.arange(len(TEXTS)), (3, 1))
    documents = model.encode_document([Candidate(str(n), "", text) for n, text in enumerate(TEXTS)])
    return of_candidates(queries, InMemory(documents), rows_QK)


def opened(folder):
    model = LATE_MODELS.read_folder(make_config("colbert"), folder)
    assert model
    return model


def settings(folder, **changes):
    path = folder / "config_sentence_transformers.json"
    write_json(path, read_json(path) | changes)
    return folder


def test_a_folder_is_read_back(made, folder):
    config, model = made
    found = LateFolder.open(folder).fields
    assert found["data.query_prefix"] == "[unused0]" and found["model.late.skip"] == ("punctuation",)
    assert (found["data.query_length"], found["data.document_length"]) == (16, 48)
    again = opened(folder)
    jax.tree.map(np.testing.assert_array_equal, parameters_of(again.model), parameters_of(model))
    expected = scores(LateModel(config, Trained(config, VOCABULARY, model)))
    np.testing.assert_allclose(scores(again), expected, atol=1e-5)
    assert [len(x) for x in again.encode_document([Candidate("", "", "...")])] == [3]  # [CLS], [unused1] and [SEP]


def test_settings_of_others_are_kept(folder):
    changes = {"skiplist_words": ["the"], "do_query_expansion": False, "query_length": 8}
    found = LateFolder.open(settings(folder, **changes, prompts={"query": "", "document": ""})).fields
    assert found["model.late.skip"] == ("the",) and found["model.late.expansion"] == "none"
    assert found["data.query_length"] == 8
    model = opened(folder)
    assert model.queries(["red fox"]).mask.sum() == 5


def test_an_unknown_word_of_a_skip_list_is_the_unknown_token(folder, caplog):
    """As PyLate looks it up."""
    caplog.set_level("INFO")
    found = LateFolder.open(settings(folder, skiplist_words=["the", "zz", "yy"])).fields
    assert found["model.late.skip"] == ("the", "[UNK]")
    assert "2 words of its skip list are no tokens: [UNK] is skipped" in caplog.text
    (document,) = opened(folder).encode_document([Candidate("", "", "the fox \u2603")])
    assert len(document) == 4  # [CLS], [unused1], fox and [SEP]


def test_a_folder_of_stanford_is_the_same_model(folder, tmp_path):
    (place := tmp_path / "stanford").mkdir()
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, place / name)
    write_json(place / "config.json", read_json(folder / "config.json") | {"architectures": ["HF_ColBERT"]})
    tensors = {f"bert.{name}": x for name, x in load_file(folder / "model.safetensors").items()}
    save_file(tensors | load_file(folder / "1_Dense" / "model.safetensors"), place / "model.safetensors")
    lengths = {"query_maxlen": 16, "doc_maxlen": 48, "query_token_id": "[unused0]", "doc_token_id": "[unused1]"}
    write_json(place / "artifact.metadata", {**lengths, "attend_to_mask_tokens": False, "mask_punctuation": True})
    np.testing.assert_allclose(scores(opened(place)), scores(opened(folder)), atol=1e-6)


def test_a_folder_of_sentence_transformers_is_the_same_model(folder):
    """Its modules say what PyLate's settings do."""
    wanted = scores(opened(folder))
    names = ("", "1_Dense", "2_MultiVectorMask", "3_Normalize")
    kinds = ("base.modules.transformer.Transformer", "base.modules.dense.Dense")
    kinds += ("multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask", "base.modules.normalize.Normalize")
    modules = [{"path": name, "type": f"sentence_transformers.{kind}"} for name, kind in zip(names, kinds)]
    write_json(folder / "modules.json", modules)
    skip = read_json(folder / "config_sentence_transformers.json")["skiplist_words"]
    write_json(folder / "2_MultiVectorMask" / "config.json", {"skiplist_words": skip, "skiplist_tasks": ["document"]})
    own = {"model_type": "MultiVectorEncoder", "prompts": {"query": "[unused0] ", "document": "[unused1] "}}
    write_json(folder / "config_sentence_transformers.json", own | {"similarity_fn_name": "maxsim"})
    expansion = {"strategy": "fixed", "attend": False, "token": None, "length": 16}
    write_json(folder / "sentence_bert_config.json", {"document_length": 48, "query_expansion": expansion})
    np.testing.assert_allclose(scores(opened(folder)), wanted, atol=1e-6)
    for file, change, message in (
        ("sentence_bert_config.json", {"query_expansion": expansion | {"strategy": "min"}}, "query_expansion is"),
        ("sentence_bert_config.json", {"query_expansion": expansion | {"token": "fox"}}, "query_expansion is"),
        ("2_MultiVectorMask/config.json", {"skiplist_tasks": ["query", "document"]}, "skiplist_tasks is"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "meanmaxsim"}, "only 'maxsim' is understood"),
        ("modules.json", modules[:3], "Transformer Dense MultiVectorMask; only"),
    ):
        kept = read_json(folder / file)
        write_json(folder / file, kept | change if isinstance(change, dict) else change)
        with pytest.raises(UserError, match=message):
            LateFolder.open(folder)
        write_json(folder / file, kept)


def test_several_projections_are_one(made, folder):
    """16 -> 32 with a matrix beside it, 32 -> 32 beside its input, and 32 -> 8: as PyLate applies them."""
    random = np.random.default_rng(0)
    shapes, entries = [(32, 16), (32, 32), (8, 32)], read_json(folder / "modules.json")[:1]
    x_TH, kind = random.normal(size=(5, 16)), "pylate.models.Dense.Dense"
    expected = x_TH
    for number, (out, size) in enumerate(shapes, 1):
        (place := folder / f"{number}_Dense").mkdir(exist_ok=True)
        tensors = {"linear.weight": random.normal(size=(out, size)).astype(np.float32)}
        beside = number < 3
        if beside and out != size:
            tensors["residual.weight"] = random.normal(size=(out, size)).astype(np.float32)
        save_file(tensors, place / "model.safetensors")
        record = {"in_features": size, "out_features": out, "bias": False, "use_residual": beside}
        write_json(place / "config.json", record | {"activation_function": "torch.nn.modules.linear.Identity"})
        entries.append({"idx": number, "name": str(number), "path": place.name, "type": kind})
        whole = expected @ tensors["linear.weight"].T
        if beside:
            whole += expected @ tensors["residual.weight"].T if "residual.weight" in tensors else expected
        expected = whole
    write_json(folder / "modules.json", entries)
    found = LateFolder.open(folder)
    assert found.fields["model.embed_dim"] == 8
    np.testing.assert_allclose(x_TH @ found.kernel(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"similarity_fn_name": "cosine"}, r"\(similarity_fn_name MaxSim\)"),
        ({"query_prefix": "[Q] "}, r"the prefix '\[Q\] ' is no token of its vocabulary"),
        ({"query_length": 0}, "query_length is 0; a whole number from 5"),
        ({"skiplist_words": "abc"}, "skiplist_words is 'abc', and a list of words is needed"),
        ({"pool_factor": 2}, "pool_factor is 2, and whether that changes a result is not known here"),
        ({"prompts": {"query": "q: "}}, "prompts is"),
    ],
)
def test_what_is_not_understood_is_refused(folder, changes, message):
    with pytest.raises(UserError, match=message):
        LateFolder.open(settings(folder, **changes))


def test_other_kinds_of_models_are_refused(folder, inputs, tmp_path):
    dense = folder / "1_Dense" / "config.json"
    for name, value in (("bias", True), ("activation_function", "torch.nn.modules.activation.Tanh")):
        kept = read_json(dense)
        write_json(dense, kept | {name: value})
        with pytest.raises(UserError, match=f"{name} is '?{value}'?; only"):
            LateFolder.open(folder)
        write_json(dense, kept)
    write_json(dense, read_json(dense) | {"use_residual": True})
    with pytest.raises(UserError, match=r"\[dimensions, 16\], or no residual.weight of its shape"):
        LateFolder.open(folder)
    write_json(dense, read_json(dense) | {"use_residual": False})
    save_file({"linear.weight": np.zeros((8, 3), np.float32)}, folder / "1_Dense" / "model.safetensors")
    with pytest.raises(UserError, match=r"no projection linear.weight \[dimensions, 16\]"):
        LateFolder.open(folder)
    with pytest.raises(UserError, match=r"no projection linear.weight \[dimensions, 16\]"):
        retrieval.load(folder)
    shutil.rmtree(folder / "1_Dense")
    for name in ("modules.json", "config_sentence_transformers.json"):
        (folder / name).unlink()
    run = make_run("colbert", inputs, tmp_path / "run", **{"late.model": str(folder)})
    with pytest.raises(UserError, match="an encoder without vectors of tokens; a folder of PyLate's"):
        LATE_MODELS.check(run, str(folder), "config.late.model")


def test_a_prefix_of_several_tokens_is_not_exported(made, tmp_path):
    config = made[0].copy_and_resolve_references()
    config.data.query_prefix = "a b"
    with pytest.raises(UserError, match="query_prefix='a b' is no token of the vocabulary, and PyLate puts"):
        write(tmp_path, made[1], config, VOCABULARY)


def test_training_starts_from_a_folder(made, folder, inputs, tmp_path):
    changes = {"train.init_from": str(folder), "vocab": str(folder), "model.positions": 48}
    changes |= {"data.query_prefix": "[unused0]", "data.document_prefix": "[unused1]"}
    run = make_run("colbert", inputs, tmp_path / "run", **changes)
    recipe_of(run.config).check_run(run)
    model = recipe_of(run.config).build(len(VOCABULARY))
    initial_parameters.start_of(run.config).init(model, run.config, len(VOCABULARY))
    jax.tree.map(np.testing.assert_array_equal, parameters_of(model), parameters_of(made[1]))
    run.config.data.query_prefix, run.config.model.embed_dim = "", 4
    with pytest.raises(UserError, match=r"--config.model.embed_dim=8 --config.data.query_prefix='?\[unused0\]"):
        recipe_of(run.config).check_run(run)


@pytest.mark.long
def test_one_line_trains_a_folder_on_pairs(folder, tmp_path):
    """Sizes, vocabulary, markers and lengths are the folder's, as far as the experiment's lengths go."""
    config = one_line(f"colbert:local:{folder}", tmp_path)
    assert config.vocab == config.train.init_from == str(folder) and config.model.embed_dim == 8
    assert (config.data.query_length, config.data.document_length, config.data.query_prefix) == (16, 48, "[unused0]")
    assert config.model.late.expansion == "unseen" and config.train.learning_rate == 5e-5
    run = complete(Run(config, tmp_path / "run", REPOSITORY / "requirements.lock"))
    assert {row["system"] for row in read_json(run.folder / "late" / "results.json")} == {"bm25+maxsim@100"}
    plain = one_line(f"colbert:{folder}", tmp_path, "--config.data.query_length=9")
    assert plain.data.query_length == 9 and plain.data.lanes == 8 and plain.train.steps == 2
