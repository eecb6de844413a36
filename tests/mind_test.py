"""MIND: news and impressions as a set, as labelled examples, and as pages to rank."""

import datetime
import itertools
import json
import shutil
import sys

import numpy as np
import pytest
from conftest import REPOSITORY
from support import tiny
from support.tiny import execute

from retrieval.common.errors import UserError
from retrieval.data.labelled import labelled_format, pair_shards
from retrieval.data.labelled.labelled_format import Settings
from retrieval.data.sets.set_format import SETS, Context
from retrieval.data.tokenizers.vocab import SEPARATOR, SPECIAL_TOKENS, WordPiece
from retrieval.methods.mind import impressions, set_and_format
from retrieval.methods.mind.stage import _predictions as predictions
from retrieval.methods.mind.stage import _read as read_pages
from retrieval.methods.mind.stage import check
from retrieval.runs.pipeline import runner
from retrieval.runs.pipeline.run import Run

LOCK = REPOSITORY / "requirements.lock"
WORDS = "fox dog owl hen cow pig rat elk".split()
ABSTRACTS = [f"of a {word}" if i % 2 else "" for i, word in enumerate(WORDS)]
NEWS = "".join(f"N{i}\tnews\tsub\tthe {WORDS[i]}\t{ABSTRACTS[i]}\turl\t[]\t[]\n" for i in range(len(WORDS)))
ROWS = [
    ("1", "U1", "11/13/2019 9:05:58 AM", "N0 N1", "N2-1 N3-0"),
    ("2", "U2", "11/13/2019 1:00:00 PM", "N1 N9", "N4-0 N2-1 N8-0"),
    ("3", "U3", "11/13/2019 2:00:00 PM", "", "N4-1 N5-0"),
    ("4", "U1", "11/14/2019 12:00:00 AM", "N0 N1 N2", "N3-0 N5-1 N2-0"),
    ("5", "U4", "11/14/2019 9:00:00 AM", "", "N2-1 N6-0"),
    ("6", "U5", "11/14/2019 9:00:00 AM", "N7", "N2-0 N6-0"),
]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "news.tsv").write_text(NEWS)
    (tmp_path / "behaviors.tsv").write_text("".join("\t".join(row) + "\n" for row in ROWS))
    return tmp_path / "news.tsv", tmp_path / "behaviors.tsv"


def read_set(files, tmp_path, split="2019-11-14"):
    (value,) = SETS["mind"].read(",".join(map(str, files)), Context({set_and_format.SPLIT: split}, tmp_path, tmp_path))
    return value


def test_impressions_from_the_split_on_are_the_set(files, tmp_path, caplog):
    value = read_set(files, tmp_path)
    assert value.queries == {"4": f"the owl {SEPARATOR} the dog {SEPARATOR} the fox", "5": SEPARATOR}
    assert value.qrels == {"test": {"4": {"N5": 1}, "5": {"N2": 1}}}
    assert [(item.id, item.title, item.text) for item in value.candidates][:2] == [  # as news.tsv has them
        ("N2", "", "the owl"),
        ("N3", "the hen", "of a hen"),
    ]
    counted = ("3 impressions before", "1 clicks of histories on", "1 unknown news", "1 impressions without a click")
    assert all(each in caplog.text for each in counted)


def test_impressions_before_the_split_are_trained_on(files, tmp_path):
    settings = Settings("", "", str(files[0]), 0, "2019-11-14")
    assert labelled_format.format_of(files[1], settings).name == "mind"
    with labelled_format.grouped([files[1]], settings, tmp_path, 9) as (groups, counts):
        found = {q: tuple([c.id for c in side] for side in sides) for q, *sides in (group[:3] for group in groups)}
    assert found == {f"the dog {SEPARATOR} the fox": (["N2"], ["N3"]), "the dog": (["N2"], ["N4"])}
    assert counts.left_out["impressions of the evaluation set"] == 3
    assert counts.left_out["impressions of users without a history"] == 1


def test_a_click_has_the_negatives_of_its_own_page(files, tmp_path):
    """Pages of the same history are one query; what was clicked on one of them is no negative on another."""
    pages = [("N2-1 N3-0 N4-0 N5-0", 8), ("N5-1 N6-0 N2-0", 9), ("N7-1", 10)]
    files[1].write_text("".join(f"{at}\tU1\t11/13/2019 {at}:00:00 AM\tN0\t{shown}\n" for shown, at in pages))
    settings = Settings("", "", str(files[0]), 0)
    with labelled_format.grouped([files[1]], settings, tmp_path, sys.maxsize) as (groups, _):
        found = [([c.id for c in p], {c.id for c in n}) for _, p, n, *_ in groups.apart(100)]
        assert sorted(found) == [(["N2"], {"N3", "N4"}), (["N5"], {"N6"}), (["N7"], set())]
        assert [len(n) for _, p, n, *_ in groups.apart(1) if p[0].id == "N2"] == [1]
        first = next(iter(groups)).query
        assert not [*groups.where(lambda query: query != first).apart(1)]
        vocabulary = WordPiece([*SPECIAL_TOKENS, *WORDS, "the", "of", "a"])
        told = pair_shards.PairWriter(groups, vocabulary, apart=lambda: groups.apart(100)).write(tmp_path, 1)
    assert (told["pairs"], told["most positives"], told["negatives per pair"]) == (3, 3, 1.0)


