"""Writes a BERT as Google published it: names, matrices that are [in, out], and what the optimizer keeps."""

import json
import re

import numpy as np
import tensorflow as tf
from safetensors.numpy import load_file

FIELDS = (
    "vocab_size num_hidden_layers hidden_size num_attention_heads intermediate_size max_position_embeddings "
    "type_vocab_size hidden_act"
)


def write(source, folder):
    """The same weights and config as those of a folder in Hugging Face's layout."""
    variables = {"global_step": np.array(3)}
    for name, value in load_file(source / "model.safetensors").items():
        name, value = _variable(name, value)
        variables |= {name: value, f"{name}/adam_m": value, f"{name}/adam_v": value}
    tf.raw_ops.SaveV2(
        prefix=str(folder / "bert_model.ckpt"),
        tensor_names=[*variables],
        shape_and_slices=[""] * len(variables),
        tensors=[*variables.values()],
    )
    config = json.loads((source / "config.json").read_text())
    (folder / "bert_config.json").write_text(json.dumps({name: config[name] for name in FIELDS.split()}))


def _variable(name, value):
    if "LayerNorm" in name:
        name = name.replace(".weight", ".gamma").replace(".bias", ".beta")
    elif name.endswith("_embeddings.weight"):
        name = name.removesuffix(".weight")
    elif name.startswith("cls.seq_relationship."):
        name = name.replace("weight", "output_weights").replace("bias", "output_bias")
    elif name == "cls.predictions.bias":
        name = "cls.predictions.output_bias"
    elif name.endswith(".weight"):
        name, value = name.removesuffix("weight") + "kernel", value.T
    return re.sub(r"layer\.(\d)", r"layer_\1", name).replace(".", "/"), value
