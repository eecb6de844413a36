"""RepBERT's examples: triples in the order of their file."""

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from retrieval.data.examples.batches import Batches, Drawn
from retrieval.data.examples.example_kind import PAIRS, pair_lengths
from retrieval.data.examples.seqio_classes import Converter
from retrieval.data.examples.seqio_tasks import register
from retrieval.data.examples.task_kind import TaskData
from retrieval.data.labelled import labelled_format, pair_shards
from retrieval.data.labelled.labelled_format import Settings
from retrieval.data.tokenizers.vocab import WordPiece
from retrieval.runs.fitting.examples import is_in_order

WORDS = [f"w{number}" for number in range(40)]


def test_batches_have_triples_in_the_order_of_the_file(tmp_path):
    """Triples of ids in an order that is that of no hash; query 2 has two positives."""
    folder = tmp_path / "triples"
    folder.mkdir()
    rows = [(row % 7, row % 7 if row != 9 else 30, 10 + row) for row in range(24)]
    (folder / "ids.tsv").write_text("".join(f"{q}\t{p}\t{n}\n" for q, p, n in rows))
    (folder / "queries.tsv").write_text("".join(f"{q}\tq w{q}\n" for q in range(7)))
    (folder / "collection.tsv").write_text("".join(f"{p}\tp w{p}\n" for p in range(40)))
    vocabulary = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "q", "p", *WORDS])
    settings = Settings("", str(folder / "queries.tsv"), str(folder / "collection.tsv"), 0)
    paths = [folder / "ids.tsv"]
    with labelled_format.grouped(paths, settings, tmp_path, 100) as (groups, _):
        read = lambda: labelled_format.in_order(paths, settings, tmp_path)  # noqa: E731
        held_out = next(iter(groups)).query
        others = groups.where(lambda query: query != held_out)
        statistics = pair_shards.PairWriter(others, vocabulary, apart=read, in_order=True).write(tmp_path, 4)
    assert is_in_order(tmp_path)
    kept = [row for row in rows if f"q w{row[0]}" != held_out]
    assert statistics["pairs"] == len(kept) and statistics["most positives"] == (1 if held_out == "q w2" else 2)
    found = []
    for batch in batches_of(tmp_path, vocabulary, len(kept) // 4):
        words = [[vocabulary.decode(ids) for ids in batch[name].reshape(-1, 8)] for name in ("query", "document")]
        found.append(sorted(zip(words[0], words[1][::2], words[1][1::2])))
    expected = [sorted((f"q w{q}", f"p w{p}", f"p w{n}") for q, p, n in kept[at : at + 4]) for at in range(0, 20, 4)]
    assert found[:5] == expected


def batches_of(folder, vocabulary, count):
    stored = TaskData(folder, {"tasks": {}}, folder)
    name, _ = register(stored, vocabulary, {"pairs": 1.0}, shuffle_buffer=1, negatives=1)
    lengths = pair_lengths(8, 8, 1)
    sharding = SingleDeviceSharding(jax.devices()[0])
    converter = Converter(PAIRS, lengths, vocabulary.sep_id)
    lanes = Drawn(name, lengths, converter, batch_size=4, lanes=4, seed=0).open_lanes(sharding)
    batches = Batches({"": lanes}, sharding)
    return [{name: np.asarray(values) for name, values in next(batches).items()} for _ in range(count)]
