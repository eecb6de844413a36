"""What --help says: the stages, the configs, the formats and the flags, as the code has them."""

import re
import textwrap
from collections.abc import Iterator

from absl import flags

from retrieval import __version__
from retrieval.cli import config_files
from retrieval.config import fields

_FIRST = """\
retrieval {version}: trains embedding models for search, and measures them

A published model over your own documents, a search among them, and a page with an API:
  {retrieval} --config=own:hf:NAME --workdir=runs/own --config.corpus=DATA/docs
  {retrieval} search --workdir=runs/own --query='how do I reset my password'
  {retrieval} serve --workdir=runs/own
A published model on a BEIR folder, beside BM25:
  {retrieval} --config=published:hf:NAME --workdir=runs/published --config.sets.beir=DATA/nfcorpus
Finished runs side by side:
  {retrieval} compare runs/one runs/two

{experiments}

A run that was cut off goes on with the same command, or with --workdir alone. Every stage is a word, as search is.

  {retrieval} --help         stages, experiments, formats and all fields
  {retrieval} --help=WORD    what of that has the word
  {retrieval} --version"""


def first(retrieval: str) -> str:
    """The first commands, a screen of them; `retrieval` is how the program is called."""
    names = [path.removeprefix("configs/").removesuffix(".py") for path in config_files.described()]
    listed = f"Experiments (NAME, or NAME:local for a laptop): {', '.join(n for n in names if '/' not in n)}"
    return _FIRST.format(version=__version__, retrieval=retrieval, experiments=textwrap.fill(listed, 100))


def text(introduction: str, word: str = "") -> str:
    """The manual of `retrieval.main`, after an introduction; of a word the entries that have it."""
    described = [f"{name}\n      {what}" for name, what in config_files.described().items()]
    sections = [
        _section("Experiments (--config)", described),
        *_of_tables(),
        _section("Flags", _flags()),
    ]
    if word:
        return "\n\n".join(filter(None, (_about(word, section) for section in sections))) or f"nothing about {word!r}"
    return "\n\n".join([introduction.strip(), *sections])


def _about(word: str, section: str) -> str:
    title, *entries = re.split(r"\n {2}(?! )", section)
    found = [entry for entry in entries if word.lower() in entry.lower()]
    return "\n  ".join([title, *found]) if found else ""


def _section(title: str, lines: Iterator[str] | list[str]) -> str:
    return f"{title}:\n" + "\n".join(f"  {line}" for line in lines)


def _of_tables() -> list[str]:
    """The sections of corpora, sets, files and fields."""
    from retrieval.data.corpora.corpus_kind import CORPORA
    from retrieval.data.labelled.labelled_format import LABELLED
    from retrieval.data.sets.qa import QUESTIONS
    from retrieval.data.sets.set_format import all_sets

    parts = {
        "Corpora (--config.corpus)": (f"{kind.what}\n      {kind.setting}" for kind in CORPORA.values()),
        "Evaluation sets": (f"{form.what}\n      {form.setting}" for form in all_sets()),
        "Files of open-domain questions": (f"{form.what}\n      {form.setting}" for form in QUESTIONS.values()),
        "Labelled examples (config.pairs.format)": (
            f"{name}: {form.what}\n      {form.setting}" for name, form in LABELLED.items()
        ),
        "Fields (--config.FIELD=VALUE)": (
            f"config.{path}={field.default!r}\n      {field.help}" for path, field in sorted(fields.declared().items())
        ),
    }
    return [_section(title, lines) for title, lines in parts.items()]


def _flags() -> Iterator[str]:
    for module, of_module in flags.FLAGS.flags_by_module_dict().items():  # of the program itself it is its path
        for flag in of_module if "retrieval" in module else ():
            if "." not in flag.name:
                yield f"--{flag.name}: {flag.help}"
