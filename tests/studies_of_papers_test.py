"""The studies of the papers: their runs, the reports that name them, and the commands of the documentation."""

import re
import shlex
from pathlib import Path

import pytest
from conftest import REPOSITORY
from support import embedder_folders
from support.command_flags import forget_flags

from configs.studies import repbert, seed_encoder
from retrieval import cli, study
from retrieval.studies import run_table, study_report
from retrieval.studies.study_results import Results

pytestmark = pytest.mark.usefixtures("one_device")


# Of the documentation, without what follows in a page's prose; and sizes that it has no command for.
PAGES = sorted((REPOSITORY / "docs").rglob("*.md"))
FOUND = [found[1] for page in PAGES for found in re.finditer(r"-m retrieval\.study((?:.*\\\n)*.*)", page.read_text())]
COMMANDS = sorted({" ".join(command.replace("\\\n", " ").split()) for command in FOUND})
FIRST = list({re.search(r"--config=(\S+)", command)[1]: command for command in COMMANDS}.values())  # of each size
FIRST = [command for command in FIRST if "folds.py" not in command]  # which reads a run: `published_test` has one
OTHERS = ["pretraining_tasks.py:paper,nq", "proqa.py:paper", "quadruplet.py:paper,nq", "seed_encoder.py:paper,msmarco"]
OTHERS = [f"--config=configs/studies/{name} --workdir=runs/x --config.corpus=dump.xml" for name in OTHERS]


STUDIES = {re.search(r"studies/(\w+)\.py", command)[1]: command for command in FIRST}.values()  # of each study


@pytest.mark.parametrize(
    "command", [one if one in STUDIES else pytest.param(one, marks=pytest.mark.long) for one in FIRST + OTHERS]
)
def test_a_command_names_a_study_and_runs_of_it(command, tmp_path, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    forget_flags()
    if "=MODEL" in command:
        command = command.replace("=MODEL", f"={embedder_folders.modernbert(tmp_path / 'model')}")
    cli.parse_flags(["study", *shlex.split(command)])
    config = cli.config()
    (tmp_path / "list.trec").touch()
    for name in ("dev_runs", "dl_runs"):
        if config.get(name):
            config[name] = tuple(f"{one.partition('=')[0]}={tmp_path}/list.trec" for one in config[name])
    table = run_table.read_table(config, tmp_path)
    chosen = run_table.select(table, study._ONLY.value)
    run_table.check_table(chosen)
    study_report.report_of(config).check(table)
    study_report.write_study(tmp_path, study_report.report_of(config), Results(tmp_path, ()))
    assert len(chosen) > 1


def test_the_documentation_has_every_study():
    named = {Path(re.search(r"studies/(\w+)\.py", command)[1]).stem for command in COMMANDS}
    of_tasks = {"pretraining_curves", "pretraining_tasks"}
    assert named == of_tasks | {
        "embedding",
        "folds",
        "late_interaction",
        "proqa",
        "quadruplet",
        "repbert",
        "seed_encoder",
    }


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
