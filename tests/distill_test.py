"""`--config=distill`: what it takes from student and teacher."""

import pytest
from support import embedder_folders
from support.command_flags import forget_flags
from support.exported import work_directory

from retrieval import cli
from retrieval.common import files
from retrieval.common.errors import UserError

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
    own = [f"--config.{name}={of}" for name, of in values.items()]
    cli.parse_flags(["main", "--config=distill:local", *own, *flags])
    return cli.config()


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
