"""Tables, plots and claims of a study, against values worked out by hand."""

import copy
import dataclasses
import json
import math

import numpy as np
import pytest
import scipy.stats

from retrieval.errors import UserError
from retrieval.evaluation import per_query, significance
from retrieval.studies import study_report
from retrieval.studies.claims import Cell, Claim, Line, Report, Row, StudyPlot, StudyTable, claim, plot, table
from retrieval.studies.study_results import Results, compare


@pytest.fixture(scope="module", autouse=True)
def plots():
    """Real ones."""


LEGEND = (
    "Values are in percent: the mean of n runs that differ by their seed alone ± their sample standard deviation "
    "(divisor n − 1); without ± it is a single run. In brackets: the paper's value. Bold: our best of a column among "
    "the rows with the same first label (among all rows, where there is one label). –: no result, see Missing.\n\n"
)
OUTCOMES = study_report._OUTCOMES + "\n"
THREE, OTHER = ("mlm-0", "mlm-1", "mlm-2"), ("ict-0", "ict-1", "ict-2")


def write_study(results, title, tables, plots, claims=(), preamble=()):
    study_report.write_study(results, Report(title, *map(tuple, (preamble, tables, plots, claims))))


def results_of(folder):
    """Of the runs of a study, all of which are done."""
    return Results(folder, [path.name for path in folder.iterdir()])


def write_run(folder, name, values, system="dense", **other):
    """`values`: metric -> fraction."""
    path = folder / name / "results.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    place = dict(dataset="reqa", split="pair") | other
    rest = dict(queries=9, seconds=1.5, step=100)
    rows += [dict(system=system, metric=metric, value=value, **place, **rest) for metric, value in values.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows))


def write_runs(folder, names, metric, values):
    for name, value in zip(names, values, strict=True):
        write_run(folder, name, {metric: value})


def spec(runs, metric="Success@1", **fields):
    return {"runs": list(runs), "system": "dense", "metric": metric, "dataset": "reqa", "split": "pair"} | fields


def cell(runs, metric="Success@1", **fields):
    return Cell(**spec(runs, metric, **fields) | {"runs": tuple(runs)})


TABLE = {
    "title": "Table 3",
    "header": ["train/test", "task", "R@1", "R@100"],
    "rows": [
        {"labels": ["1%", "BM25"], "cells": [spec(["bm25"], system="bm25"), spec(["bm25"], "Success@100")]},
        {"labels": ["1%", "MLM"], "cells": [spec(THREE, paper=0.18), spec(THREE, "Success@100", paper=3.9)]},
        {"labels": ["1%", "ICT|x"], "cells": [spec(OTHER, paper=37.43), spec(OTHER, "Success@100")]},
        {"labels": ["5%", "ICT"], "cells": [spec(["x-0", "x-1"]), spec(["late"], "Success@100", paper=93.64)]},
    ],
    "notes": "As in the paper.",
}


@pytest.fixture
def folder(tmp_path):
    """Table 3 half done: ict-2 failed, late did not start, bm25 has one of its two rows."""
    write_run(tmp_path, "bm25", {"Success@1": 0.3}, system="bm25")
    write_runs(tmp_path, THREE, "Success@1", [0.30, 0.32, 0.34])
    write_runs(tmp_path, THREE, "Success@100", [0.9, 0.9, 0.9])
    write_runs(tmp_path, OTHER[:2], "Success@1", [0.40, 0.44])
    write_runs(tmp_path, OTHER[:2], "Success@100", [0.9, 0.90004])
    (tmp_path / "ict-2").mkdir()
    write_runs(tmp_path, ["x-0", "x-1"], "Success@1", [0.5, 0.6])
    return tmp_path


