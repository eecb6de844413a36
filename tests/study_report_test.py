"""Tables and claims of a study, against values worked out by hand."""

import json

import numpy as np
import pytest
import scipy.stats

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.evaluation import per_query, significance
from retrieval.runs.pipeline.work_directory import FORMAT
from retrieval.studies.claims import Cell, Claim, Report, Row, Table
from retrieval.studies.study_report import write_study
from retrieval.studies.study_results import Results, compare

THREE, OTHER = ("mlm-0", "mlm-1", "mlm-2"), ("ict-0", "ict-1", "ict-2")


def results_of(folder, origins=None):
    return Results(folder, [path.name for path in folder.iterdir()], origins)


def write_run(folder, name, values, system="dense"):
    """`values`: metric -> fraction."""
    path = folder / name / "results.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    rest = dict(system=system, dataset="reqa", split="pair", queries=9, seconds=1.5, step=100)
    rows += [dict(metric=metric, value=value, **rest) for metric, value in values.items()]
    files.write_json(path, rows)


def write_runs(folder, names, values, metric="Success@1"):
    for name, value in zip(names, values, strict=True):
        write_run(folder, name, {metric: value})


def cell(runs, metric="Success@1", system="dense", **more):
    return Cell(tuple(runs), system, "reqa", "pair", metric, **more)


def claim_rows(folder, claims, results):
    write_study(folder, Report("S", "N", [], [Claim(*one) for one in claims]), results)
    lines = (folder / "study.md").read_text().splitlines()
    return [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][2:]


def test_a_half_finished_table(tmp_path):
    """ict-2 failed, late did not start, bm25 has one of its two rows."""
    write_run(tmp_path, "bm25", {"Success@1": 0.3}, system="bm25")
    write_runs(tmp_path, THREE, [0.30, 0.32, 0.34])
    write_runs(tmp_path, OTHER[:2], [0.40, 0.44])
    (tmp_path / "ict-2").mkdir()
    metrics = ("Success@1", "Success@100")
    rows = [
        Row(["1%", "BM25"], cell(["bm25"], system="bm25").each(metric=metrics)),
        Row(["1%", "MLM"], [cell(THREE), cell(["late"])], [0.18]),
        Row(["1%", "ICT|x"], [cell(OTHER), cell(OTHER, over=cell(THREE))], [None, 3.9]),
    ]
    table = Table("Table 3", ["train/test", "task", "R@1", "R@100"], rows, "As in the paper.")
    write_study(tmp_path, Report("Study", "Notes.", [table], []), results_of(tmp_path))
    text = (tmp_path / "study.md").read_text()
    assert text.startswith("# Study\n\nNotes.\n\n") and "## Claims" not in text
    # 40 and 44: mean 42, deviation sqrt(8 / 1). Gains of 10 and 12: mean 11, deviation sqrt(2 / 1).
    assert text.endswith(
        "## Table 3\n\n"
        "| train/test | task | R@1 | R@100 |\n"
        "| :--- | :--- | ---: | ---: |\n"
        "| 1% | BM25 | 30.00 | – |\n"
        "| 1% | MLM | 32.00 ± 2.00 (0.18) | – |\n"
        "| 1% | ICT\\|x | 42.00 ± 2.83, n=2 of 3 | 11.00 ± 1.41, n=2 of 3 (3.90) |\n\n"
        "As in the paper.\n\n"
        "## Missing\n\n"
        "- bm25: no bm25, reqa, pair, Success@100\n"
        "- late: not done\n"
        "- ict-2: not done\n"
    )
    with pytest.raises(UserError, match="table 'T', row x: not of its columns"):
        Report("S", "", [Table("T", ["a", "b", "c"], [Row(["x"], [cell(["a"])])])], []).check(["a"])


