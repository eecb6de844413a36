"""The fields of SEED-Encoder and Optimus."""

from retrieval.config.fields import NOT_NEGATIVE, SWITCH, Field, declare, one_of, whole

_WIRING, _WINDOW = one_of("wiring", ("cross", "prefix")), one_of("window", ("layer", "decoder"))

declare(
    "model.decoder",
    layers=Field(3, whole(1), "layers of the decoder, which pre-training alone has"),
    span=Field(2, whole(0), "tokens before each one that the decoder sees, in each layer or in all"),
    wiring=Field("cross", _WIRING, "how it sees [CLS]: by attention, or as the first position"),
    window=Field("layer", _WINDOW, "what the span is of: each layer, or all of the decoder"),
    latent=Field(0, whole(0), "size of a latent variable between encoder and decoder (Optimus); 0: none"),
    bias=Field(True, SWITCH, "whether the decoder's logits have the output layer's bias"),
)
declare("train", free_bits=Field(0.0, NOT_NEGATIVE, "nats of each latent dimension that cost nothing"))
