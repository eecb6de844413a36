"""The recipe 'splade': sparse vectors for queries and documents, trained on pairs (Formal et al. 2021).

Regularizers are of the global batch, so they are the same on any number of devices: the mean square of a device's own
mean is larger than that of all, and would press the same settings harder.

Letters of shapes: B examples, K documents of each, V vocabulary; R all documents, X the texts of one side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from retrieval.common.errors import UserError
from retrieval.common.runtime.arrays import on_every_device, reshape_rows
from retrieval.data.examples.stored_pairs import StoredPairs
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.methods.splade.model import BY_IDF, Splade
from retrieval.models.rngs import Rngs
from retrieval.recipes.batch_texts import embed, token_count
from retrieval.recipes.encoder_sizes import check_sees_all
from retrieval.recipes.parameters import gather
from retrieval.recipes.recipe import POOL_METRICS, RECIPES, PairRecipe, build_model
from retrieval.runs.fitting import validation
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import published_weights
from retrieval.training.candidates import of_embeddings
from retrieval.training.loop import Objective
from retrieval.training.loss_kind import EMBEDDINGS, SCORES

_WITH_HEAD = "hf:distilbert/distilbert-base-uncased or hf:naver/splade-cocondenser-ensembledistil"
_FIELDS = ("queries", "query_weight", "document_weight", "rise")


class SpladeRecipe(PairRecipe):
    """The loss that `train.loss` names, of inner products, and a regularizer of each side."""

    label = "a model of sparse vectors"
    published_by = "splade"
    has_prefixes = True
    outputs = (EMBEDDINGS, SCORES)
    options = ("data.negatives", "model.sparse_queries", *(f"train.sparse.{name}" for name in _FIELDS))
    metrics = POOL_METRICS
    validator = "pool"

    def build(self, vocab_size: int) -> Splade:
        """A masked language model that weighs tokens."""
        return Splade(self.sizes(vocab_size), self.config.model.sparse_queries, rngs=Rngs(self.config.seed))

    def check(self) -> None:
        """As `Recipe.check`; also that texts are not packed, and that tokens see those behind them."""
        super().check()
        check_sees_all(self.config.model, "a masked language model's do: take another family")
        if sizes := tuple(self.config.train.matryoshka):
            raise UserError(f"config.train.matryoshka={sizes} is of embeddings; {self.label} has none: set it to ()")
        pack = self.config.data.pack
        if pack.query or pack.document or pack.auto:
            raise UserError(f"config.data.pack: {self.label} takes a text a row: set query=document=0, auto=False")

    def check_run(self, run: Run) -> None:
        """As `Recipe.check_run`; also that what it starts from has a head that weighs tokens: one at random weighs all.

        A model that learned without one, such as an embedder, has lost it.
        """
        for encoder in dict.fromkeys(published_weights.folders(self.config).values()):
            if not encoder.has_head:
                what = "has no head of a masked language model, which weighs the tokens"
                way = f"take the model that it was trained from, such as {_WITH_HEAD}, or make one by --config=mlm"
                raise UserError(f"config.train.init_from={encoder.path} {what}: {way}")

    def validation(self, run: Run, vocabulary: Vocabulary, mesh: Mesh) -> Callable[[Any], dict[str, float]]:
        """Retrieval over a small pool."""
        return validation.make(run, vocabulary, mesh, build_model)

    def begin(self, run: Run, model: Splade) -> None:
        """Gives queries that need no encoder the weights of their tokens, by the documents of the labelled pairs."""
        if model.queries == BY_IDF:
            model.idf[...] = jnp.asarray(inverse_document_frequencies(run, len(model.idf[...])))

    def objective(self, bound: Callable[[Any], Any]) -> Objective:
        """The loss and, in the steps of `train.sparse.rise` ever stronger, what keeps vectors sparse."""
        train, loss = self.config.train, of_embeddings(self.named_loss)
        by_idf = self.config.model.sparse_queries == BY_IDF

        def of_batch(params: Any, batch: Mapping[str, jax.Array], key: jax.Array) -> Any:
            model = bound(gather(params))
            B, K = batch["document_id"].shape
            query_BV = embed(model.encode_query, batch, "query", key, 0 if by_idf else train.chunk_size)
            document_RV = embed(model.encode_document, batch, "document", key, train.chunk_size)
            loss_B, metrics = loss(query_BV, reshape_rows(document_RV, B, K, -1), batch)
            sides = {"document": (document_RV, "flops", train.sparse.document_weight)}
            if not by_idf:  # whose queries are as sparse as they are
                sides["query"] = query_BV, train.sparse.queries, train.sparse.query_weight
            for side, (weight_XV, name, most) in sides.items():
                term = REGULARIZERS[name](weight_XV)
                loss_B += most * strength(batch["step"], train.sparse.rise) * term
                metrics[f"{side}_{name}"] = jnp.full_like(loss_B, term)
                metrics[f"{side}_terms"] = active(weight_XV)
            return loss_B, metrics | {"tokens": token_count(batch["query"], B) + token_count(batch["document"], B)}

        return of_batch


def inverse_document_frequencies(run: Run, vocab_size: int) -> np.ndarray:
    """ln(1 + (N - n + 0.5) / (n + 0.5)) of each token, float32 [V], by the positives of the labelled pairs.

    A token that none of them has gets the highest value, and one that stands around texts gets 0.
    """
    pairs = StoredPairs(run.pairs)
    numbers, ids = pairs.document_ids(negatives=False)
    _, first = np.unique(ids, return_index=True)
    count_V = np.zeros(vocab_size, np.int64)
    for document in pairs.positives(np.sort(numbers[first])):
        count_V[np.unique([*document.title, *document.text])] += 1
    idf_V = np.log(1 + (len(first) - count_V + 0.5) / (count_V + 0.5)).astype(np.float32)
    template = run.load_vocabulary().template
    idf_V[[*template.before, *template.between, *template.behind]] = 0
    return idf_V


def flops(weight_BV: jax.Array) -> jax.Array:
    """The sum over tokens of the squared mean weight (Paria et al. 2020), as a product of two vectors costs."""
    return jnp.square(jnp.abs(weight_BV).mean(axis=0)).sum()


def l1(weight_BV: jax.Array) -> jax.Array:
    """The mean over vectors of the sum of their weights."""
    return jnp.abs(weight_BV).sum(axis=1).mean()


def strength(step: jax.Array, steps: int) -> jax.Array:
    """The share of a regularizer at a step: it rises with the square of the steps to 1 (Formal et al. 2021, section
    4); 0 steps is 1 from the first one on."""
    return jnp.square(jnp.minimum(1.0, (step + 1) / steps)) if steps else jnp.ones(())


def active(weight_BV: jax.Array) -> jax.Array:
    """How many tokens of each vector have a weight, [B]: a mean near 0 says that vectors have collapsed."""
    return on_every_device((weight_BV > 0).sum(axis=1).astype(jnp.float32))


REGULARIZERS: dict[str, Callable[[jax.Array], jax.Array]] = {"flops": flops, "l1": l1}

RECIPES.register("splade", SpladeRecipe)
