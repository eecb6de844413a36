"""Encoders of every family beside transformers, live."""

import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file
from support import encoder_folders
from support.encoder_folders import FAMILIES, H, write
from support.encoder_models import gradient, hidden, load, rows
from support.packages import package

from retrieval.common.errors import UserError
from retrieval.common.files import write_json
from retrieval.models import encoder_tensors, export_files
from retrieval.models.encoder_folder import EncoderFolder, written_config

torch, transformers = package("torch"), package("transformers")

# Models that have a head beside the encoder, and save its tensors under other names.
HEADS = {
    "modernbert": ("ModernBertForMaskedLM",),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3ForSequenceClassification"),
    "qwen2": ("Qwen2ForCausalLM",),
    "llama": ("LlamaForCausalLM",),
    "mistral": ("MistralForCausalLM",),
    "eurobert": ("EuroBertForMaskedLM",),
    "gemma3": ("Gemma3ForCausalLM",),
    "t5": ("T5Model", "T5ForConditionalGeneration"),
    "t5_gated": ("T5ForConditionalGeneration",),
    "mpnet": ("MPNetForMaskedLM",),
    "nomic_bert": ("NomicBertForMaskedLM",),
    "gte": ("GteForMaskedLM",),
}


def of_transformers(folder, name, kind=None):
    """The folder's model in transformers, in float32, with plain attention."""
    kind = getattr(transformers, kind or FAMILIES[name].of_torch)
    return kind.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()


def states_of(model, name):
    """The last hidden states of each text, given alone."""
    given = [torch.from_numpy(ids[None]) for ids in encoder_folders.texts(name)]
    with torch.no_grad():
        return [model(input_ids=ids).last_hidden_state[0].numpy() for ids in given]


@pytest.fixture(scope="module", params=FAMILIES)
def published(request, tmp_path_factory):
    """A family's name, its folder, transformers' model of it and the hidden states of its texts."""
    name = request.param
    folder = write(tmp_path_factory.mktemp(name), name)
    model = of_transformers(folder, name)
    return name, folder, model, states_of(model, name)


def assert_same(found, wanted, tolerance=1e-5):
    assert len(found) == len(wanted)
    largest = max(np.abs(states).max() for states in wanted)
    for ours, theirs in zip(found, wanted):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * largest)


def ours(folder, name):
    return hidden(load(folder), rows(encoder_folders.texts(name)))


def test_hidden_states_are_those_of_transformers(published):
    name, folder, _, wanted = published
    assert_same(ours(folder, name), wanted)
    longest = encoder_folders.texts(name)[-1]
    assert_same(hidden(load(folder), rows([longest])), wanted[-1:])


def test_a_saved_folder_is_read_as_the_published_one(published, tmp_path):
    """In version 5's spelling of configs, in one file or in several, with all tensors to the bit."""
    name, folder, model, _ = published
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "several", max_shard_size="60KB")
    assert len(list((tmp_path / "several").glob("*.safetensors"))) > 2
    texts = rows(encoder_folders.texts(name))
    wanted = hidden(load(folder), texts)
    for form in ("one", "several"):
        assert _sizes(tmp_path / form) == _sizes(folder)
        for states, others in zip(hidden(load(tmp_path / form), texts), wanted):
            np.testing.assert_array_equal(states, others)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_folders_of_16_bits(published, dtype, tmp_path):
    """Both compute in float32 on weights as they are stored."""
    name, _, model, _ = published
    kind = getattr(torch, dtype)
    half = type(model)(model.config).to(kind)
    half.load_state_dict({key: value.to(kind) for key, value in model.state_dict().items()})
    half.save_pretrained(tmp_path)
    assert_same(ours(tmp_path, name), states_of(of_transformers(tmp_path, name), name), 2e-5)  # 1.03e-5 on one CPU


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kinds in HEADS.items() for kind in kinds])
def test_the_encoder_of_a_model_with_a_head(name, kind, tmp_path):
    """Its tensors have a prefix, and beside them are those of the head, or of a decoder."""
    folder = write(tmp_path / "published", name)
    model = of_transformers(folder, name, kind)
    model.save_pretrained(tmp_path / "saved")
    before, after = (set(load_file(path / "model.safetensors")) for path in (folder, tmp_path / "saved"))
    assert after - before
    assert_same(ours(tmp_path / "saved", name), states_of(of_transformers(folder, name), name))


def test_a_written_folder_is_read_by_transformers(published, tmp_path):
    """Under the family's own names, without one that is missing or left over."""
    name, folder, _, wanted = published
    encoder = load(folder)
    params = nnx.to_pure_dict(nnx.state(encoder, nnx.Param))
    names = EncoderFolder.open(folder).names
    export_files.write_tensors(tmp_path, encoder_tensors.to_tensors(params, names))
    write_json(tmp_path / "config.json", written_config(encoder.config))
    kind = getattr(transformers, FAMILIES[name].of_torch)
    model, report = kind.from_pretrained(tmp_path, attn_implementation="eager", output_loading_info=True)
    missing = {key for key in report["missing_keys"] if not key.startswith("pooler.")}
    assert not missing and not report["unexpected_keys"] and not report["mismatched_keys"]
    assert_same(states_of(model.eval(), name), wanted, 1e-6)
    assert EncoderFolder.open(tmp_path).sizes == EncoderFolder.open(folder).sizes


