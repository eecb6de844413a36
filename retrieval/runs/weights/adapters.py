"""Training of adapters alone (LoRA), as `train.lora` has it: what they stand on, and what that must still be."""

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
from retrieval.models import lora, peft_folder, tensor_files
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.recipes.encoder_sizes import adapter_scale
from retrieval.recipes.recipe import recipe_of
from retrieval.runs.weights import published_weights as bert_weights
from retrieval.training import frozen

_GROUP = "train.lora"
_STORED = "stored"
_MERGED = f"set config.{_GROUP}.rank=0 to train the merged model"


def check(config: ConfigDict) -> None:
    """Checks the fields of adapters."""
    fields, train = config.train.lora, config.train
    if not fields.rank:
        return
    if not all(train.init_from.split(",")):
        problem = "adapters stand on trained parameters, of every tower"
        raise UserError(f"config.{_GROUP}.rank={fields.rank}: {problem}: set config.train.init_from")
    if train.parameters != "float32":
        raise UserError(
            f"config.train.parameters={train.parameters} is of parameters that are trained: for frozen ones set "
            f"config.{_GROUP}.base, and config.train.parameters=float32"
        )
    if train.early:
        raise UserError(f"config.train.early=True trains a tower whole: set config.{_GROUP}.rank=0, or train it alone")


def with_shapes(config: ConfigDict, params: Mapping[str, Any]) -> Any:
    """The shapes of a model's parameters with its adapters, and what is frozen in the type that it is kept in."""
    fields = config.train.lora
    if not fields.rank:
        return params
    trained, others = frozen.split(lora.with_shapes(params, fields.rank, fields.targets))
    if not others:
        raise UserError(f"config.{_GROUP}.targets={tuple(fields.targets)}: no matrix of the encoder is one of them")
    dtype = _frozen_type(config)
    return frozen.join(trained, jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), others))


def filled(config: ConfigDict, params: Mapping[str, Any], like: Mapping[str, Any]) -> Any:
    """The parameters of a model with the adapters that training begins with.

    Args:
      like: the shapes, as `with_shapes` gives them.
    """
    if not config.train.lora.rank:
        return params
    flat = traverse_util.flatten_dict(lora.together(params, lora.initial(like, config.seed)))
    for tower, folder in bert_weights.folders(config).items():
        of_tower = (tower, "encoder") if tower in params else ("encoder",)
        if of_tower[0] in params and (base := model_folder.base_of(folder.place)):
            encoder: Any = functools.reduce(lambda tree, name: tree[name], of_tower, params)
            unmerged = EncoderFolder.open(base).encoder(encoder)
            started = traverse_util.flatten_dict(unmerged, sep="/") | _continued(config, folder)
            flat |= {(*of_tower, *path.split("/")): leaf for path, leaf in started.items()}
    return traverse_util.unflatten_dict(flat)


def check_start(config: ConfigDict) -> None:
    """Checks that training can go on with an adapter that `train.init_from` names.

    Raises:
      UserError: it has another rank or scale, or adapters of other matrices, than the config.
    """
    if config.train.lora.rank:
        for folder in dict.fromkeys(bert_weights.folders(config).values()):
            if model_folder.base_of(folder.place):
                _continued(config, folder)


def _continued(config: ConfigDict, folder: EncoderFolder) -> dict[str, np.ndarray]:
    """The adapters of a folder as parameters of an encoder, by their paths."""
    fields, matrices = config.train.lora, folder.matrices
    parts, layers = peft_folder.read(folder.place).parts(matrices), range(folder.sizes["num_layers"])
    modules = {part.partition("/")[2] for part in parts}
    ranks, scales = {a_IR.shape[1] for a_IR, _, _ in parts.values()}, {scale for _, _, scale in parts.values()}
    if len(parts) < len(modules) * len(layers) or len(ranks) > 1 or len(scales) > 1:
        raise UserError(f"{folder.path}: its adapter is not the same in all layers and matrices: {_MERGED}")
    (rank,), (theirs,) = ranks, scales
    named = {module.rpartition("/")[2] for module in modules}
    known = {part.rpartition("/")[2] for matrix in matrices for part in matrix.parts}
    are_ours = (rank, named) == (fields.rank, known & lora.modules(fields.targets))
    if not are_ours or abs(theirs / adapter_scale(config) - 1) > 1e-6:
        raise UserError(
            f"{folder.path}: an adapter of other sizes; set\n  --config.{_GROUP}.rank={rank} "
            f"--config.{_GROUP}.alpha={theirs * rank:g} --config.{_GROUP}.targets={','.join(sorted(named))}\n"
            f"or {_MERGED}"
        )
    return {
        f"{module}/{name}": np.stack([parts[f"{number}/{module}"][side] for number in layers])
        for module in modules
        for side, name in enumerate((lora.A, lora.B))
    }


def check_export(config: ConfigDict) -> None:
    """Checks that a run's adapters can be written apart from what they stand on."""
    if not config.train.lora.rank:
        why = "no adapter was trained, config.train.lora.rank was 0"
    elif not bert_weights.folders(config) or not recipe_of(config).has_towers:
        why = f"the adapters are not of towers, or stand on {config.train.init_from}, which is no published model"
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
    if model_folder.base_of(folder.place):
        record = files.read_json(folder.place / model_folder.ADAPTER)
        name, revision = record["base_model_name_or_path"], record.get("revision")
    elif hub.is_name(name):
        name, _, revision = name.removeprefix(hub.PREFIX).partition("@")
    else:
        name = str(folder.place.absolute())
    for file in ("config.json", "model.safetensors"):
        (place / file).unlink()
    weights = tensor_files.find(model_folder.base_of(folder.place) or folder.place)
    sums = files.checksums(weights[0].parent, weights)
    options = {"alpha": fields.alpha, "dropout": fields.dropout}
    peft_folder.write(place, parts, folder.matrices, base=name, revision=revision or None, sums=sums, **options)


def merged(config: ConfigDict, params: Any) -> Any:
    """The parameters without adapters, whose products are added to what they stand beside, in float32."""
    return lora.merged(params, adapter_scale(config)) if config.train.lora.rank else params


def check_base(record: Mapping[str, Any], base: Sequence[Path], folder: Path) -> None:
    """Checks that what a run's adapters stand on is what they were trained on.

    Args:
      record: of its stage `train`.
      base: the files.
      folder: the work directory, for the error.
    """
    known = record.get("files", [])
    sums = {file["sum"] for file in known}
    if not known:
        return
    for path in base:
        if changed := [file for file in files.describe(path) if file["sum"] not in sums]:
            problem = f"the adapters of {folder} were trained on another file of that name"
            raise UserError(f"{changed[0]['path']}: {problem}: put that one back, or train them again")


def _frozen_type(config: ConfigDict) -> Any:
    """The type of parameters that are not trained: that of their files where it has 16 bits, unless a field has one."""
    if config.train.lora.base != _STORED:
        return jnp.dtype(config.train.lora.base)
    types = {folder.stored_type for folder in bert_weights.folders(config).values()}
    return functools.reduce(jnp.promote_types, types) if types else jnp.dtype("float32")
