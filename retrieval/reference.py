"""What --help says, and the reference pages of the documentation, from what the code declares and registers.

python -m retrieval.reference writes the pages to docs/reference/.
"""

import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from absl import flags

from retrieval import REPOSITORY, __version__, cli
from retrieval.common import files
from retrieval.config import experiment, fields
from retrieval.data.corpora.corpus_kind import CORPORA
from retrieval.data.corpora.document_format import DOCUMENTS
from retrieval.data.labelled.labelled_format import LABELLED
from retrieval.data.sets.qa import QUESTIONS
from retrieval.data.sets.set_format import all_sets

if TYPE_CHECKING:
    from retrieval.runs.pipeline.stage import Stage

FOLDER = REPOSITORY / "docs" / "reference"


def first(introduction: str) -> str:
    """An introduction with the names of stages and experiments, on one screen: what the program says of itself."""
    from retrieval.runs.pipeline.stage import STAGES

    names = [path.removeprefix("configs/").removesuffix(".py") for path in cli.described()]
    experiments = f"Experiments (NAME, or NAME:local for a laptop): {', '.join(n for n in names if '/' not in n)}"
    lists = (textwrap.fill(listed, 100) for listed in (f"Stages: {', '.join(sorted(STAGES))}", experiments))
    return "\n\n".join([f"retrieval {__version__}", introduction.strip(), *lists])


def manual(introduction: str, word: str = "") -> str:
    """What --help says: `first`, with a word its section, 'all' of them, or the entries that have it."""
    if not word:
        return first(introduction)
    from retrieval.runs.pipeline.stage import STAGES

    is_told = word.lower() in ("all", "stages")  # by their modules, whose imports take seconds
    sections = {"Stages": [(name, _what(STAGES[name]) if is_told else "a stage") for name in sorted(STAGES)]}
    sections["Experiments (--config)"] = list(cli.described().items())
    for title, forms in _formats().items():
        sections[f"Formats: {title.lower()}"] = [(_named(form), _setting(form)) for form in forms]
    sections |= {
        "Fields (--config.FIELD=VALUE)": [
            (f"config.{path}={of.default!r}", f"{of.help} ({_needed(of.kind) if of.kind.at_once else of.kind.needed})")
            for path, of in sorted(fields.declared().items())
        ],
        "Flags": [(f"--{flag.name}", str(flag.help)) for flag in cli.our_flags()],
    }
    word, shown = word.lower(), []
    whole = [title for title in sections if word in ("all", title.lower().partition(" ")[0].rstrip(":"))]
    for title in whole or sections:
        entries = (entry for entry in sections[title] if whole or word in " ".join(entry).lower())
        lines = [f"  {name}\n      {what}" for name, what in entries]
        shown += ["\n".join([f"{title}:", *lines])] if lines else []
    return "\n\n".join(shown) or f"nothing about {word!r}"


def _what(stage: "Stage") -> str:
    """What a stage does: the beginning of its function's docstring, on one line."""
    return " ".join((stage.function.__doc__ or "").partition("\n\n")[0].split())


def _formats() -> Mapping[str, Iterable[Any]]:
    """The formats of data files, by kind."""
    return {
        "Corpora": CORPORA.values(),
        "Documents of a corpus": DOCUMENTS.values(),
        "Evaluation sets": all_sets(),
        "Open-domain questions": QUESTIONS.values(),
        "Labelled examples": [LABELLED[name] for name in sorted(LABELLED)],
    }


def _named(form: Any) -> str:
    name = getattr(form, "name", "")
    return f"{name}: {form.what}" if name else form.what


def _setting(form: Any) -> str:
    return form.setting or " ".join(form.suffixes)


def fields_page() -> str:
    """Every field of a config."""
    from retrieval.runs.pipeline.stage import readers_of

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
    from retrieval.runs.pipeline.stage import STAGES, in_order, reads_of

    config, rows = experiment.defaults(), []
    for name in in_order(STAGES, config):
        stage = STAGES[name]
        written = ", ".join(f"`{path}`" for path in (*stage.writes, *stage.side_outputs))
        rows.append((f"`{name}`", _what(stage), ", ".join(read.stage for read in reads_of(name, config)), written))
    return _page(
        "Stages",
        "A run is a list of stages, `config.stages`. Each reads what earlier ones wrote to the work directory. "
        "`--stage=NAME,NAME` runs some of them alone.",
        _table(("stage", "what it does", "reads of other stages", "writes, below the work directory"), rows),
    )


