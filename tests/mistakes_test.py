"""Mistakes that people make, and what they are told: the field or file, the nearest name, a way out, in five lines.

Nothing that is dear is done before: no stage has begun when the message comes.
"""

import json
import math
import re
import shlex
import sys
from typing import NamedTuple

import pytest
from conftest import REPOSITORY
from support import toy_corpus
from support.command_flags import forget_flags

from configs import ict_bfs_wlp
from retrieval import cli, main, study
from retrieval.common.runtime import ending
from retrieval.data.tokenizers import vocabularies
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS
from retrieval.runs.pipeline import records, runner
from retrieval.runs.pipeline.run import Run

LINES, COLUMNS = 5, 120


class Mistake(NamedTuple):
    """What is typed, and what the message has to say."""

    typed: str
    says: tuple[str, ...]


def mistakes(table):
    """Those of a text: a command, and below it, indented, what the message says, between bars.

    $NAME stands for one of `SHORT`. {run} is a work directory that does not exist, everything else in braces lies in
    the folder that `inputs` makes.
    """
    found = []
    for line in table.strip().splitlines():
        if line.startswith(" "):
            typed, says = found.pop()
            found.append(Mistake(typed, (*says, *(part.strip() for part in line.split("|") if part.strip()))))
        else:
            found.append(Mistake(written_out(line), ()))
    return found


def written_out(line):
    while "$" in line.replace("$HOME", ""):
        line = re.sub(r"\$(\w+)", lambda match: SHORT.get(match[1], match[0]), line)
    return line


SHORT = {
    "QUICK": "--config=configs/ict_bfs_wlp.py:local --workdir={run}",
    "ALONE": "--config=configs/dpr_mined.py:local --workdir={run} --config.sets.reqa={squad.json}",
    "MINED": "$ALONE --config.base={finished}",
    "DUMP": "--config.sets.pydocs=False --config.corpus={dump.xml}",
    "MIXED": "--workdir={mixed} --config.base={other_words} --config.stages=\"('prepare', 'sets', 'encode')\"",
    "BM25": "--config=configs/bm25.py --workdir={run} --stage=sets",
    "OLDER": "--config=configs/dpr_mined.py:local --workdir={run} --config.base={older_index} "
    "--config.split.set=pydocs",
    "SEEDS": "--config=configs/studies/seed_encoder.py:local",
    "TASKS": "--config=configs/studies/pretraining_tasks.py:local",
}

FLAGS = mistakes(
    r"""
--config=configs/ict.py --workdir={run} --batch_size=64
  did you mean | --config.train.batch_size
--config=configs/ict.py --workdir={run} train
  unexpected argument 'train' | stages come first
--config=configs/ict.py --workdir={run} --multihost=perhaps
  --multihost=perhaps | True or False
--config=configs/ict_bsf_wlp.py --workdir={run}
  no such file | did you mean --config=configs/ict_bfs_wlp.py
--config=dpr:locl --workdir={run}
  'locl' | did you mean local?
--config={raises.py} --workdir={run}
  {raises.py}, line 2 | NameError | mend that file
--config={half.py} --workdir={run}
  config.corpus=caf\udce9: this is not UTF-8, or has half of a surrogate pair | rename it
--config={typo.py} --workdir={run}
  'config.train.batchsize' | did you mean config.train.batch_size
--workdir={oldest}
  {oldest}: another version of this program made this work directory | another --workdir
--workdir={finished} --config.train.steps=5
  {finished} is the work directory of another config | config.train.steps: 600 there, 5 now
$TASKS --workdir={run}
  --config is that of a study | python -m retrieval.study
$QUICK --config.train.steps=5 --config.seed=1 --noconfig.model.tied --config.train.steps=7
  --config.train.steps is there twice | --config.train.steps=5 and --config.train.steps=7 | leave one out
--config=configs/ict.py --workdir=~/run
  --workdir=~/run | write $HOME
--workdir={finished}d --stage=search --query=fox
  --workdir={finished}d: no such run | did you mean {finished}? | needs --config
$QUICK --stage=trian
  unknown stage 'trian' | did you mean train
"""
)