def test_a_half_finished_table(folder):
    write_study(results_of(folder), "Study", [table(TABLE)], [], preamble=["First.", "Second."])
    # 40 and 44: mean 42, deviation sqrt(8 / 1). 90 and 90.004 are both the best, as they look the same.
    assert (folder / "study.md").read_text() == (
        "# Study\n\nFirst.\n\nSecond.\n\n" + LEGEND + "## Table 3\n\n"
        "| train/test | task | R@1 | R@100 |\n"
        "| :--- | :--- | ---: | ---: |\n"
        "| 1% | BM25 | 30.00 | – |\n"
        "| 1% | MLM | 32.00 ± 2.00 (0.18) | **90.00** ± 0.00 (3.90) |\n"
        "| 1% | ICT\\|x | **42.00** ± 2.83, n=2 of 3 (37.43) | **90.00** ± 0.00, n=2 of 3 |\n"
        "| 5% | ICT | 55.00 ± 7.07, n=2 | – (93.64) |\n\n"
        "n = 3 where a cell has ± and names no n.\n\n"
        "As in the paper.\n\n"
        "## Missing\n\n"
        "- bm25: no dense, reqa, pair: Success@100\n"
        "- ict-2: not done\n"
        "- late: not done\n"
    )
    assert not (folder / "plots").exists()


def test_the_numbers_as_json(folder):
    write_study(results_of(folder), "Study", [table(TABLE)], [])
    records = json.loads((folder / "study.json").read_text())
    found = {(*record["labels"], record["column"]): record for record in records}
    assert list(found)[:2] == [("1%", "BM25", "R@1"), ("1%", "BM25", "R@100")] and len(found) == 8
    assert found["1%", "ICT|x", "R@1"] == spec(OTHER, paper=37.43) | {
        "table": "Table 3",
        "labels": ["1%", "ICT|x"],
        "column": "R@1",
        "values": [40.0, 44.0, None],
        "mean": 42.0,
        "standard_deviation": 2.828427,
        "missing": ["ict-2"],
    }
    single, nothing = found["1%", "BM25", "R@1"], found["5%", "ICT", "R@100"]
    assert (single["mean"], single["standard_deviation"], single["paper"], single["missing"]) == (30, None, None, [])
    assert (nothing["values"], nothing["mean"], nothing["missing"]) == ([None], None, ["late"])


def test_nothing_has_run_yet(tmp_path):
    lines = (Line("dense", ((1, cell(["a"])), (5, cell(["b"])))),)
    fields = {"text": "ICT beats MLM", "better": spec(["a"]), "worse": spec(["b"], paper=3)}
    one = StudyTable("T", ("task", "R@1"), (Row(("ICT",), (cell(["a"]),)), Row(("MLM",), (cell(["b"]),))))
    write_study(results_of(tmp_path), "Study", [one], [StudyPlot("Curve", "k", "%", lines)], claims=[claim(fields)])
    text = (tmp_path / "study.md").read_text()
    assert "| ICT | – |\n| MLM | – |\n" in text
    assert "| ICT beats MLM | – | – (3.00) | – | 0 | – | – | – |\n" in text
    assert text.endswith("## Missing\n\n- a: not done\n- b: not done\n")
    assert "## Plots" not in text and "n = " not in text
    assert not (tmp_path / "plots").exists()


def test_missing_runs_of_plots_and_claims_are_told_once(tmp_path):
    write_run(tmp_path, "a", {"Success@1": 0.1})
    cells = [cell(["a"], f"Success@{k}") for k in (1, 5, 10)]
    gain = spec(["a"], system="hybrid") | {"over": spec(["gone"])}
    one = StudyTable("T", ("task", "R@1", "R@5"), (Row(("ICT",), tuple(cells[:2])),))
    curve = StudyPlot("P", "k", "%", (Line("l", tuple(enumerate(cells))),))
    claims = [claim({"text": "x", "better": gain, "worse": spec(["gone"])})]
    write_study(results_of(tmp_path), "S", [one], [curve], claims=claims)
    said = "- a: no dense, reqa, pair: Success@5, Success@10; no hybrid, reqa, pair: Success@1\n- gone: not done\n"
    assert (tmp_path / "study.md").read_text().endswith(f"## Missing\n\n{said}")


