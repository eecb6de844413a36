"""Vectors to hand over, with ids and texts that trap home-made formats, and what was written of them."""

import json

import numpy as np

from retrieval.common import files
from retrieval.export.vectors import folder
from retrieval.export.vectors.targets import TARGETS
from retrieval.export.vectors.vectors import BLOCK, METADATA, Block, Vectors, are_normalised, check_lines

PIECES = [*"aéß猫🦊 \"'\\,;{}%#\u2028\x7f=!", "\\N", "\\."]
BREAKS = ["\t", "\n", "\r", "\r\n", "\x0b"]


def text(rng, pieces, longest=12):
    return "".join(rng.choice(pieces, rng.integers(0, longest)))


def made(rows=40, dimension=16, breaks=True):
    """Random rows. The first ids are of 400 bytes, and with white space, quotes and an emoji in them.

    Returns:
      The vectors, and the float32 embeddings [rows, dimension].
    """
    rng = np.random.default_rng(0)
    pieces = PIECES + (BREAKS if breaks else [])
    ids = ["x" * 396 + "🦊", 'a "b"', "it's", "\\N", *(["a\tb", "a\nb", "a\r\nb"] if breaks else [])]
    ids = list(dict.fromkeys([*ids, *(f"{text(rng, pieces).strip()}:{number}" for number in range(rows))]))[:rows]
    vectors = rng.normal(size=(rows, dimension)).astype(np.float32)
    vectors[0, :4] = [1e-30, -0.0, np.float32(1) / 3, 1.17549435e-38]
    metadata = [_metadata(rng, pieces) for _ in ids]
    titles, texts = ([text(rng, pieces, 30) for _ in ids] for _ in range(2))

    def blocks():
        for start in range(0, rows, BLOCK):
            part = slice(start, start + BLOCK)
            yield Block(ids[part], vectors[part], titles[part], texts[part], metadata[part])

    about = "document", "sha256:0", dimension, are_normalised(vectors), "", rows
    return Vectors(*about, blocks), vectors


def _metadata(rng, pieces):
    return {name: text(rng, pieces) or "d" for name in METADATA if rng.random() < 0.7}


def checks(vectors, embeddings, count=50):
    """The lines of `check.jsonl` for random queries."""
    queries = np.random.default_rng(1).normal(size=(count, embeddings.shape[1])).astype(np.float32)
    return list(check_lines([f"query {number}" for number in range(count)], queries, vectors))


def written(name, out, vectors, embeddings, queries=None):
    """The folder of a target that was written."""
    TARGETS[name].check(vectors)
    folder.write(str(out), TARGETS[name], vectors, queries, checks(vectors, embeddings), out)
    verify(out / name)
    return out / name


def verify(path):
    """Compares a folder with its manifest."""
    listed = files.read_json(path / "manifest.json")["files"]
    found = {item.relative_to(path).as_posix(): item for item in path.rglob("*") if item.is_file()}
    found.pop("manifest.json")
    sums = files.checksums(path, found.values())
    assert {each["file"]: (each["sha256"], each["bytes"]) for each in listed} == {
        name: (sum, found[name].stat().st_size) for name, sum in sums.items()
    }


def block_of(vectors):
    """All rows as one block."""
    (block,) = vectors.blocks()
    return block


def questions(path):
    """Of each line of `check.jsonl` the vector, the ids that are expected, and their scores."""
    lines = [json.loads(line) for line in (path / "check.jsonl").read_text(encoding="utf-8").split("\n")[:-1]]
    return [(line["vector"], line["expected"], line["scores"]) for line in lines]
