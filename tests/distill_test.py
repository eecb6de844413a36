"""`--config=distill`: what it takes from student and teacher, and one command from mining to the report."""

import json

import pytest
from conftest import REPOSITORY
from support import embedder_folders
from support.command_flags import forget_flags
from support.exported import work_directory
from support.tiny import complete

from retrieval import cli
from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.runs.pipeline.run import Run

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(autouse=True)
def _flags():
    yield
    forget_flags()


@pytest.fixture(scope="module")
def student(tmp_path_factory):
    return embedder_folders.modernbert(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """Its name tells its temperature, 0.01."""
    return embedder_folders.qwen3(tmp_path_factory.mktemp("models") / "Qwen3-Embedding-0.6B")


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory):
    """The config is enough to tell what it is."""
    folder = tmp_path_factory.mktemp("models") / "judge"
    config = {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}
    files.write_json(folder / "config.json", config)
    return folder


def config_of(student, teacher, *flags, divided="toy"):
    forget_flags()
    values = {"train.init_from": student, "teacher.model": teacher, "split.set": divided}
    cli.parse_flags(
        ["main", "--config=distill:local", *(f"--config.{name}={of}" for name, of in values.items()), *flags]
    )
    return cli.config()


@pytest.mark.long
def test_one_command_from_mining_to_the_report(student, teacher, tmp_path):
    toy = tmp_path / "toy"
    documents = [{"_id": f"d{n}", "title": "", "text": f"the fox {n} was seen near the old house"} for n in range(40)]
    queries = [{"_id": f"q{n}", "text": f"where is the fox {n}?"} for n in range(40)]
    for name, rows in (("corpus", documents), ("queries", queries)):
        files.write_text(toy / f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    for rule, numbers in (("train", range(24)), ("dev", range(24, 32)), ("test", range(32, 40))):
        lines = ["query-id\tcorpus-id\tscore", *(f"q{n}\td{n}\t1" for n in numbers)]
        files.write_text(toy / "qrels" / f"{rule}.tsv", "\n".join(lines) + "\n")
    values = {
        "sets.beir": toy,
        "split.train": "train",
        "split.dev": "dev",
        "train.steps": 2,
        "train.minutes": 0,
        "train.batch_size": 8,
        "loop.validate_every": 1,
        "loop.best": "RR",
        "data.lanes": 1,
        "split.shards": 1,
    }
    config = config_of(student, teacher, *(f"--config.{name}={value}" for name, value in values.items()))
    assert config.train.loss == "kl_divergence" and config.train.teacher_temperature == 0.01
    run = Run(config, tmp_path / "run", REPOSITORY / "requirements.lock")
    complete(run)
    systems = {row["system"] for row in json.loads((run.folder / "results.json").read_text())}
    assert {"start", "dense"} <= systems
    scored = (run.folder / "teacher" / "scores.jsonl").read_text().splitlines()
    assert len(scored) == 24 * 21  # the positive, and as many negatives as are mined


def test_the_teachers_temperature_is_its_own(student, teacher, cross_encoder, tmp_path):
    def temperature(*teachers):
        return config_of(student, ",".join(map(str, teachers))).train.teacher_temperature

    trained = work_directory(tmp_path / "run", **{"train.temperature": 0.07})
    assert temperature(cross_encoder) == 1 and temperature(teacher) == 0.01 and temperature(trained.folder) == 0.07
    assert temperature(teacher, cross_encoder) == 0.1
    assert config_of(student, teacher, "--config.train.teacher_temperature=0.3").train.teacher_temperature == 0.3


def test_files_in_place_of_a_set_have_their_negatives(student, teacher):
    config = config_of(student, teacher, "--config.pairs.files=x.jsonl", divided="")
    assert "mine" not in config.stages and config.stages[:2] == ("sets", "teacher")


def test_a_missing_teacher_is_named(student):
    with pytest.raises(UserError, match=r"--config=distill learns from a model: add --config\.teacher\.model="):
        config_of(student, "")
