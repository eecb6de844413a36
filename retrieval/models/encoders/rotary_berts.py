"""BERTs with rotary positions and a gated MLP: ModernBERT, NomicBERT and GTE.

ModernBERT (Warner et al. 2024) has two local layers of three. NomicBERT (Nussbaum et al. 2024) has no biases; published
configs have the author's own names, transformers 5 writes BERT's, and texts are bounded by the positions that it was
trained on: with longer ones its authors change the angles. GTE 1.5 (Zhang et al. 2024), Alibaba's "new" BERT, is called
'new' on the hub, where its angles are scaled in a way of its own, and 'gte' in transformers 5.
"""

from collections.abc import Mapping
from typing import Any

from retrieval.models.architecture import MATRICES, Architecture
from retrieval.models.encoders import rotary
from retrieval.models.encoders.family import FAMILIES, RATES, SIZES, TYPES, Family, Settings, of_layers, pairs
from retrieval.models.encoders.rotary import LAYERS, Angles
from retrieval.models.known_keys import ANY, shown
from retrieval.models.transformer_config import TransformerConfig

_EVERY, _WINDOW = "global_attn_every_n_layers", "local_attention"
# Of the published vocabulary; its class has them by default, and refuses a padding that the vocabulary does not have.
_IDS = dict(bos_token_id=50281, cls_token_id=50281, eos_token_id=50282, sep_token_id=50282, pad_token_id=50283)


