"""What --help says, and the reference pages of the documentation, from what the code declares and registers.

python -m retrieval.reference writes the pages to docs/reference/.
"""

import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping

from absl import flags

from retrieval import REPOSITORY, __version__, cli
from retrieval.common import files
from retrieval.config import experiment, fields, tree
from retrieval.data.corpora.corpus_kind import CORPORA
from retrieval.data.corpora.document_format import DOCUMENTS
from retrieval.data.labelled.labelled_format import LABELLED
from retrieval.data.sets.qa import QUESTIONS
from retrieval.data.sets.set_format import all_sets

FOLDER = REPOSITORY / "docs" / "reference"
_COMMANDS = ("main", "study", "compare")  # modules of this package, which import this one

_FIRST = """\
retrieval {version}: trains embedding models for search, and measures them

A published model over your own documents, a search among them, and a page with an API:
  {retrieval} --config=own:hf:NAME --workdir=runs/own --config.corpus=DATA/docs
  {retrieval} search --workdir=runs/own --query='how do I reset my password'
  {retrieval} serve --workdir=runs/own
Finished runs side by side:
  {retrieval} compare runs/one runs/two
Hard negatives for your pairs, by any embedder:
  {retrieval} --config=mine:hf:NAME --workdir=runs/mined --config.pairs.files=DATA/pairs.jsonl

{experiments}

A run that was cut off goes on with the same command, or with --workdir alone. Every stage is a word, as search is.

  {retrieval} --help         stages, experiments, formats and all fields
  {retrieval} --help=WORD    what of that has the word
  {retrieval} --version"""


def first(retrieval: str) -> str:
    """The first commands, a screen of them; `retrieval` is how the program is called."""
    names = [path.removeprefix("configs/").removesuffix(".py") for path in cli.described()]
    listed = f"Experiments (NAME, or NAME:local for a laptop): {', '.join(n for n in names if '/' not in n)}"
    return _FIRST.format(version=__version__, retrieval=retrieval, experiments=textwrap.fill(listed, 100))


def manual(introduction: str, word: str = "") -> str:
    """What --help says, after an introduction; --help=WORD the entries that have the word."""
    sections = {
        "Experiments (--config)": list(cli.described().items()),
        "Corpora (--config.corpus)": [(kind.what, kind.setting) for kind in CORPORA.values()],
        "Evaluation sets": [(form.what, form.setting) for form in all_sets()],
        "Files of open-domain questions": [(form.what, form.setting) for form in QUESTIONS.values()],
        "Labelled examples (config.pairs.format)": [
            (f"{name}: {form.what}", form.setting) for name, form in LABELLED.items()
        ],
        "Fields (--config.FIELD=VALUE)": [
            (f"config.{path}={field.default!r}", field.help) for path, field in sorted(tree.declared().items())
        ],
        "Flags": [(f"--{flag.name}", flag.help) for _, of_module in cli.our_flags() for flag in of_module],
    }
    shown = [] if word else [introduction.strip()]
    for title, entries in sections.items():
        lines = [f"  {name}\n      {what}" for name, what in entries if word.lower() in f"{name} {what}".lower()]
        shown += ["\n".join([f"{title}:", *lines])] if lines else []
    return "\n\n".join(shown) or f"nothing about {word!r}"


def fields_page() -> str:
    """Every field of a config."""
    from retrieval.runs.pipeline.stage import readers_of

    rows = (
        (f"`{path}`", f"`{field.default!r}`", _needed(field.kind), field.help, ", ".join(readers_of(path)))
        for path, field in sorted(tree.declared().items())
    )
    return _page(
        "Fields of a config",
        "Set a field in the shell with `--config.FIELD=VALUE`. The last column names the stages whose output depends "
        "on the field.",
        _table(("field", "default", "may be", "what it is", "stages"), rows),
    )


def stages_page() -> str:
    """Every stage."""
    from retrieval.runs.pipeline.stage import STAGES, in_order, reads_of

    config, rows = experiment.defaults(), []
    for name in in_order(STAGES, config):
        stage = STAGES[name]
        what = " ".join((stage.function.__doc__ or "").partition("\n\n")[0].split())
        written = ", ".join(f"`{path}`" for path in (*stage.writes, *stage.side_outputs))
        rows.append((f"`{name}`", what, ", ".join(read.stage for read in reads_of(name, config)), written))
    return _page(
        "Stages",
        "A run is a list of stages, `config.stages`. Each reads what earlier ones wrote to the work directory. "
        "`--stage=NAME,NAME` runs some of them alone.",
        _table(("stage", "what it does", "reads of other stages", "writes, below the work directory"), rows),
    )


