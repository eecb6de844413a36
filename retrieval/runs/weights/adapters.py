"""Training of adapters alone (LoRA), as `train.lora` has it: what they stand on, and what that must still be.

Where `train.lora.rank` is 0, `train_state.adapters_of` is None, and nobody calls what is here but `check_export`.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from ml_collections import ConfigDict

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import hub, model_folder
from retrieval.models import lora, peft_folder
from retrieval.recipes.encoder_sizes import adapter_scale
from retrieval.recipes.recipe import recipe_of
from retrieval.runs.weights import published_weights as bert_weights
from retrieval.training import frozen

_GROUP = "train.lora"


def check(config: ConfigDict) -> None:
    """Checks the fields of adapters."""
    train, rank = config.train, f"config.{_GROUP}.rank={config.train.lora.rank}"
    if not all(train.init_from.split(",")):
        raise UserError(f"{rank}: adapters stand on trained parameters, of every tower: set config.train.init_from")
    if train.early:
        raise UserError(f"config.train.early=True trains a tower whole, and {rank}: set that to 0, or train it alone")


def with_shapes(config: ConfigDict, params: Mapping[str, Any]) -> Any:
    """The shapes of a model's parameters with its adapters, and what is frozen in the type that it is kept in."""
    fields = config.train.lora
    trained, others = frozen.split(lora.with_shapes(params, fields.rank, fields.targets))
    if not others:
        raise UserError(f"config.{_GROUP}.targets={tuple(fields.targets)}: no matrix of the encoder is one of them")
    dtype = _frozen_type(config)
    return frozen.join(trained, jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), others))


def filled(config: ConfigDict, params: Mapping[str, Any], like: Mapping[str, Any]) -> Any:
    """The parameters of a model with the adapters that training begins with; `like` as `with_shapes` gives them."""
    return lora.together(params, lora.initial(like, config.seed))


def check_export(config: ConfigDict) -> None:
    """Checks that a run's adapters can be written apart from what they stand on."""
    folders = bert_weights.folders(config) if config.train.lora.rank else {}
    if not config.train.lora.rank:
        why = "no adapter was trained, config.train.lora.rank was 0"
    elif not folders or not recipe_of(config).has_towers:
        why = f"the adapters are not of towers, or stand on {config.train.init_from}, which is no published model"
    elif any(model_folder.base_of(folder.place) for folder in folders.values()):
        why = f"the adapters stand on {config.train.init_from}, whose own adapter was merged"
    else:
        return
    raise UserError(f"config.export.adapter=True: {why}: set config.export.adapter=False")


def write(config: ConfigDict, params: Mapping[str, Any], tower: str, place: Path) -> None:
    """Writes the adapters of a tower into its exported folder, in place of the encoder that is there.

    Args:
      params: those of the run, as `trained_run.load_adapted` gives them.
    """
    folder, fields = bert_weights.folders(config)[tower], config.train.lora
    flat: dict[str, Any] = dict(traverse_util.flatten_dict(lora.divide(params[tower]["encoder"])[1], sep="/"))
    parts = {f"{n}/{path}": np.asarray(part) for path, leaf in flat.items() for n, part in enumerate(leaf)}
    name, revision = config.train.init_from.split(",")[-1 if tower == "document_tower" else 0], None
    if hub.is_name(name):
        name, _, revision = name.removeprefix(hub.PREFIX).partition("@")
    else:
        name = str(folder.place.absolute())
    for file in ("config.json", "model.safetensors"):
        (place / file).unlink()
    options = {"alpha": fields.alpha, "dropout": fields.dropout, "sums": files.checksums(folder.place, folder.files)}
    peft_folder.write(place, parts, folder.matrices, base=name, revision=revision or None, **options)


def merged(config: ConfigDict, params: Any) -> Any:
    """The parameters without adapters, whose products are added to what they stand beside, in float32."""
    return lora.merged(params, adapter_scale(config))


def check_base(record: Mapping[str, Any], base: Sequence[Path], folder: Path) -> None:
    """Checks that the files `base` that the adapters of a folder stand on are those of the record of its `train`."""
    sums = {file["sum"] for file in record.get("files", [])}
    for path in base if sums else ():
        if changed := [file for file in files.describe(path) if file["sum"] not in sums]:
            problem = f"the adapters of {folder} were trained on another file of that name"
            raise UserError(f"{changed[0]['path']}: {problem}: put that one back, or train them again")


def _frozen_type(config: ConfigDict) -> Any:
    """The type of parameters that are not trained: that of their files where it has 16 bits, unless a field has one."""
    if config.train.lora.base != "stored":
        return jnp.dtype(config.train.lora.base)
    stored = set(bert_weights.folders(config).values())  # what an adapter was merged into has another type
    types = {np.dtype("float32") if model_folder.base_of(of.place) else of.stored_type for of in stored}
    return functools.reduce(jnp.promote_types, types) if types else jnp.dtype("float32")
