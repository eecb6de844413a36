"""ReQA (Ahmad et al. 2019) from SQuAD v1.1, as Chang et al. 2020 (section 4.1) evaluate on it; and SQuAD itself.

In ReQA a question is to find, among all (sentence, paragraph) pairs, the pair whose sentence holds its answer. SQuAD
(Rajpurkar et al. 2016) as open-domain questions: all paragraphs are candidates, one is judged right.
"""

import bisect
import collections
import dataclasses
import itertools
import logging
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from retrieval.common.errors import UserError
from retrieval.common.parsing import foreign_json, text_files
from retrieval.common.runtime import hashing
from retrieval.data.corpora import sentences, tfds_source
from retrieval.data.corpora.source_paths import split
from retrieval.data.sets import beir, open_domain, relevance
from retrieval.data.sets.answers import of_texts
from retrieval.data.sets.set_format import NOT_PREPARED, Context, Options, SetFormat, register

SENTENCES = ("sets.reqa_sentences", "sets.distractors")  # the fields that `ReqaFormat` reads
_MISPLACED = "answers without a sure place in their paragraph, left out"
_UNANSWERED = "questions without an answer, left out"
_Parts = list[tuple[int, beir.Candidate]]

_T = TypeVar("_T")
_JSON_NAMES = {list: "array", int: "integer", dict: "object", bool: "boolean"}
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """A paragraph and what is asked about it.

    Attributes:
      questions: (question, its answers, each with the character of `text` at which it begins).
      lost: how many further answers had no sure place in `text`; they are counted in the log.
      article: the name of its article, where it is known.
    """

    text: str
    questions: list[tuple[str, list[tuple[int, str]]]]
    lost: int = 0
    article: str = ""


def read_squad(paths: Sequence[Path | str], is_asked: Callable[[str], bool] = lambda _: True) -> beir.RetrievalSet:
    """The set 'reqa' from the questions of all `paths`: SQuAD v1.1 JSON files (.json or .json.gz), or 'tfds:squad'.

    Candidates and queries are those of `build`. All strings are taken as they stand, with their line breaks and outer
    white space. The paper's Table 2 counts its 97,888 queries so.

    An answer that is not at its `answer_start` is looked for in the paragraph. It is taken from there if it occurs
    exactly once, and otherwise left out. What is left out is counted in the log.

    From TFDS comes the same set as from the files, in another order: TFDS stores its examples shuffled.

    Args:
      is_asked: whether an article's paragraphs and questions are taken, by its title. The log counts the others.

    Raises:
      UserError: a file is missing, not JSON or not SQuAD, or no question is left; with the article and question. As
        `tfds_source.examples`.
    """
    articles: dict[str, bool] = {}
    of_files = (paragraph for path in paths for paragraph in paragraphs(path))
    value = build("reqa", (p for p in of_files if articles.setdefault(p.article, is_asked(p.article))))
    if left_out := list(articles.values()).count(False):
        _log.warning("ReQA: left out %d of %d articles, which the corpus does not have", left_out, len(articles))
    if not value.queries:
        needed = "an article that the corpus has" if left_out else "an answer"
        raise UserError(f"{', '.join(map(str, paths))}: not one question with {needed}; name a file of SQuAD")
    return value


def build(name: str, paragraphs: Iterable[Paragraph]) -> beir.RetrievalSet:
    """The ReQA set of `paragraphs`, which may be one with no query.

    Candidates are the distinct (sentence, paragraph) pairs of the paragraphs that have a question. The title is the
    sentence, the text its whole paragraph. Queries are the distinct question strings that have a gold sentence: a
    sentence in which an answer begins. Ids come from the texts alone: they do not depend on the files or their order.

    The rule 'pair' takes the gold (sentence, paragraph) pairs (Chang et al.), which are also the tuples for
    fine-tuning. The rule 'sentence' takes every candidate with the text of a gold sentence, whatever its paragraph
    (Ahmad et al.). The answers are carried for mining, which may leave out what holds one.
    """
    value = _judged(name, relevance.PAIR, (each for each in paragraphs if each.questions), _sentence_pairs)
    for what, count in value.left_out.items() if value.queries else ():
        _log.warning("ReQA: %d %s", count, what)
    pairs, by_sentence = value.qrels[relevance.PAIR], collections.defaultdict(dict)
    sentence_of = {candidate.id: candidate.title for candidate in value.candidates}
    for id, sentence in sentence_of.items():
        by_sentence[sentence][id] = 1
    same = {query: {k: 1 for gold in golds for k in by_sentence[sentence_of[gold]]} for query, golds in pairs.items()}
    return dataclasses.replace(value, qrels={relevance.PAIR: pairs, "sentence": same}, left_out={})


