"""What --help says: the stages, the configs, the formats and the flags, as the code has them."""

from collections.abc import Iterator

from absl import flags

from retrieval.cli import config_files, reference
from retrieval.data.corpora.corpus_kind import CORPORA
from retrieval.data.labelled.labelled_format import LABELLED
from retrieval.data.sets.qa import QUESTIONS
from retrieval.data.sets.set_format import all_sets
from retrieval.pipeline.stage import STAGES


def text(introduction: str) -> str:
    """The manual of `retrieval.main`, after an introduction."""
    parts = {
        "Stages (--stage=a,b), what they read and write": _stages(),
        "Experiments (--config)": (f"{name}\n      {what}" for name, what in config_files.described().items()),
        "Corpora (--config.corpus)": (f"{kind.what}\n      {kind.setting}" for kind in CORPORA.values()),
        "Evaluation sets": (f"{form.what}\n      {form.setting}" for form in all_sets()),
        "Files of open-domain questions": (f"{form.what}\n      {form.setting}" for form in QUESTIONS.values()),
        "Labelled examples (config.pairs.format)": (
            f"{name}: {form.what}\n      {form.setting}" for name, form in LABELLED.items()
        ),
        "Fields (--config.FIELD=VALUE)": reference.lines(),
        "Flags": _flags(),
    }
    sections = [f"{title}:\n" + "\n".join(f"  {line}" for line in lines) for title, lines in parts.items()]
    return "\n\n".join([introduction.strip(), *sections])


def _stages() -> Iterator[str]:
    width = max(map(len, STAGES))
    for name, stage in STAGES.items():
        yield f"{name:{width}}  {stage.reads} -> {stage.writes}".replace("`", "")


def _flags() -> Iterator[str]:
    for module, of_module in flags.FLAGS.flags_by_module_dict().items():  # of the program itself it is its path
        for flag in of_module if "retrieval" in module else ():
            if "." not in flag.name:
                yield f"--{flag.name}: {flag.help}"