FIELDS = mistakes(
    r"""
--config.trian.steps=5
  'config.trian.steps' | did you mean config.train.steps
--config.plan.tune=True
  config.plan.tune is gone: Plan each setting by itself
--config.stages=train,encode
  config.stages=train,encode | ('train', 'encode')
--config.model.hidden_size=100 --config.model.num_heads=8
  hidden_size=100 | num_heads=8 | 96 or 104
--config.train.batch_size=4
  config.train.batch_size=4 | number of devices, 8 | take 8
--config.data.rates.ict=0 --config.data.rates.bfs=0 --config.data.rates.wlp=0
  config.data.rates has none | of bfs, | config.data.rates.NAME=1
--config.loop.validate_every=10
  config.loop.validate_every=10 | config.data.held_out, such as 0.01
--config.evaluate.depth=10
  config.evaluate.depth=10 | Success@100 | at least 100
--stage=export
  stage 'export' reads what stage 'prepare' writes | --stage=prepare,train,export
$BM25,report --config.sets.beir={beir} --config.stages="('sets', 'report')"
  stage 'report' reads what stage 'evaluate' writes | no run has that | --stage=evaluate,report
"""
)

FILES = mistakes(
    r"""
--config.sets.pydocs=False --config.corpus={folder}/dumb.xml
  dumb.xml: no such file | did you mean {folder}/dump.xml
--config.sets.pydocs=False --config.corpus={array.json}
  {array.json} | expected a MediaWiki export | or documents, whose names end in .csv
--config.sets.pydocs=True --config.corpus={dump.xml}
  config.sets.pydocs | config.corpus=pydocs | config.sets.pydocs=False
$MIXED --stage=encode
  config.base={other_words} | trained with another vocabulary than {mixed}/corpus/vocab.txt
$MINED --config.mine.system=exact
  'mine' reads what stage 'encode' writes | in {finished}: run it
$OLDER --config.stages="('mine', 'pairs')"
  'mine' would read what stage 'index' made in {older_index} before | again in {older_index}: --stage=encode,index
--workdir=/proc/run
  --workdir=/proc/run: nothing can be written to /proc; use another --workdir
"""
)


