"""BLEU and ROUGE-L of written texts: `retrieval score`."""

import json
import sys

import pytest

from retrieval import score
from retrieval.errors import UserError
from retrieval.evaluation.written_texts import Written, scores


@pytest.fixture
def packages():
    pytest.importorskip("sacrebleu", reason="launch/scores.lock is not installed")
    pytest.importorskip("rouge_score", reason="launch/scores.lock is not installed")


def test_scores_are_those_of_the_papers(packages):
    """By hand: 3 of 4 words and 1 of 3 pairs are right; the longest common subsequence has 3 words of 4 and of 5."""
    found = scores([Written("who wrote the book", ["who wrote that the film"])], as_is=True)
    brevity = 2.718281828459045 ** (1 - 5 / 4)
    assert found["BLEU-1"] == pytest.approx(3 / 4 * brevity)
    assert found["BLEU-2"] == pytest.approx((3 / 4 * 1 / 3) ** 0.5 * brevity) and found["BLEU-3"] == 0
    p, r, beta = 3 / 4, 3 / 5, 1.2
    assert found["ROUGE-L"] == pytest.approx((1 + beta**2) * p * r / (r + beta**2 * p))


def test_case_and_punctuation_count_only_as_they_are(packages):
    written = [Written("Who wrote it?", ["x", "who wrote it ?"])]
    assert [scores(written)[name] for name in ("ROUGE-L", "BLEU-2")] == pytest.approx([1, 1])
    assert scores(written, as_is=True)["BLEU-1"] < 0.6


def test_published_outputs_have_their_published_scores(packages, shared_data, capsys, tmp_path):
    folder, numbers = shared_data / "qg", tmp_path / "numbers.json"
    files = [str(folder / f"nqg.test.{kind}.txt") for kind in ("hyp", "tgt")]
    score.main(["score", *files, "--as-is", f"--json={numbers}"])
    assert "| 11,877 | 33.96 | 18.57 | 11.96 | 8.15 | 34.22 |" in capsys.readouterr().out
    assert json.loads(numbers.read_text())["BLEU-4"] == pytest.approx(0.0815, abs=5e-5)


def test_questions_are_compared_with_those_of_their_answer(packages, tmp_path, capsys, caplog):
    lines = {
        "written": [("d1", "who ate it", "owl"), ("d1", "who ate it", "fox"), ("d2", "why", "")],
        "references": [("d1", "who ate it", "owl"), ("d1", "what slept", "fox"), ("d1", "who ate it now", "fox")],
    }
    for name, rows in lines.items():
        records = ({"_id": id, "text": text, "answer": answer} for id, text, answer in rows)
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    paths = [tmp_path / f"{name}.jsonl" for name in lines]
    assert [each.references for each in score.read(*paths)] == [["who ate it"], ["what slept", "who ate it now"], []]
    score.main(["score", *map(str, paths)])
    assert "| 2 |" in capsys.readouterr().out and "1 of 3 texts have no reference" in caplog.text


def test_only_a_line_feed_ends_a_text(tmp_path):
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text("a\u2028b\r\n\nc\n", encoding="utf-8")
    two.write_text("d\x85\n\ne\fe\n", encoding="utf-8")
    pairs = [Written("a\u2028b", ["d\x85"]), Written("", [""]), Written("c", ["e\fe"])]
    assert score.read(one, two) == pairs
    lines = tmp_path / "two.jsonl"
    lines.write_text('{"_id": "d", "text": "a"}\n')
    with pytest.raises(UserError, match=r"one is \.jsonl, and one is not"):
        score.read(one, lines)


def test_what_cannot_be_scored_is_refused(tmp_path, monkeypatch):
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text("a\n")
    two.write_text("a\nb\n")
    with pytest.raises(UserError, match=r"has 1 lines, and .* has 2: each text needs its reference"):
        score.read(one, two)
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    with pytest.raises(UserError, match="none of its 0 texts has a reference"):
        score.main(["score", str(empty), str(empty)])
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(UserError, match=r"needs the package .*, which is not installed: pip install '.*\[scores\]'"):
        score.main(["score", str(one), str(one)])
