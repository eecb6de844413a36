"""Finished runs side by side: results with paired tests, settings that differ, and cost.

    retrieval compare runs/a runs/b
    python -m retrieval.compare runs/a runs/b

A run is its work directory, PATH or gs://BUCKET/PATH. The first is what the others are compared with. Systems of one
name are compared, or with --systems=A,B the one that is named for each run. The command writes nothing.
"""

import re
from collections.abc import Sequence

from absl import flags
from absl import logging as absl_logging

from retrieval import cli

_SYSTEMS = flags.DEFINE_string("systems", "", "The system of each run to compare, A,B; else those of one name.")
# Not those of a name such as 'bm25 (0.9, 0.4)'.
_COMMAS = re.compile(r",(?![^(]*\))")


def main(argv: Sequence[str]) -> None:
    """Prints the comparison as Markdown."""
    absl_logging.set_verbosity(absl_logging.WARNING)
    from retrieval.studies import run_comparison

    systems = [name for name in _COMMAS.split(_SYSTEMS.value) if name]
    print("\n\n".join(run_comparison.compare(argv[1:], systems)))


def program() -> None:
    """Runs the command."""
    cli.run(main, lambda word: __doc__ or "")


if __name__ == "__main__":
    program()