STUDY = mistakes(
    r"""
--config=configs/ict.py:local --workdir={run}
  --config is missing, or not that of a study | configs/studies/
$TASKS --workdir={run} --config.corpus=pydocs --only=corpsu
  unknown run in --only 'corpsu' | did you mean corpus
$SEEDS --workdir={run} --config.corpus=pydocs --config.questions={folder}/squad.jsn
  run 's0-10-search' of the study: {folder}/squad.jsn: no such file | did you mean {folder}/squad.json
"""
)
LOCK = REPOSITORY / "requirements.lock"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Files and folders to name by mistake: name -> path."""
    root = tmp_path_factory.mktemp("mistakes")
    (folder := root / "inputs").mkdir()
    toy_corpus.write_dump(folder / "dump.xml")
    toy_corpus.write_squad(folder / "squad.json")
    lines = [*SPECIAL_TOKENS, *("fox dog cat owl".split())]
    texts = {
        "array.json": "[]",
        "vocab.txt": "\n".join(lines),
        "raises.py": "def get_config():\n    return undefined\n",
        "half.py": config_file(r"config.corpus = 'caf\udce9'"),
        "typo.py": config_file("config.train.batchsize = 5"),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    toy_corpus.write_set(folder / "beir", {"d1": "one", "d2": "two"}, {"q1": "one?"}, {"q1": "d1"})
    write_runs(folder.parent, folder)
    paths = {path.name: path for path in [*folder.iterdir(), *root.iterdir()]}
    return {**paths, "folder": folder}


def config_file(line):
    body = f"    config = ict.get_config('local')\n    {line}\n    return config\n"
    return f"from configs import ict\n\n\ndef get_config():\n{body}"


def write_runs(root, folder):
    """Work directories, as if their stages had run."""
    words = (folder / "vocab.txt").read_text()
    finished(root / "finished", words, "prepare", "sets", "train")
    run = finished(root / "older_index", words, "prepare", "sets", "train", "encode", "index")
    records.write_record(run, "sets", records.read_record(run, "sets") | {"outputs": {"sets/pydocs": "another sum"}})
    finished(root / "other_words", words.replace("fox", "fax"), "prepare", "train")
    finished(root / "mixed", words, "prepare", "sets")
    finished(root / "oldest", words, "prepare", "sets")
    (root / "oldest" / "stages" / "prepare.json").write_text(json.dumps({"done": True}))


def finished(folder, words, *stages):
    config = ict_bfs_wlp.get_config("local")
    (folder / "corpus").mkdir(parents=True)
    (folder / "config.json").write_text(config.to_json())
    (folder / "corpus" / "vocab.txt").write_text(words)
    details = {"step": 1, "vocabulary": vocabularies.load(folder / "corpus" / "vocab.txt").fingerprint}
    record = {"done": True, "seconds": 1, "peak_memory_mb": 1, "details": details, "outputs": {}}
    run = Run(config, folder, LOCK)
    for stage in stages:
        made_with = {"fields": records._values(run.config, stage), "stages": records._identities(run, stage)}
        records.write_record(run, stage, record | {"inputs": made_with})
    return run


def fill(text, paths):
    """Puts paths in the place of names in braces."""
    return re.sub(r"{([\w.]+)}", lambda match: str(paths[match[1]]), text)


def typed(arguments, paths):
    """The arguments as the shell would give them, with those of the quickstart where there are none."""
    given = [word for word in SHORT["QUICK"].split() if f"{word.partition('=')[0]}=" not in arguments]
    return shlex.split(fill(" ".join([*given, arguments]), paths))


@pytest.fixture
def answer(inputs, tmp_path, monkeypatch, capsys):
    """What a command says in the end, of which the first stage must not begin."""
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(ending, "heed_signals", lambda: None)  # a thread for each would stay

    def call(words, command=main):
        monkeypatch.setattr(runner, "run_stage", begins)
        monkeypatch.setattr(study, "do_runs", begins)
        forget_flags()
        monkeypatch.setattr(sys, "argv", ["command", *words])
        with pytest.raises(SystemExit) as end:
            cli.run(command.main)
        return end.value.code, capsys.readouterr().err

    call.paths = inputs | {"run": tmp_path / "run"}
    return call


def begins(*_, **__):
    raise AssertionError("the mistake was not noticed")


def check(mistake, status, told, paths):
    """Status 2 and one message: short, without a stack trace, and with all that helps; and no run has begun."""
    assert not (paths["run"] / "stages").exists()
    assert status == 2, told
    assert len(re.findall("^error: ", told, re.MULTILINE)) == 1 and "Traceback" not in told, told
    message = re.split("^error: ", told, flags=re.MULTILINE)[1].rstrip()
    assert sum([math.ceil(len(line) / COLUMNS) for line in message.splitlines()]) <= LINES, message
    for word in mistake.says:
        assert fill(word, paths) in message, message


@pytest.mark.parametrize("mistake", FLAGS, ids=lambda mistake: mistake.typed)
def test_in_flags(mistake, answer):
    check(mistake, *answer(shlex.split(fill(mistake.typed, answer.paths))), answer.paths)


@pytest.mark.parametrize("mistake", [*FIELDS, *FILES], ids=lambda mistake: mistake.typed)
def test_before_anything_begins(mistake, answer):
    check(mistake, *answer(typed(mistake.typed, answer.paths)), answer.paths)


@pytest.mark.parametrize("mistake", STUDY, ids=lambda mistake: mistake.typed)
def test_in_a_study(mistake, answer):
    check(mistake, *answer(shlex.split(fill(mistake.typed, answer.paths)), study), answer.paths)


def test_in_a_pod(answer, monkeypatch):
    monkeypatch.setenv("JAX_NUM_PROCESSES", "two")
    says = ("JAX_NUM_PROCESSES='two': not a number", "such as 1")
    check(Mistake("--multihost", says), *answer(typed("--multihost", answer.paths)), answer.paths)