def test_a_cell_names_runs_of_the_study():
    one = cell(["a"], over=cell(["b"]), rivals=(("c",),), chosen_by="RR")
    named = Report("S", (), (), (StudyPlot("P", "k", "%", (Line("l", ((1, one),)),)),), ())
    named.check_runs("abc")
    for known in ("ab", "ac", "bc"):
        with pytest.raises(UserError, match=r"unknown run in cell dense, reqa, pair, Success@1 of config\.report"):
            named.check_runs(known)


def test_a_lacking_rival_is_told_by_its_name(tmp_path):
    """The run whose place it takes has everything."""
    for name in ("a", "b"):
        (tmp_path / name / "metrics").mkdir(parents=True)
        line = {"step": 1, "validation/RR": 0.5 if name == "a" else 0.75}
        (tmp_path / name / "metrics" / "train.jsonl").write_text(json.dumps(line))
    write_run(tmp_path, "a", {"Success@1": 0.1})
    one = cell(["a"], rivals=(("b", "gone"),), chosen_by="RR")
    for rivals, told, missing in (
        ((("b", "gone"),), "- gone: not done\n", ["gone"]),
        ((("b",),), "- b: no dense, reqa, pair: Success@1\n", ["b"]),
    ):
        rows = (Row(("ICT",), (dataclasses.replace(one, rivals=rivals),)),)
        write_study(results_of(tmp_path), "S", [StudyTable("T", ("task", "R@1"), rows)], [])
        assert (tmp_path / "study.md").read_text().endswith(f"## Missing\n\n{told}")
        assert json.loads((tmp_path / "study.json").read_text())[0]["missing"] == missing
        (tmp_path / "study.md").unlink()
    (tmp_path / "b" / "metrics" / "train.jsonl").unlink()
    write_run(tmp_path, "b", {"Success@1": 0.1})
    write_study(results_of(tmp_path), "S", [StudyTable("T", ("task", "R@1"), rows)], [])
    assert (tmp_path / "study.md").read_text().endswith("\n- b: no training, validation, best: RR\n")


def test_a_failed_rival_cannot_win_and_is_told(tmp_path):
    for name, score in (("a", 0.5), ("b", 0.75), ("collapsed", 0.875)):
        (tmp_path / name / "metrics").mkdir(parents=True)
        (tmp_path / name / "metrics" / "train.jsonl").write_text(json.dumps({"step": 1, "validation/RR": score}))
        write_run(tmp_path, name, {"Success@1": score / 2})
    one = cell(["a"], rivals=(("b", "collapsed"),), chosen_by="RR")
    results = Results(tmp_path, ["a", "b"], failed=["collapsed"])
    write_study(results, "S", [StudyTable("T", ("task", "R@1"), (Row(("ICT",), (one,)),))], [])
    assert results.measure(one).values == (37.5,)
    assert (tmp_path / "study.md").read_text().endswith("## Missing\n\n- collapsed: not done\n")
    nobody = Results(tmp_path, [], failed=["a", "b", "collapsed"])
    assert nobody.measure(one).values == (None,)


def test_a_run_that_lacks_many_rows_is_told_by_some(tmp_path):
    write_run(tmp_path, "a", {"Success@1": 0.1})
    points = [(step, dataclasses.replace(cell(["a"]), split=f"step {step}")) for step in range(9)]
    write_study(results_of(tmp_path), "S", [], [StudyPlot("P", "step", "%", (Line("l", tuple(points)),))])
    last = (tmp_path / "study.md").read_text().splitlines()[-1]
    assert last.startswith("- a: no dense, reqa, step 0: Success@1; no") and last.endswith("; and 5 rows more")


def test_split_dataset_and_system_tell_rows_apart(tmp_path):
    write_run(tmp_path, "a", {"Success@1": 0.1})
    write_run(tmp_path, "a", {"Success@1": 0.2}, split="sentence")
    write_run(tmp_path, "a", {"Success@1": 0.3}, dataset="nq")
    write_run(tmp_path, "a", {"Success@1": 0.4}, system="bm25")
    results = results_of(tmp_path)
    for percent, fields in ((10, {}), (20, {"split": "sentence"}), (30, {"dataset": "nq"}), (40, {"system": "bm25"})):
        assert results.measure(cell(["a"], **fields)).mean == percent


