"""Sets whose labels are ids of documents or passages of a prepared corpus, in place of texts.

    {"query": "how do I reset it", "document": "guide/start.md"}
    {"query": "how do I reset it", "positive_id": "guide/start.md:3"}

So are lines of a question, a tab and an id, and BEIR's qrels, whose questions `config.pairs.queries` has. The passages
of the corpus are the candidates. Of a document that is right, any passage is.

Fields that are called ids have ids. Others have some where most of their values are ids or look like paths, and the
corpus has one. What looks like ids that no corpus has is refused: it is no answer.
"""

import itertools
import logging
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import NamedTuple
from unicodedata import normalize

from retrieval.common import errors
from retrieval.common.errors import UserError
from retrieval.common.runtime import hashing
from retrieval.data.labelled import labelled_format
from retrieval.data.labelled.grouping import Counts
from retrieval.data.labelled.id_texts import TextsOfIds
from retrieval.data.labelled.labelled_format import Settings
from retrieval.data.sets import open_domain, relevance
from retrieval.data.sets.beir import RetrievalSet, Stream

_log = logging.getLogger(__name__)

_LOOKED_AT, _LONGEST = 1000, 255  # labels that tell whether others may be ids; characters of an id
_PATH = re.compile(r"\S*[^\s/]/[^\s/]\S*|\S+\.[A-Za-z]\w{0,9}(:\d+)?")  # 'guide/start', 'start.md:3'
_OBJECT = " " * (_LONGEST + 1)  # stands for a text with a title or with an id of its own
_WAY = "name the field of ids positive_id, and write an answer that looks like one as an object with text and docid"


class Label(NamedTuple):
    """What answers a question: an id, or a text that may be one; and where it stands."""

    at: str
    query: str
    id: str


def read(name: str, path: Path, settings: Settings, corpus: Path, unknown: str) -> RetrievalSet | None:
    """The set of a file; None where its labels are texts, or ids of `config.pairs.collection`.

    Args:
      corpus: the folder of a prepared corpus, which may be missing.
      unknown: what is done with labels that are no ids: `relevance.REFUSE`, or `relevance.DROP`.

    Raises:
      UserError: a label is no id and is refused, or they look like ids and none is one.
    """
    needed, counts = labelled_format.format_of(path, settings).needed(path, settings), Counts()
    placed = _labels(path, settings, counts)
    first = list(itertools.islice(placed, _LOOKED_AT))
    is_long = 2 * sum(len(label.id) > _LONGEST for label in first) >= len(first)
    if (needed and settings.collection) or (is_long and not needed):
        return None
    labels = [*first, *placed]
    passages_of, example, note = _look_up({label.id for label in labels}, corpus)
    known, lost = ([label for label in labels if (label.id in passages_of) == has] for has in (True, False))
    if not _are_ids(path, known, lost, bool(needed), example):
        return None
    if lost:
        what = f"{len(lost)} of {len(labels)} labels are no ids of the corpus, such as {_shown(lost, example)}"
        if unknown == relevance.REFUSE or not known:
            raise UserError(f"{path}: {what}. Mend them; {relevance.DROP_ALL} leaves them out")
        _log.warning("%s: %s. They are left out", path, what)
    counts.log_left_out(str(path))
    if "queries" in needed:
        with TextsOfIds(settings, path.parent) as texts:
            known = [label._replace(query=texts.query(label.query, label.at)) for label in known]
    queries = {hashing.digest(label.query).hex(): label.query for label in known}
    qrels: dict[str, dict[str, int]] = {id: {} for id in queries}
    for label in known:
        qrels[hashing.digest(label.query).hex()] |= dict.fromkeys(passages_of[label.id], 1)
    rule = relevance.DOCUMENT if any(passages_of[label.id] != [label.id] for label in known) else "test"
    candidates = Stream(lambda: open_domain.passages(corpus), sum(1 for _ in open_domain.passages(corpus)))
    left_out = {"labels that are no ids, left out": len(lost)} if lost else {}
    return RetrievalSet(name, queries, candidates, {rule: qrels}, {}, left_out, (note,))


def _labels(path: Path, settings: Settings, counts: Counts) -> Iterator[Label]:
    """The right answers of a file. One with a title or an id of its own is no id."""
    for at, one in labelled_format.format_of(path, settings).placed(path, settings, counts):
        counts.leave_out("labels that call nothing right", at, not one.positives)
        for text in one.positives:
            is_bare = not text.title and (not text.text or text.id in ("", text.text))
            yield Label(at, one.query, _plain(text.text or text.id) if is_bare else _OBJECT)


def _plain(id: str) -> str:
    """An id without what people and systems write in different ways."""
    return normalize("NFC", id.strip()).removeprefix("./")


def _look_up(wanted: Set[str], corpus: Path) -> tuple[dict[str, list[str]], str, str]:
    """Each wanted id that a passage or its document has -> the passages; an id of a passage; how many there are."""
    passages_of, count, documents, id = defaultdict[str, list[str]](list), 0, set[str](), ""
    for passage in open_domain.passages(corpus):
        count, id = count + 1, passage.id
        documents.add(document := id.rpartition(":")[0])
        for each in {_plain(id), _plain(document)} & wanted:
            passages_of[each].append(id)
    return passages_of, id, f"Judged against {count:,} passages of {len(documents):,} documents, which labels name."


def _are_ids(path: Path, known: Sequence[Label], lost: Sequence[Label], is_said: bool, example: str) -> bool:
    """Whether labels are ids of a corpus with such an id; where they are not, says which of them could be.

    Args:
      is_said: whether their field is one of ids.

    Raises:
      UserError: most look like ids, and none is one.
    """
    like = [*known, *(label for label in lost if _PATH.fullmatch(label.id))]
    are_most = 2 * len(like) > len(known) + len(lost)
    if is_said or (known and are_most):
        return bool(example)
    what = f"{len(like)} of {len(known) + len(lost)} answers look like ids of documents such as {_shown(like, example)}"
    if example and are_most:
        raise UserError(f"{path}: {what}. Mend them, or {_WAY}")
    if like:
        _log.warning("%s: %s. They are taken as texts: if they are ids, %s", path, what, _WAY)
    return False


def _shown(labels: Sequence[Label], example: str) -> str:
    """The first of some labels, each with the line or the row where it stands, and what ids of the corpus are like."""
    first = errors.listed(f"'{label.id}' ({label.at.rpartition(', ')[2]})" for label in labels[:3])
    return first + (f"; an id of a passage is '{example}'" if example else "")
