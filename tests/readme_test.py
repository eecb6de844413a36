"""The README's commands and the notebook run as they stand there, on toy data and at tiny sizes."""

import bz2
import gzip
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from conftest import REPOSITORY
from support import toy_corpus
from support.command_flags import forget_flags
from support.tiny import CHEAP, as_flags

import retrieval
from retrieval import cli, main, verbs
from retrieval.api.finished_run import FinishedRun
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
LINES = [line for block in BLOCKS for line in block.replace("\\\n", " ").splitlines()]
QUICKSTART = "./launch/quickstart.sh"
PROGRAM, VERB = "python -m retrieval.main ", "retrieval "

TOY = {"corpus": "DATA/pages-articles.xml.bz2", "sets.pydocs": False, "sets.reqa": "DATA/dev-v1.1.json.gz"}
SHORT = {"train.steps": 2, "loop.validate_every": 0, "encode.untrained": False}
FEW = "train.steps=2 train.batch_size=8 split.shards=2 data.lanes=1 data.shuffle_buffer=64".split()
# What the first command of a work directory is given beside its own arguments.
SIZES = {
    "runs/quickstart": as_flags(**TOY, **CHEAP, **SHORT),
    "runs/own": ["--config.prepare.longest_passage=60"],  # MODEL reads 20, in which there are no two sentences
    "runs/tuned": [f"--config.{field}" for field in FEW],
    "runs/pairs": [f"--config.{field}" for field in (*FEW, "model.remat=none")],
    "runs/wiki": as_flags(**SHORT),
    "runs/nfcorpus": [],
    "runs/published": [],
    "shared/paper": as_flags(**CHEAP, **SHORT),
}


def arguments_of(line):
    """What a line gives to the program; that of the quickstart stands in the script. The model of the hub is MODEL."""
    if line.startswith(VERB):
        words = shlex.split(line.replace("hf:sentence-transformers/all-MiniLM-L6-v2", "MODEL"))[1:]
        return verbs.written_out([*words, *(["--workdir=runs/own"] if words[0] != "own" else [])])
    if line == QUICKSTART:
        (line,) = re.findall(rf"{PROGRAM}.*$", (REPOSITORY / QUICKSTART).read_text(), re.MULTILINE)
        line = line.replace(' "$@"', "")
    return shlex.split(line.partition(PROGRAM)[2].replace("=/shared/", "=shared/"))


COMMANDS = [arguments_of(line) for line in LINES if PROGRAM in line or line.startswith((VERB, QUICKSTART))]


def flag(arguments, name):
    return next((argument.partition("=")[2] for argument in arguments if argument.startswith(f"--{name}=")), "")


def numbers(place):
    """The commands of a work directory."""
    return [number for number, command in enumerate(COMMANDS) if flag(command, "workdir") == place]


