"""What the fields of a record of labelled examples are, by their names: the conventions of published training sets.

query, positive, negative, negative_1, ...           texts; with "score" or "scores" a teacher's of the documents
query, pos, neg, pos_scores, neg_scores              BGE
query, document_1, ..., scores; query, docs, labels  a list of documents, with scores or judgements
sentence1, sentence2, score                          two texts, and how alike they are
premise, hypothesis, label                           two texts, and the class of the pair
text, label                                          a text and its class
query_id, positive_id, negative_id, score            ids, whose texts are elsewhere
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from retrieval import errors
from retrieval.errors import UserError

QUERY = ("query", "anchor", "question")
POSITIVE = ("positive", "positives", "pos", "positive_passages")
NEGATIVE = re.compile(r"(hard_)?(negatives?|neg)(_passages|_\d+)?")
_PAIRED = ("answer", "document", "passage")  # the positive, where no field of POSITIVE is there
_LISTS = ("documents", "docs")
_NUMBERED = re.compile(r"(document|passage|doc)_\d+")
PREMISES = ("premise", "hypothesis")
_TWO = (("sentence1", "sentence2"), PREMISES)
SCORE, LABEL = "score", "label"
_SCORES, _LABELS, _OF_SIDES = (SCORE, "scores"), (LABEL, "labels"), ("pos_scores", "neg_scores")
LISTED = "ctxs"
METADATA, OBJECTIVE = "metadata", "objective"
_TEXT = "text"
# Of ids. A query may have its text all the same.
_QUERY_ID, _QUERY_TEXT = ("query_id", "qid"), "query_text"
_POSITIVE_IDS = re.compile(r"(positive|pos)(_document|_passage)?_ids?")
_NEGATIVE_IDS = re.compile(r"(negative|neg)(_document|_passage)?(_\d+)?_ids?|negative_ids?_\d+")
_LISTS_OF_IDS = ("document_ids", "doc_ids", "passage_ids")
NO_MATTER = ("docid", "_id", "id", *_QUERY_ID)  # a query needs no id
_SHOWN = 40  # characters of a field's name in an error: it may be a text

# What a record is.
TUPLE, DOCUMENTS, TWO, CLASS, CTXS, OBJECTIVES = "tuple", "documents", "two", "class", "ctxs", "objectives"


class Layout(NamedTuple):
    """What the fields of a record are.

    Attributes:
      kind: of the record.
      query: the field of the query, of the first of two texts, or of the text that has a class.
      documents: those of the positives, of the second text, or of all documents.
      negatives: those of the negatives.
      scores: the field of a teacher's scores, or two, of the positives and of the negatives.
      labels: the field of judgements, or of a class; of a tuple it counts only where no negative is there.
      ids: whether documents are ids, and whether the query is one.
    """

    kind: str
    query: str
    documents: tuple[str, ...] = ()
    negatives: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()
    labels: str = ""
    ids: tuple[bool, bool] = (False, False)

    @property
    def fields(self) -> list[str]:
        """All that are read."""
        found = [self.query, *self.documents, *self.negatives, *self.scores, self.labels]
        return [*filter(None, found), *(["answers"] if self.kind == CTXS else [])]

    @property
    def sort(self) -> tuple:
        """What is the same in all records of a file."""
        return self.kind, bool(self.scores), self.ids


class Shape(NamedTuple):
    """What the examples of a file are.

    Attributes:
      what: in words, with what trains on them.
      is_apart: whether an example keeps its own texts alone, and is not one with others of its query.
      has_scores: whether documents have a teacher's scores.
      is_scored: whether each is two texts and how alike they are, and no query with a positive.
    """

    what: str
    is_apart: bool = False
    has_scores: bool = False
    is_scored: bool = False


def shape(layout: Layout) -> Shape:
    """What the examples of records are."""
    is_judged = layout.labels and not layout.negatives
    named = ", ".join((layout if is_judged else layout._replace(labels="")).fields)
    if layout.kind == TWO and layout.scores:
        return Shape(
            f"two texts and how alike they are ({named}), for the losses cosent and cosine_mse", True, True, True
        )
    if layout.scores:
        return Shape(f"documents with a teacher's scores ({named}), for kl_divergence and margin_mse too", True, True)
    if layout.kind in (OBJECTIVES, CTXS):
        return Shape(f"queries with their texts ({layout.documents[0]})")
    if layout.kind == CLASS:
        return Shape(f"texts with a class ({named}): two of one class are a pair")
    if layout.labels and layout.kind in (TWO, DOCUMENTS):
        return Shape(f"{'two texts' if layout.kind == TWO else 'documents'} with a judgement ({named})")
    return Shape(f"{'triplets or tuples' if layout.negatives else 'pairs'} ({named})")


def layout(
    there: Sequence[str], at: str, has_objective: bool = False, names: Mapping[str, str] | None = None
) -> Layout:
    """What fields are, by our names.

    Args:
      there: the names of the fields.
      at: where they were read.
      has_objective: whether the record says itself what its fields are (Nomic).
      names: as `named` gives them; a score that is named there is read beside a pair too.

    Raises:
      UserError: the query or the positives are in none or in two, or documents have neither scores nor judgements.
    """
    if has_objective:
        return Layout(OBJECTIVES, "", (METADATA,))
    if LISTED in there:
        return Layout(CTXS, _one(there, QUERY, at), (LISTED,))
    queries = [name for name in QUERY if name in there]
    if not queries:
        if pair := next((pair for pair in _TWO if set(pair) <= set(there)), None):
            scores = _first(there, _SCORES)
            return Layout(TWO, pair[0], pair[1:], (), scores, "" if scores else "".join(_first(there, (LABEL,))))
        if _TEXT in there and LABEL in there:
            return Layout(CLASS, _TEXT, labels=LABEL)
    if of_ids := _of_ids(there, queries):
        return of_ids
    query = _one(there, QUERY, at)
    negatives = tuple(name for name in there if NEGATIVE.fullmatch(name))
    if any(name in there for name in POSITIVE) or not (documents := _documents(there)):
        positive = _one(there, _positive_names(there), at)
        scores = ()
        if negatives:
            scores = _OF_SIDES if set(_OF_SIDES) <= set(there) else _first(there, _SCORES)
        elif SCORE in (names or ()):
            return Layout(TWO, query, (positive,), (), (SCORE,))
        return Layout(TUPLE, query, (positive,), negatives, scores, "".join(_first(there, (LABEL,))))
    return _list(there, Layout(DOCUMENTS, query, documents), at)


def _list(there: Sequence[str], found: Layout, at: str) -> Layout:
    scores, labels = _first(there, _SCORES), _first(there, _LABELS)
    if not (scores or labels):
        raise UserError(
            f"{at}: {', '.join(found.documents)} without scores or labels, which tell what they are to their query; "
            f"there are {shown(there)}"
        )
    return found._replace(scores=scores, labels="" if scores else labels[0])


def _documents(there: Sequence[str]) -> tuple[str, ...]:
    return _first(there, _LISTS) or tuple(name for name in there if _NUMBERED.fullmatch(name))


def _of_ids(there: Sequence[str], queries: Sequence[str]) -> Layout | None:
    """What fields are whose documents are ids; None where these are texts."""
    query = [*queries, *_first(there, (_QUERY_TEXT,))]
    ids = (True, not query)
    query = (*query, *_first(there, _QUERY_ID))
    positives = tuple(name for name in there if _POSITIVE_IDS.fullmatch(name))
    negatives = tuple(name for name in there if _NEGATIVE_IDS.fullmatch(name))
    if not query or (queries and any(name in there for name in (*POSITIVE, *_PAIRED))):
        return None
    if positives:
        return Layout(TUPLE, query[0], positives, negatives, _first(there, _SCORES) if negatives else (), ids=ids)
    if documents := _first(there, _LISTS_OF_IDS):
        return _list(there, Layout(DOCUMENTS, query[0], documents, ids=ids), ", ".join(documents))
    if ids[1] and "pos" in there:  # sentence-transformers' msmarco-hard-negatives.jsonl
        return Layout(TUPLE, query[0], ("pos",), _first(there, ("neg",)), ids=ids)
    return None


def _first(there: Collection[str], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name in there)[:1]


def named(value: str) -> dict[str, str]:
    """What `config.pairs.fields` says, such as 'query=title,positive=body': our name of a field -> the file's.

    Raises:
      UserError: it says something else.
    """
    names: dict[str, str] = {}
    for part in filter(None, value.split(",")):
        ours, _, theirs = part.partition("=")
        known = ours in (QUERY[0], POSITIVE[0], SCORE, LABEL) or NEGATIVE.fullmatch(ours)
        if not theirs or ours in names or not known:
            raise UserError(
                f"config.pairs.fields={value}: '{part}' is no query=FIELD, positive=FIELD, negative=FIELD, "
                "negative_2=FIELD, score=FIELD or label=FIELD, each once; separate them by commas"
            )
        names[ours] = theirs
    return names


def renamed(record: dict[str, Any], names: Mapping[str, str], at: str) -> dict[str, Any]:
    """A record with our names of the fields that `names` has; others for the same are dropped.

    Raises:
      UserError: one of these is not there; a line may have no negative.
    """
    if not names:
        return record
    for ours, theirs in names.items():
        if not NEGATIVE.fullmatch(ours):
            require(theirs, list(record), at)
    drops_negatives = any(NEGATIVE.fullmatch(ours) for ours in names)
    alike = {QUERY[0]: QUERY, POSITIVE[0]: POSITIVE, SCORE: (*_SCORES, *_OF_SIDES), LABEL: _LABELS}
    dropped = {name for ours in names for name in alike.get(ours, ())}
    own = {ours: record[theirs] for ours, theirs in names.items() if theirs in record}
    taken = set(names.values())
    return own | {
        field: value
        for field, value in record.items()
        if not (field in taken or field in dropped or (drops_negatives and NEGATIVE.fullmatch(field)))
    }


def require(name: str, there: Sequence[str], at: str) -> None:
    """Checks that a field is there which `config.pairs.fields` names."""
    if name not in there:
        raise UserError(f"{at}: no field '{name}', which config.pairs.fields names; there are {shown(there)}")


def _positive_names(there: Collection[str]) -> Sequence[str]:
    """The names of the field of positives: those of a pair's second text count where there is none of the others."""
    return POSITIVE if any(name in there for name in POSITIVE) else POSITIVE + _PAIRED


def _one(there: Collection[str], names: Sequence[str], at: str) -> str:
    """The field of a record that has one of the names."""
    given = [name for name in names if name in there]
    if len(given) > 1:
        raise UserError(f"{at}: one of {', '.join(names)} is needed, and there are both '{given[0]}' and '{given[1]}'")
    if not given:
        raise UserError(
            f"{at}: one of {', '.join(names)} is needed, and there are {shown(there)}; name it in config.pairs.fields"
        )
    return given[0]


def shown(names: Iterable[str]) -> str:
    """Names of fields, for an error."""
    return errors.listed(name[:_SHOWN] for name in names) or "no fields"