def test_claims(tmp_path):
    write_runs(tmp_path, THREE, "Success@1", [0.30, 0.32, 0.34])
    write_runs(tmp_path, OTHER[:2], "Success@1", [0.40, 0.44])
    write_runs(tmp_path, ["near-0", "near-1"], "Success@1", [0.31, 0.40])
    write_runs(tmp_path, ["above-0", "above-1", "above-2"], "Success@1", [0.311, 0.332, 0.352])
    write_run(tmp_path, "one", {"Success@1": 0.9})
    texts = {
        "far": (THREE, ["one"]),
        "above": (["above-0", "above-1", "above-2"], THREE),
        "turned": (THREE, ["above-0", "above-1", "above-2"]),
        "two": (OTHER[:2], THREE),
        "near": (["near-0", "near-1"], THREE),
        "no run": (THREE, ["none"]),
        "equal": (THREE, THREE),
    }
    claims = [claim({"text": text, "better": spec(a), "worse": spec(b)}) for text, (a, b) in texts.items()]
    write_study(results_of(tmp_path), "S", [], [], claims=claims)
    # 1.1, 1.2 and 1.2 points: deviation 0.0577, t of two degrees of freedom 4.303: 4.303 * 0.0577 / sqrt(3) = 0.14.
    # 10 and 12 points: 12.706 * sqrt(2) / sqrt(2). 1 and 8 points: 12.706 * 4.95 / sqrt(2).
    # Five claims have a p: the smallest is multiplied by 5, the next by 4 (and is no smaller), the next by 3.
    assert (
        "## Claims of the paper\n\n"
        "| Claim | Higher, it says | Lower, it says | Difference | n | p | p (Holm) | Outcome |\n"
        "| :--- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        "| far | 32.00 ± 2.00 | 90.00 | -60.00 | 1 | – | – | one run |\n"
        "| above | 33.17 ± 2.05 | 32.00 ± 2.00 | +1.17 ± 0.14 | 3 | 0.0008 | 0.0041 | holds |\n"
        "| turned | 32.00 ± 2.00 | 33.17 ± 2.05 | -1.17 ± 0.14 | 3 | 0.0008 | 0.0041 | does not hold |\n"
        "| two | 42.00 ± 2.83, n=2 | 32.00 ± 2.00 | +11.00 ± 12.71 | 2 | 0.0577 | 0.1731 | not distinguishable |\n"
        "| near | 35.50 ± 6.36, n=2 | 32.00 ± 2.00 | +4.50 ± 44.47 | 2 | 0.4208 | 0.8417 | not distinguishable |\n"
        "| no run | 32.00 ± 2.00 | – | – | 0 | – | – | – |\n"
        "| equal | 32.00 ± 2.00 | 32.00 ± 2.00 | +0.00 ± 0.00 | 3 | 1.0000 | 1.0000 | not distinguishable |\n\n"
        "n = 3 where a cell has ± and names no n.\n\n" + OUTCOMES
    ) in (tmp_path / "study.md").read_text()


def test_equal_differences_prove_no_claim_however_they_are_rounded(tmp_path):
    """One question of 300 in each of three seeds: results.json has 0.336667 over 0.333333, 0.333333 over 0.33."""
    hits = ((101, 100), (100, 99), (160, 159))
    names = [[f"{side}-{seed}" for seed in range(3)] for side in "ab"]
    for seed, pair in enumerate(hits):
        for of, hit in zip(names, pair):
            write_run(tmp_path, of[seed], {"Success@1": round(hit / 300, 6)})
    found = compare(Results(tmp_path, names[0] + names[1]), cell(names[0]), cell(names[1]))
    assert found.difference == pytest.approx(1 / 3, abs=1e-4) and found.p_value is found.margin is None


