"""Towers as ONNX, with what others have to add themselves: pooling, layers behind it and length are inside.

onnx/model.onnx     `query.onnx` and `document.onnx` where these are not embedded alike
onnx/config.json    inputs and outputs, lengths, prefixes, and the tokenizer that belongs to them
onnx/check.npz      token ids of eight texts and the embeddings that JAX gives them on a CPU
"""

import logging
from pathlib import Path
from typing import Any

import jax
import jax.extend.core
import numpy as np

from retrieval import extras, files
from retrieval.errors import UserError
from retrieval.export import tower_function
from retrieval.export.tower_folders import TrainedTowers
from retrieval.export.tower_function import INPUTS, OUTPUTS, TowerFunction, traced_for
from retrieval.runtime.arrays import on_host

FOLDER = "onnx"
_OPSET = 21  # which runtimes of 2024 have
_MOST = 2**31 - 2**20  # bytes of one file; parameters of more lie in a file beside it
_DATA = "_data"


def check() -> None:
    """Checks that the packages are there which convert.

    Raises:
      UserError: one is not.
    """
    _packages()


def write(trained: TrainedTowers, folder: Path) -> None:
    """Writes `onnx/` into the folder of an export.

    Raises:
      UserError: a package is missing.
    """
    onnx, _ = _packages()
    (folder / FOLDER).mkdir()
    towers: dict[str, Any] = {}
    checks: dict[str, np.ndarray] = {}
    for tower in tower_function.of(trained):
        path = folder / FOLDER / f"{tower.name}.onnx"
        model = _converted(tower)
        is_large = sum(len(tensor.raw_data) for tensor in model.graph.initializer) > _MOST
        onnx.save_model(model, path, save_as_external_data=is_large, location=path.name + _DATA)
        given = tower_function.example(trained, max(side.length for side in tower.sides.values()))
        with on_host():
            embedding_BE = np.asarray(jax.jit(tower.embed)(*given)[0])
        arrays = [*(x.astype(np.int64) for x in given), embedding_BE]
        checks |= {f"{tower.name}.{name}": x for name, x in zip((*INPUTS, OUTPUTS[0]), arrays)}
        towers[path.name] = {side: texts._asdict() for side, texts in tower.sides.items()}
    np.savez(folder / FOLDER / "check.npz", allow_pickle=False, **checks)
    files.write_json(
        folder / FOLDER / "config.json",
        {
            "inputs": INPUTS,
            "outputs": OUTPUTS,
            "opset": _OPSET,
            "towers": towers,
            "dimensions": int(checks[next(reversed(checks))].shape[1]),
            "normalized": trained.towers.normalize,
            "similarity": "dot",
            "prompts": dict(trained.prompts),
            "tokenizers": files.checksums(folder, sorted(folder.rglob("tokenizer.json"))),
        },
    )


def _converted(tower: TowerFunction) -> Any:
    """A model of ONNX, whose inputs are int64 as tokenizers give them."""
    onnx, to_onnx = _packages()
    logging.getLogger("onnx_ir").setLevel(logging.ERROR)  # it warns of every inner value without a shape
    given = [jax.ShapeDtypeStruct(jax.export.symbolic_shape("batch, length"), "int32")] * len(INPUTS)
    with traced_for("cpu"):
        # Traced before: jax2onnx puts functions of its own in the place of jax.numpy's, which lack some of the options.
        program = jax.extend.core.jaxpr_as_fun(jax.make_jaxpr(tower.embed)(*given))
        inner = [f"{name}_int32" for name in INPUTS]
        names = {"model_name": tower.name, "input_names": inner, "output_names": list(OUTPUTS)}
        model = to_onnx(program, given, opset=_OPSET, **names)
    for value, name in zip(model.graph.input, INPUTS, strict=True):
        model.graph.node.insert(0, onnx.helper.make_node("Cast", [name], [value.name], to=onnx.TensorProto.INT32))
        value.name, value.type.tensor_type.elem_type = name, onnx.TensorProto.INT64
    return model


def _packages() -> tuple[Any, Any]:
    what = "config.export.formats=onnx"
    try:
        return extras.package(what, "onnx", "onnx"), extras.package(what, "jax2onnx", "onnx").to_onnx
    except UserError as error:
        # Its metadata ask for an older Orbax than ours, and it uses none.
        raise UserError(f"{error} && pip install --no-deps jax2onnx==0.17.1") from error
