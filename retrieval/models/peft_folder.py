"""Folders of PEFT: `adapter_config.json` and `adapter_model.safetensors`, an adapter that stands on another model.

A tensor is called `base_model.model.PATH.lora_A.weight`, [r, in], or `lora_B`, [out, r]. PATH is that of a matrix in
the class that was wrapped: `layers.0.self_attn.q_proj` in an `AutoModel`, `model.layers.0...` in a language model.
What is written here names the SHA-256 of its base's config and weights in the file's metadata, such as
`base_sum:config.json`.
"""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime.model_folder import ADAPTER, ADAPTER_WEIGHTS
from retrieval.models import known_keys, tensor_files
from retrieval.models.known_keys import ANY, shown
from retrieval.models.lora import A, B

_WRITTEN = {"peft_type": "LORA", "bias": "none"}
_NONE = ({}, [], "", False)
_KNOWN = {
    **{key: (value,) for key, value in _WRITTEN.items()},
    "init_lora_weights": (True, False, "gaussian"),  # others change the base
    **dict.fromkeys(("fan_in_fan_out", "use_dora", "lora_bias", "use_qalora", "ensure_weight_tying"), (False,)),
    **dict.fromkeys("target_parameters loftq_config layer_replication trainable_token_indices".split(), _NONE),
    "use_rslora": (True, False),
    **dict.fromkeys(
        """
        r lora_alpha rank_pattern alpha_pattern modules_to_save base_model_name_or_path revision task_type auto_mapping
        target_modules exclude_modules layers_to_transform layers_pattern lora_dropout inference_mode peft_version
        megatron_core qalora_group_size
        """.split(),
        ANY,
    ),
}
_WRAPPED = "base_model.model."
_TENSOR = re.compile(rf"{re.escape(_WRAPPED)}(.+?)(?:\.lora_([AB])\.weight)?")
_SUM, CONFIG = "base_sum:", "config.json"
_ANOTHER = "name the model that it was trained on"
# Of a pattern: a name, or one whose dots are escaped; not any regular expression, which may take for ever.
_NAME = re.compile(r"\^?(\w|-|\.|\\\.)+")


class Matrix(NamedTuple):
    """A matrix of a family's encoder, or several of ours in one.

    Attributes:
      name: of its module, as the family's tensors have it.
      parts: our modules, with the layer's number as '0/layers/mlp_in', whose rows are in it, in equal parts.
    """

    name: str
    parts: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Adapter:
    """An adapter that has been read.

    Attributes:
      matrices: the module of each matrix, without the wrapped class's prefix -> A [r, in], B [out, r] and the scale.
      saved: other tensors that it has in place of the base's; a table of tokens may have more rows.
      added: modules of `saved` that the base need not have, as a classifier.
    """

    path: Path
    matrices: Mapping[str, tuple[np.ndarray, np.ndarray, float]]
    saved: Mapping[str, np.ndarray]
    added: Sequence[str]

    def merged(self, tensors: Mapping[str, np.ndarray], values: bool = True) -> dict[str, np.ndarray]:
        """The base's tensors, with those that the adapter has whole, and W + s B A in place of each matrix, float32.

        Args:
          values: whether they are needed; without them shapes alone are right.

        Raises:
          UserError: the base has none of that name, or one of another shape.
        """
        merged = {**tensors}
        for name, tensor in self.saved.items():
            ours = self._of(name, tensors, name if any(part in self.added for part in name.split(".")) else "")
            if ours in tensors and tensors[ours].shape[1:] != tensor.shape[1:]:
                theirs = list(tensors[ours].shape)
                raise UserError(f"{self.path}: {name} is {list(tensor.shape)}, and its base has {theirs}: {_ANOTHER}")
            merged[ours] = tensor
        for module, (a_RI, b_OR, scale) in self.matrices.items() if values else ():
            name = self._of(f"{module}.weight", tensors)
            if (shape := (len(b_OR), a_RI.shape[1])) != merged[name].shape:
                shapes = f"{list(shape)}, and {name} of its base is {list(merged[name].shape)}"
                raise UserError(f"{self.path}: the adapter of {module} is of {shapes}: {_ANOTHER}")
            merged[name] = merged[name].astype(np.float32) + np.float32(scale) * (b_OR @ a_RI)
        return merged

    def _of(self, name: str, names: Iterable[str], default: str = "") -> str:
        """The one of the base's names that is meant; either may have a prefix that the other has not."""
        known = {whole.partition(".")[2]: whole for whole in names} | {whole: whole for whole in names}
        if meant := known.get(name) or known.get(name.partition(".")[2]) or default:
            return meant
        raise UserError(f"{self.path}: its adapter has {name}, and its base no such matrix: {_ANOTHER}")


def read(folder: Path) -> Adapter:
    """The adapter of a folder.

    Raises:
      UserError: a file is missing or damaged, or it does what is not understood here.
    """
    path, place = folder / ADAPTER, folder / ADAPTER_WEIGHTS
    config = known_keys.read(path, _KNOWN)
    rank_of = _by_module(path, config, "r", "rank_pattern")
    alpha_of = _by_module(path, config, "lora_alpha", "alpha_pattern")
    saved, sides = {}, defaultdict(dict)
    for name, tensor in tensor_files.read_safetensors(place).items():
        if ".modules_to_save." in name:  # PEFT's own names for it, which it otherwise takes off
            why = "is saved twice, by modules_to_save and by save_embedding_layers=True"
            raise UserError(f"{place}: {name} {why}: save the adapter with save_embedding_layers=False")
        match = _TENSOR.fullmatch(name)
        if match and match[2] and tensor.ndim == 2:
            sides[match[1]][match[2]] = tensor.astype(np.float32)
        elif match and "lora_" not in name and "token_adapter" not in name:
            saved[match[1]] = tensor
        else:
            raise UserError(f"{place}: {name} is no part of an adapter of a matrix; take another adapter")
    matrices = {}
    for module, pair in sides.items():
        rank = rank_of(module)
        if {*pair} != {"A", "B"} or len(pair["A"]) != rank or pair["B"].shape[1] != rank:
            raise UserError(f"{place}: {module} is no pair of lora_A and lora_B of rank {rank}, as {path.name} has it")
        matrices[module] = pair["A"], pair["B"], alpha_of(module) / (rank**0.5 if config.get("use_rslora") else rank)
    if not matrices and not saved:
        raise UserError(f"{place}: no adapter there; copy it again")
    added = config.get("modules_to_save")
    return Adapter(folder, matrices, saved, added if isinstance(added, list) else [])


