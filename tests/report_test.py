"""The report's tables as text, and its plots as files."""

import json
import re

import numpy as np
import pytest

from retrieval.data.sets import beir
from retrieval.errors import UserError
from retrieval.evaluation import per_query, report_page, significance
from retrieval.evaluation.run_report import write_report
from retrieval.stages import report_questions


@pytest.fixture(scope="module", autouse=True)
def plots():
    """Real ones."""


def result(system, metric, value, dataset="squad", split="test", queries=97888, seconds=2.5, step=None):
    return dict(
        system=system,
        dataset=dataset,
        split=split,
        metric=metric,
        value=value,
        queries=queries,
        seconds=seconds,
        step=step,
    )


RESULTS = [
    result("zeta | BM25", "Success@1", 0.59),
    result("zeta | BM25", "Success@10", 0.83004),
    result("zeta | BM25", "latency", 0.123456),
    result("two-tower", "Success@1", 0.61, step=20000),
    result("two-tower", "Success@10", 0.83004, step=20000),
    result("zeta | BM25", "nDCG@10", 0.39, dataset="cranfield", queries=225, seconds=0.5),
]


def write_losses(folder, records):
    (folder / "metrics").mkdir(parents=True, exist_ok=True)
    (folder / "metrics" / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_tables_in_the_order_given(tmp_path):
    write_report(tmp_path, "ICT, local", RESULTS)
    assert (tmp_path / "report.md").read_text() == (
        "# ICT, local\n\n"
        "- **two-tower is first** on squad, test (97,888 questions): Success@1 of two-tower is 61.00 %, 2.00 points "
        "above zeta \\| BM25 (whether chance alone could do that is not known).\n"
        "- There is one list on cranfield, test (225 questions): nDCG@10 of zeta \\| BM25 is 39.00 %.\n\n"
        "Success@1: the share of questions with a right answer no lower than place 1; nDCG@10: how near to the top the "
        "right answers stand, 100 % at best.\n\n"
        "## squad, test\n\n"
        "| System | Step | Queries | Success@1 | Success@10 | latency | Seconds |\n"
        "| :--- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        "| zeta \\| BM25 |  | 97,888 | 59.00 | **83.00** | 0.1235 | 2.5 |\n"
        "| two-tower | 20,000 | 97,888 | **61.00** | **83.00** | – | 2.5 |\n\n"
        "![success-squad-test](plots/success-squad-test.png)\n\n"
        "## cranfield, test\n\n"
        "| System | Queries | nDCG@10 | Seconds |\n"
        "| :--- | ---: | ---: | ---: |\n"
        "| zeta \\| BM25 | 225 | **39.00** | 0.5 |\n"
    )


def test_differences_on_the_same_questions(tmp_path):
    """The hybrid hits BM25's 6 misses: 2 of 2^6 signs are as far from 0, times 2 by Holm. There is no dense system."""
    ids = [f"q{number}" for number in range(40)]
    bm25 = {"Success@1": np.repeat([0.0, 1.0], [6, 34]), "RR": np.repeat([0.5, 1.0], [6, 34])}
    hybrid = {"Success@1": np.ones(40), "RR": np.repeat([0.5, 1.0], [6, 34])}
    per_query.write(per_query.path_of(tmp_path, "squad", "test"), ids, {"bm25": bm25, "hybrid": hybrid})
    write_report(tmp_path, "T", RESULTS, [], [tmp_path])
    text = (tmp_path / "report.md").read_text()
    p_value = 2 * significance.randomisation(hybrid["Success@1"] - bm25["Success@1"])
    assert p_value == pytest.approx(2 * 2 / 2**6, abs=0.01)
    assert (
        "| On the same 40 questions | Success@1 | RR |\n| :--- | ---: | ---: |\n"
        f"| hybrid over bm25 | +15.00 (p = {p_value:.3f}) | +0.00 (p = 1.000) |\n\nDifferences are"
    ) in text
    assert text.count("On the same") == 1
    reranked = {"bm25+rerank": {"Success@1": np.repeat([0.0, 1.0], [2, 38])}}
    per_query.write(per_query.path_of(tmp_path / "reranked", "squad", "test"), ids, reranked)
    write_report(tmp_path, "T", RESULTS, [], [tmp_path, tmp_path / "reranked"], [("bm25+rerank", "bm25")])
    rows = [line.split("|") for line in (tmp_path / "report.md").read_text().splitlines() if "bm25+rerank over" in line]
    assert [(row[2].split()[0], row[3].strip()) for row in rows] == [("+10.00", "")]  # it has no RR
    write_report(tmp_path, "T", RESULTS)
    assert "On the same" not in (tmp_path / "report.md").read_text()


def opened(folder, values, *rows):
    """The first paragraph of a report whose systems have these values of Success@1, by question."""
    values = {system: {"Success@1": np.array(of, float)} for system, of in values.items()}
    ids = [f"q{number}" for number in range(len(next(iter(values.values()))["Success@1"]))]
    per_query.write(per_query.path_of(folder, "own", "test"), ids, values)
    of_systems = [
        result(name, "Success@1", of["Success@1"].mean(), "own", queries=len(ids)) for name, of in values.items()
    ]
    write_report(folder, "T", [*of_systems, *rows], [], [folder])
    return (folder / "report.md").read_text().split("\n\n")[1]


def test_it_opens_with_the_best_list_and_by_how_much(tmp_path):
    """Hybrid hits 30 of 40, of which BM25 misses 20 and dense 10: intervals by Student's t of 39 degrees."""
    bm25, dense, hybrid = (np.repeat([0, 1], [40 - hits, hits]) for hits in (10, 20, 30))
    text = opened(tmp_path, {"bm25": bm25, "dense": dense, "dense (ScaNN)": dense, "hybrid": hybrid})
    start = "**hybrid is best** on own, test (40 questions): Success@1 of hybrid is 75.00 %, 25.00 points above dense ("
    assert text.startswith(start) and "dense (ScaNN)" not in text
    half = 2.0227 * np.std(hybrid - dense, ddof=1) / 40**0.5
    assert f"(95 % interval {100 * (0.25 - half):.2f} to {100 * (0.25 + half):.2f}, p = " in text
    assert re.search(r", and 50\.00 points above bm25 \(95 % interval 33\.\d\d to 66\.\d\d, p [<=] 0\.00", text)
    rows = [line for line in (tmp_path / "report.md").read_text().splitlines() if "over dense" in line]
    assert re.search(r"p [<=] [\d.]+", text)[0] in rows[0]  # the sentence and the table have one number


def test_it_says_where_no_list_is_ahead(tmp_path):
    bm25, hybrid = np.repeat([0, 1], [20, 20]), np.repeat([0, 1], [19, 21])
    text = opened(tmp_path, {"bm25": bm25, "hybrid": hybrid})
    assert text.startswith(
        "**No list is clearly best** on own, test (40 questions): Success@1 of hybrid is 52.50 %, 2.50"
    )
    assert "p = 1.000, which chance alone could do)" in text
    level = opened(tmp_path, {"bm25": bm25, "hybrid": bm25, "dense": 0 * bm25})
    assert (
        "Success@1 of bm25 is 50.00 %, the same as of hybrid on every question, and 50.00 points above dense" in level
    )
    assert level.startswith("**No list is clearly best**")
    assert opened(tmp_path, {"bm25": bm25}).startswith(
        "There is one list on own, test (40 questions): Success@1 of bm25"
    )


def test_plots_are_png_and_the_same_every_time(tmp_path):
    losses = [{"step": step, "loss": 9 / step, "ict/loss": 8 / step, "recall@1": 0.1} for step in range(1, 200)]
    for name in ("one", "two"):
        write_losses(tmp_path / name, losses)
        write_report(tmp_path / name, "T", RESULTS)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert [path.name for path in files] == [
        "train.jsonl",
        "success-squad-test.png",
        "training-loss.png",
        "report.html",
        "report.md",
    ]
    for path in files:
        content = (tmp_path / "one" / path).read_bytes()
        assert content == (tmp_path / "two" / path).read_bytes()
        assert path.suffix != ".png" or content.startswith(b"\x89PNG")
    assert "![training-loss](plots/training-loss.png)" in (tmp_path / "one" / "report.md").read_text()


def test_the_page_shows_tags_as_text_and_loads_nothing(tmp_path):
    """A question and a system with a script in them, in a table, a plot and the title."""
    script = "<script>alert(1)</script>"
    write_losses(tmp_path, [{"step": 1, "loss": 2.0}, {"step": 1, "validation/RR": 0.5}])
    write_questions(tmp_path, script)
    (table,) = report_questions.questions(tmp_path / "sets", tmp_path)
    hits = ["one: first text", None]  # of dense and of BM25, which wrote no list
    assert table.rows == [[f"lost: {script}", *hits, "0.00", "50.00"], ["won: b", *hits, "100.00", "50.00"]]
    results = [result(system, f"Success@{k}", k / 10) for system in (script, "bm25") for k in (1, 5)]
    write_report(tmp_path, script, results, [table], [tmp_path])
    text = (tmp_path / "report.html").read_text()
    assert "<script" not in text and text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 4
    assert text.count("<svg") == 3 and "Success@k, %" in text and "validation/RR" in text
    assert not re.search(r"""(src|href)=["'](?!#)|url\((?!#)""", text)
    assert len(ids := re.findall(r'\bid="([^"]*)"', text)) == len(set(ids))
    assert "&lt;b&gt;" in report_page.page("title", ["<b>bold</b>"])


def write_questions(folder, first):
    """A set of two questions, of which the dense system loses the first to BM25 and wins the second."""
    candidates = [beir.Candidate("d1", "one", "first text"), beir.Candidate("d2", "", "second")]
    judged = {"test": {"q1": {"d1": 1}, "q2": {"d2": 1}}}
    beir.write_folder(
        folder / "sets" / "squad", beir.RetrievalSet("squad", {"q1": first, "q2": "b"}, candidates, judged)
    )
    values = {"dense": {"RR": np.array([0.0, 1.0])}, "bm25": {"RR": np.array([0.5, 0.5])}}
    for rule in ("test", "within-article"):  # of the second no run file has the lists
        per_query.write(per_query.path_of(folder, "squad", rule), ["q1", "q2"], values)
    (folder / "runs" / "squad").mkdir(parents=True)
    (folder / "runs" / "squad" / "dense.trec").write_text(
        "q1 Q0 d1 1 2 dense\nq1 Q0 d2 2 1 dense\nq2 Q0 d1 1 1 dense\n"
    )


def test_bad_input_is_refused(tmp_path):
    broken = result("bm25", "RR", 0.5)
    del broken["split"]
    with pytest.raises(UserError, match="has no split"):
        write_report(tmp_path, "T", [broken])
    with pytest.raises(UserError, match=r"two values of RR, 0\.5 and 0\.6"):
        write_report(tmp_path, "T", [result("bm25", "RR", 0.5), result("bm25", "RR", 0.6)])
    for line in ('{"step": 2, "lo', "[1]", '{"loss": 1}', ""):
        (tmp_path / "metrics").mkdir(exist_ok=True)
        (tmp_path / "metrics" / "train.jsonl").write_text(f'{{"step": 1, "loss": 1}}\n{line}\n')
        with pytest.raises(UserError, match=r"train\.jsonl, line 2"):
            write_report(tmp_path, "T", [])
    assert not (tmp_path / "report.md").exists()
