"""What --help says: the stages, the configs, the formats and the flags, as the code has them."""

import ast
from collections.abc import Iterator
from pathlib import Path

from absl import flags

from retrieval.stages.formats import LABELLED, QUESTIONS, SETS
from retrieval.stages.table import STAGES


def text(introduction: str, configs: Path) -> str:
    """The manual of `retrieval.main`.

    Args:
      introduction: what comes first.
      configs: the folder of the experiments.
    """
    parts = {
        "Stages (--stage=a,b), what they read and write": _stages(),
        "Experiments (--config)": (f"{name}\n      {what}" for name, what in configs_of(configs).items()),
        "Evaluation sets": (f"{form.what}\n      {form.setting}" for form in SETS.values()),
        "Files of open-domain questions": (f"{form.what}\n      {form.setting}" for form in QUESTIONS.values()),
        "Labelled examples (config.pairs.format)": (
            f"{name}: {form.what}\n      {form.setting}" for name, form in LABELLED.items()
        ),
        "Flags": _flags(),
    }
    told = [f"{title}:\n" + "\n".join(f"  {line}" for line in lines) for title, lines in parts.items()]
    return "\n\n".join([introduction.strip(), *told])


def configs_of(folder: Path) -> dict[str, str]:
    """The configs below a folder, and what each says of itself first."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "get_config" for node in module.body):
            what = (ast.get_docstring(module) or "").partition("\n\n")[0]
            found[path.relative_to(folder.parent).as_posix()] = " ".join(what.split())
    return found


def _stages() -> Iterator[str]:
    width = max(map(len, STAGES))
    for name, stage in STAGES.items():
        yield f"{name:{width}}  {stage.reads} -> {stage.writes}".replace("`", "")


def _flags() -> Iterator[str]:
    for module, found in flags.FLAGS.flags_by_module_dict().items():  # of the program itself it is its path
        for flag in found if "retrieval" in module else ():
            if "." not in flag.name:
                yield f"--{flag.name}: {flag.help}"
