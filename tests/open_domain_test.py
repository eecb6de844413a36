"""More candidates from a corpus."""

from retrieval.data.sets.beir import Candidate, RetrievalSet
from retrieval.data.sets.open_domain import extend

PASSAGES = [
    Candidate("7:0", "Cats", "Cats sleep. Cats purr. Cats sleep."),
    Candidate("7:1", "Cats", "A cat has four legs."),
    Candidate("9:0", "Dogs", "Dogs bark. The answer is here."),
]
PAIRS = {
    ("corpus:7:0-0", "Cats sleep.", PASSAGES[0].text),
    ("corpus:7:0-1", "Cats purr.", PASSAGES[0].text),
    ("corpus:7:1-0", "A cat has four legs.", PASSAGES[1].text),
    ("corpus:9:0-0", "Dogs bark.", PASSAGES[2].text),
}


def reqa():
    own = Candidate("c0", "The answer is here.", "The answer is here. So it is.")
    return RetrievalSet("reqa", {"q0": "where"}, [own], {"pair": {"q0": {"c0": 1}}})


def test_distinct_sentences_that_are_not_the_sets_own():
    value = extend(reqa(), PASSAGES, 4, seed=0)
    assert next(iter(value.candidates)) == reqa().candidates[0]
    assert {(c.id, c.title, c.text) for c in list(value.candidates)[1:]} == PAIRS
    assert (value.queries, value.qrels) == (reqa().queries, reqa().qrels)


def test_a_passage_of_the_set_or_with_a_query_gives_no_pair():
    asked = RetrievalSet(
        "s", {"q0": "Cats purr."}, [Candidate("c0", "", PASSAGES[1].text)], {"test": {"q0": {"c0": 1}}}
    )
    (drawn,) = [c.title for c in list(extend(asked, PASSAGES, 2, seed=0).candidates)[1:] if c.title != "Dogs bark."]
    assert drawn == "The answer is here."
