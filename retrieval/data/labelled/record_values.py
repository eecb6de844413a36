"""The values of records of labelled examples: texts, lists that are written as texts, scores, and classes of pairs."""

import re
from collections.abc import Sequence
from typing import Any

from retrieval.common.errors import UserError
from retrieval.common.parsing import scalars, text_files
from retrieval.data.sets.beir import Candidate

_LIST = re.compile(r"\s*(?:\[(.*)\]|\((.*)\))\s*", re.DOTALL)
_ID_FIELDS = ("docid", "_id", "id")
# What a pair of two texts is to training, by the name of its class.
ALIKE, NEITHER, UNLIKE = 1, 0, -1
_VERDICTS = {
    **dict.fromkeys(("entailment", "equivalent", "duplicate", "paraphrase", "relevant", "yes"), ALIKE),
    **dict.fromkeys(("neutral", "not_entailment", "-", "-1", "none"), NEITHER),
    **dict.fromkeys(("contradiction", "not_equivalent", "not_duplicate", "irrelevant", "not_relevant", "no"), UNLIKE),
}
_OF_PREMISES = {"0": ALIKE, "1": NEITHER, "2": UNLIKE}  # as SNLI and MNLI number them
_BOOLEANS = {"true": 1, "false": 0}
CLASSES = _VERDICTS | {"1": ALIKE, "0": UNLIKE, "true": ALIKE, "false": UNLIKE}
_WITHOUT_FRACTION = re.compile(r"(?<=[0-9])\.0+\Z")


def items(value: Any) -> list[Any]:
    """The values of a list, of one that is written as a text, such as "[0.5, 0.25]" or "['d1', 'd2']", or the one."""
    if isinstance(value, str) and (written := _LIST.fullmatch(value)):
        inner = written[1] or written[2] or ""
        return [part.strip().strip("'\"") for part in inner.split(",")] if inner.strip() else []
    return value if isinstance(value, list) else [value]


def texts(value: Any, field: str, at: str, of_ids: Sequence[str] = _ID_FIELDS) -> list[Candidate]:
    """The texts of a field of a record that was read at `at`: one, or a list; each a string, or an object.

    Args:
      of_ids: the names of a field that has the id of a text.
    """
    texts = []
    for number, each in enumerate(value if isinstance(value, list) else [value], 1):
        here = f"{at}, {field} {number}"
        if isinstance(each, dict):
            title, text = text_files.string(each, "title", here, default=""), text_files.string(each, "text", here)
            id = next((name for name in of_ids if each.get(name) is not None), None)
            texts.append(Candidate(scalars.of_value(each[id], id, here) if id else "", title, text))
        else:
            texts.append(Candidate("", "", text_files.string({field: each}, field, here)))
    return texts


def ids(value: Any, field: str, at: str) -> list[str]:
    """The ids of a field; of a negative of sentence-transformers those of every system that found some."""
    values = [id for of_one in value.values() for id in of_one or ()] if isinstance(value, dict) else items(value)
    return list(dict.fromkeys(scalars.of_value(id, field, at) for id in values))


def scores(values: Sequence[tuple[str, Any]], positives: int, negatives: int, at: str) -> list[float]:
    """A teacher's scores of a record's positives, then of its negatives.

    As many numbers as there are negatives of one positive are margins: how much higher the positive scores. Its score
    is 0 then, which changes no loss of a teacher's scores: these look at differences.

    Args:
      values: the field, or the two, with what the record has there.
      positives, negatives: how many documents there are.

    Raises:
      UserError: a score is no finite number, or there are more or fewer of them than documents.
    """
    of_fields = [
        [scalars.score(item, f"{field} {number}" if len(listed) > 1 else field, at) for number, item in listed]
        for field, listed in ((field, list(enumerate(items(value), 1))) for field, value in values)
    ]
    counts, named = [len(each) for each in of_fields], " and ".join(field for field, _ in values)
    own = [score for each in of_fields for score in each]
    if len(own) == positives + negatives and (len(counts) == 1 or counts[0] == positives):
        return own
    if len(counts) == positives == 1 and len(own) == negatives:
        return [0.0, *(-margin for margin in own)]
    raise UserError(
        f"{at}: {' and '.join(map(str, counts))} numbers in {named}, of {positives} positives and {negatives} "
        "negatives: give each document one, or each negative of one positive a margin"
    )


def judgements(value: Any, field: str, documents: int, at: str) -> list[bool]:
    """Whether each document of a record is right: it has a grade above 0.

    Raises:
      UserError: a grade is no number, or there are more or fewer of them than documents.
    """
    listed = items(value)
    if len(listed) != documents:
        raise UserError(f"{at}: {len(listed)} values in {field}, of {documents} documents; give each one")
    values = [_BOOLEANS.get(str(value).lower(), value) for value in listed]
    return [scalars.score(value, f"{field} {number}", at) > 0 for number, value in enumerate(values, 1)]


def class_name(value: Any) -> str:
    """A class as it is compared: 1.0, True and "Not entailment" are '1', 'true' and 'not_entailment'."""
    return _WITHOUT_FRACTION.sub("", str(value).strip().lower().replace(" ", "_"))


def verdict(value: Any, field: str, of_premises: bool, at: str) -> int:
    """ALIKE, NEITHER or UNLIKE: what the class of a pair of texts says.

    Args:
      of_premises: whether a number is that of natural language inference: entailment, neutral, contradiction.

    Raises:
      UserError: it is no known class.
    """
    name = class_name(value)
    known = _VERDICTS | _OF_PREMISES if of_premises else CLASSES
    if name not in known:
        means = "0 (entailment), 1 (neutral) or 2 (contradiction)" if of_premises else "1 (alike) or 0"
        raise UserError(
            f"{at}: the {field} is {str(value)[:40]!r}; of two texts it is {means}, or the name of such a class; "
            "a score is named by config.pairs.fields=score=FIELD"
        )
    return known[name]
