"""Text Embeddings Inference: whether it serves a tower's folder, and how, by the rules of its source."""

from collections.abc import Iterator

from ml_collections import ConfigDict

from retrieval.models import two_tower
from retrieval.models.tower_head import DENSE, LAYER_NORM, NORMALIZE

_POOLINGS = ("cls", "mean", "last")
_ACTIVATIONS = ("identity", "tanh")
_OTHER_FAMILIES = ("t5", "gte")  # the latter under its older name alone


def note(trained: ConfigDict) -> str:
    """What the card of towers says about it, Markdown."""
    if reasons := list(obstacles(trained)):
        return f"Not for Text Embeddings Inference, which has no {' and no '.join(reasons)}."
    model = trained.model
    where = "this folder" if model.tied else "the folders `query` and `document`, each by itself"
    asked = [] if model.normalize and not model.truncate_dim else [f'"normalize": {str(bool(model.normalize)).lower()}']
    asked += [f'"dimensions": {model.truncate_dim}'] if model.truncate_dim else []
    request = f" Ask with `{', '.join(asked)}`." if asked else ""
    return (
        f"Text Embeddings Inference serves {where}.{request} It puts a prompt before texts where `prompt_name` says so."
    )


def obstacles(trained: ConfigDict) -> Iterator[str]:
    """What towers have that it does not know: it would stop, or leave that out without a word."""
    model = trained.model
    layers = two_tower.head_of(model.embed_dim, model.embed_norm, model.head)
    kinds = [layer.kind for layer in layers]
    if LAYER_NORM in kinds:
        yield "LayerNorm behind the pooling"
    if NORMALIZE in kinds:
        yield "normalisation before a dense layer"
    yield from (
        f"{layer.activation} behind a dense layer"
        for layer in layers
        if layer.kind == DENSE and layer.activation not in _ACTIVATIONS
    )
    if model.pooling not in _POOLINGS:
        yield f"pooling `{model.pooling}`"
    if any(model.pool_from):
        yield "pooling without the prompt"
    if model.family in _OTHER_FAMILIES:
        yield f"encoder of the family {model.family}"
