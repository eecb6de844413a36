"""The peers' model and loss of each recipe, in the sizes of ours and with random parameters."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.peers import towers

_Objective = tuple[nn.Module, nn.Module]  # the model, and the loss of its batches


def two_tower(settings: Mapping[str, Any], folder: Path, device: str) -> _Objective:
    """sentence-transformers' towers; the loss caches gradients where there are chunks."""
    from sentence_transformers.sentence_transformer import losses

    config = settings["config"]
    # PyTorch's fused attention is what transformers takes by itself; here it says so, or fails.
    attention = dict(model_kwargs=dict(attn_implementation="sdpa"))
    given = config["model"], Path(settings["vocabulary"]), _length(config), folder, device
    model = towers.build(*given, encoder=settings.get("encoder"), **attention)
    scale = 1 / config["train"]["temperature"]
    if chunk := settings["chunk"]:
        return model, losses.CachedMultipleNegativesRankingLoss(model, scale=scale, mini_batch_size=chunk)
    return model, losses.MultipleNegativesRankingLoss(model, scale=scale)


def late_interaction(settings: Mapping[str, Any], folder: Path, device: str) -> _Objective:
    """PyLate's ColBERT."""
    from pylate import losses, models

    config = settings["config"]
    towers.save(config["model"], Path(settings["vocabulary"]), _length(config), folder)
    model = models.ColBERT(str(folder), embedding_size=config["model"]["embed_dim"], device=device)
    return model, losses.Contrastive(model, temperature=config["train"]["temperature"])


def splade(settings: Mapping[str, Any], folder: Path, device: str) -> _Objective:
    """sentence-transformers' SparseEncoder."""
    from sentence_transformers.sparse_encoder import SparseEncoder, losses

    config, weights = settings["config"], settings["config"]["train"]["sparse"]
    towers.save(config["model"], Path(settings["vocabulary"]), _length(config), folder, masked=True)
    model = SparseEncoder(str(folder), device=device)
    return model, losses.SpladeLoss(
        model,
        losses.SparseMultipleNegativesRankingLoss(model),
        document_regularizer_weight=weights["document_weight"],
        query_regularizer_weight=weights["query_weight"],
    )


OBJECTIVES: Mapping[str, Callable[[Mapping[str, Any], Path, str], _Objective]] = {
    "two_tower": two_tower,
    "late_interaction": late_interaction,
    "splade": splade,
}


def _length(config: Mapping[str, Any]) -> int:
    return max(config["data"]["query_length"], config["data"]["document_length"])
