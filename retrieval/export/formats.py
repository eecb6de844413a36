"""The forms of trained towers beside sentence-transformers' folder, by their names in `export.formats`."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ml_collections import ConfigDict

from retrieval.errors import UserError
from retrieval.export import onnx_files, stablehlo_files, static_model
from retrieval.export.tower_folders import TrainedTowers
from retrieval.recipes.encoder_sizes import architecture_of

FORMATS: dict[str, Callable[[TrainedTowers, Path], None]] = {
    onnx_files.FOLDER: onnx_files.write,
    stablehlo_files.FOLDER: stablehlo_files.write,
    static_model.FOLDER: static_model.write,
}


def check(names: Sequence[str], config: ConfigDict) -> None:
    """Checks that towers of a config can be written so, and that the packages are there which that needs.

    Raises:
      UserError: they cannot, or a package is missing.
    """
    of_any_length = [name for name in names if name != static_model.FOLDER]
    if of_any_length and architecture_of(config.model).relative_bias:
        raise UserError(
            f"config.export.formats={of_any_length[0]}: an encoder of the family {config.model.family} has a bias by "
            "distance, which is made for one length, and these files take any: leave it out"
        )
    if onnx_files.FOLDER in names:
        onnx_files.check()
