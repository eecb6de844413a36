"""A run of a reader that trains the question tower too."""

import json
import shutil

import jax
import numpy as np
import pytest
from support import toy_corpus
from support.refreshed_runs import outcome
from support.tiny import execute, make_run

from retrieval.data.sets import answers, beir, qa
from retrieval.methods.reader import recipe, task
from retrieval.methods.reader.trained import READERS
from retrieval.recipes.parameters import make_mesh
from retrieval.recipes.recipe import build_model, recipe_of
from retrieval.runs.fitting import examples
from retrieval.runs.pipeline import preflight
from retrieval.runs.weights import initial_parameters
from retrieval.search import encoding

EARLY = 6
TOWERS = {"split.set": "squad", "split.ratio": 0.7, "split.validation": 0.2, "split.shards": 2, "sets.reqa": ""}
TOWERS |= {"stages": ("prepare", "sets", "train", "encode"), "encode.corpus": False, "encode.untrained": False}
READER = {"stages": ("spans", "train", "answer"), "corpus": "", "sets.reqa": "", "data.query_length": 20}
READER |= {"data.document_length": 64, "data.paragraphs": 2, "spans.depth": 2, "spans.early": EARLY}
READER |= {"spans.system": "exact", "split.shards": 2, "train.batch_size": 8, "train.steps": 24}
READER |= {"train.learning_rate": 3e-3, "train.temperature": 0.05, "train.early": True, "train.joint": True}
READER |= {"loop.log_every": 1, "loop.checkpoint_every": 8, "loop.keep_checkpoints": 9, "answer.systems": ("tuned",)}
READER |= {"answer.paragraphs": 3}


@pytest.fixture(scope="module")
def towers(inputs, prepared, tmp_path_factory):
    """Towers, and a file of questions."""
    place = tmp_path_factory.mktemp("towers")
    folder = shutil.copytree(prepared, place / "run")
    run = make_run("ict", inputs, folder, **TOWERS, **{"sets.squad": str(inputs / "squad.json")})
    execute(run)
    questions = [
        {"question": f"{asks} {toy_corpus.title(i)}?", "answer": [toy_corpus.title(i)]}
        for i in range(12)
        for asks in ("Which animal eats grass,", "Who is a", "What does nobody know of the", "Does it live, the")
    ]
    (place / "train.jsonl").write_text("\n".join(map(json.dumps, questions)))
    return place / "train.jsonl", run


@pytest.fixture(scope="module")
def trained(towers, inputs, tmp_path_factory):
    """A reader of names, each of which one of the 12 passages has."""
    questions, base = towers
    source = {"base": str(base.folder), "spans.questions": str(questions), "spans.set": "squad"}
    run = make_run("reader", inputs, tmp_path_factory.mktemp("reader") / "run", **READER | source)
    preflight.check(run, run.config.stages)
    execute(run)
    return run


def candidates_of(run):
    """The embeddings of the set's passages, and their texts."""
    folder = run.as_seen_by("spans").embeddings("squad", "trained")
    return encoding.load(folder, "candidates")[0], list(beir.read_candidates(run.sets / "squad" / "corpus.jsonl"))


def test_a_batch_has_the_first_candidates_and_which_hold_an_answer(trained, towers):
    embeddings_NE, passages = candidates_of(trained)
    vocabulary, (queries, known) = trained.load_vocabulary(), qa.read_questions([towers[0]])
    batch = jax.device_get(next(examples.make_batches(trained, vocabulary, make_mesh(trained.config))))
    config = recipe.towers_of(trained).config
    row_of = lambda text: tuple(vocabulary.single(vocabulary.encode(text), config.data.query_length))  # noqa: E731
    asked = {row_of(text): id for id, text in queries.items()}
    shard = np.load(trained.folder / "spans" / task.CANDIDATES)
    ids = [asked[tuple(question[question >= 0].tolist())] for question in batch["question"]]
    texts = [queries[id] for id in ids]
    query_BE = recipe.embedded(open_before(trained), config, trained.config, vocabulary, texts)
    fields = (batch[name] for name in ("candidates", "holds", "embedding"))
    for id, query_E, rows, holds, found in zip(ids, query_BE, *fields):
        best = np.argsort(-embeddings_NE @ query_E, kind="stable")[:EARLY]
        np.testing.assert_array_equal(found, embeddings_NE[best])
        np.testing.assert_array_equal(found, shard[rows])
        np.testing.assert_array_equal(holds, [bool(answers.places(known[id], passages[row].text)) for row in best])
    assert 0 < batch["holds"].mean() < 1


def open_before(run):
    """The reader as it begins, with the question tower of the base."""
    model = build_model(run.config, run.vocab_size)
    recipe_of(run.config).begin(run, model)
    return model


def test_the_question_tower_learns_beside_the_reader(trained):
    losses = [line["early"] for line in outcome(trained)[1] if "early" in line]
    assert np.mean(losses[-6:]) < 0.9 * np.mean(losses[:6])
    before, after = (
        jax.tree.leaves(initial_parameters.parameters_of(model.retriever))
        for model in (open_before(trained), READERS.read(trained, "", "config.base").model)
    )
    assert all(np.abs(a - b).max() > 0 for a, b in zip(before, after, strict=True) if a.size > 1)
