"""The packed data of a day on an accelerator: texts as token ids, and batches drawn from them, in NumPy alone.

Letters of shapes: B examples of a batch, L tokens of a row, P places of masked tokens, G groups of packed queries.
"""

import dataclasses
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.common.errors import UserError
from retrieval.common.runtime.filler import FILLER

VERSION = 2
FACTS, ARRAYS, VOCABULARY = "pack.json", "arrays.npz", "vocab.txt"
PACKAGES = "packages"  # that a bare machine lacks, of Python alone
TASKS = ("ict", "bfs", "wlp")
TEXTS = ("passages", "leads", "titles", "paragraphs", "questions")
TITLE = 24  # tokens of a title, at most
SLOTS = 4  # examples of a group: the queries share a row, each in a quarter of it

Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Texts:
    """Texts of sentences, all of which lie in one array of tokens.

    Attributes:
      sentence_ends: where each sentence ends in `tokens`, with a 0 in front: sentence s is [ends[s], ends[s + 1]).
      text_ends: where each text ends among the sentences, with a 0 in front.
    """

    tokens: np.ndarray
    sentence_ends: np.ndarray
    text_ends: np.ndarray

    @classmethod
    def of(cls, tokens: np.ndarray, sentence_lengths: np.ndarray, text_sentences: np.ndarray) -> "Texts":
        """From lengths, as files have them."""
        return cls(tokens, _ends(sentence_lengths), _ends(text_sentences))

    def __len__(self) -> int:
        return len(self.text_ends) - 1

    def sentences(self, text_B: np.ndarray) -> np.ndarray:
        """How many sentences each text has."""
        return self.text_ends[text_B + 1] - self.text_ends[text_B]

    def whole(self, text_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first token of each text, and how many tokens it has."""
        start_B = self.sentence_ends[self.text_ends[text_B]]
        return start_B, self.sentence_ends[self.text_ends[text_B + 1]] - start_B

    def sentence(self, text_B: np.ndarray, number_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same of a sentence of each text, by its number within the text."""
        place_B = self.text_ends[text_B] + number_B
        start_B = self.sentence_ends[place_B]
        return start_B, self.sentence_ends[place_B + 1] - start_B

    def random_sentence(self, text_B: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The same of a random one."""
        return self.sentence(text_B, (rng.random(len(text_B)) * self.sentences(text_B)).astype(np.int64))


class Pack:
    """What `pack` wrote.

    Attributes:
      facts: `pack.json`: `settings` of the works, the ids of the special tokens, what was counted.
    """

    def __init__(self, folder: Path):
        """Reads it.

        Raises:
          UserError: it is no such folder, a damaged one, or of another version.
        """
        self.folder = folder
        self.facts = facts(folder)
        try:
            with np.load(folder / ARRAYS, allow_pickle=False) as arrays:
                arrays = {name: arrays[name] for name in arrays.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise UserError(f"{folder / ARRAYS}: cannot be read ({error}): copy it again, or pack it anew") from error
        high, low = arrays.pop("tokens_high"), arrays.pop("tokens_low")
        tokens = (high.astype(np.uint16) << 8 | low).astype(np.int32)
        self._arrays = {name: array.astype(np.int64) for name, array in arrays.items()}
        parts, start = {}, 0
        for name in TEXTS:
            lengths = self._arrays[f"{name}_lengths"], self._arrays[f"{name}_sentences"]
            end = start + int(lengths[0].sum())
            parts[name], start = Texts.of(tokens[start:end], *lengths), end
        self.passages, self.leads, self.titles = (parts[name] for name in TEXTS[:3])
        self.paragraphs, self.questions = (parts[name] for name in TEXTS[3:])

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the works do, and in which sizes."""
        return self.facts["settings"]

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary, which has those alone that occur."""
        return self.facts["vocab_size"]

    def special(self, name: str) -> int:
        """The id of 'cls', 'sep' or 'mask'."""
        return self.facts["specials"][name]

    def rows(self, *parts: "Part", length: int) -> tuple[np.ndarray, np.ndarray]:
        """`[CLS] part [SEP]`, or `[CLS] part [SEP] part [SEP]` where the first is not empty; ids and types [B, L].

        Of two parts the longer is cut first, as BERT does.
        """
        room = length - 2
        if len(parts) == 2:
            first, second = parts
            is_pair_B = first.length > 0
            room_B = room - is_pair_B
            half_B = (room_B + (first.length > second.length)) // 2
            first_B = np.minimum(first.length, np.maximum(half_B, room_B - second.length))
            second_B = np.minimum(second.length, room_B - first_B)
        else:
            first, second, is_pair_B = parts[0], None, np.zeros(len(parts[0].length), bool)
            first_B, second_B = np.minimum(first.length, room), np.zeros(len(first.length), np.int64)
        place_L = np.arange(length)
        begins_B = (1 + first_B + is_pair_B)[:, None]  # of the second part
        ends_B = begins_B + second_B[:, None]
        ids_BL = np.full((len(begins_B), length), FILLER, np.int32)
        is_first_BL = (place_L >= 1) & (place_L < 1 + first_B[:, None])
        ids_BL[is_first_BL] = first.at(place_L - 1)[is_first_BL]
        if second:
            is_second_BL = (place_L >= begins_B) & (place_L < ends_B)
            ids_BL[is_second_BL] = second.at(place_L - begins_B)[is_second_BL]
        ids_BL[:, 0] = self.special("cls")
        is_sep_BL = (place_L == ends_B) | (is_pair_B[:, None] & (place_L == begins_B - 1))
        ids_BL[is_sep_BL] = self.special("sep")
        types_BL = (is_pair_B[:, None] & (place_L >= begins_B) & (place_L <= ends_B)).astype(np.int32)
        return ids_BL, types_BL

    def whole(self, texts: Texts, text_B: np.ndarray) -> "Part":
        """Whole texts; a number of -1 is an empty one."""
        start_B, length_B = texts.whole(np.maximum(text_B, 0))
        return Part(texts.tokens, start_B, np.where(text_B < 0, 0, length_B))

    def candidate_rows(self, candidate_B: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """ReQA's candidates, `[CLS] sentence [SEP] paragraph [SEP]`; ids and types."""
        paragraph_B = self["candidate_paragraph"][candidate_B]
        sentence = Part(
            self.paragraphs.tokens, *self.paragraphs.sentence(paragraph_B, self["candidate_sentence"][candidate_B])
        )
        return self.rows(sentence, self.whole(self.paragraphs, paragraph_B), length=length)

    def gold(self, question_Q: np.ndarray) -> np.ndarray:
        """The gold candidates of questions, filled up with -1, [Q, N]."""
        start_Q, end_Q = self["gold_ends"][question_Q], self["gold_ends"][question_Q + 1]
        place_QN = start_Q[:, None] + np.arange((end_Q - start_Q).max())
        return np.where(place_QN < end_Q[:, None], self["gold"][np.minimum(place_QN, len(self["gold"]) - 1)], -1)

    def question_rows(self, question_B: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """ReQA's questions; ids and types."""
        return self.rows(self.whole(self.questions, question_B), length=length)


@dataclasses.dataclass(frozen=True)
class Part:
    """A span of tokens for each row, without what is cut out of its middle.

    Attributes:
      start: the first token of each in `tokens`; [B].
      length: tokens of each, without those that are cut out.
      cut: where the tokens begin that are cut out, from the start on; beyond the end where nothing is.
      gap: how many these are.
    """

    tokens: np.ndarray
    start: np.ndarray
    length: np.ndarray
    cut: np.ndarray | None = None
    gap: np.ndarray | None = None

    def at(self, place_BL: np.ndarray) -> np.ndarray:
        """The tokens at these places, which may lie outside and then mean nothing."""
        place_BL = np.broadcast_to(place_BL, (len(self.start), place_BL.shape[-1]))
        if self.cut is not None and self.gap is not None:
            place_BL = place_BL + np.where(place_BL >= self.cut[:, None], self.gap[:, None], 0)
        return self.tokens[np.clip(self.start[:, None] + place_BL, 0, len(self.tokens) - 1)]


def facts(folder: Path) -> dict[str, Any]:
    """What `pack.json` says.

    Raises:
      UserError: there is none, or it is of another version.
    """
    try:
        value = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"--data={folder}: no {FACTS} there: make it with benchmarks.accelerator.pack") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / FACTS}: cannot be read ({error}): pack the data anew") from error
    if not isinstance(value, dict) or value.get("version") != VERSION:
        raise UserError(
            f"{folder / FACTS}: data of another version of this program, which reads version {VERSION}: make it anew "
            "with benchmarks.accelerator.pack"
        )
    return value


class Pairs:
    """Batches of pairs, in the mixture of some tasks. A batch depends on the seed and its number alone."""

    def __init__(self, pack: Pack, rates: Mapping[str, float], seed: int, query_length: int, document_length: int):
        self._pack, self._seed = pack, seed
        self._lengths = query_length, document_length
        total = sum(rates.values())
        self._rates = {task: rates[task] / total for task in TASKS if rates.get(task)}
        counts = {task: pack["counts"][:, number] for number, task in enumerate(TASKS)}
        # The probability that a draw has this passage as its document.
        q = sum(rate * counts[task] / counts[task].sum() for task, rate in self._rates.items())
        with np.errstate(divide="ignore"):
            self._log_q = np.log(q).astype(np.float32)
        self._drawn = {task: np.flatnonzero(counts[task]) for task in ("ict", "bfs")}

    def batch(self, number: int, size: int, packed: bool = True) -> Batch:
        """Pairs as a train step takes them: `size` of them.

        Args:
          packed: whether four queries share a row, each in a quarter of it.
        """
        rng = np.random.default_rng([self._seed, number])
        task_B = rng.choice(len(self._rates), size, p=list(self._rates.values()))
        parts = [getattr(self, f"_{task}")(int((task_B == place).sum()), rng) for place, task in enumerate(self._rates)]
        query, types, document, document_types, passage = map(np.concatenate, zip(*parts))
        order_B = rng.permutation(size)
        query, types, document, document_types, passage = (
            x[order_B] for x in (query, types, document, document_types, passage)
        )
        return {
            **_example(query, types, document, document_types, packed),
            "document_id": passage[:, None].astype(np.int32),
            "log_q": self._log_q[passage][:, None],
        }

    def _ict(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """A sentence, and the title and the passage without it."""
        passages, query_length = self._pack.passages, self._lengths[0]
        passage_B = rng.choice(self._drawn["ict"], count)
        start_B, length_B = passages.random_sentence(passage_B, rng)
        whole_B, all_B = passages.whole(passage_B)
        rest = Part(passages.tokens, whole_B, all_B - length_B, start_B - whole_B, length_B)
        title = self._pack.whole(self._pack.titles, self._pack["passage_title"][passage_B])
        query = Part(passages.tokens, start_B, length_B)
        return (
            *self._pack.rows(query, length=query_length),
            *self._pack.rows(title, rest, length=self._lengths[1]),
            passage_B,
        )

    def _bfs(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """A sentence of an article's lead, and another passage of the article."""
        passage_B = rng.choice(self._drawn["bfs"], count)
        return self._of_leads(passage_B, self._pack["passage_lead"][passage_B], rng)

    def _wlp(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """A sentence of an article's lead, and a passage of another article that links to it."""
        link_B = rng.integers(len(self._pack["link_passage"]), size=count)
        return self._of_leads(self._pack["link_passage"][link_B], self._pack["link_lead"][link_B], rng)

    def _of_leads(self, passage_B: np.ndarray, lead_B: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        query = Part(self._pack.leads.tokens, *self._pack.leads.random_sentence(lead_B, rng))
        passage = self._pack.whole(self._pack.passages, passage_B)
        query_length, document_length = self._lengths
        return (
            *self._pack.rows(query, length=query_length),
            *self._pack.rows(passage, length=document_length),
            passage_B,
        )


class Labelled:
    """Batches of questions and their candidates, epoch after epoch."""

    def __init__(self, pack: Pack, question_N: np.ndarray, seed: int, query_length: int, document_length: int):
        self._pack, self._seed, self._questions = pack, seed, question_N
        self._lengths = query_length, document_length
        self._first_gold = pack["gold_ends"][:-1]

    def batch(self, number: int, size: int) -> Batch:
        """As `Pairs.batch`; there is no log Q."""
        rng = np.random.default_rng([self._seed, number // max(1, len(self._questions) // size)])
        place = number % max(1, len(self._questions) // size) * size
        question_B = np.resize(rng.permutation(self._questions), place + size)[place:]
        candidate_B = self._pack["gold"][self._first_gold[question_B]]
        document, types = self._pack.candidate_rows(candidate_B, self._lengths[1])
        return {
            **_example(*self._pack.question_rows(question_B, self._lengths[0]), document, types, True),
            "document_id": candidate_B[:, None].astype(np.int32),
            "log_q": np.zeros((size, 1), np.float32),
        }


class Masked:
    """Batches of passages, some of whose tokens are to be predicted (Devlin et al. 2019)."""

    def __init__(self, pack: Pack, seed: int, length: int, places: int, percent: int):
        """Args:
        places: of masked tokens that a row has, at most.
        percent: of a row's tokens that are masked.
        """
        self._pack, self._seed, self._length, self._places, self._percent = pack, seed, length, places, percent

    def batch(self, number: int, size: int) -> Batch:
        """Texts as the step of a masked language model takes them: `size` of them."""
        rng = np.random.default_rng([self._seed, number])
        passage_B = rng.integers(len(self._pack.passages), size=size)
        ids_BL, _ = self._pack.rows(self._pack.whole(self._pack.passages, passage_B), length=self._length)
        can_BL = (ids_BL != FILLER) & (ids_BL != self._pack.special("cls")) & (ids_BL != self._pack.special("sep"))
        order_BL = np.where(can_BL, rng.random(ids_BL.shape, np.float32), 2)
        position_BP = np.argpartition(order_BL, self._places, axis=1)[:, : self._places]
        # Of those at hand, as many as the share of the row's tokens says, the least first.
        order_BP = np.take_along_axis(order_BL, position_BP, axis=1)
        position_BP = np.take_along_axis(position_BP, order_BP.argsort(axis=1), axis=1)
        count_B = np.maximum(1, np.rint(can_BL.sum(axis=1) * self._percent / 100)).astype(np.int64)
        is_used_BP = np.arange(self._places) < count_B[:, None]
        label_BP = np.take_along_axis(ids_BL, position_BP, axis=1)
        roll_BP = rng.random(label_BP.shape)
        random_BP = rng.integers(1, self._pack.vocab_size, label_BP.shape)
        new_BP = np.where(roll_BP < 0.8, self._pack.special("mask"), np.where(roll_BP < 0.9, random_BP, label_BP))
        new_BP = np.where(is_used_BP, new_BP, label_BP).astype(np.int32)
        np.put_along_axis(ids_BL, position_BP, new_BP, axis=1)
        return {
            "text": ids_BL,
            "positions": np.where(is_used_BP, position_BP, 0).astype(np.int32),
            "labels": np.where(is_used_BP, label_BP, 0).astype(np.int32),
            "weights": is_used_BP.astype(np.float32),
        }


def _fields(side: str, ids_BL: np.ndarray, types_BL: np.ndarray, rows: int) -> Batch:
    """The fields of packed texts: a group is four texts, in equal parts of one row or in four rows."""
    B, L = ids_BL.shape
    shape = B // SLOTS, rows, SLOTS * L // rows
    of_group = SLOTS * L
    slot = np.repeat(np.arange(SLOTS, dtype=np.int32), L).reshape(shape[1:])
    ids = ids_BL.reshape(shape)
    return {
        side: ids,
        f"{side}_types": types_BL.reshape(shape),
        f"{side}_segments": np.where(ids == FILLER, 0, slot + 1),
        f"{side}_positions": np.broadcast_to(np.arange(of_group, dtype=np.int32).reshape(shape[1:]) % L, shape).copy(),
        f"{side}_starts": np.broadcast_to(np.arange(0, of_group, L, dtype=np.int32), (B // SLOTS, SLOTS)).copy(),
    }


def _example(
    query: np.ndarray, query_types: np.ndarray, document: np.ndarray, types: np.ndarray, packed: bool
) -> Batch:
    """The texts of pairs: four queries in a row, and beside them four rows of documents; or a row for each text."""
    if packed:
        return _fields("query", query, query_types, 1) | _fields("document", document, types, SLOTS)
    return {"query": query, "query_types": query_types, "document": document[:, None], "document_types": types[:, None]}


def ranks(rows_QK: np.ndarray, gold_QN: np.ndarray) -> np.ndarray:
    """The place of the first gold candidate of each query among those that were found, from 0 on; K where none was.

    Args:
      gold_QN: the gold candidates of each query, filled up with -1.
    """
    is_gold_QK = np.zeros(rows_QK.shape, bool)
    for gold_Q in gold_QN.T:
        is_gold_QK |= (rows_QK == gold_Q[:, None]) & (rows_QK >= 0)
    return np.where(is_gold_QK.any(axis=1), is_gold_QK.argmax(axis=1), rows_QK.shape[1])


def _ends(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