def test_claims_are_judged_as_they_come_out(tmp_path):
    write_runs(tmp_path, THREE, [0.30, 0.32, 0.34])
    write_runs(tmp_path, OTHER[:2], [0.40, 0.44])
    above = ["above-0", "above-1", "above-2"]
    write_runs(tmp_path, above, [0.311, 0.332, 0.352])
    write_run(tmp_path, "one", {"Success@1": 0.9})
    pairs = dict(far=(THREE, ["one"]), above=(above, THREE), turned=(THREE, above), two=(OTHER[:2], THREE))
    pairs |= {"no run": (THREE, ["none"]), "equal": (THREE, THREE)}
    claims = [(text, cell(a), cell(b)) for text, (a, b) in pairs.items()]
    # 1.1, 1.2 and 1.2 points: deviation 0.0577, t of two degrees of freedom 4.303: 4.303 * 0.0577 / sqrt(3) = 0.14.
    # 10 and 12 points: 12.706 * sqrt(2) / sqrt(2). Of four p the smallest is multiplied by 4, the next by 3, and so on.
    assert [row[3:] for row in claim_rows(tmp_path, claims, results_of(tmp_path))] == [
        ["-60.00", "1", "–", "–", "one run"],
        ["+1.17 ± 0.14", "3", "0.0008", "0.0033", "holds"],
        ["-1.17 ± 0.14", "3", "0.0008", "0.0033", "does not hold"],
        ["+11.00 ± 12.71", "2", "0.0577", "0.1154", "not distinguishable"],
        ["–", "0", "–", "–", "–"],
        ["+0.00 ± 0.00", "3", "1.0000", "1.0000", "not distinguishable"],
    ]


def test_equal_differences_prove_no_claim_however_they_are_rounded(tmp_path):
    """One question of 300 in each of three seeds: results.json has 0.336667 over 0.333333, 0.333333 over 0.33."""
    names = [[f"{side}-{seed}" for seed in range(3)] for side in "ab"]
    for runs, hits in zip(names, ((101, 100, 160), (100, 99, 159))):
        write_runs(tmp_path, runs, [round(hit / 300, 6) for hit in hits])
    found = compare(results_of(tmp_path), *map(cell, names))
    assert found.difference == pytest.approx(1 / 3, abs=1e-4) and found.p_value is found.margin is None


def test_seeds_of_one_pre_training_prove_no_claim(tmp_path):
    """Six fine-tunings would: they agree with their own pre-training. The claim is about the luck of three of these."""
    rng = np.random.default_rng(0)
    luck = np.repeat([2.6, 3.4, 0.9], 2)
    names = [[f"{system}-{seed}" for seed in range(6)] for system in "ab"]
    base = rng.uniform(0.2, 0.3, 6)
    a, b = (base + (luck + rng.normal(0, 0.05, 6)) / 100).round(4), base.round(4)
    for runs, row in zip(names, (a, b)):
        write_runs(tmp_path, runs, row.tolist())
    cells = [cell(runs) for runs in names]
    one = {f"a-{seed}": "pre-a" for seed in range(6)}
    three = {f"{system}-{seed}": f"pre-{system}-{seed // 2}" for system in "ab" for seed in range(6)}
    found = {}
    for origins in (None, three, one):
        results = Results(tmp_path, names[0] + names[1], origins)
        ((*_, outcome),) = claim_rows(tmp_path, [("a beats b", *cells)], results)
        found[outcome] = compare(results, *cells)
    assert list(found) == ["holds", "not distinguishable", "one pre-training"]
    for comparison, values in ((found["holds"], a - b), (found["not distinguishable"], (a - b).reshape(3, 2).mean(1))):
        test = scipy.stats.ttest_1samp(100 * values, 0)
        low, high = test.confidence_interval(0.95)
        expected = (100 * values.mean(), (high - low) / 2, test.pvalue, len(values))
        assert comparison[:4] == tuple(pytest.approx(value, abs=1e-4) for value in expected)
    assert found["one pre-training"].p_value is None and found["one pre-training"].pretrainings == 1


def test_indirectly_shared_pre_trainings_are_one(tmp_path):
    """Seed 0 and 1 share one on the left, 1 and 2 on the right; what a gain is over counts too, BM25 never does."""
    free_runs = ("c-0", "c-1", "c-2")
    for names in (THREE, OTHER, free_runs):
        write_runs(tmp_path, names, [0.3, 0.4, 0.5])
        for name in names:
            write_run(tmp_path, name, {"Success@1": 0.2}, system="bm25")
    results = results_of(tmp_path, {THREE[0]: "x", THREE[1]: "x", OTHER[1]: "y", OTHER[2]: "y"})
    left, right, free = map(cell, (THREE, OTHER, free_runs))
    pairs = ((left, right), (left, free), (free, left), (free, free.at(over=left)), (left.at(system="bm25"), free))
    assert [compare(results, *pair).pretrainings for pair in pairs] == [1, 2, 2, 2, 3]


