"""The registry, the converters and the batches, over the toy corpus."""

import collections
import contextlib
import functools
import itertools
import shutil

import jax
import numpy as np
import pytest
import seqio
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from support import toy_corpus

from retrieval.common.errors import UserError
from retrieval.data import holdout
from retrieval.data.corpora import passages
from retrieval.data.corpora.passages import Limits
from retrieval.data.examples import seqio_tasks
from retrieval.data.examples.batches import Batches, Drawn
from retrieval.data.examples.example_kind import PAIRS, masked_lengths, pair_lengths
from retrieval.data.examples.packing import Packing, Rows
from retrieval.data.examples.seqio_classes import Converter
from retrieval.data.examples.task_kind import TaskData
from retrieval.data.labelled import pair_shards
from retrieval.data.labelled.grouping import Example, digest, of_set
from retrieval.data.sets.beir import Candidate, RetrievalSet
from retrieval.data.sets.held_out_texts import LEAST, Occurrences
from retrieval.data.shards import prepared_corpus
from retrieval.data.tokenizers.vocab import WordPiece
from retrieval.training.objectives.in_batch_softmax import InBatchSoftmax

LENGTHS = pair_lengths(query=24, document=64)
K = 3  # hard negatives
DOCUMENTS = "ant bee cow dog elk fox hen owl pig rat yak emu".split()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    settings = prepared_corpus.Settings(None, 300, 4, Limits(longest=60, shortest=10, least=5), chunk_bytes=60 << 20)
    statistics = prepared_corpus.prepare(toy_corpus.source(), folder, settings)
    return folder, WordPiece.load(folder / "vocab.txt"), statistics


def register_tasks(corpus, rates, labelled=None, **kwargs):
    """The name of the tasks, and the examples of each one's epoch."""
    folder, vocabulary, statistics = corpus
    kwargs = {"shuffle_buffer": 64, **kwargs}  # which each lane fills before it gives a batch
    return seqio_tasks.register(TaskData(folder, statistics, labelled), vocabulary, rates, **kwargs)


def register(corpus, **rates):
    return register_tasks(corpus, rates)[0]


PACKING = Packing(4, {"query": Rows(3, 32, "queries"), "document": Rows(2, 80, "documents")})


def batches(corpus, name, seed=0, lanes=2, batch_size=16, devices=8, packing=None, lengths=LENGTHS):
    mesh = jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])
    sharding = NamedSharding(mesh, P("data"))
    drawn = Drawn(name, lengths, Converter(PAIRS, lengths, corpus[1].sep_id), batch_size, lanes, seed)
    return Batches({"": drawn.open_lanes(sharding, packing)}, sharding)


def take(iterator, n):
    return [{name: np.asarray(value) for name, value in next(iterator).items()} for _ in range(n)]


def equal(left, right):
    return all(np.array_equal(a[name], b[name]) for a, b in zip(left, right, strict=True) for name in a)


def test_shapes_and_types(corpus):
    (batch,) = take(batches(corpus, register(corpus, ict=1.0, bfs=1.0, wlp=1.0), lanes=1), 1)
    sides, numbers = {"query": (16, 24), "document": (16, 1, 64)}, {"document_id": (16, 1), "log_q": (16, 1)}
    expected = sides | {f"{side}_types": shape for side, shape in sides.items()} | numbers
    assert {name: value.shape for name, value in batch.items()} == expected
    vocabulary = corpus[1]
    for document, types in zip(batch["document"][:, 0], batch["document_types"][:, 0]):
        seps = np.flatnonzero(document == vocabulary.sep_id)
        expected = np.zeros(64, int)
        if len(seps) == 2:
            expected[seps[0] + 1 : seps[1] + 1] = 1
        np.testing.assert_array_equal(types, expected)
        assert document[0] == vocabulary.cls_id and (document[seps[-1] + 1 :] == -1).all()