@pytest.mark.parametrize(
    ("number", "row", "message"),
    [
        (0, ("N9", "a"), r"line 9: 2 columns, and news\.tsv of MIND has 8"),
        (1, ("7", "U", "11/14/2019 9:00:00 AM", "N1", "N2"), "line 7: 'N2': news that .* as N3-1 or N3-0, as"),
        (1, ("7", "U", "2019-11-14", "N1", "N2-1"), "line 7: the time '2019-11-14' is not written as"),
    ],
)
def test_broken_lines_end_with_file_and_line(files, tmp_path, number, row, message):
    with files[number].open("a") as file:
        file.write("\t".join(row) + "\n")
    with pytest.raises(UserError, match=message):
        read_set(files, tmp_path)


def hidden(rows):
    """Rows as the official test half has them: nobody is told what was clicked."""
    return "".join("\t".join((*row[:4], row[4].replace("-1", "").replace("-0", ""))) + "\n" for row in rows)


def test_pages_with_hidden_clicks_are_asked_and_not_judged(files, tmp_path, caplog):
    files[1].write_text(hidden(ROWS))
    value = read_set(files, tmp_path)
    assert list(value.queries) == ["4", "5", "6"] and value.qrels == {}
    assert "ranked and not measured" in caplog.text
    with files[1].open("a") as file:
        file.write("\t".join(("7", *ROWS[0][1:])) + "\n")
    with pytest.raises(UserError, match=r"line 7: 'N2-1 N3-0': .* written as N3, which does not say"):
        read_set(files, tmp_path)


def test_a_prediction_file_has_each_page_and_all_news_on_it():
    def page(id, shown, clicked, known):
        return set_and_format.Impression(id, "U", datetime.datetime(2019, 11, 14), (), shown, clicked, known)

    pages = [
        page("1", ("N1", "N2"), (True, False), (True, False, True)),
        page("2", ("N1", "N2"), (False, False), (True, True)),  # no click: not asked
        page("3", (), (), (False,)),
        page("4", ("N1", "N2"), (), (True, True)),
    ]
    assert [item.is_asked for item in pages] == [True, False, False, True]
    scores = {"1": np.array([0.1, 0.2]), "4": np.array([0.3, 0.7])}
    assert list(predictions(pages, scores)) == ["1 [2,3,1]", "2 [1,2]", "3 [1]", "4 [2,1]"]
    no_word = {"1": np.array([0.1, -np.inf])}  # BM25's score of news that share no word with the history
    assert next(predictions(pages, no_word)) == "1 [1,3,2]"


@pytest.mark.parametrize(("split", "clicked"), [("2019-11-14", {"N2", "N4"}), ("", {"N2", "N4", "N5"})])
def test_the_tests_own_clicks_tell_nothing_from_another_file(files, tmp_path, split, clicked):
    """A copy of the evaluated file has its test half too; without a time all of another file is before the test."""
    copy = shutil.copy(files[1], tmp_path / "copy.tsv")
    _, history = read_pages(*files, [copy], split)
    assert set(+history.clicks) == clicked and ("U4" in history.users) == (not split)
    assert split or not read_pages(*files, [], split)[1].users


def of_order(ranks, clicked):
    """The metrics as the official evaluation's formulas have them, one by one."""
    score = 1 / ranks
    pairs = [(a, b) for a in score[clicked] for b in score[~clicked]]
    order = np.argsort(score)[::-1]
    hits = clicked[order].astype(float)
    discount = np.log2(np.arange(len(hits)) + 2)
    ndcg = {k: (hits / discount)[:k].sum() / (np.sort(hits)[::-1] / discount)[:k].sum() for k in (5, 10)}
    return {
        "AUC": np.mean([a > b for a, b in pairs]),
        "MRR": (hits / (np.arange(len(hits)) + 1)).sum() / hits.sum(),
        "nDCG@5": ndcg[5],
        "nDCG@10": ndcg[10],
    }


