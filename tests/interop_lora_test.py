"""Adapters beside PEFT, live: what it writes, read here; what is written here, in PEFT and sentence-transformers."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx, traverse_util
from support import exported
from support.packages import package

import retrieval
from retrieval.models import lora, peft_folder
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.text import Text
from retrieval.models.transformer import Transformer
from retrieval.models.transformer_config import TransformerConfig
from retrieval.recipes.parameters import bind, parameters_of

torch, transformers, peft = package("torch"), package("transformers"), package("peft")

SIZES = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 40}
SIZES |= {"max_position_embeddings": 64, "pad_token_id": 0}
OF_DISTILBERT = dict(vocab_size=50, dim=24, n_layers=3, n_heads=3, hidden_dim=40, max_position_embeddings=64)
MODELS = {
    "bert": ("BertConfig", SIZES, "BertModel"),
    "distilbert": ("DistilBertConfig", OF_DISTILBERT, "DistilBertModel"),
    "modernbert": ("ModernBertConfig", {**SIZES, "local_attention": 8}, "ModernBertModel"),
    "qwen3": ("Qwen3Config", {**SIZES, "num_key_value_heads": 1, "head_dim": 8}, "Qwen3Model"),
}
# Targets of PEFT, and its name for one module that has another rank.
TARGETS = {
    "bert": (["query", "value", "output.dense"], "encoder.layer.1.attention.self.query"),
    "distilbert": (["q_lin", "v_lin", "lin2"], "transformer.layer.1.attention.q_lin"),
    "modernbert": (["Wqkv", "Wi", "mlp.Wo"], "layers.1.attn.Wqkv"),
    "qwen3": (["q_proj", "k_proj", "down_proj"], "layers.1.self_attn.q_proj"),
}
IDS = np.random.default_rng(0).integers(5, 50, (2, 20)).astype(np.int32)


def write_base(folder, name, kind=None):
    """A model of transformers in a folder; no parameter is what it is where it was forgotten."""
    config, sizes, usual = MODELS[name]
    model = getattr(transformers, kind or usual)(getattr(transformers, config)(**sizes)).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape)
    model.save_pretrained(folder)
    return folder


def drawn(model):
    """An adapter whose B is not 0, and whose copies of whole tables are others."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.2 * torch.randn(parameter.shape)
    return model.eval()


def theirs(model):
    with torch.no_grad():
        return model(input_ids=torch.from_numpy(IDS.astype(np.int64))).last_hidden_state.numpy()


def encoder_of(folder, **changes):
    folder = EncoderFolder.open(folder)
    config = TransformerConfig(**folder.sizes, dropout=0.0, **changes)
    return nnx.eval_shape(lambda: Transformer(config, rngs=nnx.Rngs(0))), folder


def ours(folder, params=None, **changes):
    model, folder = encoder_of(folder, **changes)
    params = folder.encoder(parameters_of(model)) if params is None else params
    bound = bind(model)(jax.tree.map(jnp.asarray, params))
    return np.asarray(bound(Text.from_ids(jnp.asarray(IDS), jnp.zeros_like(IDS)), dropout_key=None))


def assert_same(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_an_adapter_of_peft_is_merged(name, rslora, tmp_path):
    base = write_base(tmp_path / "base", name)
    targets, other = TARGETS[name]
    config = peft.LoraConfig(
        r=2, lora_alpha=6, target_modules=targets, use_rslora=rslora, rank_pattern={other: 3}, alpha_pattern={other: 5}
    )
    model = drawn(peft.get_peft_model(transformers.AutoModel.from_pretrained(base), config))
    model.save_pretrained(tmp_path / "adapter")
    wanted, plain = theirs(model), theirs(transformers.AutoModel.from_pretrained(base).eval())
    assert np.abs(wanted - plain).max() > 0.05
    assert_same(ours(tmp_path / "adapter"), wanted)


def test_an_adapter_of_a_language_model_is_merged(tmp_path):
    """Its paths begin with `model.`, which those of the folder of the encoder have not; and the other way round."""
    base = write_base(tmp_path / "base", "qwen3", "Qwen3ForCausalLM")
    causal = transformers.Qwen3ForCausalLM.from_pretrained(base)
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "up_proj"], task_type="CAUSAL_LM")
    model = drawn(peft.get_peft_model(causal, config))
    model.save_pretrained(tmp_path / "adapter")
    wanted = theirs(model.base_model.model.model)
    assert_same(ours(tmp_path / "adapter"), wanted)
    transformers.AutoModel.from_pretrained(base).save_pretrained(base)  # without the prefix, and without a head
    assert_same(ours(tmp_path / "adapter"), wanted)