def test_same_seed_same_batches_and_another_seed_others(corpus, tmp_path):
    """Also where they go on from a position that was saved."""
    name = register(corpus, ict=1.0, wlp=1.0)
    iterator = batches(corpus, name, lanes=1)
    first = take(iterator, 3)
    iterator.save(tmp_path)
    rest = take(iterator, 3)
    again = batches(corpus, name, lanes=1)
    assert equal([*first, *rest], take(again, 6))
    assert not equal(first, take(batches(corpus, name, seed=1, lanes=1), 3))
    again.restore(tmp_path)
    assert equal(rest, take(again, 3))


def test_ict_and_bfs_draw_different_passages_at_once(corpus):
    """Of one seed, and from the same record of a file on, a quarter of the examples would be copies."""
    name, _ = register_tasks(corpus, {"ict": 1.0, "bfs": 1.0}, shuffle_buffer=4)
    ids = np.concatenate([batch["document_id"][:, 0] for batch in take(batches(corpus, name, lanes=1), 4)])
    assert corpus[2]["tasks"]["bfs"]["pairs"] > 2 * len(ids) == 128
    assert len(set(ids)) >= len(ids) - 2


def test_same_batches_whatever_the_number_of_devices(corpus):
    name = register(corpus, ict=1.0)
    assert equal(*(take(batches(corpus, name, lanes=1, devices=devices), 3) for devices in (8, 1)))


def be_one_of_two_hosts(monkeypatch, ids):
    """From now on this process is the host of the devices with these numbers alone."""

    def own(self, shape):
        return {device: index for device, index in self.devices_indices_map(shape).items() if device.id in ids}

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(NamedSharding, "addressable_devices_indices_map", own)
    # Outside of a real pod the local rows are all there is of the "global" array.
    monkeypatch.setattr(jax, "make_array_from_process_local_data", lambda sharding, values: values)


def test_a_host_reads_its_devices_lanes(corpus, monkeypatch):
    name = register(corpus, wlp=1.0)
    whole = take(batches(corpus, name, lanes=4), 3)
    be_one_of_two_hosts(monkeypatch, ids := (2, 3, 6, 7))
    iterator = batches(corpus, name, lanes=4)
    assert len(iterator._lanes[""]) == 2
    rows = np.concatenate([[2 * id, 2 * id + 1] for id in ids])
    assert equal([{n: v[rows] for n, v in batch.items()} for batch in whole], take(iterator, 3))


@pytest.mark.long
def test_packed_batches_on_hosts_and_after_a_restart(corpus, monkeypatch, tmp_path):
    """The global batch of one host, and what two hosts have of it, one of them going on from a saved position."""
    name, kwargs = register(corpus, ict=1.0, bfs=1.0), dict(packing=PACKING, devices=2, lanes=4)
    one_host = batches(corpus, name, **kwargs)
    whole, waiting = [], 0
    for _ in range(12):
        whole += take(one_host, 1)
        waiting += sum(len(lane._waiting["query"]) for lane in one_host._lanes[""])
    assert waiting
    assert whole[0]["document"].shape == (4, 2, 80) and whole[0]["document_id"].shape == (16, 1)
    ids, plain = (
        np.concatenate([batch["document_id"][:, 0] for batch in some])
        for some in (whole, take(batches(corpus, name, lanes=4), 12))
    )
    assert (ids != plain).any() and len(set(ids) & set(plain)) > 0.8 * len(set(plain))
    before = batches(corpus, name, **kwargs)
    take(before, 6)
    before.save(tmp_path)
    for host in range(2):
        be_one_of_two_hosts(monkeypatch, (host,))
        iterator = batches(corpus, name, **kwargs)
        iterator.restore(tmp_path)
        halves = [{n: np.split(values, 2)[host] for n, values in batch.items()} for batch in whole[6:]]
        assert equal(halves, take(iterator, 6))


