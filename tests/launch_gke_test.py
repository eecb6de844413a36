"""The launch script of GKE."""

import shutil
from pathlib import Path

from support.workplace import NASTY, PLACE, SCRIPTS, TRAINING

pytest_plugins = ["support.launching"]


def test_a_workload_on_gke(work):
    work.run(
        "gke.sh", "run", "--cluster=c", "--slices=2", "--retries=3", *PLACE, "--type=v5litepod-16", "--", *TRAINING
    )
    [argv] = work.argv("xpk")
    tree = next(a for a in argv if a.startswith("--script-dir=")).removeprefix("--script-dir=")
    assert argv[:-1] == [
        *["xpk", "workload", "create", "--cluster=c", "--project=p", "--zone=z", "--workload=run-1"],
        *["--tpu-type=v5litepod-16", "--num-slices=2", "--max-restarts=3", "--restart-on-exit-codes=75"],
        *["--termination-grace-period-seconds=120", "--base-docker-image=python:3.11", f"--script-dir={tree}"],
    ]
    assert sorted(p.name for p in Path(tree, "launch").iterdir()) == sorted(SCRIPTS)


def test_the_command_of_a_workload_installs_and_runs(work):
    tree = work.root / "home/.cache/retrieval/run-1"
    tree.mkdir(parents=True)
    (tree / "old").touch()
    work.run("gke.sh", "run", "--cluster=c", *PLACE, "--type=v5litepod-16", "--", *TRAINING, *NASTY)
    assert not (tree / "old").exists()
    options = dict(a.split("=", 1) for a in work.argv("xpk")[0] if a.startswith("--"))
    assert "\n" not in options["--command"]  # xpk puts it into one line of YAML
    work.answer("pip", {"code": 1}, {"code": 0})
    work.answer("main", {"code": 75})
    command = f"({options['--command']}) & PID=$!; wait $PID; exit $?"  # as xpk does
    assert work.run_on(tree, command) == 1 and not work.calls("main")
    shutil.rmtree(tree / ".venv")
    assert work.run_on(tree, command) == 75
    assert work.argv("main") == [["python", "-m", "retrieval.main", *TRAINING, *NASTY, "--multihost"]]
    assert "jax[tpu]==0.9.7" in work.argv("pip")[-1]
