"""What a page says before anybody has asked: what is searched, what to ask for instance, and how near is far."""

import contextlib
import heapq
from typing import Any

import numpy as np

from retrieval.api.own_search import OwnSearch
from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import hashing
from retrieval.data.sets import beir
from retrieval.data.sets.set_format import named_sets
from retrieval.runs.pipeline.run import Run
from retrieval.search.side_by_side import DENSE

_EXAMPLES, _LONGEST = 3, 100  # queries, and characters of one
_QUERIES, _WORDS, _STAY_BELOW = 32, 3, 95  # queries of random words, words of one, and percent of them


def about(own: OwnSearch) -> dict[str, Any]:
    """What is searched, in numbers; some queries; and by system the score below which a hit is no nearer than chance.

    It searches, which takes as long as some tens of queries.
    """
    searched = {"passages": len(own.texts), "documents": _documents(own), "examples": _examples(own.run, own)}
    return searched | {"far": _far(own), "cosine": bool(own.model) and own.model.similarity_fn_name == "cosine"}


def _documents(own: OwnSearch) -> int:
    """How many a prepared corpus has passages of; where that is not known, or nothing was cut, how many passages."""
    path = own.run.corpus / "stats.json"
    counts = files.read_json(path)["counts"] if own.run.prepares and path.exists() else {}
    return counts.get("articles", 0) - counts.get("articles without a passage (too short)", 0) or len(own.texts)


def _examples(run: Run, own: OwnSearch) -> list[str]:
    """Queries: of the run's labelled sets, else sentences held out of its corpus, else titles."""
    drawn: list[str] = []
    named = sorted(named_sets(run.owner("sets").config), key=lambda each: each.form.holds_out)  # people's come first
    of_corpus = [each for each in named if each.form.name == "labelled" or each.form.holds_out]
    for sets in (name for each in of_corpus for name in each.form.names(each.value)):
        with contextlib.suppress(UserError):  # nobody needs examples
            queries = set(beir.read_queries(run.sets / sets / "queries.jsonl").values())
            drawn += heapq.nsmallest(_EXAMPLES, (q for q in queries if len(q) <= _LONGEST), key=hashing.digest)
    titles = (own.texts[len(own.texts) * place // 20].title for place in range(20))
    return list(dict.fromkeys([*drawn, *(title[:_LONGEST] for title in titles if title)]))[:_EXAMPLES]


def _far(own: OwnSearch) -> dict[str, float]:
    """The similarity that the best hits of most queries of random words stay below.

    The words are of the model's vocabulary: of the corpus, they would say what that is about.
    """
    tokens = own.model.towers.vocabulary.tokens if own.model else []
    if not (words := [word for token in tokens if len(word := token.lstrip("\u0120\u2581")) > 2 and word.isalpha()]):
        return {}
    queries = map(" ".join, np.random.default_rng(0).choice(words, (_QUERIES, _WORDS)))
    scores = [hits[DENSE][0].score for hits in own.search([*queries], 1, [DENSE])]
    return {DENSE: float(np.percentile(scores, _STAY_BELOW))}
