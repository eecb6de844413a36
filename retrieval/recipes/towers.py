"""From a config to models: the wiring that training and encoding share."""

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError, multiples
from retrieval.models import two_tower
from retrieval.models.autoencoder import Autoencoder, DecoderConfig
from retrieval.models.mlm import MaskedLanguageModel
from retrieval.models.text import Text
from retrieval.models.transformer import TransformerConfig, gathered
from retrieval.models.two_tower import TowerConfig, TwoTower
from retrieval.search.encoding import encode_rows
from retrieval.training import sharding


def is_mlm(config: ConfigDict) -> bool:
    """Whether the run trains a masked language model, with a decoder or without, rather than two towers."""
    return config.data.rates.mlm > 0 or is_autoencoder(config)


def is_autoencoder(config: ConfigDict) -> bool:
    """Whether the run trains a masked language model with a decoder."""
    return config.data.rates.get("autoencoder", 0) > 0  # an older run, to start from, has no such rate


def make_mesh(
    config: ConfigDict,
    devices: Sequence[sharding.Device] | None = None,
) -> jax.sharding.Mesh:
    """The config's mesh, of all devices or of those given."""
    return sharding.make_mesh(config.mesh.fsdp, devices)


def local_mesh(config: ConfigDict) -> jax.sharding.Mesh:
    """The same of this host's devices alone."""
    return sharding.local_mesh(config.mesh.fsdp)


def build(config: ConfigDict, vocab_size: int) -> TwoTower | MaskedLanguageModel:
    """The untrained model that the train stage trains."""
    if not is_mlm(config):
        return build_towers(config, vocab_size)
    check(config)
    sizes, rngs = TransformerConfig(**_sizes(config, vocab_size)), nnx.Rngs(config.seed)
    if is_autoencoder(config):
        return Autoencoder(sizes, DecoderConfig(**config.model.decoder), rngs=rngs)
    return MaskedLanguageModel(sizes, rngs=rngs)


def check(config: ConfigDict) -> None:
    """Checks the model that the config describes.

    Raises:
      UserError: its heads do not divide its size, its embeddings have none, or it cannot learn the config's task.
    """
    model = config.model
    if model.encoder == "transformer" and model.hidden_size % model.num_heads:
        raise UserError(
            f"config.model.hidden_size={model.hidden_size} is not a multiple of config.model.num_heads="
            f"{model.num_heads}: take {multiples(model.hidden_size, model.num_heads)}"
        )
    if model.encoder == "bow_mlp" and not model.embed_dim:
        raise UserError(
            "config.model.embed_dim=0 takes a hidden state of a transformer as embedding, and config.model.encoder is "
            "'bow_mlp': set the dimension of its embeddings, such as config.model.embed_dim=512"
        )
    if model.encoder == "bow_mlp" and model.embed_norm:
        raise UserError(
            "config.model.embed_norm=True is a LayerNorm of a transformer's embedding, and config.model.encoder is "
            "'bow_mlp': set config.model.embed_norm=False"
        )
    if is_mlm(config) and model.encoder != "transformer":
        raise UserError(
            f"config.model.encoder is '{model.encoder}', but only a transformer can learn MLM: set "
            "config.model.encoder=transformer, or other tasks in config.data.rates"
        )


def longest(config: ConfigDict) -> int:
    """The most tokens that a text of either tower has."""
    return max(config.data.query_length, config.data.document_length)


def positions(config: ConfigDict) -> int:
    """The positions of the encoder: those of the longest text, or more where a later run has longer ones."""
    return max(longest(config), config.model.get("positions", 0))  # an older run, to start from, has no such field


def sizes(config: ConfigDict, of_towers: bool = True) -> dict[str, Any]:
    """The fields on which it depends whether one model's parameters suit another.

    Args:
      of_towers: those of the whole model, not of the encoder alone, which is all that an MLM gives to towers.
    """
    names = ["encoder", "hidden_size", "mlp_size"]
    if config.model.encoder == "transformer":
        names += ["num_layers", "num_heads", "type_vocab_size", "layer_norm_epsilon"]
    names += ["embed_dim", "embed_norm", "tied"] if of_towers else []
    found = {f"model.{name}": config.model[name] for name in names}
    return found | {
        f"data.rates.{task}": config.data.rates.get(task, 0) for task in ("mlm", "autoencoder") if of_towers
    }


def take_positions(model: nnx.Module, count: int) -> None:
    """Leaves of every table of positions of a model the first ones, as a model of shorter texts has them."""
    tables = {
        path: jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[:count]), table)  # whole, whatever its sharding
        for path, table in nnx.to_flat_state(nnx.state(model, nnx.Param))
        if "position_embedding" in path
    }
    nnx.update(model, nnx.from_flat_state(tables))


def abstract(config: ConfigDict, vocab_size: int) -> TwoTower | MaskedLanguageModel:
    """As `build`, with shapes in place of parameters: it takes no memory."""
    return nnx.eval_shape(lambda: build(config, vocab_size))


def build_towers(config: ConfigDict, vocab_size: int) -> TwoTower:
    """Two untrained towers."""
    model = config.model
    sizes = _sizes(config, vocab_size)
    if model.encoder == "bow_mlp":
        sizes = {name: sizes[name] for name in ("vocab_size", "hidden_size", "mlp_size")}
    of_towers = {name: model[name] for name in ("embed_dim", "embed_norm", "pooling", "normalize", "tied")}
    return two_tower.create(TowerConfig(model.encoder, sizes, **of_towers), config.seed)


