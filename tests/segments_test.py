"""Documents that change: after every change, search gives what an index gives that is built anew."""

import hashlib
import json
import random
import subprocess
import sys
import threading

import numpy as np
import pytest
from conftest import REPOSITORY

from retrieval.data.sets.beir import Candidate
from retrieval.errors import UserError
from retrieval.search import exact_kind, scann
from retrieval.search.bm25_kind import Bm25
from retrieval.search.exact import ExactIndex, recall
from retrieval.search.index_kind import INDEXES, Texts
from retrieval.search.words import ENGLISH
from retrieval.segments import generations, segment
from retrieval.segments.changing import Documents, InMemory, NoDocumentError
from retrieval.segments.generations import Generations
from retrieval.segments.live_rows import LiveRows
from retrieval.segments.segment import Recipe

WORDS = "red green blue fox dog cat owl hen ox ant bee cow pig rat elk emu yak ape winter forest".split()
OPTIONS = {"index.bm25_k1": 1.2, "index.bm25_b": 0.75, "index.bm25_accents": "fold"}
OPTIONS |= {"index.bm25_stop_words": "english", "index.bm25_stemmer": "none", "index.bm25_also": ()}
EXACT = exact_kind.Exact()
MADE_WITH = {"model": "one"}
SIZE = 8


def embed(passages):
    """Embeddings that depend on the text alone; some are equal, so that there are ties. Long ones have two."""
    rows = [[each.text] if len(each.text) < 60 else [each.text[:60], each.text[60:]] for each in passages]
    digests = [hashlib.sha256(text[:20].encode()).digest() for texts in rows for text in texts]
    vectors = np.array([np.frombuffer(digest[:SIZE], np.uint8) for digest in digests], np.float32) / 128 - 1
    return vectors.reshape(-1, SIZE), np.repeat(np.arange(len(rows), dtype=np.int32), list(map(len, rows)))


RECIPE = Recipe((Bm25(),), ENGLISH, embed)


def passages_of(id, rng):
    """A document of one to three passages."""
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 16))) for _ in range(rng.randint(1, 3))]
    return [Candidate(f"{id}:{n}", rng.choice(WORDS), text) for n, text in enumerate(texts)]


def place(folder, made_with=MADE_WITH):
    return Generations(folder / generations.FOLDER, lambda: made_with, RECIPE)


def documents(folder, first, made_with=MADE_WITH):
    return Documents(place(folder, made_with), RECIPE, lambda: segment.make(first, RECIPE))


def check(state, expected, queries=("red fox", "owl cow winter", "nothing"), k=12):
    """Rows, scores and ties are those of indexes that are built anew, whatever k is."""
    rows, passages = LiveRows(state), sorted((each for own in expected.values() for each in own), key=lambda p: p.id)
    assert list(rows) == passages
    dense = rows.dense(EXACT, {})
    vectors, owners = embed(passages)
    assert rows.vectors[:].tobytes() == vectors.tobytes() and rows.owner_V.tolist() == owners.tolist()
    found = rows.words(RECIPE.words[0], OPTIONS, RECIPE.of)(queries, k)
    of_vectors = dense.search(np.eye(3, SIZE, dtype=np.float32), k)
    if not passages:
        assert (found[1] == -1).all() and (of_vectors[1] == -1).all()
        return
    anew = RECIPE.words[0].build(Texts("anew", lambda: iter(passages), lambda: True), OPTIONS).search(queries, k)
    exact = ExactIndex(vectors).search(np.eye(3, SIZE, dtype=np.float32), k)
    for ours, theirs in ((found, anew), (of_vectors, exact)):
        assert ours[0].tobytes() == theirs[0].tobytes() and ours[1].tolist() == theirs[1].tolist()


