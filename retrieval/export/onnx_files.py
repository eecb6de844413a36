"""Towers as ONNX, with what others have to add themselves: pooling, layers behind it and length are inside.

onnx/model.onnx     `query.onnx` and `document.onnx` where these are not embedded alike
onnx/config.json    inputs and outputs, lengths, prefixes, and the tokenizer that belongs to them

Letters of shapes: B texts, L tokens of a text, E embedding size, H hidden size.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AbstractDevice, AbstractMesh
from ml_collections import ConfigDict

from retrieval.common import files, libraries
from retrieval.common.errors import UserError
from retrieval.common.runtime.filler import FILLER
from retrieval.data.tokenizers.prefixes import type_change
from retrieval.export.tower_folders import TrainedTowers
from retrieval.models.export_files import DOCUMENT, QUERY
from retrieval.models.text import Text
from retrieval.models.two_tower import TwoTower
from retrieval.recipes.encoder_sizes import architecture_of
from retrieval.recipes.parameters import bind, parameters_of
from retrieval.recipes.towers import build_towers, form_of

FOLDER = "onnx"
INPUTS = ("input_ids", "attention_mask", "position_ids")
OUTPUTS = ("sentence_embedding", "last_hidden_state")
_OPSET = 21  # which runtimes of 2024 have
_MOST = 2**31 - 2**20  # bytes of one file; parameters of more lie in a file beside it
_DATA = "_data"
# What every platform computes, to within float32.
_PLAIN = {"dtype": "float32", "matmul_dtype": "dtype", "attention": "plain", "remat": "none"}

Embed = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


@dataclasses.dataclass(frozen=True)
class TowerFunction:
    """A tower as a function of plain arrays.

    Attributes:
      name: 'model', or 'query' or 'document' where these are not embedded alike.
      sides: the prefix and the length in tokens of the texts that it takes.
      embed: `INPUTS`, each a whole number [B, L], to `OUTPUTS`, float32 [B, E] and [B, L, H]. A text begins in the
        first column; the mask is 1 where a token is, else 0; positions are 0, 1, ..., L - 1.
    """

    name: str
    sides: Mapping[str, Mapping[str, Any]]
    embed: Embed


def check(config: ConfigDict) -> None:
    """Checks that the packages are there which convert, and that the encoder takes texts of any length."""
    if architecture_of(config.model).relative_bias:
        family = config.model.family
        raise UserError(
            f"config.export.onnx=True: the family {family} has a bias by distance, of one length: leave it out"
        )
    _packages()


def write(trained: TrainedTowers, folder: Path) -> None:
    """Writes `onnx/` into the folder of an export."""
    onnx, _ = _packages()
    (folder / FOLDER).mkdir()
    towers: dict[str, Any] = {}
    for tower in tower_functions(trained):
        path, model = folder / FOLDER / f"{tower.name}.onnx", _converted(tower)
        is_large = sum(len(tensor.raw_data) for tensor in model.graph.initializer) > _MOST
        onnx.save_model(model, path, save_as_external_data=is_large, location=path.name + _DATA)
        towers[path.name] = tower.sides
    files.write_json(
        folder / FOLDER / "config.json",
        {
            "inputs": INPUTS,
            "outputs": OUTPUTS,
            "opset": _OPSET,
            "towers": towers,
            "dimensions": form_of(trained.config).dim,
            "normalized": trained.towers.normalize,
            "similarity": "dot",
            "prompts": dict(trained.prompts),
            "tokenizers": files.checksums(folder, sorted(folder.rglob("tokenizer.json"))),
        },
    )


def tower_functions(trained: TrainedTowers) -> list[TowerFunction]:
    """One function where queries and documents are embedded alike, else one for each."""
    config = trained.config.copy_and_resolve_references()
    config.model.update(_PLAIN)
    like = nnx.eval_shape(lambda: build_towers(config, len(trained.vocabulary)))
    params = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), parameters_of(trained.towers))
    towers: Any = bind(like)(params)
    data = config.data
    sides = {side: {"prefix": data[f"{side}_prefix"], "length": data[f"{side}_length"]} for side in (QUERY, DOCUMENT)}
    sep_id = type_change(data, trained.vocabulary.sep_id)
    embed = {name: functools.partial(_embed, towers, name, sep_id) for name in sides}
    if towers.is_one:
        return [TowerFunction("model", sides, embed[DOCUMENT])]
    return [TowerFunction(name, {name: side}, embed[name]) for name, side in sides.items()]


def arrays(rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """The token ids of texts as `INPUTS`, int32 [B, L]."""
    ids_BL = np.zeros((len(rows), max(map(len, rows))), np.int32)
    mask_BL = np.zeros_like(ids_BL)
    for place, row in enumerate(rows):
        ids_BL[place, : len(row)], mask_BL[place, : len(row)] = row, 1
    return [ids_BL, mask_BL, np.arange(ids_BL.shape[1], dtype=np.int32) + np.zeros_like(ids_BL)]


def _embed(
    towers: TwoTower, name: str, sep_id: int, ids_BL: jax.Array, mask_BL: jax.Array, positions_BL: jax.Array
) -> tuple[jax.Array, jax.Array]:
    tower: Any = getattr(towers, "document_tower", towers.query_tower) if name == DOCUMENT else towers.query_tower
    ids_BL = jnp.where(mask_BL > 0, ids_BL, FILLER).astype(jnp.int32)
    text = Text(ids_BL, _types(ids_BL, sep_id), mask_BL.astype(jnp.int32), positions_BL.astype(jnp.int32))
    hidden_BLH = tower.encoder(text, dropout_key=None)
    return towers.finished(tower.pooled(hidden_BLH, text, towers.pool_from[name == DOCUMENT])), hidden_BLH


def _types(ids_BL: jax.Array, sep_id: int) -> jax.Array:
    """As `inference.token_types`: 1 behind the first [SEP], where a document's text follows its title."""
    is_sep_BL = (ids_BL == sep_id).astype(jnp.int32)
    return jnp.where(ids_BL == FILLER, 0, jnp.minimum(jnp.cumsum(is_sep_BL, axis=1) - is_sep_BL, 1))


