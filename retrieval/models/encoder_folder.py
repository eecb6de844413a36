"""A folder with an encoder of a family in `encoders`: its sizes, and its weights as our parameters.

The folder is as Hugging Face's libraries write it: `config.json` beside the weights.
"""

import dataclasses
import functools
import logging
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import model_folder
from retrieval.models import encoder_tensors, lora, peft_folder, tensor_files
from retrieval.models.architecture import Architecture
from retrieval.models.encoder_tensors import TensorNames
from retrieval.models.encoders import family as families
from retrieval.models.encoders.family import FAMILIES
from retrieval.models.known_keys import shown
from retrieval.models.peft_folder import Matrix
from retrieval.models.transformer_config import TransformerConfig

_log = logging.getLogger(__name__)

# Parameters by which the sizes of a config are checked -> the axes of their tensors, as fields of `sizes`.
_SHAPES = {
    "token_embedding/embedding": ("vocab_size", "hidden_size"),
    "position_embedding/embedding": ("max_length", "hidden_size"),
    "type_embedding/embedding": ("type_vocab_size", "hidden_size"),
    "layers/mlp_in/kernel": ("mlp_size", "hidden_size"),
}

_AGAIN = "copy both again"


@dataclasses.dataclass(frozen=True, eq=False)
class EncoderFolder:
    """A folder that has been looked at; its weights are read when they are asked for, once.

    An adapter is merged into the model that it stands on.

    Attributes:
      path: as it was named.
      place: the folder with the encoder, `path` itself or one below it.
      family: a name in `FAMILIES`.
      sizes: fields of a `TransformerConfig`: those on which shapes and results depend. `max_length` is the longest
        text that it has positions for.
    """

    path: Path
    place: Path
    family: str
    sizes: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> "EncoderFolder":
        """Looks at a folder's config, and at the shapes of its weights, whose values are not read.

        Raises:
          UserError: there is no such folder, a field or a file is missing, its model is not one of ours, or it may be
            for what its config says, or the weights are of other sizes than that.
        """
        model_folder.check_sums(path)
        place = model_folder.encoder_folder(Path(path))
        config = families.config_of(place)
        folder = cls(Path(path), place, *families.read(config))
        if model_folder.base_of(place):  # an adapter may have a table of more tokens than its base's config tells of
            (table,) = folder.names.of_parameter("token_embedding/embedding", 1)
            rows = len(folder.names.split(folder._shapes)[table])
            folder = dataclasses.replace(folder, sizes={**folder.sizes, "vocab_size": rows})
        folder._check_shapes(config)
        return folder

    @property
    def files(self) -> list[Path]:
        """Its config, and the files that its weights are read from."""
        base = model_folder.base_of(self.place)
        adapter = [self.place / name for name in (model_folder.ADAPTER, model_folder.ADAPTER_WEIGHTS)] if base else []
        return [families.config_of(self.place), *tensor_files.find(base or self.place), *adapter]

    @property
    def stored_type(self) -> np.dtype:
        """The smallest type that holds its weights exactly: one of 16 bits, or float32."""
        types = {tensor.dtype for tensor in self._shapes.values() if tensor.size}
        return types.pop() if len(types) == 1 and min(types).itemsize == 2 else np.dtype(np.float32)

    @property
    def matryoshka(self) -> tuple[int, ...]:
        """The sizes that its config says its embeddings may be cut to."""
        sizes = self._config.get("matryoshka_dimensions") or []
        if not isinstance(sizes, list) or not all(type(size) is int and size > 0 for size in sizes):
            problem = f"matryoshka_dimensions is {shown(sizes)}, and a list of whole numbers is needed"
            raise UserError(f"{self.files[0]}: {problem}")
        return tuple(sorted(set(sizes)))

    @property
    def has_head(self) -> bool:
        """Whether the weights of a masked language model's head are there."""
        return bool(self._of_heads(self._shapes, "mlm"))

    @property
    def names(self) -> TensorNames:
        """The names of its tensors."""
        return TensorNames(self.family, self.sizes["architecture"])

    def encoder(self, like: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of the encoder, as `encoder_tensors.to_parameters` gives them.

        Of a table with more rows than `like` has tokens the first are taken.
        """
        tokens = like["token_embedding"]["embedding"].shape[0]
        return self._parameters(_of_tokens(self._of_heads(self._tensors, ""), self.names, tokens), like)

    def check_cross_encoder(self, like: Mapping[str, Any]) -> None:
        """Checks that every parameter of a cross-encoder has its tensor, and no tensor is left over, by their shapes.

        Args:
          like: the shapes of one of the folder's sizes and classes.
        """
        heads = {name: shapes for name, shapes in like.items() if name != "encoder"}
        buckets = ("pooler", "mlm") if "pooler_norm" in heads else ("pooler",)
        tensors = self._of_heads(self._shapes, "", "classifier", *buckets)
        encoder_tensors.check_shapes(tensors, {**like["encoder"], **heads}, self.names, str(self.path))

    def has(self, module: str) -> bool:
        """Whether the weights of one of our modules behind the encoder are there, such as 'pooler' or 'classifier'."""
        return module in FAMILIES[self.family].modules and self._weight(module) in self._shapes

    @property
    def classes(self) -> int:
        """The classes of a cross-encoder's classifier; 0 where the folder has none."""
        weight = self._shapes[self._weight("classifier")] if self.has("classifier") else np.zeros(())
        return len(weight) if weight.ndim else 0

    def classifier(self, like: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters that the folder has of what a cross-encoder has on its encoder.

        The classifier is among them where all is. A single logit x becomes the two of `like`, 0 and x, if that has two
        classes: log p(relevant) is log sigmoid(x).

        Args:
          like: by the names of our modules, such as 'pooler' and 'classifier'.
        """
        own = {name: part for name, part in like.items() if self.has(name)}
        if len(own) < len(like):
            own.pop("classifier", None)
        modules = tuple(f"{self.names.module(name)}." for name in own)
        tensors = {name: x for name, x in self._tensors.items() if name.startswith(modules)}
        if "classifier" in own and own["classifier"]["kernel"].shape[1] == 2:
            module = f"{self.names.module('classifier')}."
            single = [name for name, x in tensors.items() if name.startswith(module) and x.shape[:1] == (1,)]
            tensors |= {name: np.concatenate([np.zeros_like(tensors[name]), tensors[name]]) for name in single}
        return self._parameters(tensors, own)

    def output_layer(self) -> np.ndarray:
        """A language model's output layer, [V, H]: its own, or the embeddings of its tokens."""
        table = self._tensors[self._weight("token_embedding")]
        is_tied = self._config.get("tie_word_embeddings") is True
        return np.asarray(table if is_tied else self._tensors.get("lm_head.weight", table), np.float32)

    def next_sentence_head(self, like: Mapping[str, Any]) -> dict[str, Any] | None:
        """The parameters of the pooler and of the head of next-sentence prediction, or None where there is none."""
        if not self._of_heads(self._shapes, "next_sentence"):
            return None
        return self._parameters(self._of_heads(self._tensors, "next_sentence", "pooler"), like)

    def mlm_head(self, like: Mapping[str, Any]) -> dict[str, Any] | None:
        """The parameters of the head that predicts masked tokens, or None where the folder has none; see `encoder`."""
        if not self.has_head:
            return None
        head, root = self._of_heads(self._tensors, "mlm"), self.names.module("")
        table = self._tensors.get(self._weight("token_embedding"))
        for name in (f"{root}.decoder.weight", f"{root}.weight"):
            output = head.pop(name, None)
            if output is not None and (table is None or not np.array_equal(output, table)):
                problem = "its masked language model has an output layer of its own, and ours the token embeddings"
                raise UserError(f"{self.path}: {problem}; use a folder whose weights are tied")
        if (bias := head.pop(f"{root}.decoder.bias", None)) is not None:
            head.setdefault(f"{root}.bias", bias)
        return self._parameters(_of_tokens(head, self.names, len(like["bias"])), like)

    @property
    def matrices(self) -> list[Matrix]:
        """The matrices that an adapter may stand on, as an `AutoModel` names them."""
        family, of_module = FAMILIES[self.family], defaultdict(list)
        for path in family.modules_of(self.sizes["architecture"]):
            if path.startswith("layers/") and path.rpartition("/")[2] in lora.MODULES:
                for number in range(self.sizes["num_layers"]):
                    whole, _, part = self.names.module(path, number).partition("#")
                    of_module[whole].append((part, f"{number}/{path}"))
        place = model_folder.base_of(self.place) or self.place
        published = {family.name(name): name for name in tensor_files.read(place, values=False)}
        matrices = []
        for name, parts in of_module.items():
            theirs = published[f"{name}.weight"].removesuffix(".weight")
            named = name if theirs.endswith(name) else theirs.removeprefix(f"{self.family}.")
            matrices.append(Matrix(named, [part for _, part in sorted(parts)]))
        return matrices

    def _parameters(self, tensors: Mapping[str, np.ndarray], like: Mapping[str, Any]) -> dict[str, Any]:
        return encoder_tensors.to_parameters(tensors, like, self.names, str(self.path))

    def _of_heads(self, tensors: Mapping[str, np.ndarray], *heads: str) -> dict[str, np.ndarray]:
        """The tensors of some heads, as `Family.heads` has them; '' is the encoder."""
        prefixes = FAMILIES[self.family].heads
        of = {name: next((prefixes[start] for start in prefixes if name.startswith(start)), "") for name in tensors}
        return {name: tensor for name, tensor in tensors.items() if of[name] in heads}

    def _weight(self, module: str) -> str:
        """The tensor of one of our modules."""
        return f"{self.names.module(module)}.weight"

    @functools.cached_property
    def _config(self) -> dict[str, Any]:
        return files.read_json(self.files[0])

    @functools.cached_property
    def _tensors(self) -> dict[str, np.ndarray]:
        return self._read(values=True)

    @functools.cached_property
    def _shapes(self) -> dict[str, np.ndarray]:
        return self._read(values=False)

    def _read(self, values: bool) -> dict[str, np.ndarray]:
        """The weights under the names of the family, without those that have no place in a model of ours."""
        family, tensors = FAMILIES[self.family], {}
        base = model_folder.base_of(self.place)
        published = tensor_files.read(base or self.place, values)
        if base:
            if values:
                peft_folder.check_base(self.place, base)
            published = peft_folder.read(self.place).merged(published, values)
        for original, tensor in published.items():
            name = family.name(original)
            if re.search(family.unused, name):
                _log.debug("%s: not used: %s", self.path, name)
            elif name in tensors and not np.array_equal(tensors[name], tensor):
                raise UserError(f"{self.path}: two of its tensors are {name}; copy it again")
            else:
                tensors[name] = tensor
        if self.family == "distilbert":
            of_type = next(iter(tensors.values())).dtype if tensors else np.float32
            zeros = np.broadcast_to(np.zeros((), of_type), (1, self.sizes["hidden_size"]))
            tensors["embeddings.token_type_embeddings.weight"] = zeros
        return tensors

    def _check_shapes(self, config: Path) -> None:
        """Compares the sizes of the config with the weights, before anything of these sizes is made."""
        family, names = FAMILIES[self.family], self.names
        shapes = {name: array.shape for name, array in names.split(self._shapes).items()}
        weights = tensor_files.find(model_folder.base_of(self.place) or self.place)[0]
        layer = re.escape(names.module("layers/mlp_out", 0)).replace("0", r"(\d{1,9})", 1)
        layers = {int(match[1]) for name in shapes if (match := re.match(layer, name))}

        if layers != set(range(min(self.sizes["num_layers"], len(layers) + 1))):
            problem = f"{family.sizes['num_layers']} is {shown(self.sizes['num_layers'])}"
            raise UserError(f"{config}: {problem}, and {weights.name} has tensors of {len(layers)} layers: {_AGAIN}")
        for path, axes in _SHAPES.items():
            if path.rpartition("/")[0] not in family.modules_of(self.sizes["architecture"]):
                continue
            (name,) = names.of_parameter(path, 1)
            skipped = {"max_length": family.skipped_positions}
            shape, wanted = shapes.get(name, ()), tuple(self.sizes[size] + skipped.get(size, 0) for size in axes)
            longer = axes[0] == "max_length" and shape[:1] > wanted[:1]  # of which the first positions are taken
            if shape[longer:] != wanted[longer:]:
                needed = f"its sizes make {name} {list(wanted)}"
                raise UserError(f"{config}: {needed}, and {weights.name} has {list(shape) or 'none'}: {_AGAIN}")


def written_config(config: TransformerConfig) -> dict[str, Any]:
    """A `config.json` that makes the family's class of Hugging Face the same encoder."""
    family = FAMILIES[config.architecture.family]
    written = family.config(config)
    if _explicit(TransformerConfig(**family.fields(Path("config.json"), written))) != _explicit(config):
        raise UserError(f"no published {config.architecture.family} has these switches, so none can be written")
    return written


def _explicit(config: TransformerConfig) -> tuple[Architecture, list[bool]]:
    """The switches of an encoder, with sizes in the place of zeros, and which of its layers are local."""
    switches = config.architecture
    is_local = [switches.locality()[number % len(switches.locality())] for number in range(config.num_layers)]
    return switches.replaced(
        kv_heads=config.kv_heads,
        head_size=config.head_size,
        score_size=switches.score_size or config.head_size,
        window=switches.window if any(is_local) else 0,
        local_theta=(switches.local_theta or switches.rope_theta) if any(is_local) else 0.0,
        global_every=0,
        global_first=False,
    ), is_local


def _of_tokens(tensors: Mapping[str, np.ndarray], names: TensorNames, tokens: int) -> Mapping[str, np.ndarray]:
    """The tensors with one row of the vocabulary for each token; spare rows, which stand behind them, are left out.

    Tables with too few will be found not to fit.
    """
    modules = FAMILIES[names.family].modules
    of_tokens = {f"{modules['token_embedding']}.weight", f"{modules.get('', '')}.bias"} & tensors.keys()
    return {**tensors, **{name: tensors[name][:tokens] for name in of_tokens if tensors[name].ndim}}
