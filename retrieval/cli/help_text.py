"""What --help says: the stages, the configs, the formats and the flags, as the code has them."""

from collections.abc import Iterator

from absl import flags

from retrieval.cli import config_files
from retrieval.config import source_cache


def text(introduction: str) -> str:
    """The manual of `retrieval.main`, after an introduction."""
    described = [f"{name}\n      {what}" for name, what in config_files.described().items()]
    sections = [
        introduction.strip(),
        _section("Experiments (--config)", described),
        *source_cache.cached("help", _of_tables),
        _section("Flags", _flags()),
    ]
    return "\n\n".join(sections)


def _section(title: str, lines: Iterator[str] | list[str]) -> str:
    return f"{title}:\n" + "\n".join(f"  {line}" for line in lines)


def _of_tables() -> list[str]:
    """The sections that follow from tables of behaviour, whose import takes seconds."""
    from retrieval.cli import reference
    from retrieval.data.corpora.corpus_kind import CORPORA
    from retrieval.data.labelled.labelled_format import LABELLED
    from retrieval.data.sets.qa import QUESTIONS
    from retrieval.data.sets.set_format import all_sets
    from retrieval.pipeline.stage import STAGES

    width = max(map(len, STAGES))
    parts = {
        "Stages (--stage=a,b), what they read and write": (
            f"{name:{width}}  {stage.reads} -> {stage.writes}".replace("`", "") for name, stage in STAGES.items()
        ),
        "Corpora (--config.corpus)": (f"{kind.what}\n      {kind.setting}" for kind in CORPORA.values()),
        "Evaluation sets": (f"{form.what}\n      {form.setting}" for form in all_sets()),
        "Files of open-domain questions": (f"{form.what}\n      {form.setting}" for form in QUESTIONS.values()),
        "Labelled examples (config.pairs.format)": (
            f"{name}: {form.what}\n      {form.setting}" for name, form in LABELLED.items()
        ),
        "Fields (--config.FIELD=VALUE)": reference.lines(),
    }
    return [_section(title, lines) for title, lines in parts.items()]


def _flags() -> Iterator[str]:
    for module, of_module in flags.FLAGS.flags_by_module_dict().items():  # of the program itself it is its path
        for flag in of_module if "retrieval" in module else ():
            if "." not in flag.name:
                yield f"--{flag.name}: {flag.help}"
