"""Natural Questions (Kwiatkowski et al. 2019) as a ReQA set, as Chang et al. 2020 (section 4.1) evaluate on it.

A question and the paragraph that an annotator marked as its long answer. The short answer begins in the gold sentence.
Documents come as tokens, some of them HTML tags, and spans as token numbers, in three forms:

    full        nq-train-00.jsonl.gz: every token with its bytes in the page's HTML, which tell the spacing
    simplified  simplified-nq-train.jsonl.gz: the tokens alone, with a blank between each two
    TFDS        natural_questions/default: the tokens and the HTML, but not where they are in it
"""

import collections
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from retrieval.common.errors import UserError
from retrieval.common.parsing import foreign_text, text_files
from retrieval.data.corpora import tfds_source
from retrieval.data.corpora.source_paths import split
from retrieval.data.sets import beir, reqa
from retrieval.data.sets.set_format import Context, Options, register

_log = logging.getLogger(__name__)

_TAG = re.compile(r"<[^>]*>")
# As the simplified form writes them; a lower-case <p> there is a word of an article about HTML.
_HTML_TOKEN = re.compile(r"</?(?:H[1-6]|P|Table|Caption|T[drh]|[UOD]l|Li|D[dt]|Br)(?:_[^>]*)?>")

# The tokeniser of the data set writes quotes and brackets as the Penn Treebank does.
_WRITTEN = {"``": '"', "''": '"', "`": "'"}
_WRITTEN |= {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
_WRITTEN |= {name.lower(): bracket for name, bracket in _WRITTEN.items()}
_NO_SPACE_BEFORE = re.compile(r"[,.;:?!…)\]}%'’”]|''|\.\.\.|-R[RSC]B-|['’](?:s|m|d|re|ve|ll)|n['’]t", re.IGNORECASE)
_NO_SPACE_AFTER = re.compile(r"[(\[{$£€#`“‘]|``|-L[RSC]B-", re.IGNORECASE)

_LONGEST_GAP = 40  # characters of the HTML's text that may be without a token, such as the mark of a reference
_OF_TFDS = "natural_questions"
_YES_NO = ("NONE", "NO", "YES")
_LIKE = '{"example_id": 1, "question_text": ..., "document_text": ..., "annotations": [...]}'


class _LeftOutError(Exception):
    """Why an annotation gives no question."""


HasSpace = Callable[[int, int], bool]


class _Record(NamedTuple):
    """What the three forms have in common.

    Attributes:
      size: how many tokens there are.
      token: a token by its number, and whether it is an HTML tag.
      spacing: of a long answer, whether white space parts two words, by their numbers, with no tag between them.
    """

    at: str
    question: str
    annotations: list[Any]
    size: int
    token: Callable[[int], tuple[str, bool]]
    spacing: Callable[[dict[str, Any]], HasSpace]


def read_nq(paths: Sequence[Path | str]) -> beir.RetrievalSet:
    """The set 'nq' from Natural Questions files (.jsonl or .jsonl.gz, full or simplified) or 'tfds:natural_questions'.

    The rules are those of ReQA (Ahmad et al. 2019). An annotation gives a question if it has exactly one short answer,
    and its long answer is a paragraph (begins with <P>). Training records have one annotation; where there are several,
    each counts. `reqa.build` makes candidates, queries and judgements. What is left out is counted in the log.

    From the full form, white space is where the HTML has it outside of tags. From the simplified form it is a guess,
    so a few candidates differ. Train should give 74,097 queries, 239,008 candidates and as many tuples as queries
    (Chang et al., Table 2). The files are streamed: memory holds what is kept.

    Raises:
      UserError: a record is not what it should be, with file, line and example_id; or no question is left.
    """
    left_out: collections.Counter[str] = collections.Counter()
    value = reqa.build("nq", (paragraph for path in paths for paragraph in _paragraphs(path, left_out)))
    for reason, count in left_out.most_common():
        _log.info("Natural Questions: left out %d annotations: %s", count, reason)
    if not value.queries:
        raise UserError(f"{', '.join(map(str, paths))}: not one question with a short answer ({dict(left_out)})")
    return value


def _paragraphs(path: Path | str, left_out: collections.Counter[str]) -> Iterator[reqa.Paragraph]:
    if tfds_source.is_source(path):
        records = (_prepared(example, str(path)) for example in tfds_source.examples(str(path), _OF_TFDS))
    else:
        records = (_of_json(fields, at) for at, fields in text_files.objects(Path(path), _LIKE))
    for record in records:
        for annotation in record.annotations:
            try:
                yield _paragraph(record, annotation)
            except _LeftOutError as reason:
                left_out[str(reason)] += 1


def _paragraph(record: _Record, annotation: Any) -> reqa.Paragraph:
    """The text of a long answer, in which tags part words as white space does, and where the short answer stands."""
    (first, behind), answer = _answers(annotation, record)
    has_space = record.spacing(annotation["long_answer"])
    text, places, last, is_parted = "", {}, None, False
    for number in range(first, behind):
        token, is_tag = record.token(number)
        if is_tag:
            is_parted = True
        elif written := _written(token):
            text += " " if last is not None and (is_parted or has_space(last, number)) else ""
            places[number] = len(text), len(text) + len(written)
            text += written
            last, is_parted = number, False
    spans = [places[number] for number in range(*answer) if number in places]
    if not spans:
        raise _LeftOutError("no word in the short answer")
    place = spans[0][0]
    return reqa.Paragraph(text, [(record.question, [(place, text[place : spans[-1][1]])])])


def _written(token: str) -> str:
    return _WRITTEN.get(token, token).strip()


def _answers(annotation: Any, record: _Record) -> tuple[tuple[int, int], tuple[int, int]]:
    """The tokens of the long answer, a paragraph, and those of the one short answer."""
    long_answer = reqa.field(annotation, "long_answer", dict, record.at)
    spans = [_span(one, record, "short answer") for one in reqa.field(annotation, "short_answers", list, record.at)]
    if (yes_no := text_files.string(annotation, "yes_no_answer", record.at)) not in _YES_NO:
        raise UserError(f"{record.at}: the yes_no_answer '{yes_no}' is none of {', '.join(_YES_NO)}")
    if reqa.field(long_answer, "start_token", int, record.at) == -1:
        raise _LeftOutError("no long answer")
    start, end = _span(long_answer, record, "long answer")
    if not spans:
        raise _LeftOutError("no short answer" if yes_no == "NONE" else "answered by yes or no")
    if len(spans) > 1:
        raise _LeftOutError("several short answers")
    if record.token(start)[0] != "<P>":
        raise _LeftOutError("the long answer is not a paragraph")
    if not start <= spans[0][0] < spans[0][1] <= end:
        raise _LeftOutError("the short answer is outside of its paragraph")
    return (start, end), spans[0]


def _span(answer: Any, record: _Record, what: str) -> tuple[int, int]:
    start, end = (reqa.field(answer, name, int, f"{record.at}, {what}") for name in ("start_token", "end_token"))
    if not 0 <= start < end <= record.size:
        raise UserError(f"{record.at}: the {what} is token {start} to {end}, out of range: there are {record.size}")
    return start, end


def _of_json(fields: dict[str, Any], at: str) -> _Record:
    if type(fields.get("example_id")) not in (int, str):
        raise UserError(f"{at}: the field 'example_id' is missing or not a JSON integer; is it Natural Questions?")
    at = f"{at}, example_id {fields['example_id']}"
    question = text_files.required(text_files.string(fields, "question_text", at), "question", at)
    common = at, question, reqa.field(fields, "annotations", list, at)
    return _Record(*common, *(_simplified if "document_text" in fields else _full)(fields, at))


def _simplified(fields: dict[str, Any], at: str) -> tuple:
    """Words are set as in English print: no space before a comma, none after a bracket opens."""
    tokens = text_files.string(fields, "document_text", at).split(" ")

    def has_space(last: int, number: int) -> bool:
        return not (_NO_SPACE_AFTER.fullmatch(tokens[last]) or _NO_SPACE_BEFORE.fullmatch(tokens[number]))

    return len(tokens), lambda i: (tokens[i], bool(_HTML_TOKEN.fullmatch(tokens[i]))), lambda _: has_space


def _full(fields: dict[str, Any], at: str) -> tuple:
    """White space in a tag is none."""
    tokens, page = reqa.field(fields, "document_tokens", list, at), text_files.string(fields, "document_html", at)
    html = page.encode()

    def token(number: int) -> tuple[str, bool]:
        here = f"{at}, token {number}"
        return text_files.string(tokens[number], "token", here), reqa.field(tokens[number], "html_token", bool, here)

    def byte(number: int, name: str) -> int:
        here = f"{at}, token {number}"
        if not 0 <= (place := reqa.field(tokens[number], name, int, here)) <= len(html):
            raise UserError(f"{here}: the {name} {place} is out of range: the HTML has {len(html)}")
        return place

    def has_space(last: int, number: int) -> bool:
        return _has_space(_visible(html[byte(last, "end_byte") : byte(number, "start_byte")]))

    return len(tokens), token, lambda _: has_space


def _prepared(example: dict[str, Any], source: str) -> _Record:
    """Every word is looked for in the visible text of the long answer, close behind the word before it.

    A word may not be there as it stands: a dash may be written '--'. It is then taken to be where the next one is
    sought.
    """
    html, tokens = example["document"]["html"].encode(), example["document"]["tokens"]
    annotations = [own | {"yes_no_answer": _YES_NO[own["yes_no_answer"] + 1]} for own in example["annotations"]]

    def spacing(long_answer: dict[str, Any]) -> HasSpace:
        visible, end = _visible(html[long_answer["start_byte"] : long_answer["end_byte"]]), 0
        gaps, misses = dict[int, str](), 0
        for number in range(long_answer["start_token"], long_answer["end_token"]):
            token = tokens[number]["token"]
            if tokens[number]["is_html"] or not (written := _written(token)):
                continue
            start = len(visible) - len(visible[end:].lstrip())
            places = [visible.find(form, start, start + _LONGEST_GAP + len(form)) for form in (token, written)]
            place = min((place for place in places if place >= 0), default=-1)
            gaps[number] = visible[end : max(place, start)]
            end, misses = (place + len(written), misses) if place >= 0 else (start, misses + 1)
        if misses > len(gaps) / 2:
            raise _LeftOutError("the words of the paragraph are not in its HTML")
        return lambda last, number: _has_space(gaps[number])

    at, question = f"{source}, example_id {example['id']}", example["question"]["text"]
    token_of = lambda i: (tokens[i]["token"], tokens[i]["is_html"])  # noqa: E731
    return _Record(at, question, annotations, len(tokens), token_of, spacing)


def _visible(html: bytes) -> str:
    tags, last, rest = html.decode("utf-8", "replace").rpartition(">")  # so every '<' is sought an end that is there
    return foreign_text.unescape(_TAG.sub("", tags + last) + rest)


def _has_space(text: str) -> bool:
    return any(map(str.isspace, text))


@register
class NaturalQuestions(reqa.ReqaFormat):
    """The format 'nq'."""

    name = "nq"
    what = "Natural Questions, full or simplified, or TFDS, as ReQA"
    setting = "--config.sets.nq=FILE.jsonl.gz,… or tfds:natural_questions"
    example = '{"example_id": 1, "question_text": "q", "document_text": "<P> a </P>", "annotations": […], …}'
    tfds = _OF_TFDS

    def whole(self, value: str, context: Context) -> beir.RetrievalSet:
        return read_nq(split(value))

    def check_path(self, path: Path, options: Options) -> None:
        next(text_files.objects(path, _LIKE), None)
