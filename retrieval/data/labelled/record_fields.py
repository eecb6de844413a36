"""What the fields of a record of labelled examples are, by the names of sentence-transformers and BEIR.

query, positive, negative, negative_1, ...     texts; with "score" or "scores" a teacher's of the documents
query, documents, scores or labels             a list of documents, with scores or judgements
sentence1, sentence2, score                    two texts, and how alike they are
premise, hypothesis, label                     two texts, and the class of the pair
text, label                                    a text and its class
query_id, positive_id, negative_id, score      ids, whose texts are elsewhere; so is a list of document_ids
query-id, corpus-id, score                     ids and a judgement, as BEIR has them

`config.pairs.fields` names fields that are called otherwise.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from retrieval.common import errors
from retrieval.common.errors import UserError

_OF_SIDES = ("pos_scores", "neg_scores")
_USUAL = {  # our name of a field -> what it may be called
    "query": ("query", "anchor", "question"),
    "positive": ("positive", "positives", "pos", "positive_passages"),
    "documents": ("documents", "docs"),
    "score": ("score", "scores"),
    "label": ("label", "labels"),
    "query_id": ("query_id", "qid", "query-id"),
    "positive_id": ("positive_id", "positive_ids"),
    "document_ids": ("document_ids", "doc_ids", "corpus-id"),
}
_PAIRED = ("answer", "document", "passage")  # the positive, where no field of that name is there
_NEGATIVE = re.compile(r"(hard_)?(negatives?|neg)(_passages|_\d+)?")
_NEGATIVE_ID = re.compile(r"negative_ids?(_\d+)?")
PREMISES = ("premise", "hypothesis")
_TWO = (("sentence1", "sentence2"), PREMISES)
_TEXT, _LABEL = "text", "label"

TUPLE, DOCUMENTS, TWO, CLASS = "tuple", "documents", "two", "class"  # what a record is


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
        return [*filter(None, [self.query, *self.documents, *self.negatives, *self.scores, self.labels])]

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
    named = ", ".join(layout.fields)
    if layout.kind == TWO and layout.scores:
        what = f"two texts and how alike they are ({named}), for the losses cosent and cosine_mse"
        return Shape(what, is_apart=True, has_scores=True, is_scored=True)
    if layout.scores:
        return Shape(f"documents with a teacher's scores ({named}), for kl_divergence and margin_mse too", True, True)
    if layout.kind == CLASS:
        return Shape(f"texts with a class ({named}): two of one class are a pair")
    return Shape(f"{'triplets or tuples' if layout.negatives else 'pairs'} ({named})")


def layout(there: Sequence[str], at: str, names: Mapping[str, str]) -> Layout:
    """What fields are, by our names.

    Args:
      there: the names of the fields.
      at: where they were read.
      names: as `named` gives them; a score that is named there is read beside a pair too.

    Raises:
      UserError: the query or the positives are in none or in two, or documents have neither scores nor judgements.
    """
    usual = {ours: tuple(name for name in theirs if name in there) for ours, theirs in _USUAL.items()}
    scores, label = usual["score"][:1], "".join(usual["label"][:1])
    if usual["document_ids"] == ("corpus-id",) and not label:  # BEIR's score is a grade
        scores, label = (), "".join(scores)
    judged = "" if scores else label
    if not usual["query"]:
        if pair := next((pair for pair in _TWO if set(pair) <= set(there)), None):
            return Layout(TWO, pair[0], pair[1:], (), scores, judged)
        if _TEXT in there and _LABEL in there:
            return Layout(CLASS, _TEXT, labels=_LABEL)
    positives, documents, ids = usual["positive"], usual["documents"], (False, False)
    has_texts = usual["query"] and (positives or documents or not set(_PAIRED).isdisjoint(there))
    if not has_texts and (usual["query"] or usual["query_id"]) and (usual["positive_id"] or usual["document_ids"]):
        ids, positives, documents = (True, not usual["query"]), usual["positive_id"], usual["document_ids"]
    query = usual["query_id"][0] if ids[1] else _one(there, _USUAL["query"], at)
    if documents and not positives:
        if not (scores or label):
            raise UserError(f"{at}: {documents[0]} without scores or labels, one is needed; there are {shown(there)}")
        return Layout(DOCUMENTS, query, documents[:1], (), scores, judged, ids)
    negatives = tuple(name for name in there if (_NEGATIVE_ID if ids[0] else _NEGATIVE).fullmatch(name))
    if not ids[0]:
        positives = (_one(there, _USUAL["positive"] + (() if positives else _PAIRED), at),)
        if not negatives and "score" in names:
            return Layout(TWO, query, positives, (), scores)
        scores = _OF_SIDES if set(_OF_SIDES) <= set(there) else scores
    return Layout(TUPLE, query, positives, negatives, scores if negatives else (), "" if ids[0] else label, ids)


def named(value: str) -> dict[str, str]:
    """What `config.pairs.fields` says, such as 'query=title,positive=body': our name of a field -> the file's.

    Raises:
      UserError: it says something else.
    """
    names: dict[str, str] = {}
    for part in filter(None, value.split(",")):
        ours, _, theirs = part.partition("=")
        if not theirs or ours in names or not (ours in _USUAL or _is_negative(ours)):
            known = "negative, negative_2, negative_id, " + ", ".join(_USUAL)
            raise UserError(f"config.pairs.fields={value}: '{part}' is no NAME=FIELD, or again; names are {known}")
        names[ours] = theirs
    return names


def _is_negative(name: str) -> bool:
    return bool(_NEGATIVE.fullmatch(name) or _NEGATIVE_ID.fullmatch(name))


def renamed(record: dict[str, Any], names: Mapping[str, str], at: str) -> dict[str, Any]:
    """A record with our names of the fields that `names` has; others for the same are dropped.

    Raises:
      UserError: one of these is not there; a line may have no negative.
    """
    if not names:
        return record
    for ours, theirs in names.items():
        if not _is_negative(ours):
            require(theirs, list(record), at)
    own = {ours: record[theirs] for ours, theirs in names.items() if theirs in record}
    dropped = {name for ours in names for name in _USUAL.get(ours, ())} | set(names.values())
    dropped |= set(_OF_SIDES if "score" in names else ())
    drops_negatives = any(map(_is_negative, names))
    return own | {
        field: value
        for field, value in record.items()
        if not (field in dropped or (drops_negatives and _is_negative(field)))
    }


def require(name: str, there: Sequence[str], at: str) -> None:
    """Checks that a field is there which `config.pairs.fields` names."""
    if name not in there:
        raise UserError(f"{at}: no field '{name}', which config.pairs.fields names; there are {shown(there)}")


def _one(there: Sequence[str], names: Sequence[str], at: str) -> str:
    """The field of a record that has one of the names."""
    ours = [name for name in names if name in there]
    if len(ours) > 1:
        raise UserError(f"{at}: one of {', '.join(names)} is needed, and there are both '{ours[0]}' and '{ours[1]}'")
    if not ours:
        such = "name the fields, such as config.pairs.fields=query=FIELD,positive=FIELD,negative=FIELD"
        raise UserError(f"{at}: one of {', '.join(names)} is needed, there are {shown(there)}: {such}")
    return ours[0]


def shown(names: Iterable[str]) -> str:
    """Names of fields, for an error; a name may be a text."""
    return errors.listed(name[:40] for name in names) or "no fields"
