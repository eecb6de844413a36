"""The command line: what it says to people who make mistakes."""

import dataclasses
import functools
import json
import os
import shlex
import sys

import pytest
from absl import app, flags
from conftest import REPOSITORY
from ml_collections import ConfigDict
from support.command_flags import forget_flags

from configs import dpr
from retrieval import cli, main, verbs
from retrieval.common import terminal
from retrieval.common.errors import UserError
from retrieval.common.runtime import devices, ending, signals
from retrieval.runs.pipeline import overrides, preflight, protected, records, runner
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Protected, Read, Stage, in_order

CONFIG = f"--config={REPOSITORY}/configs/ict_bfs_wlp.py:local"


def parse(*arguments):
    forget_flags()
    return cli.parse_flags(["main", *arguments])


@pytest.mark.parametrize(
    "arguments",
    [["--config=dpr:local"], ["-config=configs/dpr.py:local"], ["-config.train.steps=7", "--config", "dpr:local"]],
)
def test_a_config_is_found_by_its_name(arguments, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    parse(*arguments)
    config, expected = cli.config(), dpr.get_config("local")
    expected.train.steps = 7 if "steps" in " ".join(arguments) else expected.train.steps
    assert config.to_dict() == expected.to_dict()


def test_a_field_of_a_studys_run_can_be_set(monkeypatch):
    """Names of runs have hyphens, which ml_collections reads in brackets alone."""
    monkeypatch.chdir(REPOSITORY)
    field = "--config.runs.ict-0.train.steps"
    parse("--config=studies/repbert", f"{field}=7", "--noconfig.runs.ict-1.encode.corpus")
    runs = cli.config().runs
    assert runs["ict-0"].train.steps == 7 != runs["ict-1"].train.steps and not runs["ict-1"].encode.corpus
    with pytest.raises(UserError, match=rf"^{field}=x: a whole number is needed, such as \d+$"):
        parse("--config=studies/repbert", f"{field}=x")
    with pytest.raises(UserError, match=r"no value: write --config\.runs\.ict-0\.train\.steps=VALUE"):
        parse("--config=studies/repbert", field, "7")
    with pytest.raises(UserError, match=r"^unknown field 'config\.runs\.ict-0\.train\.step'"):
        parse("--config=studies/repbert", "--config.runs.ict-0.train.step=7")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("evaluate report --workdir=run", "--stage=evaluate,report --workdir=run"),
        ("--workdir=run", "--workdir=run"),
        ("own docs", "--config=own --workdir=runs/own --config.corpus=docs"),
        (
            "own docs --model hf:a/b --workdir=x --labels=f.jsonl --config.seed=1",
            "--config=own:hf:a/b --workdir=x --config.sets.labelled=f.jsonl --config.seed=1 --config.corpus=docs",
        ),
        ("search query runs/old --json", "--stage=search --json --query=query --workdir=runs/old"),
        ("search 'zip archive'", "--stage=search --query='zip archive' --workdir=runs/new"),
        ("search --queries q.txt", "--stage=search --queries=q.txt --workdir=runs/new"),
        ("search --workdir runs/old --query=x", "--stage=search --workdir=runs/old --query=x"),
        ("serve", "--stage=serve --workdir=runs/new"),
        ("serve gs://b/run", "--stage=serve --workdir=gs://b/run"),
        (
            "serve --model=hf:a --config.serve.port=0 --model b",
            "--workdir=runs/served --config=served:hf:a,b --config.serve.port=0",
        ),
        (
            "search reset password",
            "password: no run is there: .* or make one with `retrieval own DOCS`; several words go",
        ),
        ("search how do i", "unexpected argument 'i': search takes WORDS RUN; several words go in quotes"),
        ("own", "DOCS is missing: retrieval own DOCS"),
    ],
)
def test_words_stand_for_flags(typed, meant, tmp_path, monkeypatch):
    """A verb's, or stages; a run that is left out is the newest with an index of its corpus."""
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(("no_index", "new/index/corpus", "old/index/corpus")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name.partition("/")[0] / "config.json").touch()
        os.utime(tmp_path / "runs" / name, (1e9 - age, 1e9 - age))
    if meant.startswith("--"):
        assert verbs.written_out(shlex.split(typed)) == shlex.split(meant)
        return
    with pytest.raises(UserError, match=meant):
        verbs.written_out(shlex.split(typed))