def test_a_position_goes_with_the_files_to_another_folder(corpus, tmp_path):
    """With more data than lies in buffers: the rest is read when training goes on."""
    texts = [Candidate(str(number), "", f"passage {number}") for number in range(8000)]
    examples = [Example(f"question {text.id}", (text,), ()) for text in texts]
    pair_shards.PairWriter(examples, corpus[1]).write(tmp_path / "old", 1)

    def draw(folder):
        name, _ = register_tasks(corpus, {"pairs": 1.0}, labelled=folder, shuffle_buffer=4)
        return batches(corpus, name, lanes=1)

    before = draw(tmp_path / "old")
    take(before, 1)
    before.save(tmp_path)
    expected = take(before, 12)
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    for path in (tmp_path / "old").glob(pair_shards.PATTERN):  # something else is now where they were
        path.write_bytes(b"no shard")
    after = draw(tmp_path / "new")
    after.restore(tmp_path)
    assert equal(take(after, 12), expected)


def test_a_position_of_packed_rows_is_refused_without_them(corpus, tmp_path):
    """They are left out by themselves where the devices do not divide the lanes."""
    name = register(corpus, ict=1.0)
    batches(corpus, name, lanes=1).save(tmp_path)
    (tmp_path / "lane-00000.waiting.npz").touch()
    with pytest.raises(UserError, match=r"began with packed rows, .* does not divide config\.data\.lanes"):
        batches(corpus, name, lanes=1).restore(tmp_path)


@pytest.mark.parametrize("rates", [pytest.param({"bfs": 1.0}, marks=pytest.mark.long), {"ict": 1e-9, "bfs": 1.0}])
def test_every_epoch_draws_every_passage_once_with_another_sentence(corpus, rates):
    """Also where a task begins in the middle of a file, since another begins at its start."""
    register(corpus, **rates)
    name = "bfs"
    epoch = corpus[2]["tasks"]["bfs"]["pairs"]
    dataset = seqio.get_mixture_or_task(name).get_dataset(LENGTHS, shuffle=False, num_epochs=2, seed=1)
    examples = [{k: v for k, v in e.items()} for e in dataset.as_numpy_iterator()]
    assert len(examples) == 2 * epoch
    assert set(collections.Counter(int(e["document_id"][0]) for e in examples).values()) == {2}
    queries = [tuple(e["query"]) for e in examples]
    assert queries[:epoch] != queries[epoch:]


def test_log_q_sums_to_one_over_the_passages(corpus, labelled):
    """Those of labelled pairs, too."""
    for rates in ({"bfs": 2.0, "wlp": 0.5}, {"ict": 1.0, "pairs": 1.0}):
        name, _ = register_tasks(corpus, rates, labelled=labelled[0])
        assert name == "+".join(rates)
        values = {}
        for task in rates:
            dataset = seqio.TaskRegistry.get(task).get_dataset(LENGTHS, shuffle=False, num_epochs=1, seed=0)
            values |= {int(e["document_id"][0]): float(e["log_q"][0]) for e in dataset.as_numpy_iterator()}
        assert np.exp(list(values.values())).sum() == pytest.approx(1, abs=1e-5)


def test_lanes_whose_files_are_empty_are_refused(corpus, tmp_path):
    folder, *others = corpus
    for path in folder.glob("*.tfrecord"):
        (tmp_path / path.name).write_bytes(b"" if "-00003-" in path.name else path.read_bytes())
    seqio_tasks.check_lanes(register_tasks(corpus, {"ict": 1.0, "wlp": 1.0})[1], lanes=4)
    name, examples = register_tasks((tmp_path, *others), {"wlp": 1.0})
    with pytest.raises(UserError, match=r"'wlp': \d+ examples, .* 1 of config\.data\.lanes=4, first lane-00003: "):
        seqio_tasks.check_lanes(examples, lanes=4)
    seqio_tasks.check_lanes(examples, lanes=2)
    seqio_tasks.check_lanes({"wlp": 4000}, lanes=4)  # so many are never all in three of four lanes
    with pytest.raises(UserError, match="none of them in 1 of"):
        seqio_tasks.check_lanes({"wlp": 3999}, lanes=4)
    for path in tmp_path.iterdir():
        path.write_bytes(b"")
    with pytest.raises(UserError, match="lane-00000: no example in its files"):
        take(batches((tmp_path, *others), name, lanes=1, devices=1), 1)


