"""What one family of encoders has and another has not: the switches of `transformer.Transformer`.

BERT (Devlin et al. 2019) has the defaults. `encoders/` has a file a family, with the values of its switches.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

from retrieval.common.errors import UserError, unknown_name

NORMS = ("layer", "layer_no_bias", "rms", "rms_plus_one")
PLACES = ("after", "before", "around")
POSITIONS = ("learned", "rope", "none")
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")

# The matrices of a layer, some of which have a bias.
MATRICES = ("query", "key", "value", "output", "mlp_in", "mlp_gate", "mlp_out")


@dataclasses.dataclass(frozen=True)
class Architecture:
    """The switches of a family, and the sizes that only some families have.

    Attributes:
      norm: 'layer' (LayerNorm), 'layer_no_bias', 'rms' (Zhang & Sennrich 2019) or 'rms_plus_one', whose stored scale
        is less than the true one by 1.
      norms: where they stand: 'after' each residual sum, 'before' each sublayer, or 'around' it: before it, and after
        it but before the sum.
      first_norm: whether the first layer has one before its attention.
      embedding_norm, final_norm: whether the embeddings and the last layer are followed by one.
      positions: 'learned', 'rope' (Su et al. 2021), which turns queries and keys, or 'none'.
      padding_id: the token of padding of a family in fairseq's manner: where one is written in a text, it is attended
        to, but is not counted, and its position has a vector of zeros; -1: every token is counted.
      token_types: whether there is a table of them.
      relative_bias: whether scores have a bias by the distance of two tokens (Raffel et al. 2020), one for all layers.
      causal: whether a token sees none after it.
      activation: of the MLP, a name in `ACTIVATIONS`.
      gated: whether it multiplies a second product (Shazeer 2020).
      biases: those in `MATRICES` that have one.
      qk_norm: whether each head's queries and keys pass a norm.
      embedding_scale: whether embeddings are multiplied by the root of the hidden size.
      kv_heads: heads of keys and values, which groups of query heads share (Ainslie et al. 2023); 0: as many as heads.
      head_size: 0: the hidden size over the heads.
      score_size: scores are divided by its root; 0: the size of a head.
      rope_theta, local_theta: the base of the angles, and that of local layers; 0: the same.
      rope_scaling: '' or the scaling of long contexts: 'linear:FACTOR', which local layers have not, or
        'llama3:FACTOR:LOW:HIGH:ORIGINAL'.
      window: of local layers, how many tokens before its own a token sees, and behind it if the attention is not
        causal; 0: no layer is local.
      global_every: one layer in so many is not local; 0: all are.
      global_first: whether it is the first of them, or the last.
    """

    family: str = "bert"
    norm: str = "layer"
    norms: str = "after"
    first_norm: bool = True
    embedding_norm: bool = True
    final_norm: bool = False
    positions: str = "learned"
    padding_id: int = -1
    token_types: bool = True
    relative_bias: bool = False
    causal: bool = False
    activation: str = "gelu"
    gated: bool = False
    biases: tuple[str, ...] = MATRICES
    qk_norm: bool = False
    embedding_scale: bool = False
    kv_heads: int = 0
    head_size: int = 0
    score_size: int = 0
    rope_theta: float = 10_000.0
    local_theta: float = 0.0
    rope_scaling: str = ""
    window: int = 0
    global_every: int = 0
    global_first: bool = False

    def __post_init__(self):
        kinds = {"norm": NORMS, "norms": PLACES, "positions": POSITIONS, "activation": ACTIVATIONS}
        for name, names in kinds.items():
            if getattr(self, name) not in names:
                raise unknown_name(name, getattr(self, name), names)

    def replaced(self, **switches: Any) -> "Architecture":
        """The same with other switches."""
        return dataclasses.replace(self, **switches)

    def locality(self) -> tuple[bool, ...]:
        """Whether each layer of a period is local."""
        if not self.window or not self.global_every:
            return (bool(self.window),)
        others = (True,) * (self.global_every - 1)
        return (False, *others) if self.global_first else (*others, False)


_SWITCHES = {field.name: field.type for field in dataclasses.fields(Architecture) if field.name != "family"}


def with_switches(architecture: Architecture, switches: Iterable[str]) -> Architecture:
    """An architecture with some switches set, each as 'name=value'.

    Raises:
      UserError: there is no such switch, or no such value of it.
    """
    values = {}
    for switch in switches:
        name, _, text = switch.partition("=")
        if name not in _SWITCHES:
            raise unknown_name("switch of config.model.switches", name, _SWITCHES)
        try:
            values[name] = _value(_SWITCHES[name], text)
        except ValueError as error:
            raise UserError(f"config.model.switches: {switch} has no value that '{name}' may have") from error
    return dataclasses.replace(architecture, **values)


def switches(architecture: Architecture, base: Architecture) -> tuple[str, ...]:
    """The switches that `with_switches` makes an architecture of another with."""
    values = {name: getattr(architecture, name) for name in _SWITCHES}
    changed = {name: value for name, value in values.items() if value != getattr(base, name)}
    texts = {name: "+".join(value) if isinstance(value, tuple) else str(value) for name, value in changed.items()}
    return tuple(f"{name}={text}" for name, text in texts.items())


def are_switches(value: Any) -> bool:
    """Whether a value of `config.model.switches` is a tuple of texts 'name=value'."""
    return isinstance(value, tuple | list) and all(isinstance(text, str) and "=" in text for text in value)


def _value(kind: Any, text: str) -> Any:
    if kind is bool:
        return bool(("False", "True").index(text))
    if kind in (int, float, str):
        return kind(text)
    return tuple(MATRICES[MATRICES.index(name)] for name in text.split("+") if name)


BERT = Architecture()
# BERT with its norms before the sublayers, which trains more steadily from nothing (Xiong et al. 2020).
PRE_NORM = Architecture(norms="before", embedding_norm=False, final_norm=True)
