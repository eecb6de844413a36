"""`--config=embedding`: an embedder of today that a flag names, trained on pairs from one line, and exported again.

`--config=distill`: what it takes from student and teacher.
"""

import json

import numpy as np
import pytest
from conftest import REPOSITORY
from support import embedder_folders
from support.command_flags import forget_flags
from support.exported import work_directory

import retrieval
from configs.embedders import embedder
from retrieval import cli
from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.config import experiment
from retrieval.runs.pipeline import preflight, runner
from retrieval.runs.pipeline.run import Run

MAKERS = {"qwen3": embedder_folders.qwen3, "modernbert": embedder_folders.modernbert}
# A folder's name is that of a published model: whose prompts and rates are taken.
NAMES = {"qwen3": "Qwen3-Embedding-0.6B", "modernbert": "modernbert-embed-base"}
TASK = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
TEXTS = ["the fox 7 was seen", "Ünïcödé 東京 🦊", "the dog " * 20]


@pytest.fixture(autouse=True)
def _flags():
    yield
    forget_flags()


def parsed(*flags, config="embedding:local"):
    """The config that a command line makes."""
    forget_flags()
    cli.parse_flags(["main", f"--config={config}", *flags])
    return cli.config()


def start(model, *flags, **options):
    return parsed(f"--config.train.init_from={model}", *flags, **options)


@pytest.fixture(scope="module", params=MAKERS)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def folder(family, tmp_path_factory):
    return MAKERS[family](tmp_path_factory.mktemp("models") / NAMES[family])


FAMILIES = ["qwen3", pytest.param("modernbert", marks=pytest.mark.long)]
QUICK = pytest.mark.parametrize("family", FAMILIES, indirect=True, scope="module")


@pytest.fixture(scope="module", params=[0, pytest.param(2, marks=pytest.mark.long)])
def trained(request, folder, tmp_path_factory):
    """The run of one command line, of all parameters or of adapters; all of its stages and the export are done."""
    place = tmp_path_factory.mktemp("runs")
    pairs = [{"query": f"where is {n}?", "positives": [f"the fox {n} was seen"]} for n in range(60)]
    for name, part in (("pairs", pairs[:40]), ("test", pairs[40:])):
        files.write_text(place / f"{name}.jsonl", "".join(json.dumps(pair) + "\n" for pair in part))
    changes = {"pairs.files": place / "pairs.jsonl", "sets.labelled": place / "test.jsonl", "train.steps": 4}
    changes |= {"train.minutes": 0, "train.batch_size": 8, "train.learning_rate": 1e-2, "index.dense": "exact"}
    changes |= {"train.lora.rank": request.param, "loop.validate_every": 2, "loop.best": "Success@1"}
    changes |= {"data.lanes": 1, "data.shuffle_buffer": 64, "split.shards": 2, "model.remat": "none"}
    config = start(folder, *(f"--config.{name}={value}" for name, value in changes.items()))
    run = Run(config, place / "run", REPOSITORY / "requirements.lock")
    preflight.check(run, config.stages)
    runner.open_run(run)
    for stage in (*config.stages, "export"):
        runner.run_stage(run, stage)
    return run


@QUICK
def test_one_line_trains_an_embedder_of_today(trained):
    systems = {row["system"] for row in files.read_json(trained.folder / "results.json")}
    assert systems == {"bm25", "start", "dense", "hybrid"}
    assert "\n| dense over start |" in (trained.folder / "report.md").read_text()


@QUICK
def test_what_is_exported_is_the_model_of_the_run(trained, folder, family):
    run, export = retrieval.load(trained.folder), retrieval.load(trained.folder / "export")
    for encode in ("encode_query", "encode_document"):
        ours, theirs, before = (getattr(model, encode)(TEXTS) for model in (run, export, retrieval.load(folder)))
        assert np.allclose(ours, theirs, atol=1e-6) and not np.allclose(ours, before, atol=1e-3)
    written, published = (files.read_json(place / "config.json") for place in (trained.folder / "export", folder))
    kept = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    assert [written[key] for key in kept] == [published[key] for key in kept]
    settings = files.read_json(trained.folder / "export" / "config_sentence_transformers.json")
    assert settings["prompts"]["query"] == {"qwen3": TASK, "modernbert": "search_query: "}[family]


