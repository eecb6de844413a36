"""What is measured: every work, who takes part in it, and the ratios that are to be reached."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import scipy.sparse
from ml_collections import ConfigDict

from benchmarks import config as benchmark
from benchmarks import labelled, pairs
from benchmarks.contest import System, Target, Work
from benchmarks.ours import training
from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.methods.late_interaction.maxsim_search import ranked
from retrieval.methods.late_interaction.token_encoder import Queries
from retrieval.methods.late_interaction.token_masks import Rules
from retrieval.methods.late_interaction.token_store import TokenStore
from retrieval.models.encoder_folder import written_config
from retrieval.models.transformer_config import TransformerConfig
from retrieval.recipes.encoder_sizes import encoder_sizes
from retrieval.runs.fitting import examples
from retrieval.runs.pipeline import records
from retrieval.runs.pipeline.run import Run
from retrieval.search.sparse import SparseIndex

_TORCH = "sentence-transformers"
_OUR_STEP, _PEER_STEP = "benchmarks.ours.train_step", "benchmarks.peers.train_step"
_BASE = "L12 H768"
_QUERIES = 200  # of a search


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much of the work is done.

    Attributes:
      large: pairs of the large batch.
      chunk: of these, pairs that both sides take at a time.
      documents: to encode.
      files: of articles, to cut.
      beir: the folder of a BEIR set to fine-tune on, with judgements to train on and to test with.
      steps: of fine-tuning that is judged.
      seeds: of the same.
      vectors: to search: a folder of the stage `tokens` as float16, or documents.npz and queries.npz of SciPy.
      bits: of a dimension, in which vectors of tokens are stored.
    """

    large: int = 8192
    chunk: int = 32
    documents: int = 1024
    files: int = 16
    beir: Path | None = None
    steps: int = 390
    seeds: int = 10
    vectors: Path | None = None
    bits: int = 4


def train_late(run: Run, sizes: Sizes) -> Work:
    """The train step of late interaction."""
    config = _config(run, "L6 H384", batch_size=32, loss="maxsim_softmax", temperature=1.0)
    config["model"] |= dict(embed_dim=128, normalize=False)
    rules = Rules.of(run.config.model, run.load_vocabulary())
    path = pairs.marked(write_pairs(run, 512), rules)
    return _of_recipe(
        run, "late_interaction", config | dict(recipe="late_interaction"), path, "PyLate", 2, document=0.5
    )


def train_splade(run: Run, sizes: Sizes) -> Work:
    """The train step of SPLADE."""
    config = _config(run, "L6 H384", batch_size=32, temperature=1.0)
    return _of_recipe(run, "SPLADE", config | dict(recipe="splade"), write_pairs(run, 512), _TORCH, 1)


