"""The studies of the papers: their runs, the reports that name them, and the commands of the documentation."""

import re
import shlex
from pathlib import Path

import jax.numpy as jnp
import pytest
from absl import flags
from conftest import REPOSITORY
from support.command_flags import forget_flags

from configs.studies import proqa, quadruplet, repbert, seed_encoder
from retrieval import study
from retrieval.cli import command_line
from retrieval.methods.reader import question_tower
from retrieval.recipes.recipe import recipe_of
from retrieval.studies import run_table, study_report
from retrieval.studies.study_results import Results
from retrieval.training.objectives.in_batch_softmax import in_batch_softmax

pytestmark = pytest.mark.usefixtures("one_device")

# Of the documentation, without what follows in a page's prose; and sizes that it has no command for.
PAGES = sorted((REPOSITORY / "docs").rglob("*.md"))
FOUND = [found[1] for page in PAGES for found in re.finditer(r"-m retrieval\.study((?:.*\\\n)*.*)", page.read_text())]
COMMANDS = sorted({" ".join(command.replace("\\\n", " ").split()) for command in FOUND})
OTHERS = ["pretraining_tasks.py:paper,nq", "proqa.py:paper", "quadruplet.py:paper,nq", "seed_encoder.py:paper,msmarco"]
OTHERS = [f"--config=configs/studies/{name} --workdir=runs/x --config.corpus=dump.xml" for name in OTHERS]


