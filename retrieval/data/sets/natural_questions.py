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
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from retrieval.data.corpora import tfds_source
from retrieval.data.corpora.source_paths import split
from retrieval.data.sets import beir, reqa
from retrieval.data.sets.set_format import Given, Options, SetFormat, register
from retrieval.errors import UserError
from retrieval.parsing import foreign_json, foreign_text, text_files

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

_YES_NO = ("NONE", "NO", "YES")


class _LeftOutError(Exception):
    """Why an annotation gives no question."""


class _Word(NamedTuple):
    """A token that is no HTML tag: its number, and whether white space stands before it."""

    number: int
    text: str
    is_spaced: bool


class _Record(NamedTuple):
    """What the three forms have in common. A long answer is read by `words`, first to last, HTML tags left out."""

    at: str
    question: str
    size: int
    annotations: list[Any]
    token: Callable[[int], str]
    words: Callable[[dict[str, Any]], Iterable[_Word]]


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
        raise UserError(
            f"{', '.join(map(str, paths)) or 'no Natural Questions file'}: not one question with a short answer in a "
            f"paragraph ({dict(left_out)})"
        )
    return value


def check_file(path: Path) -> None:
    """Reads the first record, to fail early."""
    next(_json_records(path), None)


def _paragraphs(path: Path | str, left_out: collections.Counter[str]) -> Iterator[reqa.Paragraph]:
    records = _prepared_records(str(path)) if tfds_source.is_source(path) else _json_records(Path(path))
    for record in records:
        for annotation in record.annotations:
            try:
                yield _paragraph(record, annotation)
            except _LeftOutError as reason:
                left_out[str(reason)] += 1


def _paragraph(record: _Record, annotation: Any) -> reqa.Paragraph:
    long_answer, (start, end) = _answers(annotation, record)
    text, places = "", {}
    for word in record.words(long_answer):
        text += " " if text and word.is_spaced else ""
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
    if record.token(start) != "<P>":
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


def _json_records(path: Path) -> Iterator[_Record]:
    is_empty = True
    for number, line in enumerate(text_files.byte_lines(path), 1):
        if line.strip():
            is_empty = False
            yield _json_record(line, f"{path}, line {number}")
    if is_empty:
        raise UserError(f"{path}: the file is empty; expected a record of Natural Questions a line")


def _json_record(line: bytes, at: str) -> _Record:
    record = foreign_json.parse(line, at, "is it Natural Questions?")
    if not isinstance(record, dict) or type(record.get("example_id")) not in (int, str):
        raise UserError(f"{at}: the field 'example_id' is missing or not a JSON integer; is it Natural Questions?")
    at = f"{at}, example_id {record['example_id']}"
    question = text_files.required(text_files.string(record, "question_text", at), "question", at)
    annotations = reqa.field(record, "annotations", list, at)
    if "document_text" in record:
        tokens = text_files.string(record, "document_text", at).split(" ")
        return _Record(at, question, len(tokens), annotations, tokens.__getitem__, lambda a: _guessed_words(tokens, a))
    if "document_tokens" not in record:
        raise UserError(f"{at}: neither 'document_text' (simplified form) nor 'document_tokens' (full form) is there")
    tokens = reqa.field(record, "document_tokens", list, at)
    return _Record(
        at,
        question,
        len(tokens),
        annotations,
        lambda index: text_files.string(tokens[index], "token", f"{at}, token {index}"),
        lambda long_answer: _placed_words(tokens, record, long_answer, at),
    )


def _prepared_records(source: str) -> Iterator[_Record]:
    for example in tfds_source.examples(source, "natural_questions"):
        document, at = example["document"], f"{source}, example_id {example['id']}"
        tokens = document["tokens"]
        annotations = [a | {"yes_no_answer": _YES_NO[a["yes_no_answer"] + 1]} for a in example["annotations"]]
        yield _Record(
            at,
            example["question"]["text"],
            len(tokens),
            annotations,
            lambda index, tokens=tokens: tokens[index]["token"],
            lambda long_answer, document=document: _sought_words(document, long_answer),
        )