def test_sizes_and_modules_are_those_of_the_folder(folder, family):
    config = start(folder)
    assert config.vocab == config.train.init_from == str(folder)
    sizes = {"qwen3": ("qwen3", 2, "last"), "modernbert": ("modernbert", 3, "mean")}[family]
    assert (config.model.family, config.model.num_layers, config.model.pooling) == sizes
    assert config.model.hidden_size == 16 and config.model.normalize and config.model.tied
    assert (config.data.query_length, config.data.document_length) == (64, 128)
    longer = start(folder, config="embedding")
    assert (longer.data.query_length, longer.data.document_length) == (512, 512)
    for checked in (config, longer):
        experiment.check(checked)
        preflight.check_settings(checked, checked.stages)


def test_settings_are_recommended_by_name_and_flags_count_more(folder, family):
    config = start(folder)
    prompts = config.data.query_prefix, config.data.document_prefix
    found = (*prompts, config.train.temperature, config.train.learning_rate)
    expected = {"qwen3": (TASK, "", 0.01, 6e-6), "modernbert": ("search_query: ", "search_document: ", 0.02, 2e-5)}
    assert found == expected[family]
    flags = {"data.query_prefix": "ask: ", "train.temperature": 0.5, "data.document_length": 40, "model.pooling": "cls"}
    config = start(folder, *(f"--config.{name}={value}" for name, value in flags.items()))
    assert config.data.query_prefix == "ask: " and config.data.document_length == 40
    assert (config.train.temperature, config.model.pooling) == (0.5, "cls")


def test_adapters_have_a_rate_of_their_own_and_the_model_may_be_an_argument(folder, family):
    rate = {"qwen3": 1e-4, "modernbert": 5e-4}[family]
    assert start(folder, "--config.train.lora.rank=2").train.learning_rate == rate
    assert parsed(config=f"fine_tune:{folder}").to_dict() == start(folder, config="embedding").to_dict()


def test_prompts_of_the_folder_come_first(tmp_path):
    model = embedder_folders.modernbert(tmp_path / "modernbert-embed-base", {"query": "q: ", "document": "d: "})
    config = start(model)
    assert (config.data.query_prefix, config.data.document_prefix) == ("q: ", "d: ")


@pytest.mark.parametrize(
    ("model", "family", "expected"),
    [
        ("hf:Qwen/Qwen3-Embedding-0.6B@main", "qwen3", (TASK, "", 0.01, 6e-6, 1e-4)),
        ("google/embeddinggemma-300m", "gemma3_text", ("task: search result | query: ", "title: none | text: ")),
        ("hf:intfloat/multilingual-e5-small", "bert", ("query: ", "passage: ", 0.01)),
        ("hf:intfloat/e5-mistral-7b-instruct", "mistral", (f"{TASK} ", "", 0.02)),
        ("hf:BAAI/bge-small-en-v1.5", "bert", ("Represent this sentence for searching relevant passages: ", "", 0.02)),
        ("hf:me/e50-lamp5", "bert", ("", "", 0.05, 5e-5)),
    ],
)
def test_names_of_published_models(model, family, expected):
    assert embedder(model, family)[: len(expected)] == expected


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--config=embedding starts from a model: add --config.train.init_from="),
        (["--config.train.init_from=no/model"], "no/model: no such folder; a model of .* is written hf:"),
        (["--config.train.init_from={empty}"], "empty: no model there: neither a modules.json nor"),
        (["--config.train.init_from={folder},{folder}"], "no such folder"),
        (["--config.train.init_from={folder}", "--config.train.heat=1"], "unknown field 'config.train.heat'"),
    ],
)
def test_mistakes_are_one_sentence(folder, tmp_path, flags, message):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=message) as refused:
        parsed(*(flag.format(empty=tmp_path / "empty", folder=folder) for flag in flags))
    assert "\n" not in str(refused.value)


def test_a_cross_encoder_is_no_embedder(tmp_path):
    model = embedder_folders.without_modules(embedder_folders.qwen3(tmp_path / "reranker"))
    tensors = embedder_folders.load_file(model / "model.safetensors")
    embedder_folders.save_file(tensors | {"score.weight": np.ones((1, 16), np.float32)}, model / "model.safetensors")
    with pytest.raises(UserError, match="reranker: it has a classifier, and makes no embeddings"):
        start(model)


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
    values = {"train.init_from": student, "teacher.model": teacher, "split.set": divided}
    own = [f"--config.{name}={of}" for name, of in values.items()]
    return parsed(*own, *flags, config="distill:local")


@pytest.mark.usefixtures("one_device")
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
