"""Finished runs side by side: results with paired tests, settings that differ, and cost.

    retrieval compare runs/a runs/b
    python -m retrieval.compare runs/a runs/b

The first run is what the others are compared with. Systems of one name are compared, or with --systems=A,B the one that
is named for each run. The command writes nothing.
"""

import argparse
import re
from collections.abc import Sequence

from absl import logging as absl_logging

from retrieval import cli

# Not those of a name such as 'bm25 (0.9, 0.4)'.
_COMMAS = re.compile(r",(?![^(]*\))")


def main(argv: Sequence[str]) -> None:
    """Prints the comparison as Markdown."""
    absl_logging.set_verbosity(absl_logging.WARNING)
    arguments = _parser().parse_args(argv[1:])
    from retrieval.studies import run_comparison

    systems = [name for name in _COMMAS.split(arguments.systems) if name]
    print("\n\n".join(run_comparison.compare(arguments.runs, systems)))


def _parser() -> argparse.ArgumentParser:
    what, _, more = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser("retrieval compare", description=what, epilog=more.rpartition("\n\n")[2])
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a work directory, PATH or gs://BUCKET/PATH")
    parser.add_argument(
        "--systems", default="", metavar="A,B", help="the system of each run to test; else those of one name"
    )
    return parser


def program() -> None:
    """Runs the command."""
    cli.run(main, has_flags=False)


if __name__ == "__main__":
    program()