def test_a_plot_shows_what_is_below_0(tmp_path):
    write_run(tmp_path, "a", {"Success@1": 0.1})
    write_run(tmp_path, "b", {"Success@1": 0.2})
    lost = StudyPlot(
        "P", "k", "%", (Line("l", ((1, cell(["a"], over=cell(["b"], paper=50.0), paper=-2.5)), (2, cell(["a"])))),)
    )
    figure = study_report._figure(lost, results_of(tmp_path))
    assert figure and figure.axes[0].get_ylim()[0] < -10 < figure.axes[0].get_ylim()[1]


def test_a_claim_names_one_run_for_each_seed():
    chosen = cell(["a"], rivals=(("b",),), chosen_by="RR")
    for better in (chosen, cell(["c"], over=chosen)):
        with pytest.raises(UserError, match=r"claim 'x': rivals are for tables alone"):
            Claim("x", better, cell(["d"]))


def test_seeds_of_one_pre_training_prove_no_claim(tmp_path):
    """Six fine-tunings would: they agree with their own pre-training. The claim is about the luck of three of these."""
    rng = np.random.default_rng(0)
    luck = np.repeat([2.6, 3.4, 0.9], 2)
    names = [[f"{system}-{seed}" for seed in range(6)] for system in "ab"]
    base = rng.uniform(0.2, 0.3, 6)
    a, b = (base + (luck + rng.normal(0, 0.05, 6)) / 100).round(4), base.round(4)
    for runs, row in zip(names, (a, b)):
        write_runs(tmp_path, runs, "Success@1", row.tolist())
    fields = [{"text": "a beats b", "better": spec(names[0]), "worse": spec(names[1])}]
    one = {f"a-{seed}": "pre-a" for seed in range(6)}
    three = {f"{system}-{seed}": f"pre-{system}-{seed // 2}" for system in "ab" for seed in range(6)}
    found = {}
    for origins in (None, three, one):
        results = Results(tmp_path, names[0] + names[1], origins)
        write_study(results, "S", [], [], claims=[claim(fields[0])])
        (line,) = [line for line in (tmp_path / "study.md").read_text().splitlines() if line.startswith("| a beats")]
        found[line.split(" | ")[-1].rstrip(" |")] = compare(results, cell(names[0]), cell(names[1]))
    assert list(found) == ["holds", "not distinguishable", "one pre-training"]
    clusters = 100 * (a - b).reshape(3, 2).mean(axis=1)
    test = scipy.stats.ttest_1samp(clusters, 0)
    low, high = test.confidence_interval(0.95)
    assert found["not distinguishable"][:4] == (
        pytest.approx(clusters.mean(), abs=1e-4),
        pytest.approx((high - low) / 2, abs=1e-4),
        pytest.approx(test.pvalue, abs=1e-4),
        3,
    )
    assert found["one pre-training"].p_value is None and found["one pre-training"].pretrainings == 1


def test_indirectly_shared_pre_trainings_are_one(tmp_path):
    """Seed 0 and 1 share one on the left, 1 and 2 on the right; what a gain is over counts too, BM25 never does."""
    for names in (THREE, OTHER, ["c-0", "c-1", "c-2"]):
        write_runs(tmp_path, names, "Success@1", [0.3, 0.4, 0.5])
        for name in names:
            write_run(tmp_path, name, {"Success@1": 0.2}, system="bm25")
    origins = {THREE[0]: "x", THREE[1]: "x", OTHER[1]: "y", OTHER[2]: "y"}
    results = Results(tmp_path, [path.name for path in tmp_path.iterdir()], origins)
    left, right, free = (cell(names) for names in (THREE, OTHER, ("c-0", "c-1", "c-2")))
    assert compare(results, left, right).pretrainings == 1
    assert compare(results, left, free).pretrainings == compare(results, free, left).pretrainings == 2
    assert compare(results, free, cell(free.runs, over=left)).pretrainings == 2
    assert compare(results, cell(THREE, system="bm25"), free).pretrainings == 3