def write_pages(folder):
    for number in range(40):
        lead, *others = [part.text for section in toy_corpus.article(number).sections for part in section.paragraphs]
        page = f"# {toy_corpus.title(number)}\n\n{lead}\n\n## Life\n\n{' '.join(others)}\n"
        (folder / f"{number}.md").write_text(page)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with `DATA` and `MODEL`, for the commands."""
    home = tmp_path_factory.mktemp("home")
    (home / "configs").symlink_to(REPOSITORY / "configs")
    (home / "docs").mkdir()
    (home / "DATA").mkdir()
    data = toy_corpus.write_inputs(home / "DATA")
    (data / "pages-articles.xml.bz2").write_bytes(bz2.compress((data / "dump.xml").read_bytes()))
    (data / "dev-v1.1.json.gz").write_bytes(gzip.compress((data / "squad.json").read_bytes()))
    write_pages(home / "docs")
    animals = [toy_corpus.title(number).lower() for number in range(60)]
    pairs = [{"query": name, "positives": [f"the {name} lives"], "negatives": ["the grass"]} for name in animals]
    for name in ("pairs", "test"):
        (data / f"{name}.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    asked = {"q0": "where does the red fox sleep", "q1": "does a whale swim"}
    passages, answers = {"d0": "the red fox sleeps", "d1": "a whale"}, {"q0": "d0", "q1": "d1"}
    toy_corpus.write_set(data / "nfcorpus", passages, asked, answers)
    words = [*toy_corpus.COLOURS, *toy_corpus.ANIMALS, "the", "lives", "grass"]
    model = shutil.copytree(REPOSITORY / "tests" / "golden" / "bert", home / "MODEL")
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    (model / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    for folder in (model, data):
        WordPiece([*SPECIAL_TOKENS, *words, *(f"w{i}" for i in range(45 - len(words)))]).save(folder / "vocab.txt")
    return home


@pytest.fixture(scope="module")
def done():
    """The numbers of the commands that were run in `home`."""
    return set()


@pytest.fixture
def run(home, done, monkeypatch):
    """Runs a command by its number, once, after those that it stands on."""
    monkeypatch.chdir(home)

    def run(number):
        arguments = COMMANDS[number]
        place = flag(arguments, "workdir")
        for earlier in [*numbers(flag(arguments, "config.base")), *numbers(place)]:
            is_asked = flag(COMMANDS[earlier], "stage") in ("search", "serve")  # writes nothing
            if earlier < number and earlier not in done and not is_asked:
                run(earlier)
        first = number == numbers(place)[0]
        done.add(number)
        execute([*arguments, *(SIZES[place] if first else [])])

    return run


def execute(arguments):
    forget_flags()
    main.main(cli.parse_flags(["main", *arguments]))


LONG = [pytest.param(f"runs/{place}", marks=pytest.mark.long) for place in ("tuned", "pairs", "wiki", "nfcorpus")]


@pytest.mark.parametrize("place", [*LONG, "runs/published"])
def test_the_commands_of_a_run(place, run, home):
    for number in numbers(place):
        run(number)
    written = "export/README.md" if place in ("runs/tuned", "runs/wiki") else "report.md"
    assert (home / place / written).is_file()
    if place == "runs/tuned":  # on a run over documents, whose passages it searches
        systems = {row["system"] for row in json.loads((home / place / "results.json").read_text())}
        assert systems >= {"bm25", "start", "dense", "hybrid"}
        hits = retrieval.load(home / place).index(kind="hybrid").search("red fox", k=3)
        assert len(hits) == 3 and all(".md:" in hit.id for hit in hits)


@pytest.mark.parametrize("place", ["runs/quickstart", "runs/own"])
def test_the_commands_of_a_run_that_is_searched(place, run, capsys):
    (searched,) = (number for number in numbers(place) if "--stage=search" in COMMANDS[number])
    run(searched)
    said = capsys.readouterr().out
    assert all(f"\n{system}\n" in said for system in ("dense", "hybrid")) and "\n  5. " in said


def test_the_command_of_a_pod_is_read(home, monkeypatch):
    monkeypatch.chdir(home)
    (number,) = numbers("shared/paper")
    forget_flags()
    cli.parse_flags(["main", *COMMANDS[number]])


def test_every_line_is_a_run_or_a_setup_command():
    versions = dict(re.findall(r"^([\w-]+)==(\S+)", (REPOSITORY / "requirements.lock").read_text(), re.MULTILINE))
    others = [line.split("#")[0].strip() for line in LINES if PROGRAM not in line]
    others = [line for line in others if not line.startswith((VERB, QUICKSTART))]
    setup = ["source launch/environment.sh && source .venv/bin/activate"]
    assert others == ["pip install '.[serve]'", "./launch/test.sh", *setup]
    # Outside of the block, which people run as a whole.
    assert all(f'`pip install "jax[{extra}]=={versions["jax"]}"`' in README for extra in ("cuda12", "tpu"))
    assert {flag(command, "workdir") for command in COMMANDS} == SIZES.keys()


NOTEBOOK = REPOSITORY / "docs" / "tutorials" / "search_your_notes.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def run_here(config, workdir, overrides):
    """`retrieval.run` in this process, with a model that is soon compiled."""
    fields = [f"--config.{name}={value}" for name, value in overrides.items()]
    tiny = as_flags(**CHEAP, **{"train.steps": 2, "loop.validate_every": 0, "train.epochs": 0})
    execute([f"--config={config}", f"--workdir={workdir}", *fields, *tiny])
    return FinishedRun(Path(workdir))


@pytest.fixture
def notes(tmp_path, monkeypatch):
    """A folder of Markdown files, where the notebook looks for them."""
    (tmp_path / "docs" / "tutorials").mkdir(parents=True)
    write_pages(tmp_path / "docs")
    monkeypatch.chdir(tmp_path / "docs" / "tutorials")
    monkeypatch.setattr(retrieval, "run", run_here, raising=False)
    return tmp_path


@pytest.mark.long
def test_the_notebook_runs_to_its_last_cell(notes, monkeypatch, capsys):
    typed = iter(["where does the red fox live", ""])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    names = {}
    for cell in CELLS:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), names)
    assert "Red fox" in capsys.readouterr().out and (notes / "runs" / "notes" / "index").is_dir()
    assert len(names["index"]) > 40 and next(typed, None) is None
