"""The recipe 'late_interaction': a vector for every token of a query and a document (Khattab & Zaharia 2020)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from retrieval.common.errors import UserError
from retrieval.common.runtime.arrays import reshape_rows
from retrieval.common.runtime.model_folder import DOCUMENT, QUERY
from retrieval.config.fields import values_of
from retrieval.data.examples.example_kind import ExampleKind
from retrieval.data.sets import beir
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.evaluation import metrics
from retrieval.methods.late_interaction.folder import LateFolder, is_late
from retrieval.methods.late_interaction.loss import BATCH_SCORES
from retrieval.methods.late_interaction.maxsim import maxsim, own_scores
from retrieval.methods.late_interaction.maxsim_search import InMemory, ranked
from retrieval.methods.late_interaction.model import LateInteraction, token_vectors
from retrieval.methods.late_interaction.token_encoder import TokenEncoder
from retrieval.methods.late_interaction.token_masks import IGNORED, LATE, UNATTENDED, Rules
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.rngs import Rngs
from retrieval.recipes.batch_texts import token_count
from retrieval.recipes.parameters import gather
from retrieval.recipes.recipe import POOL_METRICS, RECIPES, PairRecipe, abstract_model
from retrieval.recipes.towers import rows_of
from retrieval.runs.fitting import examples
from retrieval.runs.fitting.validation import labelled_pool
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import published_weights as bert_weights
from retrieval.training.loop import Objective
from retrieval.training.loss_kind import SCORES

_log = logging.getLogger(__name__)

_LENGTHS = ("data.query_length", "data.document_length")  # which fine-tuning may change


class LateRecipe(PairRecipe):
    """A document's score is MaxSim: the sum, over a query's tokens, of the best inner product with one of its own."""

    kind = LATE
    label = "a model of late interaction"
    has_prefixes = True
    published_by = "late_interaction"
    outputs = (BATCH_SCORES, SCORES)
    metrics = POOL_METRICS
    head = ("model.embed_dim",)
    options = (*PairRecipe.options, "model.late.expansion", "model.late.skip")

    def build(self, vocab_size: int) -> LateInteraction:
        """An encoder with a projection."""
        return LateInteraction(self.sizes(vocab_size), self.config.model.embed_dim, rngs=Rngs(self.config.seed))

    def check(self) -> None:
        """As `Recipe.check`; also that vectors have a size, and a batch negatives."""
        super().check()
        if not self.config.model.embed_dim:
            raise UserError("config.model.embed_dim=0 is no size of a token's vector: set one, such as 128")
        is_of_batch = self.named_loss.inputs == BATCH_SCORES
        if is_of_batch and self.config.train.batch_size == 1 and not self.config.data.negatives:
            raise UserError("config.train.batch_size=1: negatives are the other examples of a batch: take at least 2")

    def check_run(self, run: Run) -> None:
        """As `Recipe.check_run`; of a folder of late interaction all has to be as it has it."""
        for encoder in dict.fromkeys(bert_weights.folders(self.config).values()):
            if not is_late(encoder.path):
                continue
            theirs = {name: x for name, x in LateFolder.open(encoder.path).fields.items() if name not in _LENGTHS}
            ours = values_of(self.config, list(theirs))
            if flags := [
                f"--config.{name}={bert_weights.quoted(str(x))}" for name, x in theirs.items() if ours[name] != x
            ]:
                where = f"config.train.init_from={encoder.path}: a model of late interaction with other settings"
                raise UserError(f"{where}; set\n  {' '.join(flags)}")

    def own_head(self, folder: EncoderFolder, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """As `Recipe.own_head`: the projection, which an encoder alone has not."""
        if not is_late(folder.path):
            return {}
        kernel = LateFolder.open(folder.path).kernel()
        if kernel.shape != (shape := params["projection"]["kernel"].shape):
            where = f"config.train.init_from={folder.path}: vectors of {kernel.shape[1]} dimensions"
            raise UserError(f"{where}, and here of {shape[1]}: set config.model.embed_dim={kernel.shape[1]}")
        return {"projection": {"kernel": kernel}}

    def framed(self, vocabulary: Vocabulary) -> ExampleKind:
        """As `Recipe.framed`; what fills queries up and what does not count are of the vocabulary."""
        return Rules.of(self.config.model, vocabulary).kind()

    def check_validation(self) -> None:
        """As `Recipe.check_validation`; also that labelled queries are held out to validate on."""
        super().check_validation()
        if not examples.labelled(self.config):
            way = "set config.data.rates.pairs=1, whose held-out queries validate late interaction, or it to 0"
            raise UserError(f"config.loop.validate_every={self.config.loop.validate_every}: {way}")

    def validation(self, run: Run, vocabulary: Vocabulary, mesh: Mesh) -> Callable[[Any], dict[str, float]]:
        """Exact search for held-out queries over a small pool."""
        self.check_validation()
        config, pool = self.config, labelled_pool(run)
        encoder = TokenEncoder(config, vocabulary, abstract_model(config, len(vocabulary)), mesh)
        own, texts = beir.own_rows(pool.queries, pool.candidates), list(pool.queries.values())
        ids = [candidate.id for candidate in pool.candidates]
        _log.info("validation: %d queries over %d candidates", len(texts), len(ids))

        query_rows = rows_of(config, vocabulary, QUERY, texts)
        document_rows = rows_of(config, vocabulary, DOCUMENT, pool.candidates)

        def validate(params: Any) -> dict[str, float]:
            queries, documents = encoder.queries(params)(query_rows), encoder.documents(params)(document_rows)
            depth = min(100 + bool(own), len(ids))
            lists = ranked(queries, InMemory(documents), config.data.document_length, depth)
            _, rows_QK = metrics.drop_self_matches(*lists, pool.queries, own)
            return metrics.evaluate(rows_QK, list(pool.queries), ids, pool.qrels, POOL_METRICS)

        return validate

    def objective(self, bound: Callable[[Any], Any]) -> Objective:
        """The loss that the config names, of the scores of a batch."""
        loss = self.named_loss
        of_batch_scores = loss.inputs == BATCH_SCORES
        chunk_size, is_unattended = self.config.train.chunk_size, self.config.model.late.expansion == UNATTENDED

        def of_batch(params: Any, batch: Mapping[str, jax.Array], key: jax.Array) -> Any:
            model, (B, K) = bound(gather(params)), batch["document_id"].shape
            keys = [None if key is None else jax.random.fold_in(key, side) for side in (0, 1)]
            query_BAE = token_vectors(model, batch, "query", keys[0], chunk_size, is_unattended)
            document_NLE = token_vectors(model, batch, "document", keys[1], chunk_size)
            mask_BA, mask_BKL = (batch[f"{side}_mask"] != IGNORED for side in ("query", "document"))
            if of_batch_scores:
                mask_NL = reshape_rows(mask_BKL, B * K, mask_BKL.shape[2])
                score_BX = maxsim(query_BAE, mask_BA, document_NLE, mask_NL)
            else:
                document_BKLE = reshape_rows(document_NLE, B, K, *document_NLE.shape[1:])
                score_BX = own_scores(query_BAE, mask_BA, document_BKLE, mask_BKL)
            # A document without a token has the lowest score that there is: an infinite one has no gradient.
            score_BX = jnp.where(jnp.isfinite(score_BX), score_BX, -float(mask_BA.shape[1]))
            loss_B, metrics = loss(score_BX, batch)
            return loss_B, metrics | {"tokens": token_count(batch["query"], B) + token_count(batch["document"], B)}

        return of_batch


RECIPES.register("late_interaction", LateRecipe)
