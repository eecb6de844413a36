"""Candidates by row: the texts of the file, and the same number for the same text."""

from retrieval.data.sets import beir
from retrieval.data.sets.beir import Candidate
from retrieval.data.sets.row_texts import CandidateTexts


def test_every_row_is_what_was_written(tmp_path):
    written = [
        Candidate("a", "Köln", 'a "quoted"\ntext'),
        Candidate("b", "", "no title"),
        Candidate("c", "Köln", 'a "quoted"\ntext'),
        Candidate("d", "no title", ""),
        Candidate("e", "", "漢字 and more"),
    ]
    beir.write_candidates(tmp_path / "corpus.jsonl", written)
    with CandidateTexts(tmp_path / "corpus.jsonl", {"d", "a", "missing"}) as texts:
        assert [texts[row] for row in (4, 0, 3, 2, 1)] == [written[row] for row in (4, 0, 3, 2, 1)]
        assert len(texts) == 5 and texts.row_of == {"a": 0, "d": 3}
        assert texts.keys_N[0] == texts.keys_N[2] and len(set(texts.keys_N.tolist())) == 4
