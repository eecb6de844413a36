"""A test collection with many more candidates: halves of its own texts, put together anew.

    python -m benchmarks.enlarge_collection COUNT BEIR_FOLDER OUT

OUT gets the files of MS MARCO: collection.tsv, queries.tsv and qrels.tsv, for `config.sets.msmarco`. The folder's own
candidates are among the COUNT, each at a place drawn by chance, so its judgements still say something. How stages
behave at the size of MS MARCO can be seen on it.
"""

import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from retrieval import files
from retrieval.data.sets import beir
from retrieval.errors import UserError

_SEED = 0


def enlarge(candidates: Sequence[beir.Candidate], count: int) -> Iterator[tuple[str, str]]:
    """Ids and texts of `count` candidates, all in an order drawn by `_SEED`.

    A new text is the first half of the words of one candidate and the last half of another's.

    Raises:
      UserError: there are more candidates than `count`, or fewer than two.
    """
    if not 2 <= len(candidates) <= count:
        raise UserError(f"{len(candidates):,} candidates cannot become {count:,}: give a number that is not smaller")
    draw = random.Random(_SEED)
    texts = [f"{candidate.title} {candidate.text}".split() for candidate in candidates]
    firsts = [" ".join(words[: len(words) // 2]) for words in texts]
    lasts = [" ".join(words[len(words) // 2 :]) for words in texts]
    places = dict(zip(draw.sample(range(count), len(candidates)), range(len(candidates))))
    for place in range(count):
        own = places.get(place)
        if own is None:
            yield f"new-{place}", f"{draw.choice(firsts)} {draw.choice(lasts)}"
        else:
            yield candidates[own].id, " ".join(texts[own])


def write(folder: Path, count: int, out: Path) -> None:
    """Writes the three files, each whole or not at all."""
    judged = beir.read_folder(folder)
    with files.atomic(out / "collection.tsv") as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(f"{id}\t{text}\n" for id, text in enlarge(list(judged.candidates), count))
    files.write_text(out / "queries.tsv", "".join(f"{id}\t{text}\n" for id, text in judged.queries.items()))
    judgements = next(iter(judged.qrels.values()))
    lines = (f"{q}\t0\t{c}\t{grade}\n" for q, grades in judgements.items() for c, grade in grades.items())
    files.write_text(out / "qrels.tsv", "".join(lines))


def main(arguments: Sequence[str]) -> None:
    """Writes OUT."""
    if len(arguments) != 3 or not arguments[0].isdecimal():
        sys.exit("error: expected python -m benchmarks.enlarge_collection COUNT BEIR_FOLDER OUT")
    try:
        write(Path(arguments[1]), int(arguments[0]), Path(arguments[2]))
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