@pytest.mark.parametrize("negatives", [0, K])
def test_lanes_whose_examples_are_all_filtered_out_are_refused(corpus, tmp_path, negatives):
    texts = [Candidate("", "", f"the {animal}") for animal in DOCUMENTS]
    examples = [Example("with", (texts[0],), tuple(texts[2:4])), Example("without", (texts[1],))]
    pair_shards.PairWriter(examples, corpus[1]).write(tmp_path, 2)
    _, found = register_tasks(corpus, {"pairs": 1.0}, labelled=tmp_path, negatives=negatives)
    with pytest.raises(UserError, match="'pairs': 1 examples") if negatives else contextlib.nullcontext():
        seqio_tasks.check_lanes(found, 2)


SHARE = 0.1
TASK_LENGTHS = {"ict": LENGTHS, "bfs": LENGTHS, "wlp": LENGTHS, "mlm": masked_lengths(64)}
TASK_LENGTHS["next_sentence"] = masked_lengths(128) | {"is_random": 1}


def epoch_of(corpus, name, **kwargs):
    """The examples of an epoch, and how many it is said to have."""
    task, sizes = register_tasks(corpus, {name: 1.0}, **kwargs)
    dataset = seqio.TaskRegistry.get(task).get_dataset(TASK_LENGTHS[name], shuffle=False, num_epochs=1, seed=0)
    return list(dataset.as_numpy_iterator()), sizes[name]


@pytest.fixture(scope="module")
def epochs(corpus):
    """The examples of a task's whole epoch, by its name."""
    return functools.cache(lambda name: epoch_of(corpus, name)[0])


def fields(example):
    """The rows of tokens of an example; masked texts as they were."""
    if "text" not in example:
        return [example["query"].tolist(), example["document"][0].tolist()]
    text = example["text"].copy()
    text[example["positions"]] = example["labels"]
    return [text.tolist()]


@pytest.fixture(scope="module")
def held_out(corpus):
    """The ids of the held-out passages of the toy corpus, and their sentences, of four tokens or more."""
    vocabulary = corpus[1]
    ids, sentences = set(), set()
    for number in range(120):
        for passage in passages.cut(toy_corpus.article(number), vocabulary, Limits(60, 10, 5))[1]:
            if holdout.is_held_out(passage.id, SHARE):
                ids.add(holdout.document_id(passage.id))
                ends = np.cumsum((0, *passage.tokens.lengths))
                sentences.update(passage.tokens.ids[start:end] for start, end in itertools.pairwise(ends))
    assert len(ids) > 20 and min(map(len, sentences)) >= LEAST
    return ids, sentences


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long) if n != "ict" else n for n in TASK_LENGTHS])
def test_training_reads_no_sentence_that_is_held_out(corpus, held_out, epochs, name):
    """In no field of an example, though many stand in leads that are asked with, and some in other passages."""
    folder, vocabulary, statistics = corpus
    ids, sentences = held_out
    left = (folder, vocabulary, holdout.statistics_at(statistics, SHARE))
    examples, size = epoch_of(left, name, held_out=SHARE)
    assert len(examples) == size > 20
    assert not any(int(example["document_id"][0]) in ids for example in examples if "document_id" in example)
    occurrences = Occurrences(sentences)
    found, everything = (
        {sentence for example in some for row in fields(example) for sentence in occurrences.inside(row)}
        for some in (examples, epochs(name))
    )
    assert not found and len(everything) > 10


@pytest.mark.parametrize("name", ["ict", *(pytest.param(name, marks=pytest.mark.long) for name in ("bfs", "wlp"))])
def test_validation_has_the_held_out_passages_alone(corpus, held_out, epochs, name):
    examples, _ = epoch_of(corpus, name, held_out=SHARE, validation=True)
    everything = {int(example["document_id"][0]) for example in epochs(name)}
    assert {int(example["document_id"][0]) for example in examples} == held_out[0] & everything