def _converted(tower: TowerFunction) -> Any:
    """A model of ONNX, whose inputs are int64 as tokenizers give them."""
    onnx, to_onnx = _packages()
    # They warn of every inner value without a shape, and of each package that is not there whose layers they know.
    for name in ("onnx_ir", "jax2onnx"):
        logging.getLogger(name).setLevel(logging.ERROR)
    shapes = [jax.ShapeDtypeStruct(jax.export.symbolic_shape("batch, length"), "int32")] * len(INPUTS)
    device = AbstractDevice("cpu", None, "cpu")  # the form that a CPU computes fastest
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        # Traced before: jax2onnx puts functions of its own in the place of jax.numpy's, which lack some of the options.
        program = jax.extend.core.jaxpr_as_fun(jax.make_jaxpr(tower.embed)(*shapes))
        inner = [f"{name}_int32" for name in INPUTS]
        names = {"model_name": tower.name, "input_names": inner, "output_names": list(OUTPUTS)}
        model = to_onnx(program, shapes, opset=_OPSET, **names)
    for value, name in zip(model.graph.input, INPUTS, strict=True):
        model.graph.node.insert(0, onnx.helper.make_node("Cast", [name], [value.name], to=onnx.TensorProto.INT32))
        value.name, value.type.tensor_type.elem_type = name, onnx.TensorProto.INT64
    return model


def _packages() -> tuple[Any, Any]:
    what = "config.export.onnx=True"
    try:
        return libraries.package(what, "onnx", "onnx"), libraries.package(what, "jax2onnx", "onnx").to_onnx
    except UserError as error:
        # Its metadata ask for an older Orbax than ours, and it uses none.
        raise UserError(f"{error} && pip install --no-deps jax2onnx==0.17.1") from error
