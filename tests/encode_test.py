"""Encoding: rows in their order whatever the batches, the same files after a kill and from several processes."""

import contextlib
import dataclasses
import itertools
import json
import os
import threading
import weakref
from collections import Counter
from unittest import mock

import jax
import numpy as np
import pytest

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.runs.ranking import passage_lines
from retrieval.runs.ranking.collection import Collection, repeated
from retrieval.search import encoding, sharded_map
from retrieval.search.vector_codes import Form

RNG = np.random.default_rng(0)
TEXTS = [RNG.integers(0, 99, RNG.integers(1, 71)).tolist() for _ in range(101)]
IDS = [f"d{i}" for i in range(101)]
EXPECTED = [[sum(t), len(t), t[0]] for t in TEXTS]


class Embed:
    """Sum, length and first token of a row: padding does not change them. Keeps the batches it was called with."""

    def __init__(self):
        self.batches = []

    def __call__(self, ids):
        self.batches.append(ids)
        return np.stack([ids.sum(1, where=ids >= 0), (ids >= 0).sum(1), ids[:, 0]], axis=1)

    @property
    def shapes(self):
        return [ids.shape for ids in self.batches]

    @property
    def rows(self):
        return sum((ids[:, 0] >= 0).sum() for ids in self.batches)


def one_row(texts):
    """Token ids of texts that have a row each."""
    return [[list(ids)] for ids in texts]


@contextlib.contextmanager
def as_host(process, processes):
    """As JAX numbers the hosts of a pod."""
    with mock.patch.multiple(jax, process_index=lambda: process, process_count=lambda: processes):
        yield


def write(folder, embed, texts=TEXTS, tokens=one_row, total=None, multiple=8, process=0, processes=1):
    total = len(texts) if total is None else total
    settings = dict(shard_size=40, batch_tokens=256, longest=70, multiple=multiple)
    with as_host(process, processes):
        encoding.encode(folder, "candidates", zip(IDS, texts), total, tokens, embed, **settings)


def run(folder, embed, **options):
    write(folder, embed, **options)
    return encoding.load(folder, "candidates")


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(autouse=True)
def no_thread_is_left_behind():
    yield
    assert not [thread for thread in threading.enumerate() if "ThreadPoolExecutor" in thread.name]


def test_rows_come_back_in_order(tmp_path):
    embed = Embed()
    embeddings, ids = run(tmp_path, embed)
    assert ids == IDS and embeddings.dtype == np.float32
    np.testing.assert_array_equal(embeddings, EXPECTED)
    assert max(length for _, length in embed.shapes) == 70  # not 96: no row is longer than the longest text
    assert len(set(embed.shapes)) <= 5 and all(rows % 8 == 0 for rows, _ in embed.shapes)


def test_the_bar_moves_with_every_batch(tmp_path, monkeypatch):
    bar = mock.MagicMock(n=0)
    bar.update.side_effect = lambda items: setattr(bar, "n", bar.n + items)
    monkeypatch.setattr(sharded_map.terminal, "progress", mock.Mock(return_value=bar))
    run(tmp_path, embed := Embed())
    moves = [call.args[0] for call in bar.update.call_args_list if call.args[0]]
    assert sum(moves) == sharded_map.terminal.progress.call_args.kwargs["total"] == 101
    assert len(moves) == len(embed.batches) > 3


def test_each_row_of_a_text_has_its_id(tmp_path):
    """Shards are of texts, so one that is lost is made anew as it was."""

    def rows(texts):
        return [[ids[start : start + 30] for start in range(0, len(ids), 30)] for ids in texts]

    embeddings, ids = run(tmp_path, Embed(), tokens=rows)
    expected = [(id, part) for id, text in zip(IDS, TEXTS) for part in rows([text])[0]]
    assert ids == [id for id, _ in expected] == encoding.load_ids(tmp_path, "candidates") and len(ids) > 101
    np.testing.assert_array_equal(embeddings, [[sum(part), len(part), part[0]] for _, part in expected])
    assert {len(set(json.loads(path.read_text()))) for path in tmp_path.glob("*.ids.json")} == {40, 21}
    whole, embed = contents(tmp_path), Embed()
    (tmp_path / "candidates-00001-of-00003.npy").unlink()  # a run that was killed between the two files of a shard
    write(tmp_path, embed, tokens=rows)
    assert contents(tmp_path) == whole
    assert embed.rows == sum(len(rows([text])[0]) for text in TEXTS[40:80])


@pytest.mark.parametrize("batches", range(0, 14, 3))
def test_cut_off_anywhere_the_files_come_out_the_same(tmp_path, batches):
    run(tmp_path / "whole", Embed())
    embed, calls = Embed(), itertools.count()

    def cut_off(ids):
        if next(calls) == batches:
            raise KeyboardInterrupt
        return embed(ids)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", cut_off)
    found = contents(tmp_path / "cut") if (tmp_path / "cut").exists() else {}
    assert found.items() <= contents(tmp_path / "whole").items()
    run(tmp_path / "cut", Embed())
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