@pytest.fixture(scope="module")
def labelled(corpus, tmp_path_factory):
    """Ten questions; question i has candidate i, and question 0 also candidate 1."""
    folder = tmp_path_factory.mktemp("pairs")
    queries = {f"q{i}": f"what is the {toy_corpus.title(i)}" for i in range(10)}
    candidates = [Candidate(f"c{i}", f"It is {toy_corpus.title(i)}.", f"It is a passage {i}.") for i in range(10)]
    qrels = {f"q{i}": {f"c{i}": 1} for i in range(10)} | {"q0": {"c0": 1, "c1": 1, "c2": 0}}
    value = RetrievalSet("training", queries, candidates, {"train": qrels})
    return folder, value, pair_shards.PairWriter(training_examples(value), corpus[1]).write(folder, 4)


def training_examples(value):
    return list(of_set(value, "train", {text.id: text for text in value.candidates}.get))


@pytest.fixture(scope="module")
def hard(corpus, tmp_path_factory):
    """Eight queries of one positive and 0, 1, 2, ... negatives, and one of two positives and five negatives."""
    folder = tmp_path_factory.mktemp("hard")
    texts = [Candidate("", "", f"the {animal}") for animal in DOCUMENTS]
    examples = [Example(f"animal {i}", (texts[i],), tuple(texts[i + 1 : 2 * i + 1])) for i in range(6)]
    examples += [Example(f"animal {i}", (texts[i],), tuple(texts[8:])) for i in (6, 7)]
    examples.append(Example("two", (texts[0], texts[1]), tuple(texts[2:7])))
    return folder, examples, pair_shards.PairWriter(examples, corpus[1]).write(folder, 2)


def drawn(corpus, folder, negatives=K, epochs=1, seed=0):
    task, count = register_tasks(corpus, {"pairs": 1.0}, labelled=folder, negatives=negatives)
    lengths = pair_lengths(24, 64, negatives)
    dataset = seqio.TaskRegistry.get(task).get_dataset(lengths, shuffle=False, num_epochs=epochs, seed=seed)
    decode = corpus[1].decode
    found = [
        (decode(e["query"]), [decode(ids) for ids in e["document"]], e["document_id"].tolist(), e["log_q"])
        for e in dataset.as_numpy_iterator()
    ]
    assert len(found) == epochs * count["pairs"]
    return found


def test_hard_negatives_follow_the_positive(corpus, hard):
    folder, examples, statistics = hard
    assert (statistics["pairs"], statistics["pairs with negatives"]) == (10, 9)
    known = {e.query: tuple({text.text for text in side} for side in e[1:3]) for e in examples}
    for query, (positive, *negatives), ids, _ in drawn(corpus, folder):
        assert positive in known[query][0] and set(negatives) <= known[query][1] and len(negatives) == K
        # Fewer than K: each is taken before one is again.
        assert len(set(negatives)) == min(K, len(known[query][1]))
        assert ids == [holdout.document_id(labelled_digest(text)) for text in (positive, *negatives)]


def labelled_digest(text):
    return digest(Candidate("", "", text)).hex()


@pytest.mark.parametrize("keeps", [pytest.param(False, marks=pytest.mark.long), True])
def test_log_q_counts_positives_and_negatives(corpus, hard, tmp_path, keeps):
    """The expectation over the draws, by hand, and over many epochs; a lone positive fills the places of negatives."""
    folder, examples, _ = hard
    if keeps:
        folder = tmp_path
        pair_shards.PairWriter(examples, corpus[1], keep_lone=True).write(folder, 2)
    expected, records = collections.Counter(), 9 + keeps
    for _, golds, negatives, *_ in examples:
        for gold in golds if negatives or keeps else ():
            fills = negatives or (gold,)
            expected[gold.text] += 1
            expected.update({text.text: K / len(fills) for text in fills})
    seen = collections.Counter()
    epochs = 200
    for _, documents, _, log_q in drawn(corpus, folder, epochs=epochs):
        seen.update(documents)
        for text, value in zip(documents, log_q):
            assert np.exp(value) == pytest.approx(expected[text] / records, rel=1e-5)
    assert seen.keys() == expected.keys() and seen.total() == epochs * records * (1 + K)
    for text, count in seen.items():
        assert count / epochs == pytest.approx(expected[text], rel=0.15)