@pytest.mark.parametrize("command", COMMANDS + OTHERS)
def test_a_command_names_a_study_and_runs_of_it(command, tmp_path, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    forget_flags()
    command_line.parse_flags(["study", *shlex.split(command)])
    config = command_line.CONFIG.value
    (tmp_path / "list.trec").touch()
    for name in ("dev_runs", "dl_runs"):
        if config.get(name):
            config[name] = tuple(f"{one.partition('=')[0]}={tmp_path}/list.trec" for one in config[name])
    table = run_table.read_table(config, tmp_path)
    chosen = run_table.select(table, flags.FLAGS.only)
    run_table.check_table(chosen)
    study.report_of(config).check_runs(table)
    study_report.write_study(tmp_path, study.report_of(config), Results(tmp_path, ()))
    assert len(chosen) > 1


def test_the_documentation_has_every_study():
    named = {Path(re.search(r"studies/(\w+)\.py", command)[1]).stem for command in COMMANDS}
    assert named == {"pretraining_curves", "pretraining_tasks", "proqa", "quadruplet", "repbert", "seed_encoder"}


def test_the_gain_of_quadruplets_is_parted_into_negatives_and_loss():
    report = quadruplet.get_config("local").report
    (gains,) = [table for table in report.tables if table.title == "Where the gain comes from: 5 %"]
    whole, negatives, loss = ([(cell.runs, cell.over.runs) for cell in row.cells] for row in gains.rows)
    assert [(a, d) for (a, _), (_, d) in zip(loss, negatives)] == whole  # the parts begin and end as the whole does
    assert [d for _, d in loss] == [a for a, _ in negatives] and whole[0][0][0] == "quadruplet-5-s0"
    assert gains.rows[0].paper[0] == 5.15


@pytest.mark.parametrize(("size", "rate"), [("paper", 1e-5), ("local", 3e-4)])
def test_all_second_phases_of_quadruplets_have_one_rate(size, rate):
    mines = [run.mine for run in quadruplet.get_config(size).runs.values() if "mine" in run]
    assert {mine.turn_rate for mine in mines if mine.patience} == {rate}
    assert {mine.turn_rate for mine in mines if not mine.patience} == {0.0}


def test_proqas_runs_stand_on_each_other(tmp_path):
    config = proqa.get_config("local")
    config.corpus, config.squad, config.encoder, config.clusters = "dump.xml", "squad.json", "bert", 7
    config.test_questions, config.validation_questions = "test.jsonl", "validation.jsonl"
    table = run_table.read_table(config, tmp_path)
    run, reader = table["proqa-1"].run.config, table["reader-proqa-1"].run.config
    assert set(table["proqa-1"].needs) == {"bm25", "writer", "corpus"} and run.cluster.count == 7
    assert run.pairs.files == str(tmp_path / "writer" / "generated" / "corpus.jsonl")
    assert table["reader-joint-1"].needs == ("reader-proqa-1",) and reader.train.early and reader.spans.early
    assert question_tower._fields(reader) == question_tower._fields(run)
    recipe_of(reader).check()
    ict = table["ict-1"].run.config
    kept = ("steps", "batch_size", "groups", "learning_rate", "clip_norm", "warmup_ratio", "schedule_steps")
    assert [ict.train[name] for name in kept] == [run.train[name] for name in kept]
    trained = {name: entry.run.config for name, entry in table.items() if "train" in entry.run.config.stages}
    earlier = {name for name in trained if name.startswith(("plain-5-", "plain-7-", "writer"))}
    assert {trained[name].train.init_from for name in trained.keys() - earlier} == {"bert"}
    metrics = {cell.metric for cell in config.report.cells if cell.dataset == "batch"}
    pairs = jnp.eye(2)
    assert metrics and metrics <= in_batch_softmax(pairs, pairs[:, None], jnp.arange(2)[:, None], None)[1].keys()
    config.generated = "questions.jsonl"
    assert set(run_table.read_table(config, tmp_path)["proqa-1"].needs) == {"bm25", "corpus"}


def test_repberts_runs_stand_on_each_other(tmp_path):
    config = repbert.get_config("local")
    config.sets, config.elsewhere = "pool", "nfcorpus"
    table = run_table.read_table(config, tmp_path)
    assert table["reranker-dense-2"].needs == ("repbert-2", "ict-2")
    assert table["distilled-1"].needs == ("questions-1", "ict-1", "reranker-bm25-1")
    assert set(table["expanded-1"].needs) == {"repbert-1", "doc2query-1", "deepct-1"}
    assert table["taught-squad-1"].needs == ("questions-1", "towers-squad-1", "reranker-squad-bm25-1")
    assert table["reranker-squad-dense-2"].needs == ("repbert-squad-2", "cross-squad-2")
    assert table["elsewhere-1"].run.config.sets.beir == "nfcorpus"


def test_what_repberts_report_shows_is_measured():
    """TREC counts DL 2019's passages as relevant from grade 2 on."""
    config = repbert.get_config("local")
    cells = config.report.cells
    of_dl = [cell for cell in cells if cell.dataset == "dl19" or cell.runs == ("published-dl",)]
    binary = {cell.metric for cell in of_dl if cell.metric.startswith("R")}
    assert binary == {"RR(rel=2)@10", "R(rel=2)@100", "R(rel=2)@1000"}
    for cell in cells:
        if cell.metric.partition("@")[0] in ("RR", "R", "nDCG", "RR(rel=2)", "R(rel=2)"):
            assert all(cell.metric in config.runs[name].evaluate.metrics for name in cell.runs), cell
        reranked, _, depth = cell.system.partition("+rerank@")
        if depth:
            of = [config.runs[name].rerank for name in cell.runs]
            assert all(reranked in rerank.systems and int(depth) in rerank.depths for rerank in of), cell


def test_pre_training_with_every_decoder_takes_the_same_compute():
    for size in seed_encoder.SIZES:
        runs = seed_encoder.get_config(size).runs
        chosen = {name[4:-2]: of for name, of in runs.items() if name.startswith("pre-") and name.endswith("-0")}
        short = chosen.pop("short")
        assert short.train == chosen["weak"].train and short.data == chosen["bert"].data
        totals = [config.train.steps * seed_encoder.cost(config) for config in chosen.values()]
        assert max(totals) < 1.001 * min(totals), size
    # By hand, in millions for a token: 12 layers 84.93, 3 and 5 more 21.23 and 35.39, the vocabulary 25.17.
    runs = seed_encoder.get_config("paper").runs
    mlm, weak, strong = 84.93 + 0.15 * 25.17, 84.93 + 21.23 + 1.15 * 25.17, 84.93 + 35.39 + 1.15 * 25.17
    assert runs["pre-bert-0"].train.steps == pytest.approx(1e6 * weak / mlm, rel=1e-3)
    assert runs["pre-strong-0"].train.steps == pytest.approx(1e6 * weak / strong, rel=1e-3)
