"""A family of published encoders: what its configs say, and what its tensors are called, in both directions.

A file beside this one, or of a plugin, adds a family to `FAMILIES` by the `model_type` of its configs.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.registry import Table
from retrieval.common.runtime import model_folder
from retrieval.models import known_keys
from retrieval.models.architecture import Architecture
from retrieval.models.known_keys import ANY, shown
from retrieval.models.transformer_config import TransformerConfig

CONFIG = "config.json"
MOST = 2**31 - 1  # of a size: no array of ours is larger along an axis


def pairs(text: str) -> dict[str, str]:
    """Names and others for them, 'OURS=THEIRS' with blanks between."""
    return dict(pair.split("=") for pair in text.split())


# Our names of the sizes of a `TransformerConfig` -> what most configs call them.
SIZES = pairs("""
    vocab_size=vocab_size num_layers=num_hidden_layers hidden_size=hidden_size num_heads=num_attention_heads
    mlp_size=intermediate_size max_length=max_position_embeddings
""")
TYPES = pairs("type_vocab_size=type_vocab_size")
# The same of dropout, as BERT calls it.
RATES = pairs("dropout=hidden_dropout_prob attention_rate=attention_probs_dropout_prob")

# The modules of a layer, in the order in which `of_layers` takes a family's own.
_OF_LAYER = """
    attention/query attention/key attention/value attention/output attention_norm mlp_norm mlp_in mlp_out mlp_gate
