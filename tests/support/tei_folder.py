"""The rules by which Text Embeddings Inference reads a folder (its router and candle backend, 1.8), without it.

What it does not understand it refuses, or leaves out with a warning: its vectors are others then.
"""

import json

from safetensors import safe_open
from tokenizers import Tokenizer

_KNOWN = {f"sentence_transformers.models.{kind}" for kind in ("Transformer", "Pooling", "Dense", "Normalize")}
_ACTIVATIONS = {"torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"}
_POOLINGS = ("pooling_mode_cls_token", "pooling_mode_mean_tokens", "pooling_mode_lasttoken")
_SWITCHES = (*_POOLINGS, "pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens")
_TYPES = "bert xlm-roberta camembert roberta distilbert nomic_bert mistral new qwen2 qwen3 mpnet modernbert gemma3_text"


def problems(folder):
    """What it would refuse or leave out, in words; nothing of a folder that it serves."""
    return [problem for check in (_config, _pooling, _modules, _files) for problem in check(folder)]


def _read(path):
    return json.loads(path.read_text()) if path.is_file() else None


def _config(folder):
    config = _read(folder / "config.json")
    if config is None:
        yield "config.json: missing"
        return
    if not all(isinstance(name, str) for name in config["architectures"]):
        yield "architectures: no names"
    if config["model_type"] not in _TYPES.split():
        yield f"model_type: {config['model_type']}"
    for key in ("max_position_embeddings", "hidden_size", "vocab_size", "pad_token_id"):
        if key in config and (type(config[key]) is not int or config[key] < 0):
            yield f"{key}: {config[key]}"


def _pooling(folder):
    config = _read(folder / "1_Pooling" / "config.json") or {}
    if missing := [switch for switch in _SWITCHES if not isinstance(config.get(switch), bool)]:
        yield f"1_Pooling: no {missing[0]}"
    elif not any(config[switch] for switch in _POOLINGS):
        yield "1_Pooling: neither cls nor mean nor the last token"
    if not config.get("include_prompt", True):
        yield "1_Pooling: the prompt is left out"


def _modules(folder):
    modules = _read(folder / "modules.json") or []
    for number, module in enumerate(modules):
        if type(module["idx"]) is not int or not isinstance(module["name"], str) or not isinstance(module["path"], str):
            yield f"modules.json: {module}"
        if module["type"] not in _KNOWN:
            yield f"modules.json: {module['type']}"
        kind = module["type"].rpartition(".")[2]
        if kind == "Normalize" and number < len(modules) - 1:
            yield "modules.json: Normalize is not the last module"
        if kind == "Dense":
            yield from _dense(folder / module["path"])


def _dense(folder):
    config = _read(folder / "config.json")
    sizes = config["out_features"], config["in_features"]
    if not all(type(size) is int for size in sizes) or not isinstance(config["bias"], bool):
        yield f"{folder.name}: {config}"
    if config.get("activation_function") not in _ACTIVATIONS:
        yield f"{folder.name}: {config.get('activation_function')}"
    expected = {"linear.weight": sizes} | ({"linear.bias": sizes[:1]} if config["bias"] else {})
    if _shapes(folder) != expected:
        yield f"{folder.name}: tensors {_shapes(folder)}"


def _files(folder):
    if not (folder / "tokenizer.json").is_file():
        yield "tokenizer.json: missing"
    else:
        Tokenizer.from_file(str(folder / "tokenizer.json"))
    if not _shapes(folder):
        yield "model.safetensors: missing"
    settings = _read(folder / "sentence_bert_config.json") or {}
    if "max_seq_length" in settings and type(settings["max_seq_length"]) is not int:
        yield "sentence_bert_config.json: max_seq_length"


def _shapes(folder):
    path = folder / "model.safetensors"
    if not path.is_file():
        return {}
    with safe_open(path, "np") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
