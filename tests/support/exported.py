"""Work directories of towers that nobody trained, as if their stages had run, for the tests of what becomes of them."""

import dataclasses
import json

import jax
from conftest import REPOSITORY

from configs import reqa
from retrieval.common import files
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.recipes.parameters import local_mesh, make_mesh, parameters_of
from retrieval.recipes.recipe import abstract_model
from retrieval.recipes.towers import Embedder, candidate_windows, query_tokens
from retrieval.runs.pipeline import records, runner
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import initial_parameters, train_state, trained_run
from retrieval.search import encoding

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789?.,-[]()"
VOCABULARY = WordPiece([*SPECIAL_TOKENS, *LETTERS, *(f"##{c}" for c in LETTERS), "fox", "the", "sep", "dog"])
QUERIES = ["What is a fox?", "", "fox", "the [SEP] fox [MASK]", "Ünïcödé 東京 🦊 \x00 \u200b", "the fox (the dog) " * 9]
DOCUMENTS = [
    Candidate("1", "The fox", "The fox is a dog, 10-9."),
    Candidate("2", "", "No title here."),
    Candidate("3", "fox " * 10, "dogs " * 90),
    Candidate("4", "A title alone", ""),
    Candidate("5", "[SEP] [CLS]", "the [PAD] dog"),
    Candidate("6", "", "the dogs " * 40),
    Candidate("7", "fox " * 30, "dogs " * 90),
]

SIZES = {
    "data.query_length": 16,
    "data.document_length": 40,
    "model.num_layers": 2,
    "model.hidden_size": 16,
    "model.num_heads": 2,
    "model.mlp_size": 32,
    "model.embed_dim": 8,
    "model.matmul_dtype": "dtype",  # as others compute
}


class NoData:
    """The position in data that nobody read."""

    def save(self, folder):
        (folder / "position.json").write_text("{}")


def work_directory(folder, shift=0.1, vocabulary=VOCABULARY, **changes):
    """A run whose train stage is done, after no step; `shift` is by how much its parameters have moved.

    Biases and scales too: as they are drawn, a bias that is forgotten would not be missed.
    """
    config = reqa.get_config("local")
    config.update_from_flattened_dict(SIZES | {"stages": ("prepare", "sets", "pairs", "train")} | changes)
    run = Run(config, folder, REPOSITORY / "requirements.lock")
    runner.open_run(run)
    run.corpus.mkdir()
    vocabulary.save(run.corpus / vocabulary.FILE)
    mesh = make_mesh(config)
    like = train_state.abstract_state(config, abstract_model(config, len(vocabulary)), mesh)
    state = initial_parameters.initial_state(config, len(vocabulary), like)
    leaves, tree = jax.tree.flatten(state.params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    leaves = [
        leaf + shift * jax.device_put(jax.random.normal(key, leaf.shape), leaf.sharding)
        for key, leaf in zip(keys, leaves)
    ]
    checkpointer = train_state.open_checkpoints(folder, config)
    checkpointer.save(
        1,
        dataclasses.replace(state, params=jax.tree.unflatten(tree, leaves)).saved(),
        NoData(),
        {config.loop.best: 1.0},
    )
    checkpointer.close()
    record = {"inputs": {}, "done": True, "seconds": 1, "peak_memory_mb": 1, "details": {"step": 1}, "outputs": {}}
    for stage in ("prepare", "train"):
        records.write_record(run, stage, record)
    return run


def export(run):
    """Runs the stage; the folder that it writes."""
    runner.run_stage(run, "export")
    return run.folder / "export"


def embed(run, queries=(), documents=()):
    """Embeddings of queries and of documents, as the stage `encode` makes them."""
    mesh, vocabulary = local_mesh(run.config), run.load_vocabulary()
    params = parameters_of(trained_run.load_towers(run, len(vocabulary)))
    embedder = Embedder(run.config, vocabulary, mesh)
    tokens = (
        query_tokens(run.config, vocabulary, queries),
        [ids for (ids,) in candidate_windows(run.config, vocabulary, documents)],
    )
    towers = (embedder.queries(params), embedder.documents(params))
    return [encoding.encode_rows(ids, tower, 512, 40, mesh.size) for ids, tower in zip(tokens, towers)]


def write_results(run, step=1):
    """Results of an evaluation after a step of training, and the record of its stage."""
    row = dict(dataset="reqa|x", split="pair", metric="RR", queries=7, seconds=1.5)
    systems = (("bm25", 0.5, None), ("dense", 0.25, step), ("hybrid", 0.375, None))
    rows = [row | {"system": name, "value": value, "step": step} for name, value, step in systems]
    (run.folder / "results.json").write_text(json.dumps(rows))
    outputs = files.checksums(run.folder, [run.folder / "results.json"])
    record = {"inputs": {}, "done": True, "seconds": 1, "peak_memory_mb": 1, "details": {}, "outputs": outputs}
    records.write_record(run, "evaluate", record)