def experiments_page() -> str:
    """Every file of `configs/` that is an experiment."""
    return _page(
        "Experiments",
        "`--config=NAME` takes `configs/NAME.py`. `--config=NAME:local` takes its size for a laptop.",
        _table(("file", "what it is"), ((f"`{name}`", what) for name, what in cli.described().items())),
    )


def formats_page() -> str:
    """Every format of a data file."""
    parts: list[str] = []
    for title, forms in _formats().items():
        rows = ((form.what, f"`{_setting(form)}`", f"`{form.example}`" if form.example else "") for form in forms)
        parts += [f"## {title}\n", _table(("format", "setting, or how names end", "example"), rows), ""]
    return _page(
        "Data formats",
        "Every file may be plain or gzipped, and is UTF-8. The sign ⇥ stands for a tab, ⏎ for the end of a line.",
        *parts[:-1],
    )


def losses_page() -> str:
    """Every loss."""
    from retrieval.training.loss_kind import LOSSES

    rows, sections = [], []
    for name, loss in sorted(LOSSES.items()):
        text, _, attributes = inspect.cleandoc(loss.__doc__ or "").partition("\nAttributes:\n")
        needs = ["hard negatives"] * loss.needs_negatives + ["a teacher's scores"] * loss.needs_teacher
        options = ", ".join(f"`{option}`" for option in loss.options())
        rows.append((f"[`{name}`](#{name})", text.partition("\n\n")[0], loss.inputs, ", ".join(needs), options))
        listed = re.sub(r"(?m)^(?=[^ ])", "- ", textwrap.dedent(attributes))
        sections.append(f"## {name}\n\n{text}\n{listed}".rstrip())
    return _page(
        "Losses",
        "`config.train.loss` names one. Two towers may have any but those of classes, which need a reranker. "
        "An option of another loss must have its default, and so must a field that only other recipes read.",
        _table(("loss", "what it is", "inputs", "needs", "options"), rows),
        "",
        "\n\n".join(sections),
    )


def commands_page() -> str:
    """Every command, with its flags."""
    parts = ["## Flags of retrieval.main and retrieval.study\n", _flags(cli.__name__)]
    for name in ("main", "study", "compare"):  # which import this file
        module = importlib.import_module(f"retrieval.{name}")
        text = inspect.cleandoc(module.__doc__ or "") + "\n"
        blocks = re.sub(r"(?m)(?:^ {4}.*\n)+", lambda block: f"```sh\n{textwrap.dedent(block[0])}```\n", text)
        parts += [f"\n## retrieval.{name}\n", blocks.rstrip()]
        parts += ["", _flags(module.__name__)] if module.__name__ in flags.FLAGS.flags_by_module_dict() else []
    title = "`retrieval` is `python -m retrieval.main`; `retrieval compare` is `python -m retrieval.compare`."
    return _page("Commands", title, *parts)


_PAGES = (commands_page, fields_page, stages_page, experiments_page, formats_page, losses_page)
PAGES: Mapping[str, Callable[[], str]] = {f"{page.__name__.removesuffix('_page')}.md": page for page in _PAGES}


def _flags(module: str) -> str:
    of_module = flags.FLAGS.flags_by_module_dict()[module]
    return _table(("flag", "what it is"), ((f"`--{flag.name}`", flag.help) for flag in of_module))


def _page(title: str, introduction: str, *parts: str) -> str:
    made = "`python -m retrieval.reference` makes this page from the code."
    return "\n".join([f"# {title}\n", f"{introduction} {made}\n", *parts, ""])


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    cells = ([" ".join(text.replace("|", "\\|").split()) for text in row] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, (":---",) * len(head), *cells])


def _needed(kind: fields.Kind) -> str:
    if kind.names is None:
        return kind.needed
    return ", ".join([*(["''"] if kind.fits("") else []), *sorted(kind.names())])


if __name__ == "__main__":
    for file, page in PAGES.items():
        files.write_text(FOLDER / file, page())
