"""Runs in this process, for the tests of the stages and of what they make together."""

from retrieval.pipeline import runner


def execute(run, *names):
    """Does some stages of a run, or those of its config, without the checks before them."""
    runner.open_run(run)
    for name in names or run.config.stages:
        runner.run_stage(run, name)