def test_single_runs_are_compared_over_their_questions(tmp_path):
    """It never holds: it is about these two models."""
    ids = [f"q{number}" for number in range(200)]
    values = np.random.default_rng(0).integers(0, 2, (2, 200)).astype(float)
    values[0, :60] = 1
    claims = []
    for name, row in zip(("a", "b"), values):
        write_run(tmp_path, name, {"Success@1": round(row.mean(), 6)})
        path = per_query.path_of(tmp_path / name, "reqa", "pair")
        per_query.write(path, ids, {system: {"Success@1": row} for system in ("dense", "bm25")})
    for better, worse in (("a", "b"), ("a", "a")):
        claims.append(claim({"text": f"{better} {worse}", "better": spec([better]), "worse": spec([worse])}))
    results = Results(tmp_path, ["a", "b"], {"a": "pre"})
    write_study(results, "S", [], [], claims=claims)
    p_value = significance.randomisation(values[0] - values[1])
    assert p_value < 0.01
    text = (tmp_path / "study.md").read_text()
    assert f"| 1 | {p_value:.4f} | {2 * p_value:.4f} | one pre-training (200 questions) |" in text
    assert "| 1 | 1.0000 | 1.0000 | one pre-training (200 questions) |" in text
    (tmp_path / "b" / "per_query" / "reqa" / "pair.npz").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"pair\.npz.*evaluate the run again"):
        compare(Results(tmp_path, ["a", "b"]), cell(["a"]), cell(["b"]))
    (tmp_path / "b" / "per_query" / "reqa" / "pair.npz").unlink()  # a run of an older version
    assert compare(Results(tmp_path, ["a", "b"]), cell(["a"]), cell(["b"])).questions == 0


def test_differences_are_those_of_scipys_test_for_pairs(tmp_path):
    values = np.random.default_rng(0).uniform(0.2, 0.3, (2, 5)).round(4)
    names = [[f"{system}-{seed}" for seed in range(5)] for system in "ab"]
    for runs, row in zip(names, values):
        write_runs(tmp_path, runs, "Success@1", row.tolist())
    compared = compare(results_of(tmp_path), *map(cell, names))
    test = scipy.stats.ttest_rel(*(100 * values))
    low, high = test.confidence_interval(0.95)
    assert compared[:2] == (pytest.approx((low + high) / 2), pytest.approx((high - low) / 2))
    assert compared[2:4] == (pytest.approx(test.pvalue), 5)
    (tmp_path / "a-1" / "results.json").unlink()
    assert compare(results_of(tmp_path), *map(cell, names)).pretrainings == 4
    assert compare(results_of(tmp_path), cell(["a-0"]), cell(["none"])) == (None, None, None, 0, 0, False)


def test_gains_are_taken_seed_by_seed(tmp_path):
    """The pre-trained less the untrained of the same seed; a seed without one of the two has none, and is told."""
    write_runs(tmp_path, THREE, "Success@1", [0.30, 0.32, 0.34])
    write_runs(tmp_path, OTHER, "Success@1", [0.40, 0.44, 0.41])
    gain = cell(OTHER, over=cell(THREE))
    assert results_of(tmp_path).measure(gain).values == (10, 12, 7)
    (tmp_path / THREE[1] / "results.json").unlink()
    assert results_of(tmp_path).measure(gain).values == (10, None, 7)
    claims = [claim({"text": "gains", "better": spec(OTHER) | {"over": spec(THREE)}, "worse": spec(THREE)})]
    write_study(results_of(tmp_path), "S", [], [], claims=claims)
    text = (tmp_path / "study.md").read_text()
    assert f"- {THREE[1]}: not done" in text and "| gains | 8.50 ± 2.12, n=2 of 3 |" in text
    with pytest.raises(UserError, match="3 runs over 1; name one for each"):
        cell(OTHER, over=cell(THREE[:1]))


CURVE = {
    "title": "Recall@k, 1%/99%",
    "x": "k",
    "y": "recall@k, %",
    "log_x": True,
    "lines": [
        {"label": "MLM", "points": [[1, spec(THREE)], [100, spec(THREE, "Success@100")]]},
        {"label": "ICT", "points": [[100, spec(OTHER, "Success@100")], [1, spec(OTHER)]]},
        {"label": "late", "points": [[1, spec(["late"])], [5, spec(["late"])]]},
    ],
}


