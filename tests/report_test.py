"""The report's tables as text, and its plots as files."""

import json
import re

import numpy as np
import pytest

from retrieval.common.errors import UserError
from retrieval.evaluation import per_query, report_page, significance
from retrieval.evaluation.run_report import Table, write_report


@pytest.fixture(scope="module", autouse=True)
def plots():
    """Real ones."""


def result(system, metric, value, dataset="squad", split="test", queries=97888, seconds=2.5, step=None):
    return dict(locals())


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
    """A verdict on each set comes first, then its primary metric, then all there is."""
    write_report(tmp_path, "ICT, local", RESULTS, notes={"squad": ["2 questions are *seen*"]})
    assert (tmp_path / "report.md").read_text() == (
        "# ICT, local\n\n"
        "**squad, test**: **two-tower** is best, with Success@1 61.00 on 97,888 questions.\n\n"
        "**cranfield, test**: **zeta \\| BM25** has nDCG@10 39.00 on 225 questions.\n\n"
        "## squad, test\n\n"
        "| System | Success@1 |\n"
        "| :--- | ---: |\n"
        "| zeta \\| BM25 | 59.00 |\n"
        "| two-tower | 61.00 |\n\n"
        "**Note**: 2 questions are \\*seen\\*\n\n"
        "## cranfield, test\n\n"
        "| System | nDCG@10 |\n"
        "| :--- | ---: |\n"
        "| zeta \\| BM25 | 39.00 |\n\n"
        "## squad, test: all metrics\n\n"
        "| System | Step | Queries | Success@1 | Success@10 | latency | Seconds |\n"
        "| :--- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        "| zeta \\| BM25 |  | 97,888 | 59.00 | **83.00** | 0.1235 | 2.5 |\n"
        "| two-tower | 20,000 | 97,888 | **61.00** | **83.00** | – | 2.5 |\n\n"
        "![success.squad.test](plots/success.squad.test.png)\n\n"
        "## cranfield, test: all metrics\n\n"
        "| System | Queries | nDCG@10 | Seconds |\n"
        "| :--- | ---: | ---: | ---: |\n"
        "| zeta \\| BM25 | 225 | **39.00** | 0.5 |\n"
    )


def judged(folder, values, costs=None, **more):
    """The report of systems with these values of RR, and with better ones of Success@100, which decides nothing."""
    count = len(next(iter(values.values())))
    of_all = {system: {"Success@100": np.ones(count), "RR": np.array(of)} for system, of in values.items()}
    per_query.write(per_query.path_of(folder, "faq", "test"), [f"q{n}" for n in range(count)], of_all)
    rows = [
        result(system, metric, float(of_all[system][metric].mean()), "faq", queries=count)
        for system in values
        for metric in ("Success@100", "RR")
    ]
    write_report(folder, "T", rows, [], [folder], costs=costs or {}, **more)
    return (folder / "report.md").read_text()


def test_differences_are_those_of_the_primary_metric(tmp_path):
    """The hybrid hits BM25's 6 misses: 2 of 2^6 signs are as far from 0, times 3 by Holm; dense has these, too."""
    bm25, better = np.repeat([0.0, 1.0], [6, 194]), np.ones(200)
    text = judged(tmp_path, {"bm25": bm25, "dense": bm25, "hybrid": better})
    p_value = 3 * significance.randomisation(better - bm25)
    assert p_value == pytest.approx(3 * 2 / 2**6, abs=0.01)
    margin = 100 * significance.margin((better - bm25).tolist())
    interval = f"{3 - margin:+.2f} to {3 + margin:+.2f}"
    assert (
        "| On the same 200 questions | RR | 95 % interval | p | won / tied / lost |\n"
        "| :--- | ---: | ---: | ---: | ---: |\n"
        "| dense over bm25 | +0.00 | +0.00 to +0.00 | p = 1.000 | 0 / 200 / 0 |\n"
        f"| hybrid over bm25 | +3.00 | {interval} | p = {p_value:.3f} | 6 / 194 / 0 |\n"
    ) in text
    said = f"points over bm25 (95 %: {interval}; p = {p_value:.3f}, which may be chance)"
    assert f"**hybrid** is best, with RR 100.00 on 200 questions: +3.00 {said}, +3.00 points over dense" in text
    assert text.count("On the same") == 1 and "few" not in text and "worse" not in text


