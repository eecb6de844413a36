"""BoW-MLP, the shallow encoder that the Transformer is compared with (Chang et al. 2020, section 4.2)."""

import dataclasses

import jax
from flax import nnx

from retrieval.models.pooling import mean
from retrieval.models.text import Text, token_vectors


@dataclasses.dataclass(frozen=True)
class BowConfig:
    """Sizes of a BoW-MLP: of its unigram embeddings (`hidden_size`) and of the tanh layer (`mlp_size`).

    The paper gives only the total, 128M parameters with 512-dimensional embeddings: (30522, 4096, 640) has 127.98M.
    """

    vocab_size: int
    hidden_size: int
    mlp_size: int


class BowMlp(nnx.Module):
    """The mean of unigram embeddings, a tanh layer, and a linear one.

    The mean is over every token that is not padding. [CLS] and [SEP] are in it: each text has them, so they are a bias.
    The paper's "two-layer MLP with tanh activation" is read as tanh between the layers, none on the embedding itself.
    """

    def __init__(self, config: BowConfig, embed_dim: int, *, rngs: nnx.Rngs):
        # BERT's 0.02 starts slowly here: the mean of many words' vectors is small, and so are all scores.
        init = nnx.initializers.normal(0.1)
        self.token_embedding = nnx.Embed(config.vocab_size, config.hidden_size, embedding_init=init, rngs=rngs)
        self.hidden = nnx.Linear(config.hidden_size, config.mlp_size, rngs=rngs)
        self.output = nnx.Linear(config.mlp_size, embed_dim, rngs=rngs)

    def __call__(self, text: Text, *, dropout_key: jax.Array | None) -> jax.Array:
        """Embeddings, float32 [B, E]. There is no dropout: the key is accepted as every encoder accepts it."""
        del dropout_key
        mean_BH = mean(token_vectors(self.token_embedding.embedding[...], text.ids_RL), text)
        return self.output(jax.nn.tanh(self.hidden(mean_BH)))