def parameters(model: nnx.Module) -> dict[str, Any]:
    """A model's parameters as nested dicts of arrays: what is trained and saved."""
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


def shardings(params: Any, config: ConfigDict, mesh: jax.sharding.Mesh) -> Any:
    """Where the config puts each parameter on the mesh, a tree of shardings."""
    return sharding.parameter_shardings(
        params,
        mesh,
        rules=config.mesh.rules,
        replicate_below=config.mesh.replicate_below,
        is_stacked=is_stacked,
    )


def bind(model: nnx.Module) -> Callable[[Any], Any]:
    """A pure function from parameters (as `parameters` gives them) to the model that has them."""
    graphdef, state = nnx.split(model, nnx.Param)

    def with_parameters(params: Any) -> nnx.Module:
        bound = jax.tree.map(lambda leaf: leaf, state)
        nnx.replace_by_pure_dict(bound, params)
        return nnx.merge(graphdef, bound)

    return with_parameters


def gather(params: Any) -> Any:
    """Makes parameters that are sharded over devices whole, except for those of layers: each layer gathers its own."""
    return jax.tree.map_with_path(lambda path, leaf: leaf if is_stacked(path) else gathered(leaf), params)


class Embedder:
    """Padded token ids to embeddings, by towers of one config with any parameters; compiled once per shape.

    The parameters are arguments of the compiled functions: as constants in them they would be compiled in, once more
    for the untrained towers.
    """

    def __init__(self, config: ConfigDict, vocabulary: Vocabulary, mesh: jax.sharding.Mesh):
        bound = bind(nnx.eval_shape(lambda: build_towers(config, len(vocabulary))))
        # On every device in the end: a host cannot read what only another's devices have.
        everywhere = sharding.replicated(mesh)

        def compiled(encode: Callable) -> Callable:
            return jax.jit(lambda params, text: jax.reshard(encode(bound(gather(params)), text, None), everywhere))

        self._queries, self._documents = compiled(TwoTower.encode_queries), compiled(TwoTower.encode_documents)
        self._config = config
        self._sep_id = vocabulary.sep_id
        self._mesh = mesh
        self._turn = threading.Lock() if sharding.runs_one_at_a_time() else contextlib.nullcontext()

    def queries(self, params: Any) -> Callable[[np.ndarray], np.ndarray]:
        """Ids [B, L] to embeddings [B, E], with the rows spread over the mesh."""
        return functools.partial(self._embed, self._queries, self._placed(params))

    def documents(self, params: Any) -> Callable[[np.ndarray], np.ndarray]:
        """As `queries`."""
        return functools.partial(self._embed, self._documents, self._placed(params))

    def _placed(self, params: Any) -> Any:
        """The parameters where the config puts them, once for all batches: a large model takes long to send."""
        with jax.set_mesh(self._mesh):
            return jax.device_put(params, shardings(params, self._config, self._mesh))

    def embed_rows(self, tower: Callable[[np.ndarray], np.ndarray], tokens: Sequence[Sequence[int]]) -> np.ndarray:
        """Token ids of N texts to embeddings [N, E], in memory; `tower` is what `queries` or `documents` gave."""
        return encode_rows(tokens, tower, self._config.encode.batch_tokens, longest(self._config), self._mesh.size)

    def _embed(self, encode: Callable, params: Any, ids_BL: np.ndarray) -> np.ndarray:
        rows = sharding.batch_sharding(self._mesh)
        text = (sharding.place(x, rows) for x in (ids_BL, token_types(ids_BL, self._sep_id)))
        with jax.set_mesh(self._mesh), self._turn:
            return np.asarray(encode(params, Text.from_ids(*text)))


def query_tokens(config: ConfigDict, vocabulary: Vocabulary, texts: Sequence[str]) -> list[list[int]]:
    """Queries as the query tower takes them."""
    return [vocabulary.single(ids, config.data.query_length) for ids in vocabulary.encode_batch(texts)]


def candidate_windows(config: ConfigDict, vocabulary: Vocabulary, items: Sequence[Candidate]) -> list[list[list[int]]]:
    """Candidates as the document tower takes them: title and text (of ReQA: sentence and passage).

    Of each, at most config.encode.windows windows of the text, with the title in every one (ANCE's MaxP); the first is
    what training sees of it (FirstP).
    """
    titles = vocabulary.encode_batch([item.title for item in items])
    bodies = vocabulary.encode_batch([item.text for item in items])
    length, most = config.data.document_length, config.encode.windows
    return [vocabulary.windows(title, body, length, most) for title, body in zip(titles, bodies)]


def token_types(ids_BL: np.ndarray, sep_id: int) -> np.ndarray:
    """BERT's token types of padded rows: 1 after the first [SEP], as the feature converter has them."""
    seen = np.cumsum(ids_BL == sep_id, axis=1) - (ids_BL == sep_id)
    return np.where(ids_BL == 0, 0, np.minimum(seen, 1)).astype(np.int32)


def is_stacked(path: tuple) -> bool:
    """Whether the parameter at a path is one of the Transformer's layers, which have a leading axis."""
    return any(key.key == "layers" for key in path)


def _sizes(config: ConfigDict, vocab_size: int) -> dict[str, Any]:
    model = config.model
    return dict(
        vocab_size=vocab_size,
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_heads=model.num_heads,
        mlp_size=model.mlp_size,
        max_length=positions(config),
        type_vocab_size=model.type_vocab_size,
        layer_norm_epsilon=model.layer_norm_epsilon,
        dropout=model.dropout,
        dtype=model.dtype,
        remat=model.remat,
        unroll=model.unroll,
    )