def test_gradients_are_those_of_transformers(published, tmp_path):
    """Of a loss of pooled texts, with respect to every parameter, by the names of the family's tensors."""
    name, folder, model, _ = published
    direction_H = np.random.default_rng(1).standard_normal(H).astype(np.float32)
    texts = encoder_folders.texts(name)
    model.zero_grad()
    for ids in texts:
        states = model(input_ids=torch.from_numpy(ids[None])).last_hidden_state[0]
        (states.mean(axis=0) @ torch.from_numpy(direction_H)).backward()
    # As a folder, so that they have the names and the forms of published tensors.
    gradients = type(model)(model.config).eval()
    values = dict(model.named_parameters())
    for key, parameter in gradients.named_parameters():
        grad = values[key].grad
        parameter.data = torch.zeros_like(parameter) if grad is None else grad.clone()
    gradients.save_pretrained(tmp_path)
    wanted = load_file(tmp_path / "model.safetensors")
    names = EncoderFolder.open(folder).names
    found = encoder_tensors.to_tensors(gradient(load(folder), rows(texts), direction_H), names)
    wanted = {key: x for key, x in wanted.items() if not key.startswith("pooler.")}
    assert found.keys() >= wanted.keys()
    largest = max(np.abs(x).max() for x in wanted.values())
    for key, x in wanted.items():
        mine = found[key]
        if key == "embeddings.position_embeddings.weight":  # without those that no text has
            mine = np.concatenate([np.zeros((len(x) - len(mine), H)), mine])
        # A bias of keys adds the same to all scores of a query, unless keys are turned.
        assert (name == "mpnet" and key.endswith(".k.bias")) or np.abs(x).max() > 1e-6 * largest, key
        tolerance = 1e-4 * max(np.abs(x).max(), 1e-3 * largest)
        np.testing.assert_allclose(mine, x, rtol=0, atol=tolerance, err_msg=key)


def _others(value):
    """Values that stand in the place of one, of the same kind."""
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1, 2 * value]
        case float():
            return [value * 2]
        case str():
            return (
                ["relu", "silu", "gelu_new"] if value in ("gelu", "silu", "gelu_pytorch_tanh") else [f"other {value}"]
            )
        case list():
            return [value[::-1]]
        case _:
            return []


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_no_field_of_a_config_is_misread(name, tmp_path):
    """With another value or none of a key that transformers reads, a folder is refused or gives what that gives."""
    texts, published = rows(encoder_folders.texts(name)), write(tmp_path / "published", name)
    model = of_transformers(published, name)
    wanted, sizes = states_of(model, name), _sizes(published)
    config = {**model.config.to_dict(), **FAMILIES[name].config}
    changes = [(key, other) for key, value in config.items() for other in ["gone", *_others(value)]]
    wrong, compared = [], 0
    for number, (key, other) in enumerate(changes):
        if key in ("model_type", "num_hidden_layers", "num_layers", "dtype"):
            continue
        folder = write(tmp_path / str(number), name, **{key: None if other == "gone" else other})
        try:
            changed = _sizes(folder)
        except UserError as error:
            assert str(folder) in str(error)
            continue
        try:
            theirs = states_of(of_transformers(folder, name), name)
        except Exception:  # whatever it says of such a config
            continue
        compared += 1
        found = wanted if changed == sizes else hidden(load(folder), texts)
        if any(np.abs(a - b).max() > 2e-5 * np.abs(b).max() for a, b in zip(found, theirs)):
            wrong.append(f"{key}={other}")
    assert not wrong and compared > 5


def _sizes(folder):
    """What a folder is read as, without what bounds the length of texts alone."""
    return {key: value for key, value in EncoderFolder.open(folder).sizes.items() if key != "max_length"}


def test_token_types_are_looked_up_in_nomic_bert(tmp_path):
    folder = write(tmp_path, "nomic_bert")
    ids = encoder_folders.texts("nomic_bert")[-1]
    types = (np.arange(len(ids)) > 5).astype(np.int64)
    model = of_transformers(folder, "nomic_bert")
    with torch.no_grad():
        states = model(input_ids=torch.from_numpy(ids[None]), token_type_ids=torch.from_numpy(types[None]))
    text = rows([ids])
    text = type(text)(text.ids_RL, text.types_RL + types.astype(np.int32), text.segments_RL, text.positions_RL)
    assert_same(hidden(load(folder), text), [states.last_hidden_state[0].numpy()])
