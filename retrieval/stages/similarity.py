"""The stage `similarity`: how alike random texts of the corpus are to the trained encoder, and to the untrained one."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from retrieval import files
from retrieval.errors import UserError
from retrieval.evaluation import display
from retrieval.evaluation.text_similarity import similarity_by_length
from retrieval.models.mlm import MaskedLanguageModel
from retrieval.models.text import Text, first
from retrieval.models.two_tower import TwoTower
from retrieval.pipeline.stage import STAGES, Stage
from retrieval.recipes.initial_parameters import check_towers
from retrieval.recipes.recipe import build_model
from retrieval.recipes.trained_model import open_trained
from retrieval.stage_outputs import Run
from retrieval.stages.collection import CORPUS, open_collection

# The texts that pairs are drawn from: the first so many of the corpus, which are in the order of a hash.
_TEXTS = 20_000


def check(lengths: Sequence[int], longest: int) -> None:
    """Checks the lengths of texts.

    Args:
      longest: tokens of a document that the model was trained with.

    Raises:
      UserError: the encoder takes no text of one of them.
    """
    if max(lengths, default=0) > longest:
        raise UserError(
            f"config.similarity.lengths={tuple(lengths)}: no text is longer than config.data.document_length={longest} "
            "of the model; take shorter ones"
        )


def similarity(run: Run) -> dict[str, Any]:
    """Prints the mean cosine of random pairs by length, and writes `similarity.json`.

    A text of more tokens than a length counts for it, cut.

    Raises:
      UserError: the corpus has too few texts of a length.
    """
    settings = run.config.similarity
    config, vocabulary, trained = open_trained(run)
    longest = config.data.document_length
    passages = itertools.islice(open_collection(run, CORPUS).candidates(), _TEXTS)
    texts = [vocabulary.single(ids, longest) for ids in vocabulary.encode_batch([item.text for item in passages])]
    passage = run.holder("prepare").config.prepare.longest_passage
    lengths = sorted(settings.lengths) or default_lengths(longest, passage)
    cosines = {
        name: similarity_by_length(_embed(model), texts, lengths, settings.pairs, run.config.seed)
        for name, model in (("trained", trained), ("untrained", build_model(config, len(vocabulary))))
    }
    rows = [(f"{length} tokens", *_row(cosines, length)) for length in lengths]
    print(display.markdown(["cosine of random texts of", *cosines], rows))
    files.write_json(run.folder / "similarity.json", {name: _named(values) for name, values in cosines.items()})
    return {name: _named(values) for name, values in cosines.items()}


def default_lengths(document: int, passage: int) -> list[int]:
    """Tokens of the longest passages, as far as a document takes them, a half, a quarter and an eighth of it.

    Args:
      document: the most tokens of a document.
      passage: the most tokens of a passage, without [CLS] and [SEP].
    """
    longest = min(document, passage + 2)
    return [longest // part for part in (8, 4, 2, 1)]


def _embed(model: nnx.Module) -> Callable[[np.ndarray], np.ndarray]:
    """Token ids to the vectors of an encoder: of towers the documents' embeddings, of an MLM its [CLS]."""
    graphdef, state = nnx.split(model)
    # From wherever devices shared it to one of them: the texts are few.
    state = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), state)

    @jax.jit
    def embed(state: nnx.State, ids_BL: jax.Array) -> jax.Array:
        model, text = nnx.merge(graphdef, state), Text.from_ids(ids_BL, jnp.zeros_like(ids_BL))
        if isinstance(model, MaskedLanguageModel):
            return first(model.encoder(text, dropout_key=None), text)
        assert isinstance(model, TwoTower), "the other models have no embeddings of passages"
        return model.encode_documents(text, None)

    return lambda ids_BL: np.asarray(embed(state, ids_BL).astype(jnp.float32))


def _row(cosines: dict[str, dict[int, float]], length: int) -> list[float]:
    return [values[length] for values in cosines.values()]


def _named(values: dict[int, float]) -> dict[str, float]:
    return {str(length): value for length, value in values.items()}


STAGES.register(
    "similarity",
    Stage(
        similarity,
        check=(
            lambda run: check(run.config.similarity.lengths, run.holder("train").config.data.document_length),
            check_towers,
        ),
        reads="checkpoint, passages",
        writes="`similarity.json`; prints how alike random texts are to the encoder, by length",
        uses=("seed", "data.document_length"),
        needs=("prepare", "train"),
        requires=("train",),
        inputs=Run.vocabulary_inputs,
        leaves=("similarity.json",),
        always=True,
    ),
)