def _judged(
    name: str, rule: str, paragraphs: Iterable[Paragraph], parts: Callable[[Paragraph], _Parts]
) -> beir.RetrievalSet:
    """What is asked about some paragraphs, whose parts are the candidates; an answer judges the part it begins in.

    Args:
      parts: a candidate for each part of a paragraph, after the character at which it ends.
    """
    queries: dict[str, str] = {}
    answers: dict[str, list[str]] = {}
    candidates: dict[str, beir.Candidate] = {}
    qrels: dict[str, dict[str, int]] = {}
    left_out = collections.Counter[str]()
    for paragraph in paragraphs:
        own = parts(paragraph)
        for _, candidate in own:
            candidates.setdefault(candidate.id, candidate)
        left_out[_MISPLACED] += paragraph.lost
        for question, placed in paragraph.questions:
            left_out[_UNANSWERED] += not placed
            query = hashing.digest(question).hex()
            for start, answer in placed:
                queries[query] = question
                # White space between two sentences belongs to the second: some answers begin with it.
                _, gold = own[bisect.bisect_right(own, start, key=operator.itemgetter(0))]
                qrels.setdefault(query, {})[gold.id] = 1
                answers.setdefault(query, []).append(answer)
    known = {query: of_texts(texts) for query, texts in answers.items()}
    return beir.RetrievalSet(name, queries, list(candidates.values()), {rule: qrels}, known, dict(+left_out))


def _sentence_pairs(paragraph: Paragraph) -> _Parts:
    """The (sentence, paragraph) pairs; of equal sentences the first gives the number of the id."""
    key, text = hashing.digest(paragraph.text).hex(), paragraph.text
    numbers: dict[str, int] = {}
    pairs = []
    for number, (start, end) in enumerate(sentences.split(text)):
        id = f"{key}-{numbers.setdefault(text[start:end], number)}"
        pairs.append((end, beir.Candidate(id, text[start:end], text, article=paragraph.article)))
    return pairs


def _whole(paragraph: Paragraph) -> _Parts:
    return [(len(paragraph.text) + 1, beir.Candidate(hashing.digest(paragraph.text).hex(), "", paragraph.text))]


class ReqaFormat(SetFormat):
    """Formats of ReQA's sets. One overrides `whole`."""

    options = SENTENCES
    is_answered = True

    def whole(self, value: str, context: Context) -> beir.RetrievalSet:
        """The set, as `build` makes it."""
        raise NotImplementedError(f"the format '{self.name}' has no set")

    def read(self, value: str, context: Context) -> Iterator[beir.RetrievalSet]:
        """The set; or with its sentences alone as candidates, with the same ids and judgements.

        Equal sentences of different paragraphs stay different candidates, which no model can tell apart.
        """
        whole = self.whole(value, context)
        if context.options["sets.reqa_sentences"]:
            alone = [dataclasses.replace(each, title="", text=each.title) for each in whole.candidates]
            whole = dataclasses.replace(whole, candidates=alone)
        yield whole

    def check(self, value: str, options: Options, has_corpus: bool) -> None:
        super().check(value, options, has_corpus)
        if options["sets.reqa_sentences"] and options["sets.distractors"]:
            problem = "goes without config.sets.distractors, which have passages: set 0"
            raise UserError(f"config.sets.reqa_sentences {problem}")


def field(record: Any, name: str, kind: type[_T], at: str) -> _T:
    """A field of a JSON object that was read at `at`, of exactly that type (`text_files.string` reads strings)."""
    value = record.get(name) if isinstance(record, dict) else None
    if type(value) is not kind:
        raise UserError(f"{at}: the field '{name}' is missing or not a JSON {_JSON_NAMES[kind]}")
    return value


