"""Letter trigrams as tokens: "good" is #go, goo, ood and od# (Huang et al. 2013, section 3.2; Huang et al. 2020).

A bag of them knows the parts of rare words and of misspelled ones. Their order in a word is lost to it.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import models

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime.filler import FILLER
from retrieval.data.tokenizers.template import Frame, PairTemplate
from retrieval.data.tokenizers.token_list import BERT_ROLES, SPECIAL_TOKENS, check_tokens
from retrieval.data.tokenizers.vocab import SEPARATOR, Vocabulary, bert_tokenizer, bert_words, word_counts

KIND = "LetterTrigrams"
_EDGE = "#"


class Trigrams(Vocabulary):
    """The words of BERT's splitter, and of each its letter trigrams. A trigram that is not listed is the unknown token.

    A word of n letters has n tokens.
    """

    FILE = "tokenizer.json"
    splits_at_spaces = True

    def __init__(self, tokens: Sequence[str], folds_accents: bool = True, lower_case: bool = True):
        self._ids = {token: i for i, token in enumerate(tokens)}
        splitter = bert_tokenizer(models.WordPiece(unk_token="[UNK]"), folds_accents, lower_case)
        super().__init__(tokens, splitter, Frame(BERT_ROLES))  # whose model is never asked
        self.folds_accents, self.lower_case = folds_accents, lower_case

    def encode(self, text: str) -> list[int]:
        ids = []
        for number, part in enumerate(text.split(SEPARATOR)):
            ids += [self.sep_id] if number else []
            for word in bert_words(self._tokenizer, part):
                ids += [self._ids.get(trigram, self.unk_id) for trigram in trigrams(word)]
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def encode_with_places(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        raise UserError("letter trigrams overlap, and a reader needs tokens that do not: take word pieces")

    def to_json(self, types: int, pair: PairTemplate | None = None) -> str:
        raise UserError("letter trigrams are no tokenizer of Hugging Face's library: take a vocabulary of word pieces")

    def decode(self, ids: Sequence[int]) -> str:
        special = {FILLER, self.pad_id, self.mask_id, *self.template.before, *self.template.behind}
        return " ".join(self.tokens[id] for id in ids if id not in special)

    @classmethod
    def train(cls, texts: Iterable[str], size: int, lower_case: bool = True) -> "Trigrams":
        """The trigrams that come most often, `size` with the special tokens; of equal ones the first by letter.

        Raises:
          UserError: the texts hold no word.
        """
        (words, folds_accents), counts = word_counts(texts, lower_case), Counter()
        for word, count in words.items():
            counts.update(dict.fromkeys(trigrams(word), count))
        if not counts:
            raise UserError("cannot train a vocabulary: the corpus holds no word")
        chosen = heapq.nsmallest(size - len(SPECIAL_TOKENS), counts, key=lambda trigram: (-counts[trigram], trigram))
        return cls([*SPECIAL_TOKENS, *sorted(chosen)], folds_accents, lower_case)

    @classmethod
    def load(cls, path: Path) -> "Trigrams":
        """Reads what `save` wrote.

        Raises:
          UserError: the file cannot be read, or is none.
        """
        model: Any = files.read_json(path)["model"]
        tokens, cases = model.get("vocab"), [model.get(name) for name in ("folds_accents", "lower_case")]
        are_tokens = isinstance(tokens, list) and all(isinstance(token, str) for token in tokens)
        if not are_tokens or not all(isinstance(case, bool) for case in cases):
            raise UserError(f"vocabulary {path}: no list of trigrams, or flags not true or false; copy it again")
        check_tokens(Path(path), tokens)
        return cls(tokens, *cases)

    @property
    def fingerprint(self) -> str:
        return files.fingerprint([KIND, self.folds_accents, self.lower_case, *self.tokens])

    def save(self, path: Path) -> None:
        """Writes `tokenizer.json`, whole or not at all."""
        cases = {"folds_accents": self.folds_accents, "lower_case": self.lower_case}
        files.write_json(path, {"model": {"type": KIND, **cases, "vocab": self.tokens}})


def trigrams(word: str) -> Iterator[str]:
    """Every three letters in a row of a word, with a mark at each of its ends."""
    marked = f"{_EDGE}{word}{_EDGE}"
    return (marked[place : place + 3] for place in range(len(marked) - 2))
