"""The reference pages of the documentation, from what the code declares and registers.

python -m retrieval.cli.reference writes them to docs/reference/.
"""

import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping

from absl import flags
from ml_collections import ConfigDict

from retrieval import REPOSITORY, files
from retrieval.cli import command_line, config_files
from retrieval.config import experiment, fields
from retrieval.data.corpora.corpus_kind import CORPORA
from retrieval.data.corpora.document_format import DOCUMENTS
from retrieval.data.labelled.labelled_format import LABELLED
from retrieval.data.sets.qa import QUESTIONS
from retrieval.data.sets.set_format import all_sets
from retrieval.pipeline.stage import STAGES, in_order, readers_of, reads_of
from retrieval.training.loss_kind import LOSSES, Loss

FOLDER = REPOSITORY / "docs" / "reference"
_COMMANDS = ("main", "study", "compare")  # modules of this package, which import this one


def fields_page() -> str:
    """Every field of a config."""
    rows = (
        (f"`{path}`", f"`{field.default!r}`", _needed(field.kind), field.help, ", ".join(readers_of(path)))
        for path, field in sorted(fields.declared().items())
    )
    return _page(
        "Fields of a config",
        "Set a field in the shell with `--config.FIELD=VALUE`. The last column names the stages whose output depends "
        "on the field.",
        _table(("field", "default", "may be", "what it is", "stages"), rows),
    )


def stages_page() -> str:
    """Every stage."""
    config = experiment.defaults()
    rows = ((f"`{name}`", *_stage_row(name, config)) for name in in_order(STAGES, config))
    return _page(
        "Stages",
        "A run is a list of stages, `config.stages`. Each reads what earlier ones wrote to the work directory. "
        "`--stage=NAME,NAME` runs some of them alone.",
        _table(("stage", "what it does", "reads of other stages", "writes, below the work directory"), rows),
    )


def _stage_row(name: str, config: ConfigDict) -> tuple[str, str, str]:
    stage = STAGES[name]
    what = " ".join((stage.function.__doc__ or "").partition("\n\n")[0].split())
    written = ", ".join(f"`{path}`" for path in (*stage.writes, *stage.leaves))
    return what, ", ".join(read.stage for read in reads_of(name, config)), written


def experiments_page() -> str:
    """Every file of `configs/` that is an experiment."""
    rows = ((f"`{name}`", what) for name, what in config_files.described().items())
    return _page(
        "Experiments",
        "`--config=NAME` takes `configs/NAME.py`. `--config=NAME:local` takes its size for a laptop.",
        _table(("file", "what it is"), rows),
    )


def formats_page() -> str:
    """Every format of a data file."""
    head = ("format", "setting", "example")
    return _page(
        "Data formats",
        "Every file may be plain or gzipped, and is UTF-8. The sign ⇥ stands for a tab, ⏎ for the end of a line.",
        "## Corpora\n",
        _table(("corpus", "setting"), ((kind.what, f"`{kind.setting}`") for kind in CORPORA.values())),
        "\n## Documents of a corpus\n",
        _table(
            ("format", "names end in", "example"),
            ((form.what, " ".join(form.suffixes), f"`{form.example}`") for form in DOCUMENTS.values()),
        ),
        "\n## Evaluation sets\n",
        _table(head, ((form.what, f"`{form.setting}`", f"`{form.example}`") for form in all_sets())),
        "\n## Open-domain questions\n",
        _table(head, ((form.what, f"`{form.setting}`", f"`{form.example}`") for form in QUESTIONS.values())),
        "\n## Labelled examples\n",
        _table(head, ((form.what, f"`{form.setting}`", f"`{form.example}`") for form in LABELLED.values())),
    )


def losses_page() -> str:
    """Every loss."""
    rows = (
        (f"`{name}`", loss.help, loss.compares, _needs(loss), ", ".join(f"`{option}`" for option in loss.options))
        for name, loss in sorted(LOSSES.items())
    )
    return _page(
        "Losses",
        "`config.train.loss` names one. Two towers may have any but those of classes, which need a reranker. "
        "An option of another loss must have its default, and so must a field that only other recipes read.",
        _table(("loss", "what it is", "compares", "needs", "options"), rows),
    )


def commands_page() -> str:
    """Every command, with its flags."""
    parts: list[str] = []
    for name in _COMMANDS:
        module = importlib.import_module(f"retrieval.{name}")
        introduction = re.sub(r"(?m)(?:^ {4}.*\n)+", _fenced, inspect.cleandoc(module.__doc__ or "") + "\n")
        parts += [f"## retrieval.{name}\n", introduction]
        of_module = flags.FLAGS.flags_by_module_dict().get(module.__name__, [])
        if of_module:
            parts += [_table(("flag", "what it is"), ((f"`--{flag.name}`", flag.help) for flag in of_module)), ""]
    shared = flags.FLAGS.flags_by_module_dict()[command_line.__name__]
    rows = ((f"`--{flag.name}`", flag.help) for flag in shared if "." not in flag.name)
    return _page(
        "Commands",
        "`retrieval` is `python -m retrieval.main`, and `retrieval compare` is `python -m retrieval.compare`.",
        "## Flags of retrieval.main and retrieval.study\n",
        _table(("flag", "what it is"), rows),
        "",
        "\n".join(parts).strip(),
    )


PAGES: Mapping[str, Callable[[], str]] = {
    "commands.md": commands_page,
    "fields.md": fields_page,
    "stages.md": stages_page,
    "experiments.md": experiments_page,
    "formats.md": formats_page,
    "losses.md": losses_page,
}


def _fenced(block: re.Match[str]) -> str:
    """An indented block of a docstring, as a block of Markdown."""
    return f"```sh\n{textwrap.dedent(block[0])}```\n"


def _page(title: str, introduction: str, *parts: str) -> str:
    made = "`python -m retrieval.cli.reference` makes this page from the code."
    return "\n".join([f"# {title}\n", f"{introduction} {made}\n", *parts, ""])


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    cells = [head, tuple(":---" for _ in head), *([_cell(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _needed(kind: fields.Kind) -> str:
    if kind.names is None:
        return kind.needed
    nothing = ["''"] if kind.fits("") else []
    return ", ".join([*nothing, *sorted(kind.names())])


def _needs(loss: Loss) -> str:
    return ", ".join(["hard negatives"] * loss.needs_negatives + ["a teacher's scores"] * loss.needs_teacher)


if __name__ == "__main__":
    for file, page in PAGES.items():
        files.write_text(FOLDER / file, page())