def write(
    folder: Path,
    adapters: Mapping[str, np.ndarray],
    matrices: Sequence[Matrix],
    *,
    base: str,
    revision: str | None,
    sums: Mapping[str, str],
    alpha: float,
    dropout: float,
) -> None:
    """Writes an adapter into a folder that is there, as PEFT reads it onto an `AutoModel`.

    Args:
      adapters: 'PART/lora_a' [in, r] and 'PART/lora_b' [r, out], of parts as `Matrix` has them.
      matrices: those of the base, with its modules.
      base: the folder or the name of the model that the adapter stands on.
      sums: the SHA-256 of its config and of its files of weights.
    """
    tensors, ranks, alphas = {}, {}, {}
    for matrix in matrices:
        adapted = [part for part in matrix.parts if f"{part}/{A}" in adapters]
        if not adapted:
            continue
        # The product of several is one of the sum of their ranks. The scale, over that rank, stays what it was.
        (rank, size), count = adapters[f"{adapted[0]}/{B}"].shape, len(adapted)
        a_RI = np.concatenate([adapters[f"{part}/{A}"].T for part in adapted])
        b_POCR = np.zeros((len(matrix.parts), size, count, rank), np.float32)
        for place, part in enumerate(adapted):
            b_POCR[matrix.parts.index(part), :, place] = adapters[f"{part}/{B}"].T
        b_OR = b_POCR.reshape(-1, count * rank)
        tensors |= {f"{_WRAPPED}{matrix.name}.lora_A.weight": a_RI, f"{_WRAPPED}{matrix.name}.lora_B.weight": b_OR}
        of_matrix = alpha * count
        ranks[matrix.name], alphas[matrix.name] = rank * count, int(of_matrix) if of_matrix % 1 == 0 else of_matrix
    rank, of_all = min(ranks.values()), min(alphas.values())
    config = {
        **_WRITTEN,
        "task_type": "FEATURE_EXTRACTION",
        "base_model_name_or_path": base,
        "revision": revision,
        "r": rank,
        "lora_alpha": of_all,
        "rank_pattern": {name.replace(".", r"\."): value for name, value in ranks.items() if value != rank},
        "alpha_pattern": {name.replace(".", r"\."): value for name, value in alphas.items() if value != of_all},
        "target_modules": _targets(ranks, [matrix.name for matrix in matrices]),
        "lora_dropout": dropout,
        "inference_mode": True,
    }
    files.write_json(folder / ADAPTER, config)
    tensors = {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()}
    tensor_files.write(folder / ADAPTER_WEIGHTS, tensors, **{f"{_SUM}{name}": sum for name, sum in sums.items()})


def check_base(folder: Path, base: Path) -> None:
    """Checks that an adapter stands on the files that it was trained on, where it names their sums."""
    metadata = tensor_files.metadata(folder / ADAPTER_WEIGHTS)
    known = {name.removeprefix(_SUM): sum for name, sum in metadata.items() if name.startswith(_SUM)}
    used = [base / CONFIG] if CONFIG in known else []  # PEFT and older versions name none
    for name, sum in files.checksums(base, used + (tensor_files.find(base) if known else [])).items():
        if sum not in known.values():
            problem = f"the adapter of {folder} was trained on another file of that name"
            raise UserError(f"{base / name}: {problem}: put that one back, or train it again")


def _targets(adapted: Mapping[str, Any], every: Sequence[str]) -> list[str]:
    """The ends of the names of modules by which PEFT finds them and no others; else their whole names."""
    ends = sorted({re.sub(r"^.*\.\d+\.", "", name) for name in adapted})
    meant = [name for name in every if any(f".{name}".endswith(f".{end}") for end in ends)]
    return ends if set(meant) == set(adapted) else sorted(adapted)


def _by_module(path: Path, config: Mapping[str, Any], key: str, pattern: str) -> Callable[[str], float]:
    """The value of a setting for a module, which may have one of its own, as PEFT looks for it."""
    usual, own = config.get(key, 8), config.get(pattern) or {}
    values: list[Any] = [usual, *own.values()] if isinstance(own, dict) else [None]
    if not all(type(value) in (int, float) and value > 0 for value in values):
        raise UserError(f"{path}: {key} is {shown(usual)} and {pattern} {shown(own)}; numbers above 0 are needed")
    if unknown := [name for name in own if not _NAME.fullmatch(name)]:
        raise UserError(f"{path}: {pattern} has {shown(unknown[0])}, and names of modules alone are understood here")
    named = {name.replace("\\.", "."): value for name, value in reversed(own.items())}

    def of(module: str) -> float:
        parts = module.split(".")
        ends = {f"^{module}", *(".".join(parts[start:]) for start in range(len(parts)))}
        fitting = [value for name, value in named.items() if name in ends]
        return fitting[-1] if fitting else usual  # of two that fit the first of the file counts

    return of