@pytest.mark.parametrize("processes", [2, 3, 5])
def test_several_processes_write_what_one_does(tmp_path, processes):
    run(tmp_path / "one", Embed())
    for process in reversed(range(processes)):
        write(tmp_path / "many", Embed(), process=process, processes=processes)
        expected = {f"candidates-{shard:05d}-of-00003.npy" for shard in range(3) if shard % processes >= process}
        assert {path.name for path in (tmp_path / "many").glob("*.npy")} == expected
    assert contents(tmp_path / "many") == contents(tmp_path / "one")


def test_a_kills_leftovers_are_removed_and_no_other_files(tmp_path):
    for shard in (0, 1):
        for ending in ("npy", "ids.json"):
            (tmp_path / f".tmp-7-candidates-0000{shard}-of-00003.{ending}").write_bytes(b"half")
    write(tmp_path, Embed(), process=1, processes=2)
    left = {path.name for path in tmp_path.iterdir() if path.name.startswith(".tmp")}
    assert left == {".tmp-7-candidates-00000-of-00003.npy", ".tmp-7-candidates-00000-of-00003.ids.json"}


class Text(list):
    """A text that can be in a WeakSet."""

    __hash__, __eq__ = object.__hash__, object.__eq__


def test_two_shards_are_held_and_reading_stops_in_time(tmp_path):
    alive, held, read = weakref.WeakSet(), [], itertools.count()

    def texts():
        for id, text in zip(IDS, map(Text, TEXTS)):
            next(read)
            alive.add(text)
            yield id, text

    def tokens(members):
        held.append(len(alive))
        return one_row(members)

    settings = dict(shard_size=10, batch_tokens=256, longest=70)
    with as_host(1, 4):
        encoding.encode(tmp_path, "candidates", texts(), 101, tokens, Embed(), **settings)
    assert next(read) == 100 and max(held) <= 22  # shards 1, 5 and 9; a few are still in somebody's hands


def test_a_disk_error_is_raised_within_a_shard(tmp_path, monkeypatch):
    def full(path, text):
        raise OSError("no space left on device")

    monkeypatch.setattr(files, "write_text", full)
    embed = Embed()
    with pytest.raises(OSError, match="no space left"):
        write(tmp_path, embed)
    embedded = np.concatenate([ids.sum(axis=1, where=ids >= 0)[ids[:, 0] >= 0] for ids in embed.batches])
    assert sorted(embedded) == sorted(map(sum, TEXTS[:80]))
    assert not list(tmp_path.glob("*.npy"))
    with pytest.raises(OSError, match="no space left"):  # of the last shard too
        write(tmp_path / "other", embed, texts=TEXTS[:5])


def flip(path, place=-1):
    """Another bit in a file, whose size and time stay."""
    data, status = bytearray(path.read_bytes()), path.stat()
    data[place] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("ending", ["npy", "ids.json"])
def test_a_flipped_bit_is_named_and_the_shard_made_again(tmp_path, caplog, ending):
    run(tmp_path, Embed())
    whole = contents(tmp_path)
    damaged = f"candidates-00001-of-00003.{ending}"
    flip(tmp_path / damaged)
    with pytest.raises(UserError, match=rf"{damaged}: damaged, its SHA-256 is not that .*delete it and encode again"):
        encoding.load(tmp_path, "candidates")
    if ending == "npy":
        with pytest.raises(UserError, match=rf"{damaged}: damaged"):
            encoding.StoredRows(tmp_path, "candidates")[np.array([0, 41])]
    embed = Embed()
    write(tmp_path, embed)
    assert contents(tmp_path) == whole and embed.rows == 40
    assert f"{damaged}: damaged" in caplog.text


def test_missing_texts_shards_and_sums_are_named(tmp_path):
    with pytest.raises(UserError, match=r"no longer 102 items: their file changed"):
        write(tmp_path, Embed(), total=102)
    run(tmp_path, Embed())
    (tmp_path / "candidates-00001-of-00003.sums.json").unlink()
    with pytest.raises(UserError, match=r"00001-of-00003\.sums\.json: missing; delete it and encode again"):
        encoding.load(tmp_path, "candidates")
    (tmp_path / "candidates-00001-of-00003.npy").unlink()
    with pytest.raises(UserError, match="2 shards of 'candidates'"):
        encoding.load(tmp_path, "candidates")


def encoded(folder, texts, embed, *older, form=None):
    form = form or Form("float32", 3, maker="one")
    settings = dict(shard_size=40, batch_tokens=256, longest=70, multiple=8, form=form, older=older)
    encoding.encode(folder, "candidates", zip(map(str, range(101)), texts), 101, one_row, embed, **settings)
    return folder


CHANGED = [TEXTS[-1], [7, 7], *TEXTS[:60], [8], *TEXTS[60:98]]  # all have other places, and two are new
INT8 = Form("int8", 3, maker="one", ranges_2E=np.array([[0, 1, 1], [3000, 60, 98]], np.float32))


