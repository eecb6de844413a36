"""Hard negatives for labelled pairs, by any embedder, as a file to train on.

    retrieval mine PAIRS --model=hf:NAME --relative-margin=0.05 --negatives=5 --out=DATA/triplets.jsonl
    retrieval mine PAIRS --model=FOLDER --collection=DATA/corpus.jsonl --reranker=hf:NAME --out=DATA/triplets.parquet

PAIRS are labelled examples in any format that config.pairs.files takes. Candidates are the documents of all pairs, or
those of --collection. Settings and negatives are those of sentence-transformers' `mine_hard_negatives`. But a reranker
that is named always judges, and neither a query's own text nor a copy of a positive is a negative. A command that is
cut off goes on with what was embedded.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import logging as absl_logging

from retrieval import cli

SETTINGS = {
    "model": (str, "folder of sentence-transformers or transformers, hf:NAME, or work directory, of an embedder"),
    "out": (Path, "file to write, .jsonl or .parquet; FILE.about.json beside it has its settings and counts"),
    "collection": (str, "further candidates: corpus.jsonl as BEIR's, or TSV as MS MARCO's, plain or .gz"),
    "reranker": (str, "cross-encoder whose scores take the place of the model's: folder, hf:NAME or work directory"),
    "range-min": (int, "first rank that is taken, from 0 on, among the candidates that margins leave; 0"),
    "range-max": (int, "rank behind the last; by default enough for --negatives, ten times that with margins"),
    "negatives": (int, "negatives of a query at most; 3"),
    "margin": (float, "how much lower than a query's worst positive a negative scores at least"),
    "relative-margin": (
        float,
        "the same as a share of the size of that positive's score; 0.05 is TopK-PercPos of 95 %",
    ),
    "max-score": (float, "highest score of a negative"),
    "sampling": (str, "top: the best that are left; random: any of the range"),
    "seed": (int, "of the order of the queries, and of random sampling; 0"),
    "format": (str, "triplet, n-tuple, labeled-pair, labeled-list, flagembedding or tevatron; triplet"),
    "scores": (bool, "a switch: rows have the scores of their documents, as with output_scores=True there"),
    "cache": (str, "folder that keeps the embeddings, for other settings of the same pairs and model"),
    "pairs-format": (str, "as config.pairs.format"),
    "fields": (str, "as config.pairs.fields, such as query=title,positive=body"),
    "queries": (str, "as config.pairs.queries: the texts of triples of ids, whose passages --collection has"),
}
_NEEDED = ("model", "out")


def main(argv: Sequence[str]) -> None:
    """Writes the file, and prints what was counted."""
    absl_logging.set_verbosity(absl_logging.WARNING)
    asked = vars(_parser().parse_args(argv[1:]))
    from retrieval.stages import negatives_file

    pairs = ",".join(asked.pop("pairs"))
    given = {name: value for name, value in asked.items() if value is not None}
    counts = negatives_file.write(negatives_file.Asked(pairs, **given))
    left_out = counts.pop("left out")
    for what, number in (*counts.items(), *((f"left out: {what}", number) for what, number in left_out.items())):
        print(f"{what}: {number:,}")


def _parser() -> argparse.ArgumentParser:
    what, _, more = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser("retrieval mine", description=what, epilog=more.rpartition("\n\n")[2])
    parser.add_argument("pairs", nargs="+", metavar="PAIRS", help="files of labelled examples, or folders of Parquet")
    for name, (kind, text) in SETTINGS.items():
        values: dict[str, Any] = {"action": "store_true"} if kind is bool else {"type": kind}
        parser.add_argument(f"--{name}", help=text.replace("%", "%%"), required=name in _NEEDED, **values)
    return parser


def program() -> None:
    """Runs the command."""
    cli.run(main, has_flags=False, computes=True)


if __name__ == "__main__":
    program()