def experiments_page() -> str:
    """Every file of `configs/` that is an experiment."""
    rows = ((f"`{name}`", what) for name, what in cli.described().items())
    return _page(
        "Experiments",
        "`--config=NAME` takes `configs/NAME.py`. `--config=NAME:local` takes its size for a laptop.",
        _table(("file", "what it is"), rows),
    )


def formats_page() -> str:
    """Every format of a data file."""
    head, sorted_labelled = ("format", "setting", "example"), (form for _, form in sorted(LABELLED.items()))
    sections = {"Evaluation sets": all_sets(), "Open-domain questions": QUESTIONS.values()}
    parts: list[str] = []
    for title, forms in (sections | {"Labelled examples": sorted_labelled}).items():
        rows = ((form.what, f"`{form.setting}`", f"`{form.example}`") for form in forms)
        parts += [f"\n## {title}\n", _table(head, rows)]
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
        *parts,
    )


def losses_page() -> str:
    """Every loss."""
    from retrieval.training.loss_kind import LOSSES

    losses = {name: (LOSSES[name], inspect.cleandoc(LOSSES[name].__doc__ or "")) for name in sorted(LOSSES)}
    rows = (
        (
            f"[`{name}`](#{name})",
            text.partition("\n\n")[0],
            loss.compares,
            ", ".join(["hard negatives"] * loss.needs_negatives + ["a teacher's scores"] * loss.needs_teacher),
            ", ".join(f"`{option}`" for option in loss.options()),
        )
        for name, (loss, text) in losses.items()
    )
    return _page(
        "Losses",
        "`config.train.loss` names one. Two towers may have any but those of classes, which need a reranker. "
        "An option of another loss must have its default, and so must a field that only other recipes read.",
        _table(("loss", "what it is", "compares", "needs", "options"), rows),
        "",
        "\n\n".join(f"## {name}\n\n{_with_attributes(text)}" for name, (_, text) in losses.items()),
    )


def _with_attributes(docstring: str) -> str:
    """A docstring of a class as Markdown: its attributes as a list."""
    text, _, attributes = docstring.partition("\nAttributes:\n")
    return f"{text}\n{re.sub(r'(?m)^(?=[^ ])', '- ', textwrap.dedent(attributes))}".strip()


def commands_page() -> str:
    """Every command, with its flags."""
    parts: list[str] = []
    for name in _COMMANDS:
        module = importlib.import_module(f"retrieval.{name}")
        introduction = re.sub(r"(?m)(?:^ {4}.*\n)+", _fenced, inspect.cleandoc(module.__doc__ or "") + "\n")
        parts += [f"## retrieval.{name}\n", introduction]
        parts += [_flags(module.__name__), ""] if module.__name__ in flags.FLAGS.flags_by_module_dict() else []
    return _page(
        "Commands",
        "`retrieval` is `python -m retrieval.main`; `retrieval compare` is `python -m retrieval.compare`.",
        "## Flags of retrieval.main and retrieval.study\n",
        _flags(cli.__name__),
        "",
        "\n".join(parts).strip(),
    )


_PAGES = (commands_page, fields_page, stages_page, experiments_page, formats_page, losses_page)
PAGES: Mapping[str, Callable[[], str]] = {f"{page.__name__.removesuffix('_page')}.md": page for page in _PAGES}


def _flags(module: str) -> str:
    of_module = flags.FLAGS.flags_by_module_dict()[module]
    return _table(("flag", "what it is"), ((f"`--{flag.name}`", flag.help) for flag in of_module))


def _fenced(block: re.Match[str]) -> str:
    """An indented block of a docstring, as a block of Markdown."""
    return f"```sh\n{textwrap.dedent(block[0])}```\n"


def _page(title: str, introduction: str, *parts: str) -> str:
    made = "`python -m retrieval.reference` makes this page from the code."
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


if __name__ == "__main__":
    for file, page in PAGES.items():
        files.write_text(FOLDER / file, page())
