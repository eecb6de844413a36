"""The recipe 'autoencoder': a masked language model with a decoder that writes the text again from [CLS].

SEED-Encoder (Lu et al. 2021), and Optimus (Li et al. 2020), whose [CLS] is a latent variable.
"""

from collections.abc import Mapping

import jax

from retrieval.common.runtime.arrays import reshape_rows
from retrieval.methods.seed_encoder.model import Autoencoder, DecoderConfig, following, unmasked
from retrieval.models.rngs import Rngs
from retrieval.recipes.batch_texts import for_every_text, text_count, text_of, token_count
from retrieval.recipes.masked import MaskedRecipe
from retrieval.recipes.recipe import RECIPES, LossAndMetrics
from retrieval.training import losses


class AutoencoderRecipe(MaskedRecipe):
    """MLM, and the text written again. Examples, lengths and packing are MLM's."""

    label = "an autoencoder"
    head = ("model.decoder",)
    options = (*MaskedRecipe.options, "train.free_bits")

    def build(self, vocab_size: int) -> Autoencoder:
        """A masked language model and its decoder."""
        self.check()
        decoder = DecoderConfig(**self.config.model.decoder)
        return Autoencoder(self.sizes(vocab_size), decoder, rngs=Rngs(self.config.seed))

    def loss_of(self, model: Autoencoder, batch: Mapping[str, jax.Array], key: jax.Array) -> LossAndMetrics:
        """MLM and reconstruction, added up (Lu et al. 2021, equation 10), and the divergence of a latent variable."""
        text, masked = text_of(batch, "text"), (batch["positions"], batch["labels"], batch["weights"])
        original_RL = unmasked(text.ids_RL, *masked)
        logits = model(text, masked[0], original_RL, key)
        mlm_G, metrics = losses.token_cross_entropy(logits.masked_GPV, *masked[1:])
        labels_RL, weights_RL = following(original_RL, text.segments_RL)
        next_R, _ = losses.token_cross_entropy(logits.next_RLV, labels_RL, weights_RL)
        G, B = len(mlm_G), text_count(batch)
        next_G = reshape_rows(next_R, G, -1).mean(axis=1)
        loss_G = mlm_G + next_G
        metrics |= {"mlm": mlm_G, "reconstruction": next_G, "tokens": token_count(batch["text"], B)}
        if logits.divergence_BZ is not None:
            kl_B = losses.free_bits(logits.divergence_BZ, self.config.train.free_bits)
            kl_G = reshape_rows(kl_B, G, -1).mean(axis=1)
            # The evidence bound is of a whole text, reconstruction here the mean over its tokens.
            loss_G += B / weights_RL.sum() * kl_G
            metrics |= {"kl": kl_G}
        return for_every_text((loss_G, metrics), batch)


RECIPES.register("autoencoder", AutoencoderRecipe)