def _placed_words(tokens: list[Any], record: Any, long_answer: dict[str, Any], at: str) -> Iterator[_Word]:
    """Full form. White space in a tag is none, and a tag that is a token parts words as white space does."""
    page = text_files.string(record, "document_html", at).encode()
    last, is_parted = None, False
    for index in range(long_answer["start_token"], long_answer["end_token"]):
        token, here = tokens[index], f"{at}, token {index}"
        if reqa.field(token, "html_token", bool, here):
            is_parted = True
            continue
        start, end = (reqa.field(token, name, int, here) for name in ("start_byte", "end_byte"))
        if not 0 <= start <= end <= len(page):
            raise UserError(f"{here}: bytes {start} to {end} are out of range: the HTML has {len(page)}")
        if text := _written(text_files.string(token, "token", here)):
            gap = "" if last is None else _visible(page[last:start])
            yield _Word(index, text, is_parted or _has_space(gap))
            last, is_parted = end, False


def _guessed_words(tokens: list[str], long_answer: dict[str, Any]) -> Iterator[_Word]:
    """Simplified form. Words are set as in English print: no space before a comma, none after a bracket opens."""
    before, is_parted = "", False
    for index in range(long_answer["start_token"], long_answer["end_token"]):
        token = tokens[index]
        if _HTML_TOKEN.fullmatch(token):
            is_parted = True
        elif text := _written(token):
            is_joined = _NO_SPACE_AFTER.fullmatch(before) or _NO_SPACE_BEFORE.fullmatch(token)
            yield _Word(index, text, is_parted or not is_joined)
            before, is_parted = token, False


def _sought_words(document: dict[str, Any], long_answer: dict[str, Any]) -> Iterator[_Word]:
    """TFDS. Every word is looked for in the visible text of the long answer, close behind the word before it.

    A word may not be there as it stands: a dash may be written '--'. It is then taken to be where the next one is
    sought.
    """
    visible = _visible(document["html"].encode()[long_answer["start_byte"] : long_answer["end_byte"]])
    last, is_parted, misses = 0, False, []
    for index in range(long_answer["start_token"], long_answer["end_token"]):
        token = document["tokens"][index]
        if token["is_html"]:
            is_parted = True
        elif text := _written(token["token"]):
            start = len(visible) - len(visible[last:].lstrip())
            places = [visible.find(form, start, start + _LONGEST_GAP + len(form)) for form in (token["token"], text)]
            place = min((f for f in places if f >= 0), default=-1)
            yield _Word(index, text, is_parted or _has_space(visible[last : max(place, start)]))
            last, is_parted = (start if place < 0 else place + len(text)), False
            misses.append(place < 0)
    if sum(misses) > len(misses) / 2:
        raise _LeftOutError("the words of the paragraph are not in its HTML")


def _visible(page: bytes) -> str:
    tags, last, rest = page.decode("utf-8", "replace").rpartition(">")  # so every '<' is sought an end that is there
    return foreign_text.unescape(_TAG.sub("", tags + last) + rest)


def _has_space(text: str) -> bool:
    return any(map(str.isspace, text))


def _written(token: str) -> str:
    """A token as it is in print; empty if nothing is to be seen of it."""
    return _WRITTEN.get(token, token).strip()


@register
class NaturalQuestions(SetFormat):
    """The format 'nq'."""

    name = "nq"
    what = "Natural Questions, full or simplified, or TFDS, as ReQA"
    setting = "--config.sets.nq=FILE.jsonl.gz,… or tfds:natural_questions"
    example = '{"example_id": 1, "question_text": "q", "document_text": "<P> a </P>", "annotations": […], …}'
    tfds = "natural_questions"
    is_answered = True
    options = reqa.SENTENCES

    def read(self, value: str, given: Given) -> Iterator[beir.RetrievalSet]:
        found = read_nq(split(value))
        yield reqa.sentences_alone(found) if given.options["sets.reqa_sentences"] else found

    def check(self, value: str, options: Options, has_corpus: bool) -> None:
        super().check(value, options, has_corpus)
        reqa.check_sentences(options)
        tfds_source.open_all(split(value), self.tfds)

    def check_path(self, path: Path, options: Options) -> None:
        check_file(path)