def test_of_few_questions_the_verdict_says_how_little_they_tell(tmp_path):
    text = judged(tmp_path, {"bm25": [0.0] * 20 + [1.0] * 19, "dense": [1.0, 0.5] * 19 + [1.0]})
    low, high, few = re.findall(
        r"over bm25 \(95 %: (\S+) to (\S+); .*\)\. \*\*39 questions are few\*\*: (.*)\.\n", text
    )[0]
    assert few == f"differences below {(float(high) - float(low)) / 2:.1f} points may be chance"
    text = judged(tmp_path, {"bm25": [0.0, 0.5], "dense": [0.5, 1.0]})
    assert "**2 questions are few**: they tell nothing." in text


def test_the_verdict_names_costs_and_a_hybrid_that_harms(tmp_path):
    costs = {"faq, dense": {"bytes a passage": 1536.0, "ms a query": 0.25, "Mflop a query": 7, "weights": None}}
    values = {"bm25": [0.2] * 300, "dense": [0.9] * 300, "hybrid": [0.8] * 300}
    text = judged(tmp_path, values, costs)
    assert "0.001). The hybrid is worse than dense: search with dense alone. dense takes 1,536 bytes a passage" in text
    assert "and 0.25 ms a query.\n" in text and "| dense | 90.00 ± 0.00 | 1,536 | 0.25 | 7 |" in text
    page = (tmp_path / "report.html").read_text()
    assert "p &lt; 0.001" in page and page.index("<details><summary>faq, test: all metrics") > page.index("1,536</td>")
    assert page.count("<details>") == page.count("</details>") == 1


def test_systems_without_a_usual_rival_are_compared_with_the_next(tmp_path):
    text = judged(tmp_path, {"bm25": [0.5] * 9, "rerank": [1.0] * 9, "other": [0.9] * 9}, compared=[("other", "bm25")])
    rows = re.findall(r"\| (\w+ over \w+) \| (\S+)", text)
    assert rows == [("other over bm25", "+40.00"), ("rerank over other", "+10.00")]


def test_plots_are_png_and_the_same_every_time(tmp_path):
    losses = [{"step": step, "loss": 9 / step, "ict/loss": 8 / step, "recall@1": 0.1} for step in range(1, 200)]
    for name in ("one", "two"):
        write_losses(tmp_path / name, losses)
        write_report(tmp_path / name, "T", RESULTS)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    names = "train.jsonl success.squad.test.png training-loss.png report.html report.md"
    assert " ".join(path.name for path in files) == names
    for path in files:
        content = (tmp_path / "one" / path).read_bytes()
        assert content == (tmp_path / "two" / path).read_bytes()
        assert path.suffix != ".png" or content.startswith(b"\x89PNG")
    assert "![training-loss](plots/training-loss.png)" in (tmp_path / "one" / "report.md").read_text()


def test_the_page_shows_tags_as_text_and_loads_nothing(tmp_path):
    """A question and a system with a script in them, in a table, a plot and the title."""
    script = "<script>alert(1)</script>"
    write_losses(tmp_path, [{"step": 1, "loss": 2.0}, {"step": 1, "validation/RR": 0.5}])
    table = Table("Questions", ["question", "RR"], [[f"lost: {script}", "0.00"]])
    results = [result(system, f"Success@{k}", k / 10, dataset="küche") for system in (script, "bm25") for k in (1, 5)]
    write_report(tmp_path, script, results, [table], [tmp_path])
    text = (tmp_path / "report.html").read_text()
    assert "<script" not in text and text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 2
    assert text.count('src="data:image/png;base64,') == 3
    assert not re.search(r"""(src|href)=["'](?!#|data:image/png)|url\((?!#)""", text)
    assert "&lt;b&gt;" in report_page.page(tmp_path, "title", ["<b>bold</b>"])


def test_bad_input_is_refused(tmp_path):
    for line in ('{"step": 2, "lo', "[1]", '{"loss": 1}', ""):
        (tmp_path / "metrics").mkdir(exist_ok=True)
        (tmp_path / "metrics" / "train.jsonl").write_text(f'{{"step": 1, "loss": 1}}\n{line}\n')
        with pytest.raises(UserError, match=r"train\.jsonl, line 2"):
            write_report(tmp_path, "T", [])
    assert not (tmp_path / "report.md").exists()
