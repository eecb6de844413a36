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
from retrieval.data.sets.set_format import Given, Options, SetFormat, register

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

# How much text of the HTML may be without a token, such as the mark of a reference.
_LONGEST_GAP = 40

_LIKE = '{"example_id": 1, "question_text": ..., "document_text": ..., "annotations": [...]}'
_OF_TFDS = "natural_questions"
_YES_NO = ("NONE", "NO", "YES")


class _LeftOutError(Exception):
    """Why an annotation gives no question."""


class _Word(NamedTuple):
    """A token that is no HTML tag, as the data set and as print writes it; `is_parted` where a tag stands before it."""

    number: int
    token: str
    text: str
    is_parted: bool


class _Record(NamedTuple):
    """What the three forms have in common.

    Attributes:
      size: how many tokens there are.
      token: a token by its number, and whether it is an HTML tag.
      spaces: before which of the words of a long answer there is white space.
    """

    at: str
    question: str
    annotations: list[Any]
    size: int
    token: Callable[[int], tuple[str, bool]]
    spaces: Callable[[dict[str, Any], list[_Word]], list[bool]]


def read_nq(paths: Sequence[Path | str]) -> beir.RetrievalSet:
    """The set 'nq' from Natural Questions files (.jsonl or .jsonl.gz, full or simplified) or 'tfds:natural_questions'.

    The rules are those of ReQA (Ahmad et al. 2019). An annotation gives a question if it has exactly one short answer,
    and its long answer is a paragraph (begins with <P>). Training records have one annotation; where there are several,
    each counts. `reqa.build` makes candidates, queries and judgements. What is left out is counted in the log.

    From the full form, white space is where the HTML has it outside of tags. From the simplified form it is a guess,
    so a few candidates differ. Train should give 74,097 queries, 239,008 candidates and as many tuples as queries
    (Chang et al., Table 2).

    The files are streamed: memory holds what is kept.

    Raises:
      UserError: a file is missing, cut off or without a record, a line is not JSON, a field is missing or of another
        type, a token number is out of range, or no question is left; with file, line and example_id. As
        `tfds_source.examples`.
    """
    left_out: collections.Counter[str] = collections.Counter()
    value = reqa.build("nq", (p for path in paths for p in _paragraphs(path, left_out)))
    for reason, count in left_out.most_common():
        _log.info("Natural Questions: left out %d annotations: %s", count, reason)
    if not value.queries:
        named = ", ".join(map(str, paths)) or "no Natural Questions file"
        raise UserError(f"{named}: not one question with a short answer in a paragraph ({dict(left_out)})")
    return value


def _paragraphs(path: Path | str, left_out: collections.Counter[str]) -> Iterator[reqa.Paragraph]:
    if tfds_source.is_source(path):
        records = (_prepared_record(each, str(path)) for each in tfds_source.examples(str(path), _OF_TFDS))
    else:
        records = (_json_record(record, at) for at, record in text_files.objects(Path(path), _LIKE))
    for record in records:
        for annotation in record.annotations:
            try:
                yield _paragraph(record, annotation)
            except _LeftOutError as reason:
                left_out[str(reason)] += 1


def _paragraph(record: _Record, annotation: Any) -> reqa.Paragraph:
    long_answer, (start, end) = _answers(annotation, record)
    words, is_parted = list[_Word](), False
    for number in range(long_answer["start_token"], long_answer["end_token"]):
        token, is_tag = record.token(number)
        if is_tag:  # it parts words as white space does
            is_parted = True
        elif written := _WRITTEN.get(token, token).strip():
            words.append(_Word(number, token, written, is_parted))
            is_parted = False
    text, places = "", {}
    for word, has_space in zip(words, record.spaces(long_answer, words)):
        text += " " if text and (has_space or word.is_parted) else ""
        places[word.number] = len(text), len(text) + len(word.text)
        text += word.text
    spans = [places[index] for index in range(start, end) if index in places]
    if not spans:
        raise _LeftOutError("no word in the short answer")
    place = spans[0][0]
    return reqa.Paragraph(text, [(record.question, [(place, text[place : spans[-1][1]])])])


def _answers(annotation: Any, record: _Record) -> tuple[dict[str, Any], tuple[int, int]]:
    """The long answer, a paragraph, and the tokens of the one short answer."""
    long_answer = reqa.field(annotation, "long_answer", dict, record.at)
    short_answers = reqa.field(annotation, "short_answers", list, record.at)
    yes_no = text_files.string(annotation, "yes_no_answer", record.at)
    if yes_no not in _YES_NO:
        raise UserError(f"{record.at}: the yes_no_answer '{yes_no}' is none of {', '.join(_YES_NO)}")
    spans = [_span(answer, record, "short answer") for answer in short_answers]
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
    return long_answer, spans[0]


def _span(answer: Any, record: _Record, what: str) -> tuple[int, int]:
    start, end = (reqa.field(answer, name, int, f"{record.at}, {what}") for name in ("start_token", "end_token"))
    if not 0 <= start < end <= record.size:
        raise UserError(f"{record.at}: the {what} is token {start} to {end}, out of range: there are {record.size}")
    return start, end