def test_single_runs_are_compared_over_their_questions(tmp_path):
    """It never holds: it is about these two models."""
    values = np.random.default_rng(0).integers(0, 2, (2, 200)).astype(float)
    values[0, :60] = 1
    for name, row in zip(("a", "b"), values):
        write_run(tmp_path, name, {"Success@1": round(row.mean(), 6)})
        path = per_query.path_of(tmp_path / name, "reqa", "pair")
        per_query.write(path, [f"q{number}" for number in range(200)], {"dense": {"Success@1": row}})
    a, b = cell(["a"]), cell(["b"])
    rows = claim_rows(tmp_path, [("a b", a, b), ("a a", a, a)], results_of(tmp_path, {"a": "pre"}))
    p_value = significance.randomisation(values[0] - values[1])
    assert p_value < 0.01 and [row[4:] for row in rows] == [
        ["1", f"{p_value:.4f}", f"{2 * p_value:.4f}", "one pre-training (200 questions)"],
        ["1", "1.0000", "1.0000", "one pre-training (200 questions)"],
    ]
    per_query.path_of(tmp_path / "b", "reqa", "pair").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"pair\.npz.*evaluate the run again"):
        compare(results_of(tmp_path), a, b)


def test_folds_are_pooled_over_the_questions_of_all(tmp_path):
    """Each question counts once, however many its fold has; the interval is over the questions."""
    values = {"start": np.zeros(5), "fold-1": np.array([1.0, 0.0, 1.0]), "fold-2": np.array([1.0, 0.0])}
    for name, row in values.items():
        write_run(tmp_path, name, {"Success@1": round(row.mean(), 6)})
        questions = [f"q{number}" for number in range(3, 5) if name == "fold-2"] or ["q0", "q1", "q2", "q3", "q4"]
        path = per_query.path_of(tmp_path / name, "reqa", "pair")
        per_query.write(path, questions[: len(row)], {"dense": {"Success@1": row}})
    pooled, results = cell(["fold-1", "fold-2"], pooled=True), results_of(tmp_path)
    assert results.values(pooled) == [60.0] and len(results.per_query(pooled)) == 5
    found = compare(results, pooled, cell(["start"]))
    margin = 100 * scipy.stats.sem([1, 0, 1, 1, 0]) * scipy.stats.t.ppf(0.975, 4)
    assert (found.difference, found.questions) == (60.0, 5) and found.margin == pytest.approx(margin)
    assert results.values(cell(["fold-1", "fold-3"], pooled=True)) == [None]


def test_all_that_a_run_measures_can_be_shown(tmp_path):
    """What training logged, consistency factors, and times, which are not in percent."""
    run = tmp_path / "a"
    lines = [{"step": 20, "loss": 3.0, "recall@1": 0.5}, {"step": 40, "validation/RR": 0.25}]
    lines.append({"step": 80, "validation/RR": 0.125})
    files.write_text(run / "metrics" / "train.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    write_run(tmp_path, "a", {"Success@1": 0.5})
    rows = json.loads((run / "results.json").read_text())
    files.write_json(run / "results.json", [row | {"seconds": 2.0, "queries": 16} for row in rows])
    factors = {"set": "pool", "system": "dense", "trained on": "bm25", "factors": {"10": 0.125}}
    record = {"format": FORMAT, "done": True, "details": {"consistency": [factors]}}
    record["sum"] = files.fingerprint(["rerank", record])
    files.write_json(run / "stages" / "rerank.json", record)
    results = results_of(tmp_path)
    for expected, *key in (
        (50.0, "training", "batch", "step 20", "recall@1"),
        (12.5, "training", "validation", "step 80", "RR"),
        (25.0, "training", "validation", "best", "RR"),
        (12.5, "dense", "pool", "test", "consistency with bm25@10"),
        (125.0, "dense", "reqa", "latency", "ms"),
        (None, "dense", "pool", "test", "RR"),
    ):
        assert results.values(Cell(("a",), *key)) == [expected]
    with pytest.raises(UserError, match=r"a: training, batch, step 20, loss is 3\.0, not a fraction"):
        results.values(Cell(("a",), "training", "batch", "step 20", "loss"))


def test_values_that_cannot_be_shown_are_refused(tmp_path):
    second = r"0\.2 is a second value of dense, reqa, pair, Success@1"
    for name, values, message in (
        ("a", [0.1, 0.2], second),
        ("b", [-37.4], r"Success@1 is -37\.4, not a fraction"),
        ("c", ["0.1"], r"Success@1 is '0\.1', not a fraction"),
    ):
        for value in values:
            write_run(tmp_path, name, {"Success@1": value})
        with pytest.raises(UserError, match=message):
            results_of(tmp_path).values(cell([name]))
