"""Every config builds, and the paper's numbers are in it."""

import importlib
from pathlib import Path

import jax
import pytest
from flax import nnx

from configs.studies import pretraining_tasks
from retrieval import cli
from retrieval.config import experiment
from retrieval.config.fields import check_value, declared
from retrieval.recipes.parameters import parameters_of
from retrieval.recipes.recipe import abstract_model, build_model
from retrieval.runs.pipeline import preflight
from retrieval.runs.pipeline.records import get_field
from retrieval.runs.pipeline.stage import STAGES
from retrieval.training.schedules import SCHEDULES

# The argument of these may be a model: tests of their own have them.
OF_MODELS = {"mine", "published", "fine_tune", "embedding", "own", "distill"}
NAMES = [Path(name).stem for name in cli.described() if "studies" not in name]
NAMES = [name for name in NAMES if name not in OF_MODELS]


def load(name, *size):
    return importlib.import_module(f"configs.{name}").get_config(*size)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", ["paper", "local"])
def test_builds_and_names_only_stages_and_fields_that_exist(name, size):
    config = load(name, size)
    assert set(config.stages) <= set(STAGES)
    for stage in STAGES.values():
        for field in stage.fields:
            get_field(config.to_dict(), field)
    assert config.train.batch_size % config.data.lanes == 0
    assert config.prepare.shards % config.data.lanes == 0 or "prepare" not in config.stages
    assert config.split.shards % config.data.lanes == 0 or not config.data.rates.pairs
    config.corpus = config.corpus or "dump.xml.bz2"
    config.sets.reqa = "dev.json"
    experiment.check(config)
    planned = ("plan",) if "train" in config.stages else ()
    preflight.check_settings(config, (*config.stages, *planned, "search"))


def test_every_default_is_a_value_that_its_field_may_have():
    """A config is checked where it differs from these."""
    for path, field in declared().items():
        check_value(path, field.default, field.kind)


def test_the_papers_model_is_two_bert_bases():
    config = load("ict_bfs_wlp")
    shapes = nnx.eval_shape(lambda: build_model(config, 30522))
    size = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(shapes, nnx.Param)))
    # BERT-base without its pooler has 108.9 million; here 288 positions in place of 512, and a projection to 512.
    assert size == 2 * (108_891_648 - (512 - 288) * 768 + 768 * 512 + 512)


def test_the_papers_bow_mlp_is_as_large_as_bert():
    """128 against 110 million in a tower (section 4.2), also where the study fine-tunes it."""
    runs = pretraining_tasks.get_config("paper").runs
    for config in (load("bow_mlp"), runs["pre-bow_mlp-all-l0-e512-0"], runs["s0-1-bow_mlp-none-l0-e512"]):
        size = sum(leaf.size for leaf in jax.tree.leaves(parameters_of(abstract_model(config, 30522))))
        assert round(size / 2e6) == 128


def test_repberts_setting():
    """Zhan et al. 2020, section 4.1.4, and the authors' code: 26 rows of two batches are 13 triples of two."""
    paper, corrected = load("repbert", "paper"), load("repbert", "corrected")
    for config in (paper, corrected):
        experiment.check(config)
        assert (config.model.pooling, config.model.embed_dim, config.model.token_types) == ("mean", 0, "sides")
        assert config.train.steps // config.train.accumulation == 350_000
        assert config.train.batch_size * (1 + config.data.negatives) == 26
    planned = paper.train.schedule_steps // paper.train.accumulation
    assert (planned, round(paper.train.warmup_ratio * planned)) == (1_038_150, 10_000)
    rate = SCHEDULES["linear"](3e-6, planned, paper.train.warmup_ratio * planned)
    assert rate(350_000) == pytest.approx(2.0e-6, rel=0.01)
    assert paper.pairs.in_order and paper.data.shuffle_buffer == 1 and paper.split.shards == paper.data.lanes == 13


def test_seed_encoders_setting():
    """Lu et al. 2021, section 4.1."""
    config = load("seed_encoder")
    assert config.train.warmup_ratio * config.train.steps == 10_000
    # BERT-base without pooler and token types; with the MLM head; a decoder of three layers has 2 D^2 more in each.
    size = sum(leaf.size for leaf in jax.tree.leaves(parameters_of(abstract_model(config, 32_768))))
    D, V, norm = 768, 32_768, 2 * 768
    layer = 4 * (D * D + D) + 2 * D * 4 * D + 4 * D + D + 2 * norm
    encoder = (V + 512 + 2) * D + norm + 12 * layer
    assert size == encoder + D * D + D + norm + V + 512 * D + norm + 3 * (layer + 2 * (D * D + D)) + norm
