"""Queries and judgements without a collection: for run files of other systems, whose texts nobody has at hand.

queries       lines of id and text with a tab between them, or TREC topics
judgements    lines of query id, iteration (not read), candidate id and grade, with tabs or blanks between them

The candidates are those that are judged, without texts. No index can be built of them.
"""

import logging
from pathlib import Path

from retrieval.data.corpora.source_paths import split
from retrieval.data.sets import relevance, trec
from retrieval.data.sets.beir import Candidate, RetrievalSet
from retrieval.data.sets.set_format import SetFormat, register
from retrieval.errors import UserError

_log = logging.getLogger(__name__)


@register
class Judgements(SetFormat):
    """A set for run files."""

    name = "judgements"
    what = "queries and judgements without texts, for run files"
    setting = "--config.sets.judgements=QUERIES.tsv,QRELS"
    example = "1048585 0 7187158 1"
    parts = ("queries", "judgements")

    def read(self, value, given):
        queries, judgements = map(Path, split(value))
        topics = trec.read_queries(queries)
        judged = trec.read_qrels(judgements)
        qrels = {query: grades for query, (_, grades) in judged.items() if query in topics}
        if not qrels:
            raise UserError(f"{judgements}: none of its queries is in {queries}; are the ids written alike?")
        relevance.check_relevant(qrels.values(), judgements)
        for what, of in (("judged queries that are not asked", judged), ("queries without a judgement", topics)):
            if len(of) > len(qrels):
                _log.warning("set %s: %d %s", self.name, len(of) - len(qrels), what)
        asked = {id: text for id, text in topics.items() if id in qrels}
        candidates = [Candidate(id, "", "") for id in dict.fromkeys(id for query in asked for id in qrels[query])]
        yield RetrievalSet(self.name, asked, candidates, {"test": qrels})
