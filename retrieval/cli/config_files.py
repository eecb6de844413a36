"""The files of `configs/`: which of them are experiments, and how each is named."""

import ast
from pathlib import Path

from retrieval import configs

FOLDER = Path(configs.__path__[0])


def described() -> dict[str, str]:
    """The experiments of `configs/`, and what each says of itself first; a file without `get_config` is a helper."""
    experiments = {}
    for path in sorted(FOLDER.rglob("*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "get_config" for node in module.body):
            what = (ast.get_docstring(module) or "").partition("\n\n")[0]
            experiments[path.relative_to(FOLDER.parent).as_posix()] = " ".join(what.split())
    return experiments


def expanded(value: str) -> str:
    """The value of --config with the file that a name stands for: 'dpr:local' is configs/dpr.py with 'local'.

    So is 'configs/dpr.py:local', in any folder. What is a file already, or names none of `configs/`, stays as it is.
    """
    name, colon, argument = value.partition(":")
    path = FOLDER / f"{name.removeprefix('configs/').removesuffix('.py')}.py"
    is_name = bool(name) and not Path(name).is_file() and path.is_file() and FOLDER in path.resolve().parents
    return f"{path}{colon}{argument}" if is_name else value