def test_the_points_of_a_plot(folder):
    write_study(results_of(folder), "S", [], [plot(CURVE)])
    assert (folder / "plots" / "Recall-k-1-99.png").read_bytes().startswith(b"\x89PNG")
    assert "## Plots\n\n![Recall-k-1-99](plots/Recall-k-1-99.png)\n\nError bars" in (folder / "study.md").read_text()
    figure = study_report._figure(plot(CURVE), results_of(folder))
    (axes,) = figure.axes
    lines = {container.get_label(): container for container in axes.containers}  # 'late' has no point
    assert {label: container[0].get_xydata().tolist() for label, container in lines.items()} == {
        "MLM": [[1, 32], [100, 90]],
        "ICT": [[1, 42], [100, pytest.approx(90.002)]],
    }
    (bars,) = lines["MLM"][2]
    assert [segment[:, 1].tolist() for segment in bars.get_segments()] == [[30, 34], [90, 90]]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "100"]
    assert axes.get_xscale() == "log" and axes.get_ylim()[0] == 0


def test_the_same_input_gives_the_same_bytes(folder):
    def everything():
        fields = {"text": "ICT beats MLM", "better": spec(OTHER), "worse": spec(THREE)}
        write_study(results_of(folder), "S", [table(TABLE)], [plot(CURVE)], claims=[claim(fields)])
        files = [folder / "study.md", folder / "study.json", *(folder / "plots").iterdir()]
        return {path.name: path.read_bytes() for path in files}

    first = everything()
    assert len(first) == 3 and first == everything()


def edited(base, path, value):
    """`base` with `value` in the place `path`; without it where `value` is None."""
    result = copy.deepcopy(base)
    parent = result
    for step in path[:-1]:
        parent = parent[step]
    if value is None:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return result


CLAIM = {"text": "x beats y", "better": spec(["a"]), "worse": spec(["b"])}
FIRST, POINT = ("rows", 0, "cells", 0), ("lines", 1, "points", 1)
BAD_TABLES = [
    (("rows", 1, "cells", 1), None, r"table 'Table 3', row 1 \['1%', 'MLM'\] has 2 labels and 1 cells"),
    (("header",), ["task", "R@1"], r"row 0 .* has 2 labels and 2 cells, the header 2 columns"),
    (("header",), "task", r"'Table 3', header: expected a list of them, not 'task'"),
    (("header", 3), 100, r"'Table 3', header 3: expected a string, not '100'"),
    (("rows",), [], r"table 'Table 3' has no rows"),
    (("rows", 3), "x", r"table 'Table 3', row 3: expected a dict, not 'x'"),
    (("title",), None, r"table has no title"),
    ((*FIRST, "metrics"), "R@1", r"unknown field of table 'Table 3', row 0, cell 0 'metrics': did you"),
    ((*FIRST, "runs"), [], r"row 0, cell 0: cell bm25, reqa, pair, Success@1: runs are \[\]"),
    ((*FIRST, "runs"), ["a", "a"], r"name at least one run, and each once"),
    ((*FIRST, "paper"), "37", r"cell 0, paper: expected a number, not '37'"),
    ((*FIRST, "paper"), 374.3, r"the paper's value 374.3 is no percentage"),
    ((*FIRST, "paper"), math.nan, r"cell 0, paper: expected a number"),
]
BAD_PLOTS = [
    (POINT, [1], r"line 1, point 1: expected \[x, cell\]"),
    ((*POINT, 0), 100, r"line 'ICT' has two points at one x"),
    ((*POINT, 0), 0, r"plot 'Recall@k, 1%/99%': a logarithmic axis has no place"),
    (("log_x",), "yes", r"log_x: expected true or false"),
]
BAD_CLAIMS = [
    (("worse",), None, r"claim has no worse"),
    (("worse", "runs"), {}, r"claim 'x beats y', worse, run: expe"),
]
BAD = [
    *((table, TABLE, *bad) for bad in BAD_TABLES),
    *((plot, CURVE, *bad) for bad in BAD_PLOTS),
    *((claim, CLAIM, *bad) for bad in BAD_CLAIMS),
]


