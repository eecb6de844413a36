"""Models with the weights of a folder of BERT's."""

import numpy as np
from flax import nnx
from safetensors.numpy import load_file, save_file

from retrieval.common.files import write_json
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.mlm import MaskedLanguageModel
from retrieval.models.transformer_config import TransformerConfig


def load(folder, max_length=None):
    """A masked language model with the weights of a folder, whose head may be missing."""
    bert = EncoderFolder.open(folder)
    sizes = {**bert.sizes, "max_length": max_length or bert.sizes["max_length"]}
    config = TransformerConfig(**sizes, dropout=0.0)
    state = nnx.state(model := MaskedLanguageModel(config, rngs=nnx.Rngs(0)), nnx.Param)
    params = nnx.to_pure_dict(state)
    encoder = bert.encoder(params.pop("encoder"))
    nnx.replace_by_pure_dict(state, {"encoder": encoder, **(bert.mlm_head(params) or params)})
    nnx.update(model, state)
    return model


def tensors(folder):
    """The tensors of a folder by their names, without the prefix that the model of a head has before them."""
    return {name.removeprefix("bert."): x for name, x in load_file(folder / "model.safetensors").items()}


def with_modules(folder, layers=(), prompts=None, **settings):
    """The folder as sentence-transformers has it: it takes the mean, and compares by inner products if nobody says."""
    kinds = [
        ("", "Transformer"),
        ("1_Pooling", "Pooling"),
        *((f"{n}_{kind}", kind) for n, kind in enumerate(layers, 2)),
    ]
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds]
    write_json(folder / "modules.json", modules)
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True, **settings})
    write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "dot", "prompts": prompts or {}})
    sizes = {"in_features": 16, "out_features": 6, "activation_function": "torch.nn.modules.linear.Identity"}
    for path, _ in kinds[2:]:
        write_json(folder / path / "config.json", sizes if "Dense" in path else {})
    if "Dense" in layers:
        weights = {
            "linear.weight": np.arange(96, dtype=np.float32).reshape(6, 16),
            "linear.bias": np.ones(6, np.float32),
        }
        save_file(weights, folder / "2_Dense" / "model.safetensors")
    return folder