def _read_modern(settings: Settings, sizes: Mapping[str, int]) -> dict[str, Any]:
    window = settings.whole(_WINDOW, 128, least=2)
    if window % 2:
        raise settings.error(f"{_WINDOW} is {window}, and an even number of tokens is needed")
    kinds = rotary.layer_kinds(settings, sizes["num_layers"], (settings.whole(_EVERY, 3), True))
    return {"window": window // 2, **kinds}


def _write_modern(config: TransformerConfig) -> dict[str, Any]:
    switches = config.architecture
    return {
        _WINDOW: 2 * switches.window,
        _EVERY: switches.global_every or 1,
        **rotary.written_kinds(config.num_layers, switches.locality()),
        **{key: number if number < config.vocab_size else None for key, number in _IDS.items()},
    }


FAMILIES.register(
    "modernbert",
    Family(
        Architecture(
            family="modernbert",
            norm="layer_no_bias",
            norms="before",
            first_norm=False,
            final_norm=True,
            positions="rope",
            token_types=False,
            gated=True,
            biases=(),
            rope_theta=160_000.0,
            local_theta=10_000.0,
            window=64,
            global_every=3,
            global_first=True,
        ),
        of_layers(
            "layers.{}", "attn.Wqkv#0 attn.Wqkv#1 attn.Wqkv#2 attn.Wo attn_norm mlp_norm mlp.Wi#1 mlp.Wo mlp.Wi#0"
        )
        | pairs("""
            token_embedding=embeddings.tok_embeddings embedding_norm=embeddings.norm final_norm=final_norm
            dense=head.dense norm=head.norm =decoder pooler=head.dense pooler_norm=head.norm classifier=classifier
        """),
        "ModernBertModel",
        epsilon=("norm_eps", 1e-5),
        rates=dict(attention_rate="attention_dropout"),
        written={"norm_bias": False, "attention_bias": False, "mlp_bias": False, "hidden_activation": "gelu"},
        # A rope_scaling would be of all layers, which no published one has.
        keys={
            **dict.fromkeys([_WINDOW, _EVERY, LAYERS], ANY),
            "rope_scaling": (),
            "classifier_activation": ("gelu",),  # of its heads
        },
        ignored="position_embedding_type layer_norm_eps",  # of published files; it has neither
        angles=Angles({"global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0}),
        read=_read_modern,
        write=_write_modern,
        heads=pairs("linear.=late head.=mlm decoder.=mlm classifier.=classifier"),
        names={r"^model\.": ""},
        prefix="model.",
    ),
)

_OFF = """
    qkv_proj_bias mlp_fc1_bias mlp_fc2_bias prenorm causal use_rms_norm parallel_block parallel_block_tied_norm
    rotary_emb_interleaved scale_attn_by_inverse_layer_idx
"""

FAMILIES.register(
    "nomic_bert",
    Family(
        Architecture(family="nomic_bert", positions="rope", activation="silu", gated=True, biases=(), rope_theta=1e3),
        of_layers(
            "encoder.layers.{}",
            "attn.Wqkv#0 attn.Wqkv#1 attn.Wqkv#2 attn.out_proj norm1 norm2 mlp.fc11 mlp.fc2 mlp.fc12",
        )
        | pairs("""
            token_embedding=embeddings.word_embeddings type_embedding=embeddings.token_type_embeddings
            embedding_norm=emb_ln pooler=pooler.dense classifier=classifier
        """),
        "NomicBertModel",
        sizes=SIZES | TYPES,
        head_sizes=dict(head_size="head_dim"),
        defaults=dict(type_vocab_size=2, max_length=2048),
        rates=RATES,
        written={"hidden_act": "silu", "pad_token_id": 0},
        # The author's own names, with the values that make the model that this is.
        spellings=pairs("""
            hidden_size=n_embd num_hidden_layers=n_layer num_attention_heads=n_head intermediate_size=n_inner
            max_position_embeddings=max_trained_positions layer_norm_eps=layer_norm_epsilon
            rope_theta=rotary_emb_base rope_parameters= rope_scaling= hidden_act=activation_function
        """),
        keys={
            "activation_function": ("swiglu",),
            "rotary_emb_fraction": (1, 1.0),
            "rotary_emb_scale_base": (),
            **dict.fromkeys(_OFF.split(), (False,)),
            "scale_attn_weights": (True,),
        },
        # These change how it is computed, what has no place here, or the angles of texts that are too long.
        ignored="""
            rotary_scaling_factor n_positions reorder_and_upcast_attn auto_map fused_bias_fc fused_dropout_add_ln
            use_flash_attn use_xentropy attn_pdrop embd_pdrop resid_pdrop dense_seq_output pad_vocab_size_multiple
            summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
        """,
        angles=Angles({"rope_theta": 1000.0}, older=False),
        heads=pairs("cls.=lm lm_head.=lm pooler.=pooler classifier.=classifier"),
        names={r"^(nomic_)?bert\.": ""},
        prefix="nomic_bert.",
    ),
)

_GTE = of_layers(
    "encoder.layer.{}",
    "attention.qkv_proj#0 attention.qkv_proj#1 attention.qkv_proj#2 attention.o_proj attn_ln mlp_ln "
    "mlp.up_gate_proj#0 mlp.down_proj mlp.up_gate_proj#1",
) | pairs("""
    token_embedding=embeddings.word_embeddings type_embedding=embeddings.token_type_embeddings
    embedding_norm=embeddings.LayerNorm dense=lm_head.dense norm=lm_head.norm =lm_head.decoder
    pooler=pooler.dense classifier=classifier
""")


def _read_new(settings: Settings, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The hub's: of a factor f, angles of the base times f, all divided by f to the power of 2 / head size."""
    scaling = settings.get("rope_scaling", {})
    if scaling and (not isinstance(scaling, dict) or set(scaling) != {"type", "factor"} or scaling["type"] != "ntk"):
        raise settings.error(f"rope_scaling is {shown(scaling)}; only a type of ntk with its factor is built here")
    factor = Settings(settings.path, scaling).positive("factor", 1.0)
    divisor = factor ** (2 * sizes["num_heads"] / sizes["hidden_size"])
    return {
        "rope_theta": settings.positive("rope_theta", 10_000.0) * factor,
        "rope_scaling": f"linear:{rotary.exact(divisor)}" if factor != 1 else "",
    }


def _gte(**own: Any) -> Family:
    biases = tuple(name for name in MATRICES if name not in ("mlp_in", "mlp_gate"))
    return Family(
        Architecture(family="gte", positions="rope", gated=True, biases=biases, rope_theta=160_000.0),
        _GTE,
        "GteModel",
        sizes=SIZES | TYPES,
        defaults=dict(type_vocab_size=1),
        rates=RATES,
        written={"hidden_act": "gelu", "pad_token_id": 1},
        # Keys of the hub's configs, which transformers keeps where it saves one as its own.
        keys={
            "position_embedding_type": ("rope",),
            "layer_norm_type": ("layer_norm",),
            "logn_attention_scale": (False,),
            "pack_qkv": (True,),
            **own.pop("keys", {}),
        },
        # How it is computed, or an attention that is off.
        ignored="logn_attention_clip1 unpad_inputs use_memory_efficient_attention auto_map",
        heads=pairs("lm_head.=mlm pooler.=pooler classifier.=classifier"),
        names={r"^(new|gte)\.": "", r"^lm_head\.layer_norm\.": "lm_head.norm."},
        prefix="new.",
        **own,
    )


FAMILIES.register("gte", _gte(angles=Angles({"rope_theta": 160_000.0}, older=False)))
FAMILIES.register("new", _gte(read=_read_new, keys=dict.fromkeys(["rope_theta", "rope_scaling"], ANY)))
