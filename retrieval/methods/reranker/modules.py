"""Cross-encoders that sentence-transformers makes of modules: an encoder, its pooling, and layers down to one score."""

import jax
from flax import nnx

from retrieval.common.errors import UserError
from retrieval.common.runtime import model_folder
from retrieval.methods.reranker.model import SIGMOIDS, activation_of, settings_of, with_parameters
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.module_folder import ModuleFolder
from retrieval.models.rngs import Rngs
from retrieval.models.text import Text
from retrieval.models.transformer import Transformer
from retrieval.models.transformer_config import TransformerConfig
from retrieval.models.two_tower import Tower


class ModularCrossEncoder(nnx.Module):
    """A tower whose embedding of a pair is its score; as `CrossEncoder`, of one class."""

    classes = 1

    def __init__(self, tower: Tower, sigmoid: bool):
        self.tower, self.sigmoid, self.pooling = tower, sigmoid, tower.pooling

    @property
    def encoder(self) -> Transformer:
        """The encoder of pairs."""
        return self.tower.encoder

    def logits(self, pairs: Text) -> jax.Array:
        """As `CrossEncoder.logits`."""
        return self.tower(pairs, dropout_key=None)[:, 0]

    def scores(self, pairs: Text) -> jax.Array:
        """As `CrossEncoder.scores`."""
        return jax.nn.sigmoid(self.logits(pairs)) if self.sigmoid else self.logits(pairs)


def is_modular(folder: EncoderFolder) -> bool:
    """Whether modules follow the encoder of a folder, other than that of a judge."""
    return model_folder.has_modules(folder.path) and len(model_folder.modules(folder.path)) > 1


def check(folder: EncoderFolder) -> tuple[ModuleFolder, bool]:
    """The modules of a folder, of whose weights the shapes are compared; and whether the score is a sigmoid.

    Raises:
      UserError: a module or a setting is not understood, or they do not end in one score.
    """
    modules = ModuleFolder.open(folder.path)
    if modules.normalize or not modules.layers or modules.layers[-1].size != 1:
        raise UserError(f"{folder.path}: its modules do not end in a Dense of one score; take another cross-encoder")
    return modules, activation_of(folder, settings_of(folder), SIGMOIDS)


def load(folder: EncoderFolder, config: TransformerConfig) -> ModularCrossEncoder:
    """The cross-encoder of such a folder; `config` is of its sizes, and with as many tokens as its vocabulary has."""
    modules, sigmoid = check(folder)
    rngs = Rngs(0)
    tower = Tower(Transformer(config, rngs=rngs), 0, modules.pooling, head=list(map(str, modules.layers)), rngs=rngs)
    with_parameters(tower, modules.tower)
    return ModularCrossEncoder(tower, sigmoid)