def edits(changing, first, count, seed):
    """Makes random changes, and yields after each the state and the documents that there have to be."""
    rng, expected = random.Random(seed), dict(first)
    ids = [f"d{n}" for n in range(30)]
    for _ in range(count):
        kind = rng.random()
        if kind < 0.55 or not expected:
            new = {id: passages_of(id, rng) for id in rng.sample(ids, rng.randint(1, 4))}
            state, told = changing.put(new)
            assert told.added == len(new.keys() - expected.keys())
            expected |= new
        elif kind < 0.85:
            gone = rng.sample(sorted(expected), min(len(expected), rng.randint(1, 3)))
            state, told = changing.delete(gone)
            assert told.deleted == len(gone)
            expected = {id: own for id, own in expected.items() if id not in gone}
        else:  # an edit of all: some the same, some changed, some gone
            kept = {id: own for id, own in expected.items() if rng.random() < 0.9}
            expected = kept | {id: passages_of(id, rng) for id in rng.sample(ids, 2)}
            state, told = changing.replace_all(expected)
            assert told.added + told.replaced + told.unchanged == len(expected)
        if rng.random() < 0.3 and changing.merge():
            state = changing.read()
        yield state, dict(expected)


def some(count=12, seed=0):
    rng = random.Random(seed)
    return {f"d{n}": passages_of(f"d{n}", rng) for n in range(count)}


def test_after_every_change_all_is_as_if_built_anew(tmp_path):
    first = some()
    for number, (state, expected) in enumerate(edits(documents(tmp_path, first), first, 40, seed=1)):
        check(state, expected, k=12 if number % 5 else 200)
    check(documents(tmp_path, {}).read(), expected)  # as another process reads it


@pytest.mark.long  # 200 changes
@pytest.mark.parametrize("seed", [2, 3])
def test_after_every_change_of_many(tmp_path, seed):
    first = some()
    for state, expected in edits(documents(tmp_path, first), first, 200, seed):
        check(state, expected)


def test_in_memory_it_is_the_same():
    first = some()
    changing = Documents(InMemory(), RECIPE, lambda: segment.make(first, RECIPE))
    for state, expected in edits(changing, first, 10, seed=4):
        check(state, expected)


@pytest.mark.parametrize("is_kept", [False, True])
def test_one_merges_while_others_leave_it_to_that_one(tmp_path, is_kept):
    first = some()
    in_memory = Documents(InMemory(), RECIPE, lambda: segment.make(first, RECIPE))
    changing = documents(tmp_path, first) if is_kept else in_memory
    for number in range(9):
        state, _ = changing.put({f"new{number}": first["d0"]})
    with changing._place.merging() as is_alone:
        assert is_alone and not changing.merge()
    assert changing.merge() and changing.read().generation == state.generation + 1


def test_what_has_not_changed_is_not_embedded_again():
    seen, first = [], some()

    def counted(passages):
        seen.extend(each.id for each in passages)
        return embed(passages)

    changing = Documents(InMemory(), RECIPE._replace(embed=counted), lambda: segment.make(first, RECIPE))
    new = first | {"d1": first["d2"], "d99": first["d3"]}
    state, told = changing.replace_all(new)
    assert tuple(told) == (1, 1, 0, 11, 1) and state.generation == 1
    assert seen == [each.id for each in (*first["d2"], *first["d3"])]
    assert changing.replace_all(new)[0] is state and changing.merge() is False


def test_a_deleted_document_never_returns(tmp_path):
    first = some()
    changing = documents(tmp_path, first)
    state, _ = changing.delete(list(first)[1:])
    check(state, {"d0": first["d0"]}, k=500)
    state, _ = changing.delete(["d0"])
    assert state.segments == ()
    check(state, {})
    with pytest.raises(NoDocumentError, match="there is no document 'd0' to delete"):
        changing.delete(["d0"])
    check(changing.put({"d0": first["d1"]})[0], {"d0": first["d1"]})


def test_words_that_only_dead_documents_have_count_no_more(tmp_path):
    first = {"a": [Candidate("a:0", "", "zebra")], "b": [Candidate("b:0", "", "fox")]}
    state, _ = documents(tmp_path, first).delete(["a"])
    assert LiveRows(state).words(RECIPE.words[0], OPTIONS, RECIPE.of)(["zebra"], 1)[1].tolist() == [[-1]]


