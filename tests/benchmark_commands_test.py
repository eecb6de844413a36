"""Mistakes in the commands of benchmarks: a sentence, before anything starts."""

import re
import socket
import sys
from pathlib import Path

import pytest
from conftest import write
from support.command_flags import forget_flags

from benchmarks import config as benchmark
from benchmarks import contest, labelled, memory, run, serving_speed  # whose flags are parsed
from retrieval.cli import command_line
from retrieval.errors import UserError
from retrieval.recipes.recipe import recipe_of


@pytest.fixture(autouse=True)
def own_flags(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x"])
    yield
    forget_flags()
    for module in (run, serving_speed):
        for flag in command_line.flags.FLAGS.get_flags_for_module(module.__name__):
            flag.unparse()


@pytest.fixture
def starts(monkeypatch, tmp_path):
    """Starts the measurement of a server, which would be an error."""

    def start(*arguments):
        command_line.parse_flags(["x", f"--workdir={tmp_path}", *arguments])
        serving_speed.main(["x"])

    monkeypatch.setattr(serving_speed.subprocess, "Popen", lambda *_: pytest.fail("a server was started"))
    (tmp_path / "sets" / "own").mkdir(parents=True)
    write(tmp_path / "sets" / "own" / "queries.jsonl", '{"_id": "1", "text": "owl"}\n')
    return start


def test_the_pairs_that_are_drawn_are_one_text_per_row():
    """The paper's config, which the benchmark's is made of, packs them: works pack the pairs by themselves."""
    assert recipe_of(benchmark.get_config()).packing() is None


@pytest.fixture
def judged(tmp_path):
    """The folder of a BEIR set with one pair to train on."""
    folder = tmp_path / "birds"
    (folder / "qrels").mkdir(parents=True)
    write(folder / "queries.jsonl", '{"_id": "1", "text": "owl"}\n')
    write(folder / "corpus.jsonl", '{"_id": "a", "title": "", "text": "An owl."}\n')
    for split in ("train", "test"):
        write(folder / "qrels" / f"{split}.tsv", "query-id\tcorpus-id\tscore\n1\ta\t1\n")
    return folder


def test_the_peer_that_is_fine_tuned_gets_all_sizes_of_its_towers(tmp_path, judged):
    work = labelled.speed(tmp_path, judged, "vocab.txt", "L2 H128", steps=4)
    source = Path("benchmarks/peers/towers.py").read_text()
    read = set(re.findall(r'sizes\["(\w+)"\]', source))
    assert "num_layers" in read
    assert all(read <= set(system.settings["config"]["model"]) for system in work.systems)


def test_works_on_labelled_texts_need_no_corpus(tmp_path, judged, monkeypatch):
    held = []
    monkeypatch.setattr(contest, "hold", lambda work, *_: held.append(work.title) or {"device": "", "systems": []})
    monkeypatch.setattr(contest, "table", lambda results: [])
    monkeypatch.setattr(contest, "details", lambda results: [])
    vocabulary = write(tmp_path / "vocab.txt", "[PAD]\n")
    given = f"--config.vocab={vocabulary}", f"--beir={judged}", "--works=fine-tune", "--alone"
    command_line.parse_flags(["x", f"--workdir={tmp_path / 'run'}", "--config=benchmarks/config.py", *given])
    run.main(["x"])
    assert held == ["fine-tuning on birds, L2 H128, batch 64"]


@pytest.mark.parametrize(
    ("argument", "needed"),
    [
        ("--turns=0", "a whole number of 1 or more"),
        ("--turns=a", "a whole number of 1 or more"),
        ("--seconds=0", "a number of 0.1 or more"),
        ("--server_port=0", "a whole number from 1 to 65535"),
        ("--alone=perhaps", "True or False"),
    ],
)
def test_a_wrong_flag_says_what_is_needed(argument, needed):
    with pytest.raises(UserError, match=f"^{argument}: {needed} is needed$"):
        command_line.parse_flags(["x", argument])


@pytest.mark.parametrize("clients", ["0", "a", "1,-2", "1.5", ""])
def test_clients_are_whole_numbers(starts, clients):
    with pytest.raises(UserError, match=rf"^--clients={clients}: whole numbers of 1 or more are needed"):
        starts(f"--clients={clients}")


def test_a_port_where_another_server_listens_is_refused(starts):
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=rf"^--server_port={port}: Address already in use; give a port"):
            starts(f"--server_port={port}")


def test_sets_without_a_query_are_refused(starts, tmp_path):
    write(tmp_path / "sets" / "own" / "queries.jsonl", "")
    with pytest.raises(UserError, match="the evaluation sets have no queries"):
        starts()


@pytest.mark.parametrize("command", [[], ["no-such-program"], ["/"]])
def test_memory_of_a_missing_program_is_one_sentence(capsys, command):
    assert memory.main(command) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ") and told.count("\n") == 1 and "benchmarks.memory COMMAND" in told


def test_memory_is_explained(capsys):
    assert memory.main(["--help"]) == 0
    assert "python -m benchmarks.memory python" in capsys.readouterr().out
