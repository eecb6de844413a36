"""The fields of a config, from their declarations: for --help, and for docs/config.md.

python -m retrieval.cli.fields_reference > docs/config.md
"""

from collections.abc import Iterator

from retrieval.config import experiment, fields
from retrieval.pipeline.stage import STAGES

_INTRODUCTION = """# Fields of a config

`python -m retrieval.cli.fields_reference > docs/config.md` makes this page from the declarations in the code.
Set a field in the shell with `--config.FIELD=VALUE`. The last column names the stages whose settings have the field."""


def lines() -> Iterator[str]:
    """A line of --help for each field: its name, its default and what it is."""
    experiment.load_fields()
    for path, field in sorted(fields.declared().items()):
        yield f"config.{path}={field.default!r}\n      {field.help}"


def markdown() -> str:
    """The page of the documentation."""
    experiment.load_fields()
    rows = ["| field | default | may be | what it is | stages |", "| :--- | :--- | :--- | :--- | :--- |"]
    for path, field in sorted(fields.declared().items()):
        cells = (f"`{path}`", f"`{field.default!r}`", _needed(field.kind), field.help, ", ".join(_readers(path)))
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join([_INTRODUCTION, "", *rows, ""])


def _needed(kind: fields.Kind) -> str:
    return kind.needed if kind.names is None else f"the name of a {kind.needed}"


def _readers(path: str) -> list[str]:
    """The stages that name a field, or a group that it is in, among their settings."""
    return [
        name
        for name, stage in STAGES.items()
        if any(f"{path}.".startswith(f"{group}.") for group in (*stage.settings, *stage.uses))
    ]


if __name__ == "__main__":
    print(markdown(), end="")