""".split()

# Keys of configs that change no hidden state: notes, dropout and other settings of training, what a library returns,
# and how one generates text, which older versions wrote into every config.
HARMLESS = Path(__file__).with_name("harmless_keys.txt").read_text(encoding="utf-8").split()


def of_layers(layer: str, names: str) -> dict[str, str]:
    """Our modules of a layer -> a family's.

    Args:
      layer: what stands before their names; {} is its number.
      names: query, key, value and output of the attention, its norm, then norm, first and last matrix of the MLP, and
        its gate where it has one, with blanks between them.
    """
    return {f"layers/{ours}": f"{layer}.{its}" for ours, its in zip(_OF_LAYER, names.split())}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a config, whose keys are known.

    Attributes:
      spellings: keys -> what this config calls them, where it has other names.
    """

    path: Path
    values: Mapping[str, Any]
    spellings: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def key(self, name: str) -> str:
        """What the config calls a key."""
        return self.spellings.get(name, name)

    def __contains__(self, name: str) -> bool:
        return self.key(name) in self.values

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a key."""
        return self.values.get(self.key(name), default)

    def whole(self, name: str, default: int | None = None, least: int = 1) -> int:
        """A whole number, as `known_keys.whole` checks it."""
        return known_keys.whole(self.path, self.values, self.key(name), MOST, default, least)

    def positive(self, name: str, default: float | None = None, below: float = 1e300) -> float:
        """A number above 0, and below a bound."""
        value = self.get(name, default)
        if type(value) not in (int, float) or not 0 < value < below:
            bound = f" and below {below:g}" if below < 1e300 else ""
            raise self.error(f"{self.key(name)} is {shown(value)}; a number above 0{bound} is needed")
        return float(value)

    def error(self, text: str) -> UserError:
        """An error that names the file."""
        return UserError(f"{self.path}: {text}")


@dataclasses.dataclass(frozen=True)
class Family:
    """A kind of published encoder.

    Attributes:
      architecture: its switches; where its configs set some, those of its usual one.
      modules: our modules -> its own; {} is the number of a layer. Where one holds several of ours, in equal parts of
        its rows, they are 'NAME#0', 'NAME#1', ...
      of_torch: the class of transformers that a written config names.
      sizes: our names of sizes -> keys of its configs.
      head_sizes: of these `kv_heads` and `head_size`, which configs may leave out.
      defaults: of sizes that a config may leave out.
      epsilon: the key of the epsilon of norms, and its default.
      rates: our names of dropout -> keys, which are written and change nothing that is read.
      written: settings with one value, which is the one that is understood and written.
      keys: the other keys -> the values that are understood, or `ANY`; they count more than `written`.
      ignored: keys that change no hidden state, beside those that no family's do.
      spellings: keys -> other names of them, of which a config has all or none; '' where it has no such key then.
      angles: how its configs tell rotary positions; None: it has none.
      read: gives switches by the settings of a config and its sizes.
      write: gives the other settings of a config.
      gated_modules: modules that have other names where the MLP is gated.
      heads: prefixes of tensors behind the encoder -> what they are of: 'mlm', 'next_sentence', 'pooler',
        'classifier', 'late' or 'lm'.
      names: other names of tensors (regular expressions) -> those of `modules`, each looked for in turn.
      unused: tensors (a regular expression) that have no place in any model of ours.
      prefix: what stands before the names of an encoder's tensors where its model has a classifier.
    """

    architecture: Architecture
    modules: Mapping[str, str]
    of_torch: str = ""
    sizes: Mapping[str, str] = dataclasses.field(default_factory=SIZES.copy)
    head_sizes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, int] = dataclasses.field(default_factory=dict)
    epsilon: tuple[str, float] = ("layer_norm_eps", 1e-12)
    rates: Mapping[str, str] = dataclasses.field(default_factory=dict)
    written: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    keys: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    ignored: str = ""
    spellings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    angles: Any = None
    read: Callable[[Settings, Mapping[str, int]], dict[str, Any]] = lambda settings, sizes: {}
    write: Callable[[TransformerConfig], dict[str, Any]] = lambda config: {}
    gated_modules: Mapping[str, str] = dataclasses.field(default_factory=dict)
    heads: Mapping[str, str] = dataclasses.field(default_factory=dict)
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    unused: str = r"(?!)"
    prefix: str = ""

    @property
    def skipped_positions(self) -> int:
        """The rows of its table of positions before that of a text's first token."""
        return self.architecture.padding_id + 1

    def modules_of(self, architecture: Architecture) -> dict[str, str]:
        """Our modules -> its own, of an encoder with such switches."""
        modules = {**self.modules, **(self.gated_modules if architecture.gated else {})}
        return {ours: its for ours, its in modules.items() if ours != "type_embedding" or architecture.token_types}

    def name(self, tensor: str) -> str:
        """The name that `modules` has for a tensor of a folder."""
        for theirs, ours in self.names.items():
            tensor = re.sub(theirs, ours, tensor)
        return tensor

    @property
    def known(self) -> dict[str, Any]:
        """The keys of its configs -> the values that are understood."""
        of_angles = self.angles.keys if self.angles else ()
        read = [*self.sizes.values(), *self.head_sizes.values(), self.epsilon[0], *of_angles]
        read += filter(None, self.spellings.values())
        return {
            **{key: (value,) for key, value in self.written.items()},
            **dict.fromkeys([*HARMLESS, *self.ignored.split(), *self.rates.values(), *read], ANY),
            **self.keys,
        }

    def fields(self, path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a `TransformerConfig` by a config whose keys are known."""
        settings = Settings(path, config, self._spelled(path, config))
        sizes = {
            ours: settings.whole(key, self.defaults.get(ours), least=0 if ours in TYPES else 1)
            for ours, key in self.sizes.items()
        }
        usual = {
            "kv_heads": sizes["num_heads"],
            "head_size": sizes["hidden_size"] // sizes["num_heads"],
            **self.defaults,
        }
        switches: dict[str, Any] = {ours: settings.whole(key, usual[ours]) for ours, key in self.head_sizes.items()}
        if self.skipped_positions and sizes["max_length"] <= self.skipped_positions:
            raise settings.error(f"{self.sizes['max_length']} leaves no position for a text; copy the file again")
        if not (types := sizes.pop("type_vocab_size", 1)):
            switches["token_types"] = False
        switches |= self.angles.read(settings) if self.angles else {}
        fields = {
            **sizes,
            "max_length": sizes.get("max_length", MOST) - self.skipped_positions,  # T5's bias ends nowhere
            "type_vocab_size": max(types, 1),
            "layer_norm_epsilon": settings.positive(*self.epsilon, below=1),
            "architecture": self.architecture.replaced(**switches | self.read(settings, sizes)),
        }
        try:
            TransformerConfig(**fields)
        except UserError as error:
            raise settings.error(str(error)) from error
        return fields

    def config(self, config: TransformerConfig) -> dict[str, Any]:
        """The `config.json` of an encoder."""
        sizes = {theirs: getattr(config, ours) for ours, theirs in {**self.sizes, **self.head_sizes}.items()}
        if self.skipped_positions:
            sizes[self.sizes["max_length"]] += self.skipped_positions
        if "type_vocab_size" in self.sizes and not config.architecture.token_types:
            sizes[self.sizes["type_vocab_size"]] = 0
        return {
            **({"architectures": [self.of_torch]} if self.of_torch else {}),
            "model_type": config.architecture.family,
            **sizes,
            self.epsilon[0]: config.layer_norm_epsilon,
            **{theirs: getattr(config, ours) for ours, theirs in self.rates.items()},
            **self.written,
            **(self.angles.write(config.architecture) if self.angles else {}),
            **self.write(config),
            "dtype": "float32",
        }

    def _spelled(self, path: Path, config: Mapping[str, Any]) -> Mapping[str, str]:
        """The other names of keys, where the config has these."""
        own = [key for key in self.spellings.values() if key in config]
        if own and (both := [key for key in self.spellings if key in config]):
            raise UserError(f"{path}: {both[0]} stands beside {own[0]}, and which names count? Copy it again")
        return self.spellings if own else {}


FAMILIES: Table[Family] = Table("encoder family", "retrieval.models.encoders", "family")


def config_of(folder: Path) -> Path:
    """The config of a folder of weights, or of what an adapter stands on; one has to be there."""
    path = (model_folder.base_of(folder) or folder) / CONFIG
    if not path.is_file():
        raise UserError(f"{folder}: no {CONFIG}, which a folder of an encoder's weights has")
    return path


def is_encoder(folder: Path) -> bool:
    """Whether a folder has a model's weights, and is no work directory; a model of sentence-transformers is one."""
    if model_folder.has_modules(folder):
        return True
    try:
        config = files.read_json(config_of(folder))
    except UserError:
        return False
    return isinstance(config, dict) and ("model_type" in config or "hidden_size" in config)


def read(path: Path) -> tuple[str, dict[str, Any]]:
    """The family of a model and its sizes, as fields of a `TransformerConfig`, by a config that is understood in full.

    Raises:
      UserError: a part of it is not understood, or missing, or no size.
    """
    record = files.read_json(path)
    name = record.get("model_type") if isinstance(record, dict) else None
    if not isinstance(name, str) or name not in FAMILIES:
        raise UserError(f"{path}: model_type is {shown(name)}; one of {', '.join(FAMILIES)} is needed")
    return name, FAMILIES[name].fields(path, known_keys.read(path, {"model_type": (name,), **FAMILIES[name].known}))
