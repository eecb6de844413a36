"""SQuAD as ProQA's study reads it: paragraphs as documents, and people's questions in the place of generated ones.

    python -m benchmarks.squad_questions TRAIN DEV OUT            # before the study's run 'corpus'
    python -m benchmarks.squad_questions TRAIN DEV OUT PASSAGES   # after it: the folder of its passages

OUT gets documents.jsonl with the paragraphs of both files, for `config.corpus`; test.jsonl with the questions of DEV,
validation.jsonl with 3,000 questions of TRAIN, and train.jsonl with the others, shuffled. With PASSAGES it gets
questions.jsonl too, for `config.generated`: these others, each with the passage that holds its answer. So a study can
tell what a retriever loses by questions that a model wrote.
"""

import itertools
import json
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.data.sets import beir, reqa
from retrieval.methods.writer.examples import Expansion, to_line

_SEED, _HELD_OUT = 0, 3000
_BEGINNING = 40  # characters of a passage by which its place in a paragraph is found


class Question(NamedTuple):
    """A question, its answers, and where the first of these begins in its document."""

    document: str
    text: str
    answers: tuple[str, ...]
    start: int


class Squad(NamedTuple):
    """The paragraphs of a file by their ids, with the titles of their articles; and the questions about them."""

    documents: dict[str, tuple[str, str]]
    questions: list[Question]


def read(path: Path, part: str) -> Squad:
    """A file of SQuAD; `part` begins its ids.

    Raises:
      UserError: as `reqa.paragraphs`.
    """
    squad = Squad({}, [])
    for i, (article, paragraphs) in enumerate(itertools.groupby(reqa.paragraphs(path), lambda each: each.article)):
        for j, paragraph in enumerate(paragraphs):
            id = f"{part}-{i}-{j}"
            squad.documents[id] = article.replace("_", " "), paragraph.text
            for text, placed in paragraph.questions:
                if placed:
                    answers = tuple(answer for _, answer in placed)
                    squad.questions.append(Question(id, text, answers, placed[0][0]))
    return squad


def divide(train: Sequence[Question], test: Iterable[Question], held_out: int) -> tuple[list[Question], list[Question]]:
    """`held_out` questions, drawn by a seed; and the others, without those whose words are held out or tested."""
    shuffled = list(train)
    random.Random(_SEED).shuffle(shuffled)
    validation = shuffled[:held_out]
    asked = {question.text for question in itertools.chain(validation, test)}
    return validation, [question for question in shuffled[held_out:] if question.text not in asked]


def place(
    questions: Iterable[Question], documents: Mapping[str, tuple[str, str]], passages: Iterable[beir.Candidate]
) -> Iterator[Expansion]:
    """The questions in the order of the passages, each once, with the first passage that holds its answer's place."""
    of_document: dict[str, list[Question]] = {}
    for question in questions:
        of_document.setdefault(question.document, []).append(question)
    for passage in passages:
        document = passage.id.rpartition(":")[0]
        left = of_document.get(document, [])
        begin = documents[document][1].find(passage.text[:_BEGINNING]) if left else 0
        held = [each for each in left if _holds(passage.text, begin, each)]
        of_document[document] = [each for each in left if each not in held]
        for text, answer in dict.fromkeys((each.text, each.answers[0]) for each in held):
            yield Expansion(passage.id, text, answer)


def _holds(text: str, begin: int, question: Question) -> bool:
    return question.answers[0] in text and begin <= question.start <= begin + len(text)


def write(train: Path, dev: Path, out: Path, passages: Path | None = None) -> None:
    """Writes the files, each whole or not at all.

    Raises:
      UserError: a file is not SQuAD's, or there are no passages.
    """
    learned, asked = read(train, "train"), read(dev, "dev")
    documents = learned.documents | asked.documents
    records = ({"_id": id, "title": title, "text": text} for id, (title, text) in documents.items())
    _write_lines(out / "documents.jsonl", records)
    validation, others = divide(learned.questions, asked.questions, _HELD_OUT)
    for name, questions in (("test", asked.questions), ("validation", validation), ("train", others)):
        answers: dict[str, set[str]] = {}
        for question in questions:
            answers.setdefault(question.text, set()).update(question.answers)
        _write_lines(out / f"{name}.jsonl", ({"question": text, "answer": sorted(a)} for text, a in answers.items()))
    if passages:
        paths = sorted(passages.glob("passages-*.jsonl"))
        if not paths:
            raise UserError(f"{passages}: no passages-*.jsonl there; name the folder of a prepared corpus")
        read_passages = itertools.chain.from_iterable(map(beir.read_candidates, paths))
        lines = [to_line(each) for each in place(others, documents, read_passages)]
        files.write_text(out / "questions.jsonl", "".join(lines))
        print(f"{len(lines):,} of {len(others):,} questions have a passage")


def _write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    files.write_text(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))


def main(arguments: Sequence[str]) -> None:
    """Writes into OUT."""
    if len(arguments) not in (3, 4):
        sys.exit("error: expected python -m benchmarks.squad_questions TRAIN DEV OUT [PASSAGES]")
    try:
        write(*map(Path, arguments))
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
