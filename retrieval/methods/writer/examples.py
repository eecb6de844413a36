"""Texts around a model that writes: answers to ask for, files of what was written, and what these serve for.

A file has a line for each text that a model wrote of a document, those of a document one after the other:

    {"_id": "d7", "text": "how tall is mount everest", "log_probability": -3.2041}
    {"_id": "d7", "text": "how tall is mount everest", "answer": "8,849 m", "log_probability": -2.1187}

`_id` is the document's. `answer` is that of a question that was asked for it. Files of others may do without it and
`log_probability`. Those of docTTTTTquery have all of a document:

    {"id": "7", "predicted_queries": ["how tall is mount everest", "everest height"]}
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from retrieval.common import libraries
from retrieval.common.errors import UserError, first_line
from retrieval.common.libraries import tf
from retrieval.common.parsing import foreign_json, scalars, text_files
from retrieval.common.registry import Table
from retrieval.common.runtime import hashing
from retrieval.data.examples import task_kind
from retrieval.data.examples.example_kind import ExampleKind, Field, tokens, types
from retrieval.data.examples.task_kind import Maker, TaskInputs
from retrieval.data.examples.tasks.labelled_tasks import LabelledTask, documents
from retrieval.data.examples.token_rows import Record, single
from retrieval.data.labelled import labelled_format
from retrieval.data.labelled.grouping import Example
from retrieval.data.labelled.labelled_format import LabelledFormat, Reading
from retrieval.data.sets import beir, reqa
from retrieval.data.sets.beir import Candidate

_LIST = "predicted_queries"
_NEEDED = 'a line such as {"_id": "d7", "text": "a query"} is needed'
_DIGITS = 4  # of a log-probability: the rest depends on the machine
_SPACY = "en_core_web_sm"

_MONTH = (
    "(?:January|February|March|April|May|June|July|August|September|October|November|December|"
    "Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)"
)
_DATE = re.compile(
    rf"\b(?:{_MONTH}\.? \d{{1,2}}(?:, \d{{3,4}})?|\d{{1,2}} {_MONTH}\.?(?: \d{{3,4}})?|{_MONTH}\.? \d{{3,4}}"
    r"|(?:early |mid-|late )?\d{1,2}(?:st|nd|rd|th) century|\d{3,4} (?:BC|AD|BCE|CE)"
    r"|(?:1\d{3}|20\d{2})(?:s|[-–]\d{2,4})?)\b"
)
_NUMBER = re.compile(
    r"(?<![\w.,])[$€£]?\d+(?:,\d{3})*(?:\.\d+)?(?: ?%| (?:thousand|million|billion|trillion|percent|per cent|years?|"
    r"months?|days?|hours?|minutes?|seconds?|km|kilometres|kilometers|miles?|metres|meters|feet|kg|tons?|tonnes|people)\b)?"
)
_WORD = r"(?:(?:[A-Z]\.)+|(?:Dr|Mr|Mrs|Ms|St|Prof|Gen|Col|Mt)\.|[A-Z]\w*(?:['’&-]\w+)*)"
_NAME = re.compile(rf"\b{_WORD}(?: (?:of the|of|de la|de|von|van|and|the) {_WORD}| {_WORD})*")
_BEGINS = re.compile(r"(?:^|[.!?:][\"')\]]* +|\n\s*)$")
# Words that begin a sentence with a capital letter and are no names.
_COMMON = frozenset(
    "a an the this that these those he she it they we i you his her its their our in on at by of for from with to as "
    "and but or if when while where what which who how why there here after before during since until because although "
    "however also some many most all each every both other another one two three first second such no not then thus "
    "today later".split()
)


# A candidate for an answer: its first character, and the one behind its last.
Span = tuple[int, int]

# From texts to the candidates of each, in any order; they may overlap. Of no texts it says whether it can be used here.
AnswerMaker = Callable[[Sequence[str]], Iterator[list[Span]]]

MAKERS: Table[AnswerMaker] = Table("maker of answers", word="maker")


def rules(texts: Sequence[str]) -> Iterator[list[Span]]:
    """Dates, numbers and capitalised names, by patterns for English."""
    for text in texts:
        spans = [match.span() for pattern in (_DATE, _NUMBER) for match in pattern.finditer(text)]
        yield [*spans, *_names(text)]


def entities(texts: Sequence[str]) -> Iterator[list[Span]]:
    """Named entities and dates, by spaCy (Xiong et al. 2020, section 3.1).

    Raises:
      UserError: spaCy or its model is not installed.
    """
    documents = _spacy_model().pipe(texts)
    return ([(entity.start_char, entity.end_char) for entity in document.ents] for document in documents)


MAKERS.register("rules", rules)
MAKERS.register("spacy", entities)


@functools.cache
def _spacy_model() -> Any:
    spacy = libraries.package("config.generate.answers=spacy", "spacy", "spacy")
    try:
        return spacy.load(_SPACY, exclude=["lemmatizer", "attribute_ruler"])
    except OSError as error:
        way = f"({first_line(error)}): python -m spacy download {_SPACY}, or take rules"
        raise UserError(f"config.generate.answers=spacy: its model {_SPACY} is not installed {way}") from error


def chosen(text: str, spans: Sequence[Span], most: int, seed: int) -> list[str]:
    """Some of the candidates of a text, in their order there.

    Of those that overlap the longest stays, and of those that read the same the first. Where there are more than
    `most`, a hash of text and seed draws.
    """
    kept: list[Span] = []
    for span in sorted(spans, key=lambda span: (span[0] - span[1], span[0])):
        if all(span[1] <= start or end <= span[0] for start, end in kept):
            kept.append(span)
    different: dict[str, str] = {}
    for start, end in sorted(kept):
        if word := text[start:end].strip():
            different.setdefault(word.casefold(), word)
    drawn = sorted(different.values(), key=lambda word: hashing.digest(str(seed), text, word))[:most]
    return [word for word in different.values() if word in drawn]


def _names(text: str) -> Iterator[Span]:
    """Capitalised sequences. A common word that begins a sentence is no part of one."""
    for match in _NAME.finditer(text):
        start, end = match.span()
        if _BEGINS.search(text[max(0, start - 8) : start]):
            first = text[start:end].split(" ", 1)[0]
            if first.lower().strip(".'’") in _COMMON:
                start += len(first) + 1
        if end - start > 1 and text[start].isupper():
            yield start, end


class Expansion(NamedTuple):
    """A text of a document, the answer that it asks for, and how probable a model found it: told, and not read."""

    document: str
    text: str
    answer: str = ""
    log_probability: float | None = None


def to_line(expansion: Expansion) -> str:
    """A line of a file, with its end."""
    record: dict[str, Any] = {"_id": expansion.document, "text": expansion.text}
    if expansion.answer:
        record["answer"] = expansion.answer
    if expansion.log_probability is not None:
        record["log_probability"] = round(expansion.log_probability, _DIGITS)
    return json.dumps(record, ensure_ascii=False) + "\n"


def read(path: Path) -> Iterator[Expansion]:
    """The texts of a file, in order.

    Raises:
      UserError: there is no such file, or a line is not what it should be.
    """
    for at, line in text_files.lines(path):
        record = foreign_json.parse(line, at, _NEEDED)
        if isinstance(record, dict) and _LIST in record:
            id = scalars.of_value(record.get("id"), "id", at)
            yield from (Expansion(id, text) for text in text_files.strings(record, _LIST, at))
            continue
        if not isinstance(record, dict) or not {"_id", "text"} <= record.keys():
            raise UserError(f"{at}: not a text of a document; {_NEEDED}")
        text, answer = text_files.string(record, "text", at), text_files.string(record, "answer", at, default="")
        yield Expansion(scalars.of_value(record["_id"], "_id", at), text, answer)


@labelled_format.register
class GeneratedQuestions(LabelledFormat):
    """Questions that `--stage=generate` wrote, as labelled pairs (Xiong et al. 2020, section 3).

    The passages are those of a BEIR corpus.jsonl, or of a folder with a prepared corpus's passages-*.jsonl. They stand
    in the order of the questions, so neither is held in memory.
    """

    name = "generated"
    what = "questions of the stage generate, with the passages they are of"
    setting = (
        "--config.pairs.files=runs/qg/generated/corpus.jsonl --config.pairs.format=generated "
        "--config.pairs.collection=runs/wikipedia/corpus"
    )
    example = '{"_id": "d7", "text": "a question", "answer": "an answer", "log_probability": -3.2}'
    first = "{"
    needs = ("collection",)

    def read(self, path: Path, reading: Reading) -> Iterator[Example]:
        collection, counts = reading.settings.collection, reading.counts
        passages = _passages(Path(collection))
        for document, written in itertools.groupby(read(path), key=lambda line: line.document):
            passage = next((passage for passage in passages if passage.id == document), None)
            if passage is None:
                why = f"the passage '{document}' is not in {collection}, or stands before another one there"
                raise UserError(f"{path}: {why}: name in config.pairs.collection what they were written of")
            for line in written:
                if line.answer in passage.text:
                    yield Example(line.text, (passage,))
                else:
                    counts.leave_out("questions whose answer is not in their passage", f"{path}, '{line.text}'")


@labelled_format.register
class SquadAnswers(LabelledFormat):
    """SQuAD's questions as examples of question generation: `[CLS] answer [SEP] paragraph [SEP]` is the source.

    The answer stands where a passage has its title (Xiong et al. 2020, section 3.1). The first of a question counts.
    """

    name = "squad_answers"
    what = "SQuAD v1.1, answers and paragraphs to questions"
    setting = "--config.pairs.files=train-v1.1.json --config.pairs.format=squad_answers"
    example = reqa.SquadFiles.example
    first = "{"

    def read(self, path: Path, reading: Reading) -> Iterator[Example]:
        for paragraph in reqa.paragraphs(path):
            for question, placed in paragraph.questions:
                if placed:
                    yield Example(question, (Candidate("", placed[0][1], paragraph.text),))
                else:
                    reading.counts.leave_out("questions whose answer is not in its paragraph", f"{path}, '{question}'")


def _passages(place: Path) -> Iterator[Candidate]:
    paths = sorted(place.glob("passages-*.jsonl")) if place.is_dir() else [place]
    if not paths:
        raise UserError(f"config.pairs.collection={place}: no passages-*.jsonl there; name the folder of a corpus")
    return itertools.chain.from_iterable(map(beir.read_candidates, paths))


GENERATION = ExampleKind(
    "generation",
    "sources and what is written of each",
    {"source": tokens(), "target": tokens()},
    {"source_types": Field(shape=("source",))},
    lambda row, sep_id: {"source_types": types(row["source"], sep_id)},
    needs=("cls", "sep"),
)


@task_kind.register
class QueryOfPassage(LabelledTask):
    """The task 'doc2query': from a positive, `[CLS] title [SEP] text [SEP]`, to its query, `[CLS] query [SEP]`."""

    name = "doc2query"
    kind = GENERATION

    def maker(self, inputs: TaskInputs) -> Maker:
        """As `TaskKind.maker`; nothing is random."""

        def make(record: Record, seed: tf.Tensor, lengths: Mapping[str, int]) -> Record:
            (source,) = documents(record, tf.constant([0]), lengths["source"], inputs.specials)
            return {"source": source, "target": single(record["query"], lengths["target"], inputs.specials)}

        return make