def paragraphs(path: Path | str) -> Iterator[Paragraph]:
    """The paragraphs of a SQuAD file, or of 'tfds:squad', in their order."""
    if tfds_source.is_source(path):
        yield from _tfds_paragraphs(str(path))
        return
    content = text_files.whole(Path(path), text_files.MOST_OF_JSON, is_text=True)
    root = foreign_json.parse(content, str(path), "a file of SQuAD is needed, such as dev-v1.1.json")
    for i, article in enumerate(field(root, "data", list, f"{path}")):
        title = text_files.string(article, "title", f"{path}: article {i}", default="")
        at = f"{path}: article {i} ('{title}')"
        for j, paragraph in enumerate(field(article, "paragraphs", list, at)):
            yield _paragraph(paragraph, f"{at}, paragraph {j}", title)


def _tfds_paragraphs(source: str) -> Iterator[Paragraph]:
    """TFDS holds one example per question; those of a paragraph are brought together again."""
    by_context: dict[str, list[Any]] = {}
    for example in tfds_source.examples(source, "squad"):
        by_context.setdefault(example["context"], []).append(example)
    for context, questions in by_context.items():
        title = questions[0]["title"]
        yield _paragraph({"context": context, "qas": questions}, f"{source}: article '{title}'", title)


def _paragraph(record: Any, at: str, article: str) -> Paragraph:
    text = text_files.string(record, "context", at)
    questions, lost = [], 0
    for number, question in enumerate(field(record, "qas", list, at)):
        here = f"{at}, question {number}"
        placed = [_placed(answer, text, here) for answer in field(question, "answers", list, here)]
        known = [answer for answer in placed if answer]
        questions.append((text_files.required(text_files.string(question, "question", here), "question", here), known))
        lost += len(placed) - len(known)
    return Paragraph(text, questions, lost, article)


def _placed(answer: Any, text: str, at: str) -> tuple[int, str] | None:
    """Where the answer begins and how it reads, or None where that cannot be decided."""
    words = text_files.string(answer, "text", at)
    start = field(answer, "answer_start", int, at)
    if not words.strip():
        return None
    if start >= 0 and text.startswith(words, start):
        return start, words
    return (text.find(words), words) if text.count(words) == 1 else None


class _OfSquad(SetFormat):
    """Formats that read SQuAD."""

    example = (
        '{"data": [{"title": "T", "paragraphs": [{"context": "A b.", "qas": [{"id": "1", "question": "q?", '
        '"answers": [{"text": "b", "answer_start": 2}]}]}]}]}'
    )
    tfds = "squad"
    is_answered = True

    def check_path(self, path: Path, options: Options) -> None:
        collections.deque(paragraphs(path), maxlen=0)


@register
class SquadFiles(_OfSquad, ReqaFormat):
    """The format 'reqa'."""

    name = "reqa"
    what = "SQuAD v1.1, or TFDS, as ReQA"
    setting = "--config.sets.reqa=FILE.json,… or tfds:squad"
    options = ("sets.known_articles", *SENTENCES)

    def whole(self, value: str, context: Context) -> beir.RetrievalSet:
        if not context.options["sets.known_articles"]:
            return read_squad(split(value))
        passages = open_domain.corpus_passages(context.corpus, "config.sets.known_articles=True")
        titles = {open_domain.title_key(passage.title) for passage in passages}
        return read_squad(split(value), lambda article: open_domain.title_key(article) in titles)

    def check(self, value: str, options: Options, has_corpus: bool) -> None:
        super().check(value, options, has_corpus)
        if options["sets.known_articles"] and not has_corpus:
            raise UserError(f"config.sets.known_articles=True {NOT_PREPARED}")


@register
class Squad(_OfSquad):
    """The format 'squad'.

    A question that is asked of several paragraphs has them all, and all its answers. Ids come from the texts. Of
    answers without a sure place in their paragraph, and of questions that have no other, `left_out` says how many there
    were.
    """

    name = "squad"
    what = "SQuAD v1.1: the questions of the first file, over the paragraphs of all"
    setting = "--config.sets.squad=ASKED.json,MORE.json,…"

    def read(self, value: str, context: Context) -> Iterator[beir.RetrievalSet]:
        first, *more = split(value)
        of_others = (dataclasses.replace(each, questions=[], lost=0) for path in more for each in paragraphs(path))
        whole = _judged("squad", "test", itertools.chain(paragraphs(first), of_others), _whole)
        if not whole.queries:
            raise UserError(f"{first}: not one question with an answer; name a file of SQuAD")
        yield whole