@pytest.mark.parametrize(("build", "base", "path", "value", "message"), BAD)
def test_a_wrong_spec_is_refused_with_its_place(build, base, path, value, message):
    build(base)
    with pytest.raises(UserError, match=message):
        build(edited(base, path, value))
    with pytest.raises(UserError, match="expected a dict, not"):
        build([base])


def test_two_of_one_name_are_refused(tmp_path):
    with pytest.raises(UserError, match="are named 'Table 3'"):
        write_study(results_of(tmp_path), "S", [table(TABLE)] * 2, [])
    same_file = [plot(CURVE), plot(CURVE | {"title": "recall@k: 1%/99%"})]
    with pytest.raises(UserError, match="are named 'recall-k-1-99'"):
        write_study(results_of(tmp_path), "S", [], same_file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"system": ', r"results\.json: not valid JSON"),
        ('{"system": "dense"}', r"results\.json: not a list of results"),
        ("[[1]]", r"results\.json, row 0: not an object with system, dataset, split, metric"),
        ('[{"system": "dense", "value": 1}]', r"results\.json, row 0: not an object with"),
    ],
)
def test_a_file_that_is_not_of_results_is_refused(tmp_path, content, message):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "results.json").write_text(content)
    with pytest.raises(UserError, match=message):
        write_study(results_of(tmp_path), "S", [StudyTable("T", ("x", "y"), (Row(("x",), (cell(["a"]),)),))], [])
    assert not (tmp_path / "study.md").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0.1, 0.2], r"row 1: 0\.2 is a second value of dense, reqa, pair, Success@1"),
        ([37.4], r"a/results\.json, row 0, dense, reqa, pair, Success@1: 37\.4 is not a fraction"),
        ([-0.1], r"-0\.1 is not a fraction"),
        ([math.nan], r"a/results\.json: not valid JSON \(NaN is no number of JSON\)"),
        (["0.1"], r"is '0\.1', not a number"),
    ],
)
def test_values_that_cannot_be_shown_are_refused(tmp_path, values, message):
    for value in values:
        write_run(tmp_path, "a", {"Success@1": value})
    with pytest.raises(UserError, match=message):
        results_of(tmp_path).measure(cell(["a"]))


def test_values_of_training(tmp_path):
    (tmp_path / "a" / "metrics").mkdir(parents=True)
    lines = [{"step": 20, "loss": 3.0}, {"step": 40, "validation/RR": 0.25}, {"step": 80, "validation/RR": 0.5}]
    (tmp_path / "a" / "metrics" / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    results, place = results_of(tmp_path), dict(runs=("a",), metric="RR", dataset="validation")
    found = [results.measure(Cell(system="training", split=f"step {step}", **place)).values for step in (40, 80, 120)]
    assert found == [(25.0,), (50.0,), (None,)]
    assert results.measure(Cell(system="training", split="best", **place)).values == (50.0,)


def test_times_are_shown_as_they_are(tmp_path):
    (tmp_path / "run").mkdir()
    rows = [
        {"system": name, "dataset": "pool", "split": rule, "metric": "RR", "value": 0.5, "queries": queries}
        | {"seconds": seconds, "step": None}
        for name, seconds in (("bm25", 0.0325), ("dense", 1.205), ("of a file", None))
        for rule, queries in (("pair", 10), ("article", 4))
    ]
    (tmp_path / "run" / "results.json").write_text(json.dumps(rows))
    cells = [
        [spec(["run"], "ms", system=name, dataset="pool", split="latency", paper=3400)] for name in ("bm25", "dense")
    ]
    times = table(
        {"title": "t", "header": ["system", "ms"], "rows": [{"labels": ["x"], "cells": each} for each in cells]}
    )
    write_study(results_of(tmp_path), "s", [times], [])
    text = (tmp_path / "study.md").read_text()
    assert "| **3.25** (3400.00) |" in text and "| 120.50 (3400.00) |" in text