def test_only_the_first_positives_are_trained_on(corpus, hard, tmp_path):
    statistics = pair_shards.PairWriter(hard[1], corpus[1], positives=1).write(tmp_path, 2)
    assert (statistics["pairs"], statistics["positives left out"]) == (9, 1)
    trained = {(query, documents[0]) for query, documents, *_ in drawn(corpus, tmp_path, negatives=0)}
    assert ("two", "the ant") in trained and ("two", "the bee") not in trained


KNOWN = [
    Example("who sang", tuple(Candidate("", "", f"the {animal}") for animal in ("ant", "bee", "cow"))),
    Example("Who  Sang", (Candidate("", "", "the dog"),)),  # alike to an uncased model
    Example("who else", (Candidate("", "", "the ant"), Candidate("", "", "the fox"))),
]


def test_a_batch_has_the_ids_of_all_known_positives(corpus, tmp_path):
    id_of = {animal: holdout.document_id(labelled_digest(f"the {animal}")) for animal in DOCUMENTS}
    sung, else_ = ({id_of[a] for a in animals} for animals in (("ant", "bee", "cow", "dog"), ("ant", "fox")))
    for number, positives in enumerate((0, 1)):
        folder = tmp_path / str(number)
        assert pair_shards.PairWriter(KNOWN, corpus[1], positives).write(folder, 2)["most positives"] == 4
        task, _ = register_tasks(corpus, {"pairs": 1.0}, labelled=folder, optional=("positive_ids",))
        lengths = pair_lengths(24, 64, positives=4)
        (batch,) = take(batches(corpus, task, devices=2, lengths=lengths, batch_size=8), 1)
        assert batch["positive_ids"].shape == (8, 4)
        seen = set()
        for query, own, known in zip(batch["query"], batch["document_id"][:, 0], batch["positive_ids"]):
            seen.add(text := corpus[1].decode(query))
            assert set(known.tolist()) == (else_ if text == "who else" else sung) and own in known
        assert seen == {"who sang", "who else"}


@pytest.mark.parametrize("packed", [pytest.param(False, marks=pytest.mark.long), True])
def test_the_loss_with_hard_negatives_equals_numpys(corpus, hard, packed):
    """From the shards to the loss: a text's embedding is the sum of its tokens' vectors."""
    lengths, negatives = pair_lengths(8, 8, K, hard[2]["most positives"]), 1 + K
    task, _ = register_tasks(corpus, {"pairs": 1.0}, labelled=hard[0], negatives=K, optional=("positive_ids",))
    packing = Packing(4, {"query": Rows(3, 16, "queries"), "document": Rows(7, 16, "documents")}) if packed else None
    (batch,) = take(batches(corpus, task, batch_size=8, devices=2, packing=packing, lengths=lengths), 1)
    assert batch["document_id"].shape == batch["log_q"].shape == (8, negatives)
    assert batch["document"].shape == ((2, 7, 16) if packed else (8, negatives, 8))
    table = np.random.default_rng(0).normal(size=(300, 5)).astype(np.float32)
    query, document = (embedded(batch, side, table) for side in ("query", "document"))
    document = document.reshape(8, negatives, -1)
    loss, _ = InBatchSoftmax(temperature=2.0)(query, document, batch)
    logits = query @ document.reshape(-1, 5).T / 2 - batch["log_q"].reshape(-1)
    ids = batch["document_id"].reshape(-1)
    for row, values in enumerate(logits):
        own = row * negatives
        rivals = [i for i in range(len(ids)) if i == own or ids[i] not in batch["positive_ids"][row]]
        assert float(loss[row]) == pytest.approx(np.log(np.exp(values[rivals]).sum()) - values[own], rel=1e-4, abs=1e-4)


def embedded(batch, side, table):
    """The sum of the vectors of the tokens of every text, in the order of the examples."""
    ids = batch[side]
    if f"{side}_segments" not in batch:
        return table[ids.reshape(-1, ids.shape[-1])].sum(axis=1)
    segments, texts = batch[f"{side}_segments"], range(1, batch[f"{side}_starts"].shape[1] + 1)
    lanes = range(len(ids))
    return np.stack([table[ids[lane][segments[lane] == text]].sum(axis=0) for lane in lanes for text in texts])
