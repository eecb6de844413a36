"""Models with the weights of a folder of BERT's."""

import numpy as np
from flax import nnx

from retrieval.models.hugging_face import BertFolder
from retrieval.models.mlm import MaskedLanguageModel
from retrieval.models.transformer import TransformerConfig

# RoBERTa's padding is 1, ours 0: the two change places.
ROBERTA_IDS = np.array([1, 0, *range(2, 50)])


def load(folder, dtype="float32", max_length=None):
    """A masked language model with the weights of a folder, whose head may be missing."""
    bert = BertFolder.open(folder)
    sizes = {**bert.sizes, "max_length": max_length or bert.sizes["max_length"]}
    config = TransformerConfig(**sizes, dropout=0.0, dtype=dtype)
    ids = ROBERTA_IDS if bert.kind == "roberta" else None
    state = nnx.state(model := MaskedLanguageModel(config, rngs=nnx.Rngs(0)), nnx.Param)
    params = nnx.to_pure_dict(state)
    encoder = bert.encoder(params.pop("encoder"), ids)
    nnx.replace_by_pure_dict(state, {"encoder": encoder, **(bert.mlm_head(params, ids) or params)})
    nnx.update(model, state)
    return model
