"""ICT, BFS, WLP and MLM against section 3 of the paper, worked out by hand."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from retrieval.data.examples import example_kind
from retrieval.data.examples.example_kind import masked_lengths
from retrieval.data.examples.task_kind import TASKS, TaskInputs
from retrieval.data.examples.token_rows import Specials
from retrieval.data.tokenizers.template import Template
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.methods.mlm.task import mask

CLS, SEP, MASK = 101, 102, 103
SPECIALS = Specials(Template((CLS,), (SEP,), (SEP,)), MASK, pad=0, vocab_size=1000)
LENGTHS = {"query": 8, "document": 16, "text": 16}


# Three sentences: [11 12] [21 22 23] [31].
RECORD = {"ids": tf.constant([11, 12, 21, 22, 23, 31]), "lengths": tf.constant([2, 3, 1])}
RECORD |= {"title": tf.constant([5, 6]), "lead_ids": tf.constant([41, 42, 51]), "lead_lengths": tf.constant([2, 1])}
RECORD |= {"document_id": tf.constant(77), "counts": tf.constant([1, 1, 2])}
VOCABULARY = WordPiece([*SPECIAL_TOKENS, "ant", "bee"])
ICT = {
    (CLS, 11, 12, SEP): (CLS, 5, 6, SEP, 21, 22, 23, 31, SEP),
    (CLS, 21, 22, 23, SEP): (CLS, 5, 6, SEP, 11, 12, 31, SEP),
    (CLS, 31, SEP): (CLS, 5, 6, SEP, 11, 12, 21, 22, 23, SEP),
}


def draw(task, n=300, lengths=LENGTHS, **options):
    make, draws = TASKS[task].maker(TaskInputs(VOCABULARY, SPECIALS, options, {task: 0.5})), []
    make_of_seed = tf.function(lambda seed: make(RECORD, seed, lengths))
    for i in range(n):
        example = make_of_seed(tf.constant([7, i]))
        assert example["document_id"].numpy().tolist() == [77]
        draws.append({side: tuple(tf.reshape(example[side], [-1]).numpy().tolist()) for side in ("query", "document")})
    return draws


def test_ict_takes_a_sentence_out_of_its_passage():
    pairs = [(d["query"], d["document"]) for d in draw("ict", ict_removal=1.0)]
    assert all(ICT[query] == document for query, document in pairs)
    shares = collections.Counter(query for query, _ in pairs)
    assert len(shares) == 3 and min(shares.values()) > 70  # uniform over sentences: 100 each, sd 8


@pytest.mark.parametrize("task", ["bfs", "wlp"])
def test_bfs_and_wlp_ask_with_lead_sentences(task):
    pairs = collections.Counter((d["query"], d["document"]) for d in draw(task))
    document = (CLS, 11, 12, 21, 22, 23, 31, SEP)
    assert set(pairs) == {((CLS, 41, 42, SEP), document), ((CLS, 51, SEP), document)}
    assert min(pairs.values()) > 110


def test_mlm_masks_15_percent_as_bert_does():
    ids = tf.range(200, 600)
    record, lengths = {"ids": ids}, {"text": 402}
    specials, drawn = SPECIALS._replace(vocab_size=4), set()
    kept, of_seed = collections.Counter(), tf.function(lambda seed: mask(record, seed, lengths, specials))
    for i in range(40):
        example = of_seed(tf.constant([3, i]))
        text, positions, labels = (example[k].numpy() for k in ("text", "positions", "labels"))
        original = np.concatenate([[CLS], ids.numpy(), [SEP]])
        assert len(positions) == 60 and len(set(positions)) == 60  # 15 % of 400
        np.testing.assert_array_equal(labels, original[positions])
        untouched = np.setdiff1d(np.arange(402), positions)
        np.testing.assert_array_equal(text[untouched], original[untouched])
        assert 0 not in positions and 401 not in positions
        drawn.update(text[positions][text[positions] < 200].tolist())
        kept.update(np.where(text[positions] == MASK, "mask", np.where(text[positions] == labels, "same", "random")))
    assert drawn == {1, 2, 3, MASK}  # and not 0, which is padding
    shares = {name: count / 2400 for name, count in kept.items()}
    assert shares["mask"] == pytest.approx(0.8, abs=0.03)
    assert shares["same"] == pytest.approx(0.1, abs=0.02) and shares["random"] == pytest.approx(0.1, abs=0.02)


def test_a_full_row_holds_every_masked_token():
    places = [masked_lengths(text)["positions"] for text in range(5, 513)]
    assert places == [max(1, round(0.15 * (text - 2))) for text in range(5, 513)]
    assert places == np.maximum(1, example_kind.share(tf.range(3, 511), example_kind.PERCENT)).tolist()
    for text in (192, 352, 392):  # of which 15 % are 28.5, 52.5 and 58.5
        example = mask({"ids": tf.range(200, 600)}, tf.constant([3, 1]), {"text": text}, SPECIALS)
        assert len(example["positions"]) == places[text - 5]