@pytest.mark.parametrize("name", ["passages.jsonl", "rows.json", "vectors.npy", "bm25.npz", "bm25.words.json"])
def test_one_changed_byte_is_refused(tmp_path, name):
    documents(tmp_path, some()).put(some(2, seed=9))
    path = tmp_path / generations.FOLDER / "0001" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=rf"0001/{name}: damaged, .*; put the folder back"):
        documents(tmp_path, {}).read()


@pytest.mark.parametrize("name", ["generations/000001.json", "generations/000001-0001.npy", "0002/manifest.json"])
def test_a_changed_generation_is_refused(tmp_path, name):
    documents(tmp_path, some()).put(some(2, seed=9))
    path = tmp_path / generations.FOLDER / name
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(UserError, match=rf"{name}: damaged"):
        documents(tmp_path, {}).read()


def test_another_model_is_refused(tmp_path):
    documents(tmp_path, some()).put(some(2, seed=9))
    with pytest.raises(UserError, match="indexed with another model than the run has now"):
        documents(tmp_path, {}, {"model": "two"}).read()


def test_the_last_three_generations_stay(tmp_path):
    changing = documents(tmp_path, some())
    for number in range(6):
        changing.put({"x": [Candidate("x:0", "", f"text {number}")]})
    folder = tmp_path / generations.FOLDER
    assert sorted(path.stem for path in folder.glob("generations/*.json")) == ["000004", "000005", "000006"]
    named = {name for path in folder.glob("generations/*.json") for name in json.loads(path.read_text())["segments"]}
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {*named, "generations"} and len(named) == 4


def test_changes_while_a_merge_runs_are_kept(tmp_path, monkeypatch):
    first = some()
    changing = documents(tmp_path, first)
    changing.delete(["d1", "d2", "d3", "d4"])
    real, other = segment.save, documents(tmp_path, {})
    replaced = [Candidate("d5:0", "", "blue owl")]

    def save(made, folder, recipe):
        """While the merged segment is written, documents come, change and go."""
        monkeypatch.setattr(segment, "save", real)
        other.put({"d5": replaced, "new": [Candidate("new:0", "", "red fox")]})
        other.delete(["d6"])
        return real(made, folder, recipe)

    monkeypatch.setattr(segment, "save", save)
    assert changing.merge()
    expected = {id: own for id, own in first.items() if id not in ("d1", "d2", "d3", "d4", "d6")}
    expected |= {"d5": replaced, "new": [Candidate("new:0", "", "red fox")]}
    state = documents(tmp_path, {}).read()
    check(state, expected)
    assert len(state.segments) == 2 and state.generation == 4


KILLED = """
import json, os, signal, sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
import segments_test as here

def kill(event, args):
    global left
    mode = args[1] if event == "open" else None
    writes = event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate")
    writes |= event == "open" and ((isinstance(mode, str) and mode[:1] in "wax") or (mode is None and args[2] & 3 > 0))
    if writes and str(args[0]).startswith(folder):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

folder, number, went = {folder!r}, 0, None
while went != 0:
    child = os.fork()
    if not child:
        left = number
        sys.addaudithook(kill)
        here.change(Path(folder))
        os._exit(0)
    went, number = os.waitpid(child, 0)[1], number + 1
    print(json.dumps(here.seen(Path(folder))), flush=True)
"""


def change(folder):
    """A change with all that may be written: a new segment, a deletion, a generation, a merge; and back again."""
    changing = documents(folder, some())
    changing.replace_all(some(8, seed=5))
    changing.merge()


def seen(folder):
    """The passages that a reader finds; those before the first change are not there yet."""
    state = documents(folder, {}).read()
    return [each.text for each in LiveRows(state)] if state else None


