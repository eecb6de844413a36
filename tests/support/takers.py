"""Counts the functions that take a whole run or a whole config: python tests/support/takers.py retrieval/stages ..."""

import ast
import sys
from pathlib import Path


def takers(folder: Path, name: str) -> list[str]:
    """The functions below a folder with an argument of that name, as 'file.py:function'."""
    taking = []
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                taking += [f"{path.name}:{node.name}" for argument in arguments if argument.arg == name]
    return taking


if __name__ == "__main__":
    for folder in map(Path, sys.argv[1:]):
        print(folder, *(f"{name} {len(takers(folder, name))}" for name in ("run", "config")))
