"""The flags of a command, which are global."""

import json

from absl import flags

from retrieval import cli


def forget_flags():
    """absl's flags are global, and what one command line has set is still set in the next."""
    flags.FLAGS.unparse_flags()
    ours = {"config", "workdir", "scratch", "stage", "query", "queries", "json", "multihost", "only", "list"}
    for name in ours & set(flags.FLAGS):
        flags.FLAGS[name].unparse()


def one_line(experiment, folder, *others):
    """The config of a command that trains two steps on pairs of a file in a folder, and tests on those of another."""
    lines = [json.dumps({"query": f"what eats {n}?", "positives": [f"the red fox eats {n}, grass"]}) for n in range(48)]
    for name, part in (("pairs", lines[8:]), ("test", lines[:8])):
        (folder / f"{name}.jsonl").write_text("\n".join(part))
    changes = {"pairs.files": folder / "pairs.jsonl", "sets.labelled": folder / "test.jsonl"}
    changes |= {"train.steps": 2, "train.minutes": 0, "train.batch_size": 8}
    changes |= {"loop.validate_every": 2, "loop.checkpoint_every": 2}
    forget_flags()
    cli.parse_flags(["main", f"--config={experiment}", *(f"--config.{k}={v}" for k, v in changes.items()), *others])
    config = cli.config()
    forget_flags()
    return config