def test_a_kill_at_any_write_leaves_the_old_or_the_new_generation(tmp_path):
    documents(tmp_path, some()).put({"d0": some(1, seed=7)["d0"]})
    old = seen(tmp_path)
    program = KILLED.format(tests=str(REPOSITORY / "tests"), folder=str(tmp_path))
    said = subprocess.check_output([sys.executable, "-c", program], cwd=REPOSITORY, text=True)
    states = list(map(json.loads, said.splitlines()))
    new = [each.text for own in sorted(some(8, seed=5).items()) for each in own[1]]
    assert len(states) > 20 and states[-1] == new
    switch = states.index(new)
    assert states == [old] * switch + [new] * (len(states) - switch) and 0 < switch < len(states) - 1
    left = {path.name for path in (tmp_path / generations.FOLDER).iterdir() if path.name.isdecimal()}
    documents(tmp_path, {}).put({"later": [Candidate("later:0", "", "later")]})
    listed = json.loads(max((tmp_path / generations.FOLDER).glob("generations/*.json")).read_text())["segments"]
    assert listed.keys() - left == {max(listed)}


def test_threads_that_search_see_one_generation_each(tmp_path):
    """Passages of a generation all have its number; and nothing of older ones stays in memory."""
    changing = documents(tmp_path, {f"d{n}": [Candidate(f"d{n}:0", "", "owl n0")] for n in range(5)})
    current, wrong, ended = [changing.put({"x": [Candidate("x:0", "", "fox")]})[0]], [], threading.Event()

    def search():
        while not ended.wait(0.005):
            rows = LiveRows(current[0])
            found = rows.words(RECIPE.words[0], OPTIONS, RECIPE.of)(["owl"], 9)[1][0]
            numbers = {rows[row].text for row in found if row >= 0}
            if len(numbers) != 1:
                wrong.append(numbers)

    threads = [threading.Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(1, 26):
        current[0], _ = changing.put({f"d{n}": [Candidate(f"d{n}:0", "", f"owl n{number}")] for n in range(5)})
        if changing.merge():
            current[0] = changing.read()
    ended.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(changing._place._open) == len(current[0].segments)


def test_segments_with_an_index_of_their_own(tmp_path, monkeypatch):
    """ScaNN finds the rows of the large segments, exact search the others; dead rows take no place."""
    if not scann.available():
        pytest.skip("ScaNN is not installed")
    rng = np.random.default_rng(0)
    monkeypatch.setattr(segment, "LEAST_INDEXED", 6000)

    def many(ids):
        return {f"d{n:05d}": [Candidate(f"d{n:05d}", "", str(n))] for n in ids}

    centres, vectors = rng.normal(size=(50, 16)), rng.normal(size=(8000, 16)).astype(np.float32)
    vectors = (centres[np.arange(8000) % 50] + 0.3 * vectors).astype(np.float32)
    by_text = Recipe(
        (),
        ENGLISH,
        lambda passages: (vectors[[int(each.text) for each in passages]], np.arange(len(passages), dtype=np.int32)),
        (INDEXES["scann"], {"index.rescore": 0}),
    )
    changing = Documents(
        Generations(tmp_path / "segments", dict, by_text), by_text, lambda: segment.make(many(range(7000)), by_text)
    )
    changing.put(many(range(7000, 8000)))
    # Of the first cluster all but the small segment's are dead: what ScaNN is asked for at first is not enough.
    state, _ = changing.delete([f"d{n:05d}" for n in range(7000) if not n % 7 or not n % 50])
    assert [bool(each.dense) for each in state.segments] == [True, False]
    rows = LiveRows(state)
    left = np.array([int(each.text) for each in rows])
    (part,) = [part for part in rows.dense(*by_text.dense)._parts if part._index is state.segments[0].dense]
    assert (part.search(vectors[:100], 10)[1] >= 0).all()
    found = rows.dense(*by_text.dense).search(vectors[:100], 10)[1]
    exact = ExactIndex(vectors[left]).search(vectors[:100], 10)[1]
    assert (found >= 0).all() and recall(exact, found) > 0.99
    assert (left[found] >= 7000).any()
