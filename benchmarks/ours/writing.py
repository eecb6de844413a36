"""Texts that an encoder-decoder writes of sources; sources a second, for each way of writing."""

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks import worker
from benchmarks.measure import timed


def prepare(settings: Mapping[str, Any]) -> worker.Turn:
    """Settings: model (sizes), layers of the decoder, vocab_size, sources, source_tokens, tokens; beams; texts and
    top_k of sampling.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np
    from flax import nnx

    from retrieval.methods.writer.decoding import Ends, Written, beam_search, greedy, sample
    from retrieval.methods.writer.model import EncoderDecoder, WriterConfig
    from retrieval.models.text import Text
    from retrieval.models.transformer_config import TransformerConfig

    sources, tokens = settings["sources"], settings["tokens"]
    sizes = TransformerConfig(
        vocab_size=settings["vocab_size"], max_length=settings["source_tokens"], dropout=0.0, **settings["model"]
    )
    model = EncoderDecoder(sizes, WriterConfig(settings["layers"], tokens), rngs=nnx.Rngs(0))
    ids_RM = np.random.default_rng(0).integers(1, sizes.vocab_size, (sources, settings["source_tokens"]), np.int32)
    source = Text.from_ids(jnp.asarray(ids_RM), jnp.zeros_like(ids_RM))
    keys_R = jax.random.split(jax.random.key(0), sources)
    ends = Ends(start=1, end=-1, length=tokens, never=0)  # no text ends before it is full, as with the peer

    ways: dict[str, Callable[[EncoderDecoder], Written]] = {
        "greedy": lambda model: greedy(model, source, ends),
        "beams": lambda model: beam_search(model, source, ends, width=settings["beams"]),
        "sampled": lambda model: sample(model, source, ends, keys_R, count=settings["texts"], top_k=settings["top_k"]),
    }
    write = {name: nnx.jit(way) for name, way in ways.items()}

    def turn() -> dict[str, float]:
        seconds = {name: timed(lambda way=way: jax.block_until_ready(way(model)))[1] for name, way in write.items()}
        return {f"sources/s, {name}": sources / taken for name, taken in seconds.items()}

    return turn


if __name__ == "__main__":
    worker.serve(prepare)