@pytest.mark.parametrize("targets", [("all",), ("query", "mlp_out")])
@pytest.mark.parametrize("name", MODELS)
def test_peft_reads_what_is_written_here(name, targets, tmp_path):
    base, random = write_base(tmp_path / "base", name), np.random.default_rng(1)
    scale = 3.0
    model, folder = encoder_of(base, lora_scale=scale)
    params = folder.encoder(parameters_of(model))
    shapes = lora.divide(lora.with_shapes({"encoder": params}, 2, targets))[1]["encoder"]
    adapters = jax.tree.map(lambda leaf: random.normal(0, 0.2, leaf.shape).astype(np.float32), shapes)
    flat = traverse_util.flatten_dict(adapters, sep="/")
    parts = {f"{n}/{path}": leaf[n] for path, leaf in flat.items() for n in range(3)}
    (tmp_path / "adapter").mkdir()
    options = {"base": str(base), "revision": None, "sums": {}, "alpha": 6.0, "dropout": 0.0}
    peft_folder.write(tmp_path / "adapter", parts, folder.matrices, **options)
    wanted = ours(base, lora.together(params, adapters), lora_scale=scale)
    loaded = peft.PeftModel.from_pretrained(transformers.AutoModel.from_pretrained(base), tmp_path / "adapter").eval()
    named = {key.replace(".default", "") for key, _ in loaded.named_parameters() if "lora_" in key}
    assert named == set(peft.load_peft_weights(tmp_path / "adapter", device="cpu"))
    assert_same(theirs(loaded), wanted)
    assert_same(ours(tmp_path / "adapter"), wanted)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Towers whose adapters are not 0, on a model of sentence-transformers."""
    place = tmp_path_factory.mktemp("adapted")
    sizes = {"model.embed_dim": 8, "model.pooling": "mean", "model.tied": True}
    base = exported.export(exported.work_directory(place / "trained", **sizes))
    adapted = {"train.lora.rank": 2, "train.lora.targets": ("query", "mlp_in"), "train.init_from": str(base)}
    return exported.work_directory(place / "run", **sizes, **adapted, **{"export.adapter": True})


def test_sentence_transformers_loads_an_exported_adapter(run):
    sentence_transformers = package("sentence_transformers")
    queries, _ = exported.embed(run, exported.QUERIES)
    folder = exported.export(run)
    assert {path.name for path in folder.glob("*.safetensors")} == {"adapter_model.safetensors"}
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    assert_same(model.encode_query(exported.QUERIES), queries)
    assert_same(retrieval.load(folder).encode_query(exported.QUERIES), queries)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["target_modules"] == ["attention.self.query", "intermediate.dense"]


def test_an_adapter_that_sentence_transformers_saved_is_loaded(run, tmp_path):
    sentence_transformers = package("sentence_transformers")
    model = sentence_transformers.SentenceTransformer(run.config.train.init_from, device="cpu")
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["key", "intermediate.dense"]))
    drawn(model)
    model.save_pretrained(str(tmp_path))
    assert_same(retrieval.load(tmp_path).encode_query(exported.QUERIES), model.encode_query(exported.QUERIES))


def test_a_table_of_tokens_that_was_trained_whole_takes_the_place_of_the_bases(tmp_path):
    base = write_base(tmp_path / "base", "bert")
    config = peft.LoraConfig(target_modules=["query"], r=2, modules_to_save=["word_embeddings"])
    model = drawn(peft.get_peft_model(transformers.AutoModel.from_pretrained(base), config))
    model.save_pretrained(tmp_path / "adapter")
    wanted = theirs(model)
    assert np.abs(wanted - theirs(transformers.AutoModel.from_pretrained(base).eval())).max() > 0.05
    assert_same(ours(tmp_path / "adapter"), wanted)