def test_the_program_takes_words_and_tells_what_they_stand_for(monkeypatch, caplog):
    seen, restarted = [], []
    monkeypatch.setattr(sys, "argv", ["retrieval", "evaluate", "report", "--workdir=my run"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(devices, "restart_with_large_pages", lambda: restarted.append(flags.FLAGS.stage))
    monkeypatch.setattr(app, "run", lambda main, flags_parser: seen.append(flags_parser(sys.argv)))
    monkeypatch.setattr(terminal, "set_up_logging", lambda: caplog.set_level("INFO", logger="retrieval"))
    monkeypatch.setattr(ending, "heed_signals", lambda: None)
    forget_flags()
    main.program()
    assert seen == [["retrieval"]] and flags.FLAGS.stage == ["evaluate", "report"] and flags.FLAGS.workdir == "my run"
    assert "this is: python -m retrieval.main --stage=evaluate,report '--workdir=my run'" in caplog.text
    monkeypatch.setattr(sys, "argv", ["retrieval", "--stage=search"])  # whose one query does not pay for a restart
    main.program()
    assert restarted == [["evaluate", "report"]]


def test_a_field_is_set_in_a_kept_config(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "run_stage", lambda *_: None)
    parse(CONFIG, f"--workdir={tmp_path}", "--config.train.symmetric=True", "--config.sets.beir=scifact")
    runner.open_run(Run(cli.config(), tmp_path, REPOSITORY / "requirements.lock"))
    before = json.loads((tmp_path / "config.json").read_text())
    given = ["--noconfig.encode.corpus", "--config.evaluate.metrics=('RR@10','R@50')", "--config.train.clip_norm=2"]
    main.main(parse(f"--workdir={tmp_path}", "--stage=prepare", *given))
    before["encode"]["corpus"], before["evaluate"]["metrics"] = False, ["RR@10", "R@50"]
    before["train"]["clip_norm"] = 2.0
    assert json.loads((tmp_path / "config.json").read_text()) == before


def test_a_corpus_that_is_set_has_no_held_out_docstrings(monkeypatch, caplog):
    monkeypatch.chdir(REPOSITORY)
    caplog.set_level("INFO", logger="retrieval")
    other, own = "--config.corpus=docs", "--config.sets.pydocs=True"
    for arguments, has_set in (([other], False), ([], True), (["--config.corpus=pydocs"], True), ([other, own], True)):
        parse("--config=bert:local", *arguments)
        overrides.settle(cli.config(), cli.overridden())
        assert cli.config().sets.pydocs is has_set  # the last is refused later
    said = "config.corpus=docs is set, so config.sets.pydocs=True of the experiment does not count"
    assert caplog.text.count(said) == 1


def refusal(base, *arguments, stages, names=()):
    """What is said of fields that are set in the shell for a run on `base`, which is written; None for nothing."""
    base.folder.mkdir(exist_ok=True)
    (base.folder / "config.json").write_text(base.config.to_json())
    parse(CONFIG, f"--config.base={base.folder}", f"--config.stages={stages}", *arguments)
    try:
        overrides.check(Run(cli.config(), base.folder.parent / "run", base.lock), names, cli.overridden())
    except UserError as error:
        return str(error)


def test_settings_that_change_a_bases_stage_are_refused(tmp_path, caplog):
    base = make_run(tmp_path / "base", "--config.stages=('prepare','pairs','encode')")
    refused = functools.partial(refusal, base, stages="('train','index','evaluate')")
    assert refused("--config.vocab=v.txt").startswith("config.vocab: no stage of this run reads it, but 'prepare'")
    assert not refused("--config.vocab=v.txt", names=["plan"])
    assert not refused("--config.vocab=v.txt", stages="('prepare','train')")
    assert not refused(f"--config.prepare.vocab_size={base.config.prepare.vocab_size}")  # as it is there
    assert not refused("--config.prepare.workers=7", "--config.loop.log_every=7", "--config.export.license=mit")
    assert refused("--config.pairs.pool=7") and not refused("--config.pairs.pool=7", names=["pairs"])
    with caplog.at_level("INFO", logger="retrieval"):
        assert not refused("--config.mine.system=exact")  # no run of the chain has the stage
    assert "config.mine.system: no stage of this run reads it, only --stage=mine would" in caplog.text
    base.config.stages = ("pairs", "encode")
    assert not refused("--config.vocab=v.txt") and "config.vocab" not in caplog.text  # all read it then
    base.config.stages = ("prepare", "pairs", "encode")
    assert not refused("--config.encode.corpus=False", "--config.model.dropout=0.2", "--config.split.seed=7")
    assert refused("--config.encode.untrained=False") and refused("--config.encode.corpus=False", stages="('train',)")
    assert not refused("--config.encode.shard_size=7", stages="('train',)")
    assert not refused("--config.pairs.collection=c.tsv", stages="('sets',)")


def test_towers_of_the_base_stay_as_trained(tmp_path):
    base = make_run(tmp_path / "base", "--config.stages=('prepare','train')", "--config.data.document_length=48")
    refused = functools.partial(refusal, base, stages="('sets','encode','index','evaluate')")
    assert refused("--config.data.document_length=64").startswith("config.data.document_length: stage 'train' of ")
    assert refused("--config.model.pooling=cls") and refused("--config.model.hidden_size=32")
    assert not refused("--config.data.document_length=48") and not refused("--config.encode.batch_tokens=64")
    assert not refused("--config.data.document_length=64", stages="('train','encode')")
    assert not refused("--config.data.document_length=64", names=["plan"])
    base.config.recipe = "mlm"
    base.config.data.rates = dict.fromkeys(base.config.data.rates, 0.0) | dict(mlm=1.0)
    assert not refused("--config.model.pooling=cls")  # its encoder is put into towers of this run's


def test_ctrl_c_is_one_sentence(monkeypatch, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ending, "heed_signals", lambda: None)
    monkeypatch.setattr(sys, "argv", ["main"])
    forget_flags()
    with pytest.raises(SystemExit) as end:
        cli.run(interrupted)
    assert end.value.code == 130 and capsys.readouterr().err == f"{signals.INTERRUPTED}\n"


class Counter:
    """Counts how often a stage ran."""

    def __init__(self):
        self.calls = 0

    def __call__(self, run):
        self.calls += 1
        (run.folder / "out").mkdir(exist_ok=True)
        return {"calls": self.calls}


@pytest.fixture
def stages(own_table):
    """The stages that there are in a test, which may change them."""
    toys = {
        "prepare": Stage(Counter(), fields=("corpus", "prepare"), protected=Protected()),
        "evaluate": Stage(Counter(), fields=("evaluate",), reads=("prepare",), writes=("out",)),
    }
    own_table(STAGES, toys)
    return toys


def make_run(folder, *arguments):
    has_stages = any(argument.startswith("--config.stages=") for argument in arguments)
    parse(CONFIG, *([] if has_stages else ["--config.stages=('prepare', 'evaluate')"]), *arguments)
    return Run(cli.config(), folder, REPOSITORY / "requirements.lock")


def run_all(run, stages):
    do(run, *in_order(STAGES, run.config))
    return [stage.function.calls for stage in stages.values()]


def test_a_finished_stage_is_skipped_and_a_changed_one_runs_again_on_clean_output(tmp_path, stages):
    assert run_all(make_run(tmp_path), stages) == run_all(make_run(tmp_path), stages) == [1, 1]
    (tmp_path / "out" / "stale").touch()
    assert run_all(make_run(tmp_path, "--config.evaluate.depth=7"), stages) == [1, 2]
    assert not (tmp_path / "out" / "stale").exists()


def test_a_stage_reads_no_output_of_other_settings(tmp_path, stages):
    """Its numbers would be those of the old ones, under a config that names the new ones."""
    stages["index"] = Stage(Counter(), fields=("index",), reads=("prepare",), writes=("index",))
    stages["evaluate"] = dataclasses.replace(stages["evaluate"], reads=("prepare", "index"))
    first = make_run(tmp_path)
    first.config.stages = tuple(in_order(STAGES, first.config))
    run_all(first, stages)
    changed = dataclasses.replace(first, config=first.config.copy_and_resolve_references())
    changed.config.index.bm25_k1 = 0.1
    for names in (["evaluate"], ["prepare", "evaluate"]):
        with pytest.raises(UserError, match=r"made with config\.index\.bm25_k1="):
            preflight.check(changed, names)
    preflight.check(changed, ["index", "evaluate"])  # which makes it anew
    preflight.check(changed, ["index"])
    first.config.evaluate.depth += 1  # its own
    preflight.check(first, ["evaluate"])


def copying(source, name, is_read=True, **about):
    """A stage that writes what a file holds. Where nobody reads it, it runs whenever it is asked for."""
    written = {"writes" if is_read else "side_outputs": (name,)}
    return Stage(lambda run: (run.folder / name).write_text(source.read_text()) and None, **written, **about)


def do(run, *names):
    runner.open_run(run)
    for name in names:
        runner.run_stage(run, name)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("one")
    return path


def test_a_stage_reads_no_output_older_than_its_inputs(tmp_path, stages, source):
    """A set has other texts with the same ids: an index of the old ones would be searched, and nothing would tell."""
    stages.clear()
    stages |= {
        "sets": copying(source, "sets", files=lambda run: [source]),
        "index": copying(source, "index", reads=("sets",)),
        "evaluate": copying(source, "runs", reads=("sets", "index")),
        "report": copying(source, "report.md", False, reads=("evaluate",)),
    }
    base, run = (make_run(tmp_path / name) for name in ("base", "run"))
    base.config.stages = tuple(in_order(STAGES, run.config))
    run.config.stages, run.config.base = ("evaluate",), str(base.folder)
    do(base, *STAGES)
    source.write_text("another")
    stale = "'evaluate' would read what stage 'index' made before .* again: --stage="
    with pytest.raises(UserError, match=f"{stale}sets,index,evaluate,report"):
        preflight.check(base, ["sets", "evaluate", "report"])
    preflight.check(base, ["sets", "index", "evaluate", "report"])
    preflight.check(base, ["report"])  # of what all of it was made from
    runner.run_stage(base, "sets")
    with pytest.raises(UserError, match=f"{stale}index,evaluate"):
        runner.run_stage(base, "evaluate")
    with pytest.raises(UserError, match=f"{stale}index,evaluate,report"):
        preflight.check(base, ["evaluate", "report"])
    of_base = f"index' made in {base.folder} before .* again in {base.folder}: --stage=index$"
    with pytest.raises(UserError, match=of_base):
        preflight.check(run, ["evaluate"])
    runner.run_stage(base, "index")
    source.unlink()  # from the outside, and none of what the base has made
    preflight.check(run, ["evaluate"])


def test_a_bases_output_of_other_texts_is_refused(tmp_path, stages, source):
    """The ids may be the same: nothing else would tell."""
    stages.clear()
    stages |= {
        "prepare": copying(source, "corpus"),
        "sets": copying(source, "sets"),
        "index": copying(source, "index", reads=("prepare", "sets")),
        "evaluate": copying(source, "runs", False, reads=(Read("sets", must_match=True), "index")),
        "search": copying(source, "hits", False, reads=(Read("prepare", must_match=True), "index")),
    }
    base, run = (make_run(tmp_path / name) for name in ("base", "run"))
    base.config.stages = ("prepare", "sets", "index")
    run.config.stages, run.config.base = ("prepare", "sets", "evaluate", "search"), str(base.folder)
    for each in (base, run):
        do(each, *each.config.stages)
    source.write_text("another")
    for made, reader in (("sets", "evaluate"), ("prepare", "search")):
        (run.folder / "stages" / f"{made}.json").unlink()
        runner.run_stage(run, made)
        with pytest.raises(UserError, match=f"'{reader}' would read what stage 'index' of .* made of another '{made}'"):
            runner.run_stage(run, reader)


def test_an_interrupted_stage_goes_on_and_keeps_its_output(tmp_path, stages):
    def interrupted(run):
        (run.folder / "out").mkdir(exist_ok=True)
        raise KeyboardInterrupt

    finished = stages["evaluate"]
    stages["evaluate"] = Stage(interrupted, ("evaluate",), reads=("prepare",), writes=("out",))
    with pytest.raises(KeyboardInterrupt):
        run_all(make_run(tmp_path), stages)
    stages["evaluate"] = finished
    (tmp_path / "out" / "part").touch()
    run_all(make_run(tmp_path), stages)
    assert stages["evaluate"].function.calls == 1 and (tmp_path / "out" / "part").exists()


def test_an_unwritten_fixed_stage_takes_other_settings(tmp_path, stages):
    """It ended with what to set otherwise."""

    def refuse(run):
        raise UserError("fewer examples than a batch has")

    stages.clear()
    stages["train"] = Stage(refuse, fields=("train",), protected=Protected(), side_outputs=("checkpoints",))
    for batch_size in (64, 32):
        run = make_run(tmp_path, f"--config.train.batch_size={batch_size}")
        with pytest.raises(UserError, match="fewer examples"):
            run_all(run, stages)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UserError, match=r"another config:\n  config\.train\.batch_size: 32 there, 16 now"):
        run_all(make_run(tmp_path, "--config.train.batch_size=16"), stages)
    protected.check_run(run)


def test_no_half_written_file_of_a_killed_run_stays(tmp_path, stages):
    """Also where it was killed when it wrote its config."""
    for name in (".lock", ".tmp-123-config.json"):
        (tmp_path / name).touch()
    runner.take_run(make_run(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "config.json"}
    (tmp_path / "index" / ".tmp-123-bm25").mkdir(parents=True)
    runner.take_run(make_run(tmp_path))
    assert not list((tmp_path / "index").iterdir())


def test_inputs_that_changed_under_a_fixed_stage_are_refused(tmp_path, stages):
    source = tmp_path / "docs"
    source.mkdir()
    for name in "abc":
        (source / name).write_text("one")
    stages["prepare"] = Stage(Counter(), ("corpus",), protected=Protected(), files=lambda run: [source])
    run_all(make_run(tmp_path / "run"), stages)
    (source / "b").write_text("another")
    for said in ("docs/b has changed since it ran in .*/run; use another", "docs/b has changed, and 1 more of its"):
        with pytest.raises(UserError, match=f"stage 'prepare': .*{said}"):
            run_all(make_run(tmp_path / "run"), stages)
        (source / "c").unlink(missing_ok=True)
    (source / "b").write_text("one")
    with pytest.raises(UserError, match="docs/c has gone since"):
        run_all(make_run(tmp_path / "run"), stages)


def test_documents_that_changed_are_read_again_where_nothing_was_trained_on_them(tmp_path, stages):
    source, files_of = tmp_path / "docs", {"files": lambda run: [tmp_path / "docs"]}
    stages["prepare"] = Stage(Counter(), writes=("out",), protected=Protected(is_trained_on=True), **files_of)
    stages["adopt"] = Stage(Counter(), writes=("out",))
    run = make_run(tmp_path / "run", "--config.stages=('prepare', 'adopt')")
    for text, times in (("one", 1), ("one", 1), ("another", 2)):
        source.write_text(text)
        assert run_all(run, stages)[0] == times


def test_a_run_reads_missing_stages_from_its_base(tmp_path, stages):
    base = make_run(tmp_path / "base")
    base.config.stages = ("prepare", "evaluate")
    run_all(base, stages)
    config = ConfigDict(base.config.to_dict())
    config.stages, config.base = ("evaluate",), str(tmp_path / "base")
    run = Run(config, tmp_path / "run", base.lock)
    do(run, "evaluate")
    assert (run.corpus, run.embeddings("a", "b")) == (base.corpus, tmp_path / "run" / "embeddings" / "a" / "b")
    assert stages["prepare"].function.calls == 1 and stages["evaluate"].function.calls == 2
    records.write_record(base, "prepare", records.read_record(base, "prepare") | {"inputs": {"files": "others"}})
    runner.run_stage(run, "evaluate")
    assert stages["evaluate"].function.calls == 3  # the base was made anew


def test_a_check_looks_at_everything_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(REPOSITORY)
    arguments = ["--config=ict_bfs_wlp:local", f"--workdir={tmp_path / 'run'}", "--check"]
    main.main(parse(*arguments))
    assert capsys.readouterr().out.startswith("checked: prepare, sets, ")
    with pytest.raises(UserError, match=r"missing\.xml"):
        main.main(parse(*arguments, "--config.sets.pydocs=False", "--config.corpus=missing.xml"))
    assert not any(tmp_path.iterdir())