@pytest.mark.parametrize("form", [None, INT8], ids=["float32", "int8"])
@pytest.mark.parametrize("stop", [0, 1, 2, None])
def test_changed_texts_alone_are_encoded(tmp_path, caplog, form, stop, monkeypatch):
    caplog.set_level("INFO")
    older = [encoded(tmp_path / "older", TEXTS, Embed(), form=form)]
    older.append(encoded(tmp_path / "other", [[7, 7], *TEXTS[1:]], Embed(), form=form))
    fresh = contents(encoded(tmp_path / "fresh", CHANGED, Embed(), form=form))
    embed, write, written = Embed(), encoding.write, itertools.count()

    def killed(*shard):
        if next(written) == stop:
            raise KeyboardInterrupt
        write(*shard)

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(encoding, "write", killed)
        encoded(tmp_path / "new", CHANGED, embed, *older, form=form)
    found = contents(encoded(tmp_path / "new", CHANGED, embed, *older, form=form))
    assert found == fresh
    rows = {tuple(row[row >= 0].tolist()) for ids in embed.batches for row in ids if row[0] >= 0}
    assert rows == {(8,)}
    if stop is None:
        assert "reused 100 of 101 vectors" in caplog.text


@pytest.mark.parametrize("change", ["maker", "precision", "ranges_2E", "npy", "keys.npy"])
def test_other_or_damaged_vectors_are_not_reused(tmp_path, caplog, change):
    older = encoded(tmp_path / "older", TEXTS, Embed(), form=INT8)
    others = {"maker": "two", "precision": "bfloat16", "ranges_2E": INT8.ranges_2E * 2}
    form = dataclasses.replace(INT8, **{change: others[change]}) if change in others else INT8
    damaged = older / f"candidates-00001-of-00003.{change}"
    if change not in others:
        flip(damaged)
    embed = Embed()
    found = contents(encoded(tmp_path / "new", TEXTS, embed, older, form=form))
    assert found == contents(encoded(tmp_path / "fresh", TEXTS, Embed(), form=form)) and embed.rows == 101
    assert (f"nothing is reused: {damaged}" in caplog.text) == (change not in others)


def test_embeddings_that_are_not_finite_are_refused(tmp_path):
    with pytest.raises(UserError, match="not finite"):
        run(tmp_path, lambda ids: np.full((len(ids), 3), np.nan))


def test_copied_shards_are_a_processs_own_and_stay(tmp_path):
    run(tmp_path / "one", Embed())
    kept = tmp_path / "two" / "candidates-00001-of-00003.npy"
    encoding.write(kept, encoding.Shard(["is there"], np.ones((1, 3))))
    sharded_map.seal(kept)
    mine = contents(tmp_path / "two")
    (tmp_path / "two" / ".tmp-7-candidates-00000-of-00003.npy").write_bytes(b"half")
    encoding.copy(tmp_path / "one", tmp_path / "two", "candidates", len(TEXTS), 40)
    ours, theirs = contents(tmp_path / "two"), contents(tmp_path / "one")
    assert ours == theirs | mine and len(mine) == 3


def collection_of(folder, name, *texts):
    """A collection with a file for each text."""
    paths = tuple(folder / name / f"{number}.jsonl" for number in range(len(texts)))
    for path, text in zip(paths, texts):
        files.write_text(path, text)
    return Collection(name, paths, folder, folder, folder)


def test_collections_of_the_same_texts_are_found(tmp_path):
    texts = {"a": ["one", "two"], "b": ["one", "six"], "c": ["one", "two"], "d": ["onetwo"], "e": ["one", "two"]}
    items = [collection_of(tmp_path, name, *of_name) for name, of_name in texts.items()]
    assert {name: item.name for name, item in repeated(items).items()} == {"c": "a", "e": "a"}


@pytest.mark.parametrize("stop", ["in the next collection", "before the shards are removed", "before the record"])
def test_a_collection_whose_lines_are_written_is_not_made_again(tmp_path, monkeypatch, stop):
    names, out, made = ("a", "b"), tmp_path / "out", []
    items = [collection_of(tmp_path, name, json.dumps({"_id": name, "text": name}) + "\n") for name in names]

    def make(passages):
        if stop == "in the next collection" and made == ["a"]:
            raise KeyboardInterrupt
        made.extend(passage.id for passage in passages)
        return passage_lines.Lines([f"of {passage.id}\n" for passage in passages], Counter({"lines": 1}))

    def removed(path):
        if stop == "before the shards are removed" and path == out / "b":
            raise KeyboardInterrupt
        remove(path)

    remove = files.remove
    with monkeypatch.context() as patched, contextlib.suppress(KeyboardInterrupt):
        patched.setattr(files, "remove", removed)
        passage_lines.write_all(out, items, 10, make)
    stop = ""
    counts = passage_lines.write_all(out, items, 10, make)
    assert made == ["a", "b"] and counts == {name: {"passages": 1, "lines": 1} for name in names}
    assert sorted(path.name for path in out.iterdir()) == ["a.counts.json", "a.jsonl", "b.counts.json", "b.jsonl"]
    assert (out / "b.jsonl").read_text() == "of b\n"
