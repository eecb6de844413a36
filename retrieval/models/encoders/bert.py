"""BERT (Devlin et al. 2019) and what is read as one: RoBERTa, XLM-R and DistilBERT; and MPNet (Song et al. 2020).

MPNet is a BERT without token types, with T5's bias of scores by distance.
"""

from typing import Any

from retrieval.models.architecture import Architecture
from retrieval.models.encoders.family import FAMILIES, RATES, SIZES, TYPES, Family, of_layers, pairs
from retrieval.models.positions import BUCKETS

# Modules of an encoder, of BERT's heads and of a cross-encoder.
_MODULES = {
    **pairs("""
        token_embedding=embeddings.word_embeddings position_embedding=embeddings.position_embeddings
        type_embedding=embeddings.token_type_embeddings embedding_norm=embeddings.LayerNorm
        dense=cls.predictions.transform.dense norm=cls.predictions.transform.LayerNorm =cls.predictions
        pooler=pooler.dense next_sentence=cls.seq_relationship classifier=classifier
    """),
    **of_layers(
        "encoder.layer.{}",
        "attention.self.query attention.self.key attention.self.value attention.output.dense "
        "attention.output.LayerNorm output.LayerNorm intermediate.dense output.dense",
    ),
}
# The last is the projection of Stanford's ColBERT.
_HEADS = pairs("""
    cls.predictions.=mlm cls.seq_relationship.=next_sentence pooler.=pooler classifier.=classifier linear.=late
""")
# Those of RoBERTa and MPNet: what a cross-encoder's does is what BERT's pooler and classifier do.
_PADDED_HEAD = pairs("pooler=classifier.dense classifier=classifier.out_proj")

# Names of tensors (regular expressions) and BERT's for the same, each looked for in turn.
_OLD_NAMES = {r"^(bert|roberta|distilbert|mpnet)\.": "", r"\.gamma$": ".weight", r"\.beta$": ".bias"}
_DISTILBERT_NAMES = pairs(r"""
    ^transformer\.layer\.=encoder.layer. \.attention\.q_lin\.=.attention.self.query.
    \.attention\.k_lin\.=.attention.self.key. \.attention\.v_lin\.=.attention.self.value.
    \.attention\.out_lin\.=.attention.output.dense. \.sa_layer_norm\.=.attention.output.LayerNorm.
    \.ffn\.lin1\.=.intermediate.dense. \.ffn\.lin2\.=.output.dense. \.output_layer_norm\.=.output.LayerNorm.
    ^pre_classifier\.=pooler.dense. ^vocab_transform\.=cls.predictions.transform.dense.
    ^vocab_layer_norm\.=cls.predictions.transform.LayerNorm. ^vocab_projector\.bias$=cls.predictions.bias
    ^vocab_projector\.weight$=cls.predictions.decoder.weight
""")

# Keys that change what a model computes -> the values with which it computes what ours does.
_NEEDED = {
    **dict.fromkeys(("is_decoder", "is_encoder_decoder", "add_cross_attention", "use_bfloat16"), (False,)),
    "activation": ("gelu",),
    "position_embedding_type": ("absolute",),
    "pruned_heads": ({},),
}
_BUFFERS = r"embeddings\.(position_ids|token_type_ids)$"


def _family(**fields: Any) -> Family:
    own: dict[str, Any] = dict(
        architecture=Architecture(),
        modules=_MODULES,
        of_torch="BertModel",
        sizes=SIZES | TYPES,
        rates=RATES,
        written={"hidden_act": "gelu", "initializer_range": 0.02, "pad_token_id": 0},
        keys=_NEEDED,
        heads=_HEADS,
        names=_OLD_NAMES,
        unused=f"^{_BUFFERS}",
        prefix="bert.",
    )
    return Family(**own | fields)


FAMILIES.register("bert", _family())
_ROBERTA = _family(
    architecture=Architecture(family="roberta", padding_id=1),
    modules=_MODULES | pairs("dense=lm_head.dense norm=lm_head.layer_norm =lm_head") | _PADDED_HEAD,
    of_torch="RobertaModel",
    written={"hidden_act": "gelu", "initializer_range": 0.02, "pad_token_id": 1},
    keys=_NEEDED | {"pad_token_id": (1,)},
    heads=pairs("lm_head.=mlm classifier.dense.=pooler classifier.=classifier linear.=late"),
    unused=rf"^({_BUFFERS}|pooler\.)",
    prefix="roberta.",
)
FAMILIES.register("roberta", _ROBERTA)
FAMILIES.register("xlm-roberta", _ROBERTA)
FAMILIES.register(
    "distilbert",
    _family(
        names=_OLD_NAMES | _DISTILBERT_NAMES,
        sizes=SIZES | TYPES | pairs("num_layers=n_layers hidden_size=dim num_heads=n_heads mlp_size=hidden_dim"),
        defaults=dict(type_vocab_size=1),
    ),
)
FAMILIES.register(
    "mpnet",
    _family(
        architecture=Architecture(family="mpnet", padding_id=1, token_types=False, relative_bias=True),
        modules={
            **{ours: its for ours, its in _MODULES.items() if its.startswith(("embeddings", "encoder"))},
            **of_layers("encoder.layer.{}.attention", "attn.q attn.k attn.v attn.o LayerNorm"),
            **(pairs("relative_bias=encoder.relative_attention_bias") | _PADDED_HEAD),
        },
        of_torch="MPNetModel",
        sizes=SIZES,
        written={"hidden_act": "gelu", "relative_attention_num_buckets": BUCKETS, "pad_token_id": 1},
        keys={"pad_token_id": (1,)},
        heads=pairs("lm_head.=lm classifier.dense.=pooler classifier.=classifier"),
        unused=rf"^({_BUFFERS}|pooler\.)",
        prefix="mpnet.",
    ),
)
