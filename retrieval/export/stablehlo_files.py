"""Towers as StableHLO, which JAX alone runs: `jax.export.deserialize(FILE.read_bytes()).call(*INPUTS)`.

    stablehlo/model.cpu.stablehlo            as CPUs compute here, to the bit
    stablehlo/model.accelerator.stablehlo    for GPUs and TPUs

`query` and `document` stand in the place of `model` where these are not embedded alike. Texts may be any number, of any
length up to the encoder's. What a processor computes fastest is chosen while a program is traced: hence the two files.
"""

from pathlib import Path

import jax
import jax.export

from retrieval.export import tower_function
from retrieval.export.tower_folders import TrainedTowers

FOLDER = "stablehlo"
_PLATFORMS = {"cpu": ("cpu",), "accelerator": ("cuda", "tpu")}


def write(trained: TrainedTowers, folder: Path) -> None:
    """Writes `stablehlo/` into the folder of an export."""
    (folder / FOLDER).mkdir()
    for tower in tower_function.of(trained):
        shape = jax.export.symbolic_shape("texts, tokens", constraints=[f"tokens <= {tower.longest}"])
        given = [jax.ShapeDtypeStruct(shape, "int32")] * len(tower_function.INPUTS)
        for name, platforms in _PLATFORMS.items():
            with tower_function.traced_for(name):
                program = jax.export.export(jax.jit(tower.embed), platforms=platforms)(*given)
            (folder / FOLDER / f"{tower.name}.{name}.stablehlo").write_bytes(program.serialize())
