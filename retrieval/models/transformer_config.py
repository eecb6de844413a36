"""The sizes of a Transformer, and how it is computed."""

import dataclasses

import jax

from retrieval.common.errors import UserError, multiples
from retrieval.models import fused_attention
from retrieval.models.architecture import BERT, Architecture
from retrieval.models.products import SAME

# What the forward pass of a layer keeps for the backward pass; the rest is computed again, and parameters that are
# sharded over devices are gathered again.
REMAT = {
    "none": jax.checkpoint_policies.everything_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # products with weights, not attention
    "full": jax.checkpoint_policies.nothing_saveable,  # a layer's input alone
}
AUTO = "auto"
# A larger encoder, in layers times hidden size, trains about as fast on a CPU with `dots`, in much less memory.
_SMALL = 512


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Sizes of a Transformer; BERT-base is (30522, 12, 768, 12, 3072, 512).

    Attributes:
      max_length: number of learned positions, the longest text in tokens (a row of packed texts may be longer).
      type_vocab_size: number of token types; with one of them every token has it, whatever its text says.
      layer_norm_epsilon: 1e-12 in BERT, 1e-5 in RoBERTa.
      dropout: rate after the embeddings and on the output of every sublayer.
      attention_dropout: rate on attention probabilities; -1: as `dropout`.
      dtype: 'float32' or 'bfloat16', of the computation; parameters, sums with biases, softmax and LayerNorm are
        always float32.
      matmul_dtype: as `products.times` takes it, of what is multiplied with weights, and in attention on a CPU.
      attention: 'auto', 'plain' or 'fused'; where the devices have no kernel for it, it is plain.
      remat: a name in `REMAT`: memory of training for time.
      unroll: layers in one turn of the loop over layers. More compile longer. With 0 it is one where the backward pass
        computes again, for more would keep more, and up to four elsewhere.
      lora_scale: what the product of an adapter is multiplied by, where there are adapters.
      lora_dropout: rate on what goes into adapters.
    """

    vocab_size: int
    num_layers: int
    hidden_size: int
    num_heads: int
    mlp_size: int
    max_length: int
    type_vocab_size: int = 2
    layer_norm_epsilon: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = -1
    dtype: str = "float32"
    matmul_dtype: str = SAME
    attention: str = "plain"
    remat: str = "none"
    unroll: int = 1
    architecture: Architecture = BERT
    lora_scale: float = 0.0
    lora_dropout: float = 0.0

    def __post_init__(self):
        if self.hidden_size % self.num_heads and not self.architecture.head_size:
            raise UserError(
                f"transformer: hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}: take "
                f"{multiples(self.hidden_size, self.num_heads)}"
            )
        if self.num_heads % self.kv_heads:
            raise UserError(f"transformer: {self.kv_heads} kv_heads do not divide num_heads {self.num_heads}")
        if self.architecture.positions == "rope" and self.head_size % 2:
            raise UserError(f"transformer: rotary positions need an even head_size, and it is {self.head_size}")
        has_bias = self.architecture.relative_bias
        fused_attention.check(self.attention, self.dtype, self.head_size, self.attention_rate, has_bias)

    @property
    def head_size(self) -> int:
        """The size of a head's vectors."""
        return self.architecture.head_size or self.hidden_size // self.num_heads

    @property
    def kv_heads(self) -> int:
        """The heads of keys and values."""
        return self.architecture.kv_heads or self.num_heads

    @property
    def attention_rate(self) -> float:
        """The rate of dropout on attention probabilities."""
        return self.dropout if self.attention_dropout == -1 else self.attention_dropout


def remat_for(remat: str, num_layers: int, hidden_size: int) -> str:
    """The name in `REMAT` that a config means for an encoder of such a size."""
    if remat != AUTO:
        return remat
    return "none" if num_layers * hidden_size <= _SMALL else "dots"
