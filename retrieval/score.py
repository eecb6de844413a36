"""Written texts, such as generated questions, against references: BLEU and ROUGE-L.

    retrieval score runs/qg/generated/squad.jsonl references.jsonl
    python -m retrieval.score written.txt references.txt --as-is

Lines of text files belong together by their number. Lines of .jsonl files, as the stage generate writes them, do so by
their document and answer: `{"_id": "d7", "text": "a question", "answer": "an answer"}`.

Case does not count, and punctuation is apart. With --as-is, words are what stands between spaces. --json=FILE writes
the numbers.
"""

import argparse
import json
import logging
from collections.abc import Sequence
from pathlib import Path

from absl import logging as absl_logging

from retrieval import expansions, files, text_files
from retrieval.cli import command_line
from retrieval.errors import UserError
from retrieval.evaluation import display
from retrieval.evaluation.written_texts import Written, scores

_log = logging.getLogger("retrieval.score")  # also where the module is the program


def main(argv: Sequence[str]) -> None:
    """Prints the scores in percent, and how many texts have no reference."""
    absl_logging.set_verbosity(absl_logging.WARNING)
    parser = argparse.ArgumentParser("retrieval score", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("written", type=Path, help="what was written, .jsonl or one text a line")
    parser.add_argument("references", type=Path, help="what it is compared with, in the same form")
    parser.add_argument("--as-is", action="store_true", help="words are what stands between spaces, and case counts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes the numbers")
    asked = parser.parse_args(argv[1:])
    pairs = read(asked.written, asked.references)
    written = [each for each in pairs if each.references]
    if not written:
        raise UserError(f"{asked.written}: none of its {len(pairs)} texts has a reference in {asked.references}")
    metrics_of_texts = scores(written, asked.as_is)
    counts = {"texts": len(written), "without a reference": len(pairs) - len(written)}
    if asked.json:
        files.write_text(asked.json, json.dumps(metrics_of_texts | counts, indent=2))
    if counts["without a reference"]:
        _log.warning("%d of %d texts have no reference and are left out", len(pairs) - len(written), len(pairs))
    row = [counts["texts"], *(f"{100 * value:.2f}" for value in metrics_of_texts.values())]
    print(display.markdown(["texts", *metrics_of_texts], [row]))


def read(written: Path, references: Path) -> list[Written]:
    """The texts of a file, each with its references in the other.

    Raises:
      UserError: a file is missing or damaged, or text files have different numbers of lines.
    """
    kinds = [_is_json_lines(path) for path in (written, references)]
    if kinds[0] != kinds[1]:
        raise UserError(f"{written} and {references}: one is .jsonl, and one is not; write both in one form")
    if kinds[0]:
        by_document: dict[tuple[str, str], list[str]] = {}
        for each in expansions.read(references):
            by_document.setdefault((each.document, each.answer), []).append(each.text)
        read = list(expansions.read(written))
        return [Written(each.text, by_document.get((each.document, each.answer), [])) for each in read]
    ours, theirs = _lines(written), _lines(references)
    if len(ours) != len(theirs):
        raise UserError(
            f"{written} has {len(ours)} lines, and {references} has {len(theirs)}: each text needs its reference"
        )
    return [Written(text, [reference]) for text, reference in zip(ours, theirs)]


def _is_json_lines(path: Path) -> bool:
    return path.name.removesuffix(".gz").endswith(".jsonl")


def _lines(path: Path) -> list[str]:
    """The lines of a text, empty ones too: only a line feed ends one, for texts may hold other ends of lines."""
    return [text_files.decoded(line, f"{path}, line {n}") for n, line in enumerate(text_files.byte_lines(path), 1)]


def program() -> None:
    """Runs the command."""
    command_line.run(main, has_flags=False)


if __name__ == "__main__":
    program()