# The forms.


def _json_record(record: dict[str, Any], at: str) -> _Record:
    if type(record.get("example_id")) not in (int, str):
        raise UserError(f"{at}: the field 'example_id' is missing or not a JSON integer; is it Natural Questions?")
    at = f"{at}, example_id {record['example_id']}"
    question = text_files.required(text_files.string(record, "question_text", at), "question", at)
    common = at, question, reqa.field(record, "annotations", list, at)
    if "document_text" in record:
        tokens = text_files.string(record, "document_text", at).split(" ")
        return _Record(*common, len(tokens), lambda i: (tokens[i], bool(_HTML_TOKEN.fullmatch(tokens[i]))), _guessed)
    if "document_tokens" not in record:
        raise UserError(f"{at}: neither 'document_text' (simplified form) nor 'document_tokens' (full form) is there")
    placed = reqa.field(record, "document_tokens", list, at)

    def token(number: int) -> tuple[str, bool]:
        here = f"{at}, token {number}"
        return text_files.string(placed[number], "token", here), reqa.field(placed[number], "html_token", bool, here)

    return _Record(*common, len(placed), token, lambda _, words: _placed(record, placed, words, at))


def _prepared_record(example: dict[str, Any], source: str) -> _Record:
    document, tokens = example["document"], example["document"]["tokens"]
    annotations = [a | {"yes_no_answer": _YES_NO[a["yes_no_answer"] + 1]} for a in example["annotations"]]
    return _Record(
        f"{source}, example_id {example['id']}",
        example["question"]["text"],
        annotations,
        len(tokens),
        lambda number: (tokens[number]["token"], tokens[number]["is_html"]),
        lambda long_answer, words: _sought(document, long_answer, words),
    )


def _placed(record: dict[str, Any], tokens: list[Any], words: list[_Word], at: str) -> list[bool]:
    """Full form. White space in a tag is none."""
    page, last, spaces = text_files.string(record, "document_html", at).encode(), None, []
    for word in words:
        here = f"{at}, token {word.number}"
        start, end = (reqa.field(tokens[word.number], name, int, here) for name in ("start_byte", "end_byte"))
        if not 0 <= start <= end <= len(page):
            raise UserError(f"{here}: bytes {start} to {end} are out of range: the HTML has {len(page)}")
        spaces.append(last is not None and _has_space(_visible(page[last:start])))
        last = end
    return spaces


def _guessed(long_answer: dict[str, Any], words: list[_Word]) -> list[bool]:
    """Simplified form. Words are set as in English print: no space before a comma, none after a bracket opens."""
    before = ["", *(word.token for word in words)]
    return [
        not (_NO_SPACE_AFTER.fullmatch(last) or _NO_SPACE_BEFORE.fullmatch(word.token))
        for last, word in zip(before, words)
    ]


def _sought(document: dict[str, Any], long_answer: dict[str, Any], words: list[_Word]) -> list[bool]:
    """TFDS. Every word is looked for in the visible text of the long answer, close behind the word before it.

    A word may not be there as it stands: a dash may be written '--'. It is then taken to be where the next one is
    sought.
    """
    visible = _visible(document["html"].encode()[long_answer["start_byte"] : long_answer["end_byte"]])
    last, spaces, misses = 0, [], 0
    for word in words:
        start = len(visible) - len(visible[last:].lstrip())
        places = [visible.find(form, start, start + _LONGEST_GAP + len(form)) for form in (word.token, word.text)]
        place = min((place for place in places if place >= 0), default=-1)
        spaces.append(_has_space(visible[last : max(place, start)]))
        last = start if place < 0 else place + len(word.text)
        misses += place < 0
    if misses > len(words) / 2:
        raise _LeftOutError("the words of the paragraph are not in its HTML")
    return spaces


def _visible(page: bytes) -> str:
    tags, last, rest = page.decode("utf-8", "replace").rpartition(">")  # so every '<' is sought an end that is there
    return foreign_text.unescape(_TAG.sub("", tags + last) + rest)


def _has_space(text: str) -> bool:
    return any(map(str.isspace, text))


@register
class NaturalQuestions(SetFormat):
    """The format 'nq'."""

    name = "nq"
    what = "Natural Questions, full or simplified, or TFDS, as ReQA"
    setting = "--config.sets.nq=FILE.jsonl.gz,… or tfds:natural_questions"
    example = '{"example_id": 1, "question_text": "q", "document_text": "<P> a </P>", "annotations": […], …}'
    tfds = _OF_TFDS
    is_answered = True
    options = reqa.SENTENCES

    def read(self, value: str, context: Given) -> Iterator[beir.RetrievalSet]:
        whole = read_nq(split(value))
        yield reqa.sentences_alone(whole) if context.options["sets.reqa_sentences"] else whole

    def check(self, value: str, options: Options, has_corpus: bool) -> None:
        super().check(value, options, has_corpus)
        reqa.check_sentences(options)

    def check_path(self, path: Path, options: Options) -> None:
        next(text_files.objects(path, _LIKE), None)
