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
    write_report(tmp_path, "ICT, local", RESULTS)
    assert (tmp_path / "report.md").read_text() == (
        "# ICT, local\n\n"
        "## squad, test\n\n"
        "| System | Step | Queries | Success@1 | Success@10 | latency | Seconds |\n"
        "| :--- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        "| zeta \\| BM25 |  | 97,888 | 59.00 | **83.00** | 0.1235 | 2.5 |\n"
        "| two-tower | 20,000 | 97,888 | **61.00** | **83.00** | – | 2.5 |\n\n"
        "![success.squad.test](plots/success.squad.test.png)\n\n"
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
    write_report(tmp_path, "T", RESULTS[:1], [], [tmp_path])  # without a figure, which takes a second
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
    write_report(tmp_path, "T", RESULTS[:1], [], [tmp_path, tmp_path / "reranked"], [("bm25+rerank", "bm25")])
    rows = [line.split("|") for line in (tmp_path / "report.md").read_text().splitlines() if "bm25+rerank over" in line]
    assert [(row[2].split()[0], row[3].strip()) for row in rows] == [("+10.00", "")]  # it has no RR


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
    results = [result(system, f"Success@{k}", k / 10) for system in (script, "bm25") for k in (1, 5)]
    write_report(tmp_path, script, results, [table], [tmp_path])
    text = (tmp_path / "report.html").read_text()
    assert "<script" not in text and text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 2
    assert text.count('src="data:image/png;base64,') == 3
    assert not re.search(r"""(src|href)=["'](?!#|data:image/png)|url\((?!#)""", text)
    assert "&lt;b&gt;" in report_page.page("title", ["<b>bold</b>"])


def test_bad_input_is_refused(tmp_path):
    for line in ('{"step": 2, "lo', "[1]", '{"loss": 1}', ""):
        (tmp_path / "metrics").mkdir(exist_ok=True)
        (tmp_path / "metrics" / "train.jsonl").write_text(f'{{"step": 1, "loss": 1}}\n{line}\n')
        with pytest.raises(UserError, match=r"train\.jsonl, line 2"):
            write_report(tmp_path, "T", [])
    assert not (tmp_path / "report.md").exists()