@pytest.mark.parametrize(
    "scores",
    [[3, 1, 6, 2, 0, 5, 4], [1, 1, 1, 1, 1, 1, 1], [2, 0, 2, 0, 0, 2, 1], [-np.inf, 3, -np.inf, 3, 3, -np.inf, 3]],
)
def test_metrics_are_the_official_ones_over_all_orders_of_equal_scores(scores):
    scores, clicked = np.array(scores, float), np.arange(7) < 3  # on a page that has the clicked ones first
    every = map(list, itertools.permutations(range(7)))
    orders = {tuple(np.argsort(np.lexsort((order, -scores))) + 1) for order in every}
    of_all = [of_order(np.array(ranks), clicked) for ranks in orders]
    expected = {name: np.mean([metrics[name] for metrics in of_all]) for name in impressions.METRICS}
    assert impressions.of_impression(scores, clicked) == pytest.approx(expected)
    assert len(set(scores)) > 1 or expected["AUC"] == 0.5


def test_a_run_ranks_the_pages_of_the_set(files, tmp_path):
    with files[1].open("a") as file:  # more to train on
        file.writelines(f"1{i}\tV{i}\t11/12/2019 9:00:00 AM\tN{i}\tN0-1 N7-0\n" for i in range(1, 7))
        file.writelines(f"2{i}\tW{i}\t11/12/2019 9:00:00 AM\tN{i} N0\tN0-1 N7-0\n" for i in range(1, 7))
        file.write("30\tX\t1/1/0001 1:05:58 AM\tN1\tN2-1 N7-0\n")  # local time has no such year everywhere
    WordPiece([*SPECIAL_TOKENS, *WORDS, "the", "of", "a"]).save(tmp_path / "vocab.txt")
    changes = {"vocab": str(tmp_path / "vocab.txt"), "pairs.files": str(files[1]), "pairs.collection": str(files[0])}
    changes |= {"sets.mind": ",".join(map(str, files)), "sets.mind_split": "2019-11-14", "data.query_length": 16}
    changes |= {"data.document_length": 16, "data.lanes": 1, "data.negatives": 1, "train.batch_size": 8}
    changes |= {"train.steps": 2, "loop.validate_every": 0, "split.shards": 1, "split.validation": 0.1}
    run = Run(tiny.make_config("mind", **tiny.CHEAP | changes), tmp_path / "run", LOCK)
    execute(run)
    rows = json.loads((run.folder / "impressions" / "impressions.json").read_text())
    assert {"popularity", "most recent", "bm25", "dense"} <= {row["system"] for row in rows}
    parts = {row["impressions of"]: row["count"] for row in rows if row["system"] == "dense"}
    assert parts == {"all": 2, "cold users": 1, "no history": 1, "cold news": 1}
    assert (run.folder / "impressions" / "popularity.txt").read_text() == "4 [2,3,1]\n5 [1,2]\n6 [1,2]\n"
    assert (run.folder / "impressions" / "most_recent.txt").read_text() == "4 [2,1,3]\n5 [2,1]\n6 [1,2]\n"
    assert "± " in (run.folder / "impressions" / "impressions.md").read_text()

    (tmp_path / "test.tsv").write_text(hidden(ROWS))
    changes |= {"sets.mind": f"{files[0]},{tmp_path / 'test.tsv'}", "sets.mind_split": "", "base": str(run.folder)}
    changes |= {"pairs.files": "", "pairs.collection": ""}  # those of the base tell what is popular
    changes["stages"] = ("sets", "encode", "index", "impressions")
    asked = Run(tiny.make_config("mind", **tiny.CHEAP | changes), tmp_path / "asked", LOCK)
    execute(asked)
    lines = (asked.folder / "impressions" / "dense.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["1", "2", "3", "4", "5", "6"]
    assert "there are predictions, and no metrics" in (asked.folder / "impressions" / "impressions.md").read_text()


@pytest.mark.parametrize(
    ("ended", "begins", "message"),
    [
        ("2019-11-14", "", r"mind_split='': .*/base has learnt from .*behaviors\.tsv before 2019-11-14: set that time"),
        ("", "2019-11-14", r"'2019-11-14': .*/base has learnt from .*behaviors\.tsv at any time: set config"),
        ("2019-11-14", "2019-11-15", ""),
    ],
)
def test_no_page_that_a_base_has_learnt_from_is_tested_on(files, tmp_path, ended, begins, message):
    changes = {"pairs.files": str(files[1]), "stages": ("pairs",), "sets.mind_split": ended}
    runner.open_run(Run(tiny.make_config("mind", **changes), tmp_path / "base", LOCK))
    changes = {"sets.mind": ",".join(map(str, files)), "base": str(tmp_path / "base"), "sets.mind_split": begins}
    run = Run(tiny.make_config("mind", **changes, stages=("sets", "impressions")), tmp_path / "ranking", LOCK)
    if message:
        with pytest.raises(UserError, match=message):
            check(run)
        run.config.sets.mind = f"{files[0]},other.tsv"
    check(run)