def large_batch(run: Run, sizes: Sizes) -> Work:
    """One step with gradient caching, memory and speed."""
    model = "L4 H256"
    peer = f"{_TORCH}, cached loss"
    given = dict(pairs=str(write_pairs(run, sizes.large)), batch=sizes.large, batches=1)
    ours = _config(run, model, chunk_size=sizes.chunk, batch_size=sizes.large)
    _pack(ours, given, sizes.large // sizes.chunk, query=0.6, document=0.7)  # a lane is a chunk
    theirs = dict(config=_config(run, model), vocabulary=_vocabulary(run), dtype="float32", chunk=sizes.chunk)
    return Work(
        f"step of {sizes.large} pairs, chunks of {sizes.chunk}, {model}",
        (
            System("ours, packed", _OUR_STEP, given | dict(config=ours, vocab_size=_vocab_size(run))),
            System(peer, _PEER_STEP, given | theirs),
        ),
        (Target("peak MB", peer, 0.7, at_most=True), Target("tokens/s", peer, 1.0)),
        warm=0,
    )


def encode(run: Run, sizes: Sizes) -> Work:
    """A corpus to embeddings, L4 H256."""
    passages = [str(path) for path in sorted(run.corpus.glob("passages-*.jsonl"))]
    given = dict(passages=passages, documents=sizes.documents, vocabulary=_vocabulary(run))
    given["config"] = _config(run, "L4 H256")
    peers = [
        System(f"{_TORCH}, {backend}", "benchmarks.peers.encode", given | dict(backend=backend, rows=32))
        for backend in ("torch", "onnx")
    ]
    targets = [Target("documents/s", peer.name, 1.5) for peer in peers]
    return Work("encode, L4 H256", [System("ours", "benchmarks.ours.encode", given), *peers], targets)


def prepare(run: Run, sizes: Sizes) -> Work:
    """Articles to passages of token ids, in two processes."""
    settings = run.config.prepare
    limits = settings.longest_passage, settings.shortest_paragraph, settings.least_passage
    files = [str(path) for path in sorted((run.corpus / "articles").glob("*.jsonl"))[: sizes.files]]
    given = dict(articles=files, vocabulary=_vocabulary(run), processes=2)
    peer = System("datasets.map", "benchmarks.peers.prepare", given | dict(longest=settings.longest_passage))
    ours = System("ours", "benchmarks.ours.prepare", given | dict(limits=limits, shards=settings.shards))
    return Work("prepare: tokenise and cut", (ours, peer), (Target("MB/s", peer.name, 5.0),))


def of_input(run: Run, _: Sizes) -> Work:
    """The input: ten times as fast as the trainer on a CPU, it does not starve an accelerator soon."""
    kinds = "input", "trainer", "training"
    systems = [System(what, "benchmarks.ours.input", dict(folder=str(run.folder), what=what)) for what in kinds]
    return Work("input of training", systems, (Target("examples/s", "trainer", 10.0),))


def late_search(run: Run, sizes: Sizes) -> Work:
    """Search among the tokens of a set's candidates, for its first queries."""
    documents, queries = (TokenStore(_vectors(sizes), name) for name in ("candidates", "queries"))
    some = Queries.padded([queries[number] for number in range(_QUERIES)], _QUERIES, int(queries.sizes.max()))
    given = _searched(run, sizes, ranked(some, documents, int(documents.sizes.max()), 10)) | dict(bits=sizes.bits)
    ours = System("ours", "benchmarks.ours.late_search", given | dict(probes=8, depth=400))
    theirs = System("fast-plaid", "benchmarks.peers.late_search", given | dict(probes=8, full=4096))
    return _search(f"late interaction's search, {len(documents):,} passages, {sizes.bits} bits", ours, theirs, 1.0)


def sparse_search(run: Run, sizes: Sizes) -> Work:
    """Search among sparse vectors: exact, beside Seismic's, which is not."""
    documents_NV, queries_QV = sparse_vectors(_vectors(sizes))
    lists = SparseIndex(documents_NV.T.tocsr()).search(queries_QV[:_QUERIES], 10)
    given = _searched(run, sizes, lists)
    theirs = System("Seismic", "benchmarks.peers.sparse_search", given | dict(cut=10, heap=0.8))
    ours = System("ours", "benchmarks.ours.sparse_search", given)
    return _search(f"search of sparse vectors, {documents_NV.shape[0]:,} passages", ours, theirs, 0.5)


def sparse_vectors(folder: Path | str) -> list[Any]:
    """Sparse vectors of documents and of queries, [N, V] and [Q, V]."""
    return [scipy.sparse.csr_array(scipy.sparse.load_npz(f"{folder}/{name}.npz")) for name in ("documents", "queries")]


def _vectors(sizes: Sizes) -> Path:
    if sizes.vectors is None:
        raise UserError("--vectors is missing: a folder of vectors to search, such as --vectors=RUN/tokens/SET")
    return sizes.vectors


def _searched(run: Run, sizes: Sizes, exact: tuple[np.ndarray, np.ndarray]) -> dict[str, Any]:
    """What both systems are given: the vectors, and the rows of an exact search."""
    path = _folder(run) / "exact-10.npy"
    files.write_array(path, exact[1])
    return dict(vectors=str(_vectors(sizes).resolve()), exact=str(path.resolve()))


def _search(what: str, ours: System, theirs: System, speed: float) -> Work:
    small = Target("index MB", theirs.name, 1.0, at_most=True)
    targets = Target("queries/s", theirs.name, speed), Target("recall@10", theirs.name, 1.0), small
    return Work(what, (ours, theirs), targets)


WORKS: Mapping[str, Callable[[Run, Sizes], Work]] = {
    "train-small": lambda run, _: _train(run, "L4 H256", 64, 2, dict(query=0.56, document=0.62)),
    "train-base": lambda run, _: _train(run, _BASE, 16, 1, dict(query=0.6, document=0.7)),
    "train-modernbert": lambda run, _: _train(run, "ModernBERT L6 H256", 64, 1, dict(query=0.56, document=0.62)),
    "train-qwen3": lambda run, _: _train(run, "Qwen3 L4 H256", 64, 1, dict(query=0.56, document=0.62)),
    "train-late": train_late,
    "train-splade": train_splade,
    "late-search": late_search,
    "sparse-search": sparse_search,
    "large-batch": large_batch,
    "encode": encode,
    "prepare": prepare,
    "input": of_input,
    "fine-tune": lambda run, sizes: labelled.speed(*_labelled(run, sizes), "L2 H128", steps=160),
    "fine-tune-small": lambda run, sizes: labelled.speed(*_labelled(run, sizes), "L4 H256", steps=60),
    "fine-tune-base": lambda run, sizes: labelled.speed(*_labelled(run, sizes), _BASE, steps=8),
    "learning": lambda run, sizes: labelled.learning(*_labelled(run, sizes), sizes.steps, sizes.seeds),
}
SEARCHES = "late-search", "sparse-search"  # works that need vectors, and no data of the run

LABELLED = ("fine-tune", "fine-tune-small", "fine-tune-base", "learning")  # those of --beir


def write_pairs(run: Run, rows: int) -> Path:
    """The first pairs of the run's tasks, as its own input makes them.

    They are kept in the work directory, under a name that is another one for other data or settings.

    Raises:
      UserError: the corpus has fewer pairs.
    """
    made_of = _fingerprint(run, ("data", "train.batch_size", "seed"), run.config)
    path = _folder(run) / f"pairs-{rows}-{made_of}.npz"
    if path.exists():
        return path
    mesh, size = training.one_device(), run.config.train.batch_size
    if rows % size:
        raise UserError(f"{rows} pairs are no multiple of config.train.batch_size={size}, in which they are drawn")
    with jax.set_mesh(mesh):
        batches = examples.make_batches(run, run.load_vocabulary(), mesh)
        drawn = [{name: np.asarray(values) for name, values in next(batches).items()} for _ in range(rows // size)]
    with files.atomic(path) as temporary:
        np.savez(temporary, **{name: np.concatenate([batch[name] for batch in drawn]) for name in drawn[0]})
    return path


def _train(run: Run, model: str, batch: int, batches: int, pack: Mapping[str, float]) -> Work:
    given = dict(pairs=str(write_pairs(run, 512)), batch=batch, batches=batches)
    ours = {name: _config(run, model, batch_size=batch) for name in ("ours", "ours, packed")}
    _pack(ours["ours, packed"], given, 1, **pack)
    systems = [
        System(name, _OUR_STEP, given | dict(config=config, vocab_size=_vocab_size(run)))
        for name, config in ours.items()
    ]
    for dtype in ("float32", "bfloat16"):
        theirs = dict(config=_config(run, model), vocabulary=_vocabulary(run), dtype=dtype, chunk=0)
        theirs["encoder"] = _published(run, theirs["config"])
        systems.append(System(f"{_TORCH}, {dtype}", _PEER_STEP, given | theirs))
    targets = Target("tokens/s", systems[-2].name, 1.5), Target("tokens/s", systems[-1].name, 1.0)
    return Work(f"train step, {model}, batch {batch}", systems, targets)


def _of_recipe(run: Run, name: str, config: dict[str, Any], path: Path, peer: str, batches: int, **pack: float) -> Work:
    """Ours, which keeps everything for the backward pass or products alone; a peer in float32.

    Args:
      pack: shares to pack from, as `_pack` has them; without any there is a text a row.
    """
    given = dict(pairs=str(path), batch=config["train"]["batch_size"], batches=batches)
    configs = {
        says: json.loads(json.dumps(config | dict(model=config["model"] | dict(remat=remat))))
        for remat, says in (("none", "ours"), ("dots", "ours, products kept"))
    }
    if pack:
        configs["ours, packed"] = json.loads(json.dumps(configs["ours"]))
        _pack(configs["ours, packed"], given, 1, **pack)
    systems = [
        System(says, _OUR_STEP, given | dict(config=changed, vocab_size=_vocab_size(run)))
        for says, changed in configs.items()
    ]
    theirs = given | dict(config=config, vocabulary=_vocabulary(run), dtype="float32", chunk=0)
    targets = Target("tokens/s", peer, 1.2), Target("peak MB", peer, 1.0, at_most=True)
    return Work(
        f"train step of {name}, L6 H384, batch {given['batch']}", (*systems, System(peer, _PEER_STEP, theirs)), targets
    )


def _pack(config: dict[str, Any], given: Mapping[str, Any], lanes: int, **lowest: float) -> None:
    """Packs a batch in lanes: in the smallest shares from these on, by 0.02, for which all pairs of every lane fit.

    Args:
      given: what a train step gets: `pairs`, `batch` and `batches`.
      lowest: the shares of `query` and `document`.

    Raises:
      UserError: they do not fit into rows with as many tokens as they had unpacked.
    """
    config["data"]["lanes"] = lanes
    batches = list(pairs.batches(Path(given["pairs"]), given["batch"], given["batches"]))
    for side, least in lowest.items():
        share = pairs.smallest_share(ConfigDict(config), batches, side, least)
        if share is None:
            raise UserError(f"the pairs of a lane do not fit: raise config.data.pack.{side}_row, the tokens of a row")
        config["data"]["pack"][side] = share


def _labelled(run: Run, sizes: Sizes) -> tuple[Path, Path, str]:
    if sizes.beir is None:
        raise UserError("--beir is missing: the folder of a set to fine-tune on, such as --beir=DATA/nfcorpus")
    return _folder(run), sizes.beir, _vocabulary(run)


def _config(run: Run, model: str, **train: Any) -> dict[str, Any]:
    config = run.config.copy_and_resolve_references()
    config.model.update(benchmark.MODELS[model])
    config.train.update(train)
    return json.loads(config.to_json())


def _published(run: Run, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The config.json with which the family's class of transformers is the same encoder; None of a plain BERT."""
    if config["model"]["family"] == "bert":
        return None
    return written_config(TransformerConfig(**encoder_sizes(ConfigDict(config), _vocab_size(run))))


def _vocabulary(run: Run) -> str:
    """The file of the corpus, or the one that the config names where no corpus was made."""
    path = run.corpus / "vocab.txt"
    if not path.exists() and not run.config.vocab:
        raise UserError("config.vocab is not set: the file of the word pieces, such as --config.vocab=vocab.txt")
    return str(path if path.exists() else run.config.vocab)


def _vocab_size(run: Run) -> int:
    return len(run.load_vocabulary())


def _fingerprint(run: Run, fields: Sequence[str], config: ConfigDict) -> str:
    """Of fields of a config, and of the corpus and the pairs that training reads."""
    values = json.loads(config.to_json())
    read = records.fingerprint(run, "train")["stages"]
    return files.fingerprint([*(records.get_field(values, field) for field in fields), read])


def _folder(run: Run) -> Path:
    return run.folder / "benchmarks"
