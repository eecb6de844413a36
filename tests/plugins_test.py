"""Plugins: modules outside the repository, and the code blocks of docs/extending.md as they are there."""

import itertools
import json
import math
import re
import shlex

import jax
import pytest
from conftest import REPOSITORY
from safetensors import safe_open
from support import children, toy_corpus
from support.tiny import TINY

from retrieval.config import experiment
from retrieval.recipes.parameters import parameters_of
from retrieval.recipes.towers import build_towers

PAGE = (REPOSITORY / "docs" / "extending.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```python\n# (\S+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
COMMANDS = [
    shlex.split(block.replace("\\\n", ""))[1:]
    for block in re.findall(r"^```sh\npython -m (.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A folder with the files of the page, a small evaluation set, labelled examples and a vocabulary."""
    folder = tmp_path_factory.mktemp("lab")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    texts = ["the red fox sleeps", "an owl", "the blue whale swims far away"]
    queries = {"q0": "where does the red fox sleep", "q1": "does a whale swim"}
    passages = {f"d{i}": text for i, text in enumerate(texts)}
    toy_corpus.write_set(folder / "toy", passages, queries, {"q0": "d0", "q1": "d2"})
    (folder / "toy" / "answers.jsonl").write_text(json.dumps({"_id": "q1", "answers": ["blue whale"]}) + "\n")
    toy_corpus.write_dump(folder / "wiki.xml")
    (folder / "diaries").mkdir()
    (folder / "diaries" / "july.diary").write_text("A July\nOn Monday it rained all day long.\nThe owl slept.\n")
    (folder / "faq.tsv").write_text("".join(f"{query}\t{text}\n" for query, text in zip(queries.values(), texts[::2])))
    words = sorted({word for text in (*texts, *queries.values()) for word in text.split()})
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    triples = ((a, b, c) for a in words for b in words for c in words[:3] if a < b)
    examples = [
        {"query": f"{a} {b}", "positive": f"{a} {c} {b}", "negatives": [f"{a} {c}", f"{c} {b} owl", f"{c} the"]}
        for a, b, c in itertools.islice(triples, 60)
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(example) + "\n" for example in examples))
    return folder


def run(folder, *arguments):
    """Runs the program in a folder: its exit code, and what it said."""
    log = folder / "log.txt"
    log.unlink(missing_ok=True)
    code = children.run(arguments, log, folder=folder)
    return code, log.read_text()


def command(about):
    """The arguments of the one command of the page that names a plugin, with a tiny model where one is trained."""
    (found,) = [arguments for arguments in COMMANDS if f"lab.{about}" in " ".join(arguments)]
    model = TINY["model"] if about in TRAINED else {}
    return [*found, *(f"--config.model.{name}={value}" for name, value in model.items())]


def test_every_file_of_the_page_is_run():
    assert FILES and sorted(FILES) == sorted(f"lab/{about}.py" for about in CHECKS)


def lengths(folder):
    assert json.loads((folder / "lengths.json").read_text()) == {"toy": 5}


def diaries(folder):
    """The workers of `prepare` know the format, and the passages can be searched."""
    code, said = run(folder.parents[1], "--workdir=runs/diaries", "--stage=search", "--query=what did it do on monday")
    assert code == 0 and "A July" in said and "it rained all day" in said, said


def faq(folder):
    rows = json.loads((folder / "results.json").read_text())
    assert {row["value"] for row in rows if row["metric"] == "Success@1"} == {1}


def trigrams(folder):
    rows = json.loads((folder / "results.json").read_text())
    assert {row["system"]: row["value"] for row in rows if row["metric"] == "Success@1"} == {"bm25": 1, "trigrams": 1}
    assert "letter triples of 3 passages" in (folder / "report.md").read_text()
    lines = (folder / "runs" / "toy" / "trigrams.trec").read_text().splitlines()
    assert lines[0].split() == ["q0", "Q0", "d0", "1", "16", "trigrams"]


def holding(folder):
    """'q1' has the answer 'blue whale'; the other question has none that is known."""
    rows = json.loads((folder / "results.json").read_text())
    assert {row["metric"]: row["value"] for row in rows} == {"Gain@2": 1, "RR": 1, "Holding@2": 0.5}
    assert "100.00" in (folder / "report.md").read_text()


def titles(folder):
    """The task is trained on, and its fields are in the config."""
    config = json.loads((folder / "config.json").read_text())
    assert config["data"]["title_tokens"] == 8 and config["data"]["rates"]["titles"] == 1
    assert sorted(path.name for path in (folder / "checkpoints").iterdir() if path.name.isdecimal()) == ["4"]


def trained(folder):
    """The loss of a run's steps, and how many parameters it trained; all of it was encoded and evaluated."""
    [line] = [line for line in (folder / "metrics" / "train.jsonl").read_text().splitlines() if "gradient_norm" in line]
    assert "dense" in {row["system"] for row in json.loads((folder / "results.json").read_text())}
    return json.loads(line)["loss"], json.loads((folder / "stages" / "train.json").read_text())["details"]["parameters"]


def hardest(folder):
    """The scores of untrained towers are alike: with all three negatives the loss would be log 4."""
    assert trained(folder)[0] == pytest.approx(math.log(3), abs=0.1)


def adapted(folder):
    vocabulary = len((folder.parents[1] / "vocab.txt").read_text().split())
    config = experiment.defaults()
    config.model.update(json.loads((folder / "config.json").read_text())["model"])
    config.data.update(query_length=32, document_length=96)
    without = sum(leaf.size for leaf in jax.tree.leaves(parameters_of(build_towers(config, vocabulary))))
    assert trained(folder)[1] == without + config.model.embed_dim**2
    code, said = run(folder.parents[1], "--workdir=runs/adapted", "--stage=export")
    assert code == 2 and "towers of config.recipe=adapted have parts that those libraries lack" in said, said


def roped(folder):
    """What it exports has the family's names, and another run starts from it."""
    code, said = run(folder.parents[1], "--workdir=runs/roped", "--stage=export")
    assert code == 0, said
    config = folder / "export" / "config.json"
    assert json.loads(config.read_text())["model_type"] == "roped"
    with safe_open(config.with_name("model.safetensors"), "np") as tensors:
        assert {"tokens.weight", "blocks.0.q.bias", "blocks.0.norm_2.weight"} <= set(tensors.keys())
    words = [word.replace("runs/roped", "runs/again_roped") for word in command("roped")]
    code, said = run(folder.parents[1], *words, f"--config.train.init_from={config.parent}")
    assert code == 0 and "starts from" in said, said


TRAINED = ("titles", "hardest", "adapted", "roped")
CHECKS = {c.__name__: c for c in (titles, lengths, diaries, faq, trigrams, holding, hardest, adapted, roped)}
_LONG = ("diaries", *TRAINED)


@pytest.mark.parametrize("about", [pytest.param(n, marks=pytest.mark.long) if n in _LONG else n for n in CHECKS])
def test_the_example_runs(lab, about):
    code, said = run(lab, *command(about))
    assert code == 0, said
    CHECKS[about](lab / "runs" / about)


def test_a_run_keeps_its_plugins(lab):
    """It goes on without them on the command line, and their fields can be set."""
    workdir = "--workdir=runs/again"
    begun = [workdir if word.startswith("--workdir") else word for word in command("lengths")]
    code, said = run(lab, *begun)
    assert code == 0, said
    assert json.loads((lab / "runs" / "again" / "config.json").read_text())["plugins"] == ["lab.lengths"]

    code, said = run(lab, workdir, "--stage=lengths", "--config.lengths.least=5")
    assert code == 0, said
    assert json.loads((lab / "runs" / "again" / "lengths.json").read_text()) == {"toy": 6}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--config.plugins=lab.absent", "error: config.plugins: 'lab.absent' cannot be imported (ModuleNotFoundError"),
        ("--config.plugins=lab.lengths --config.lengths.leest=1", "config.lengths.leest"),
        ("--config.plugins=lab.faq --config.sets.faq=toy/corpus.jsonl", "corpus.jsonl, line 1: no tab"),
    ],
)
def test_mistakes_in_plugins_are_one_sentence(lab, arguments, message):
    code, said = run(lab, "--config=bm25", "--workdir=runs/mistake", "--config.sets.beir=toy", *arguments.split())
    assert code == 2 and message in said and "Traceback" not in said, said
