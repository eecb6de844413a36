"""Vocabularies, and WordPiece (Wu et al. 2016, as in BERT): load a published one, or train one on the corpus."""

import contextlib
import itertools
import json
import logging
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

# The library's threads and our worker processes would fight over the cores; it also refuses to work after a fork.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from tokenizers import Encoding, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from retrieval.common import files
from retrieval.common.errors import UserError, library_errors
from retrieval.common.parsing import accents, text_files
from retrieval.common.runtime.filler import FILLER
from retrieval.data.tokenizers.template import Frame, PairTemplate, Template
from retrieval.data.tokenizers.token_list import BERT_ROLES, SPECIAL_TOKENS, check_tokens, folds_and_lowers, read_lines

_log = logging.getLogger(__name__)

# In a text it stands for the token [SEP], as a word of its own: between the titles of a user's history.
SEPARATOR = "\N{SYMBOL FOR RECORD SEPARATOR}"

_SPECIAL = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
_ROLES = ("pad", "unk", "mask", "eos")
_LONGEST_WORD = 100  # characters; what is longer is one unknown token

_COVERED = 0.999  # the share of a text's characters that a vocabulary has pieces for, if there is room

_PART = 100_000  # characters that are encoded at a time: what the library makes of one takes 400 bytes

# Words whose ids are kept, some 40 MB of them; characters of the longest, and its ids.
_KEPT, _LONGEST_KEPT, _MOST_IDS = 2**17, 32, 8
_PARTS = re.compile(r"[!-/:-@[-`{-~]|[^!-/:-@[-`{-~]+")  # marks of ASCII, and what stands between them


class Vocabulary:
    """Text to token ids and back. The Rust `tokenizers` library does the work: worker processes need no TensorFlow.

    Attributes:
      FILE: the name of its file in a folder.
      tokens: id -> token.
      folds_accents: whether 'café' gets the ids of 'cafe'.
      tokens_in_text: whether a special token that is written in a text is that token, as in most published folders.
      template: what stands around a text.
      pair_template: what stands around the pair of a cross-encoder; None where its tokenizer's is none that is read.
      splits_at_spaces: whether no token depends on what stands on the other side of a space.
      pad_id, unk_id, mask_id, eos_id: ids of special tokens, -1 where there is none.
    """

    FILE: str
    folds_accents: bool
    tokens_in_text: bool = False
    splits_at_spaces: bool = False

    def __init__(self, tokens: Sequence[str], tokenizer: Tokenizer, frame: Frame):
        """Args are the tokens, what makes them of a text, and which of them are special."""
        self.tokens = list(tokens)
        self._tokenizer = tokenizer
        ids = {role: self.tokens.index(token) for role, token in frame.roles.items() if token}
        self.pad_id, self.unk_id, self.mask_id, self.eos_id = (ids.get(role, -1) for role in _ROLES)
        self.template = frame.template or Template((ids["cls"],), (ids["sep"],), (ids["sep"],))
        self.pair_template = frame.pair if frame.template else PairTemplate(*self.template, of_first=1)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def cls_id(self) -> int:
        """The first token of a row, as BERT's [CLS] is; -1 where that is one of the text."""
        return self.template.before[0] if self.template.before else -1

    @property
    def sep_id(self) -> int:
        """The token that parts two texts, as BERT's [SEP] does; -1 where none does."""
        return self.template.between[0] if self.template.between else -1

    def require(self, what: str, *roles: str) -> None:
        """Checks that it has tokens of some roles, such as 'mask'.

        Raises:
          UserError: it lacks one, which `what` needs.
        """
        if missing := [role for role in roles if getattr(self, f"{role}_id") < 0]:
            names = " and ".join(BERT_ROLES[role] for role in missing)
            raise UserError(f"{what} needs a vocabulary with a token like BERT's {names}: take another model")

    def append_eos(self) -> None:
        """Puts the token that ends a text behind every one.

        Raises:
          UserError: something stands there, or there is no such token.
        """
        if self.template.behind or self.eos_id < 0:
            why = "names no eos_token, or puts one by itself"
            raise UserError(f"config.data.append_eos=True, and the vocabulary {why}: set it to False")
        self.template = self.template._replace(between=(self.eos_id,), behind=(self.eos_id,))
        self.pair_template = PairTemplate(*self.template, of_first=1)

    def save(self, path: Path) -> None:
        """Writes the vocabulary's file, whole or not at all."""
        raise NotImplementedError(type(self))

    @property
    def fingerprint(self) -> str:
        """Of the tokens, and of how a text becomes them: equal ones give equal ids."""
        return files.fingerprint(self.tokens)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; a "[SEP]" in it is ordinary pieces of words, unless `tokens_in_text`."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` for many texts at once."""
        if any(SEPARATOR in text for text in texts):
            return [self._with_separators(text) for text in texts]
        sizes = itertools.accumulate(map(len, texts))
        parts = itertools.groupby(zip(texts, sizes), key=lambda text_and_size: text_and_size[1] // _PART)
        return [encoding.ids for _, part in parts for encoding in self._encode([text for text, _ in part])]

    def _with_separators(self, text: str) -> list[int]:
        ids = [part.ids for part in self._encode([part.strip() for part in text.split(SEPARATOR)])]
        return list(itertools.chain(ids[0], *([*self.template.between, *rest] for rest in ids[1:])))

    def _encode(self, texts: Sequence[str]) -> list[Encoding]:
        with _text_errors(texts):
            return self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)

    def encode_with_places(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """`encode`, and where in `text` each token stands: its first character, and the one behind its last.

        Accents behind a token that an uncased vocabulary drops are the token's. The blank that byte pairs and unigrams
        have before a word is not, but for a token of blanks alone. No token is [SEP], by which readers know where a
        text ends.
        """
        with _text_errors([text]):
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
        places = []
        for (start, end), (most, _) in zip(encoding.offsets, [*encoding.offsets[1:], (len(text), 0)]):
            first = end - max(len(text[start:end].lstrip()), min(1, end - start))
            while end < most and unicodedata.category(text[end]) == "Mn":
                end += 1
            places.append((first, end))
        return [self.unk_id if id == self.sep_id else id for id in encoding.ids], places

    def decode(self, ids: Sequence[int]) -> str:
        """Text with the word pieces joined; special tokens are left out."""
        special = {FILLER, self.pad_id, self.mask_id, *itertools.chain.from_iterable(self.template)}
        return self._tokenizer.decode([i for i in ids if i not in special])

    def single(self, ids: Sequence[int], length: int) -> list[int]:
        """As `Template.single`."""
        return self.template.single(ids, length)

    def pair(self, first: Sequence[int], second: Sequence[int], length: int) -> list[int]:
        """As `Template.pair`."""
        return self.template.pair(first, second, length)

    def windows(self, first: Sequence[int], second: Sequence[int], length: int, most: int) -> list[list[int]]:
        """As `Template.windows`."""
        return self.template.windows(first, second, length, most)

    def to_json(self, types: int, pair: PairTemplate | None = None) -> str:
        """A `tokenizer.json` of the library, with `single` and `pair` as what it makes of token ids.

        Args:
          types: how many token types there are: the second text of a pair has the last.
          pair: what stands around two texts, if not what `template` says.
        """
        tokenizer = Tokenizer.from_str(self._tokenizer.to_str())
        there = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        tokenizer.add_special_tokens([token for token in self._special_tokens().values() if token not in there])
        config = json.loads(tokenizer.to_str()) | {"post_processor": self.template.processor(self.tokens, types, pair)}
        return Tokenizer.from_str(json.dumps(config)).to_str(pretty=True)

    def export(self, folder: Path, *, length: int, types: int, pair: PairTemplate | None = None) -> None:
        """Writes the files of a Hugging Face tokenizer, which gives the same ids, into a folder that is there.

        A pair is `[CLS] first [SEP] second [SEP]` with token types 0 and 1, where there are two. What is too long is
        cut as `pair` does it. Word pieces that strip accents get a `vocab.txt` too: its readers strip them.

        Args:
          length: tokens that a text is cut to where truncation is asked for.
          types: token types of the model, 1 or 2; 0 where it takes none.
          pair: what stands around a cross-encoder's pair.
        """
        self.save(folder / self.FILE)
        files.write_text(folder / "tokenizer.json", self.to_json(max(1, types), pair) + "\n")
        files.write_json(folder / "tokenizer_config.json", self.settings(types) | {"model_max_length": length})
        names = {f"{name}_token": token for name, token in self._special_tokens().items()}
        files.write_json(folder / "special_tokens_map.json", names)

    def settings(self, types: int) -> dict[str, Any]:
        """What the `tokenizer_config.json` beside `to_json` says, for transformers to give the same ids."""
        blanks = {"add_prefix_space": True} if getattr(self._tokenizer.pre_tokenizer, "add_prefix_space", False) else {}
        names = {f"{name}_token": token for name, token in self._special_tokens().items()}
        inputs = ["input_ids", "token_type_ids", "attention_mask"] if types else ["input_ids", "attention_mask"]
        # tokenizer.json as it is, and "[SEP]" in a text is no token but of a vocabulary that has it so
        as_it_is = {"tokenizer_class": "PreTrainedTokenizerFast", "split_special_tokens": not self.tokens_in_text}
        return as_it_is | names | blanks | {"model_input_names": inputs}

    def _special_tokens(self) -> dict[str, str]:
        ids = {name: getattr(self, f"{name}_id") for name in ("pad", "unk", "cls", "sep", "mask", "eos")}
        ids["pad"] = ids["sep"] if ids["pad"] < 0 else ids["pad"]  # those who read it make no batch without one
        return {name: self.tokens[id] for name, id in ids.items() if id >= 0}


@contextlib.contextmanager
def _text_errors(texts: Sequence[str]) -> Iterator[None]:
    """Makes a `UserError` of what the library raises about texts: one is none, or it has no token for it."""
    try:
        yield
    except BaseException:  # a panic of Rust's too
        for text in texts:
            text_files.refuse_surrogates(text, "text", "what is to be tokenised")
        with library_errors("a text that is to be tokenised", "take another vocabulary"):
            raise


class WordPiece(Vocabulary):
    """BERT's normaliser, pre-tokeniser and word pieces. An uncased one has lower case and no accents, a cased one both.

    Where case or accents are kept, the file is a `tokenizer.json`: a `vocab.txt` cannot say so.

    The library agrees with the published BERT tokeniser also on control characters and malformed text, which
    tensorflow-text does not. It is asked once for a word that comes again: texts are made of few.
    """

    splits_at_spaces = True

    def __init__(
        self, tokens: Sequence[str], folds_accents: bool = True, lower_case: bool = True, tokens_in_text: bool = False
    ):
        model = models.WordPiece({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]")
        super().__init__(tokens, bert_tokenizer(model, folds_accents, lower_case), Frame(BERT_ROLES))
        self.FILE = "vocab.txt" if folds_accents and lower_case and not tokens_in_text else "tokenizer.json"
        self.folds_accents, self.lower_case, self.tokens_in_text = folds_accents, lower_case, tokens_in_text
        if tokens_in_text:
            self._tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
        self._words = _Words(lambda word: self._encode([word])[0].ids, self.unk_id, self.sep_id)

    def encode(self, text: str) -> list[int]:
        if self.tokens_in_text and _SPECIAL.search(text):
            return super().encode_batch([text])[0]
        return list(itertools.chain.from_iterable(map(self._words.__getitem__, text.split(" "))))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    @classmethod
    def load(cls, path: Path) -> "WordPiece":
        """Reads a BERT `vocab.txt`: one token a line, the line number is the id.

        The `tokenizer_config.json` beside it says whether it is cased, and without one its tokens do.

        Raises:
          UserError: the file cannot be read, lacks a special token, or repeats a token.
        """
        path = Path(path)
        tokens = read_lines(path)
        check_tokens(path, tokens)
        return cls(tokens, *folds_and_lowers(path, tokens))

    @classmethod
    def train(cls, texts: Iterable[str], size: int, lower_case: bool = True) -> "WordPiece":
        """Learns a vocabulary of at most `size` tokens; the same texts give the same vocabulary.

        In lower case accents are stripped, unless the texts are in a script where they are letters. Words that are
        too long to have pieces are left out, with a line in the log.

        Raises:
          UserError: the texts hold no word.
        """
        words, folds_accents = word_counts(texts, lower_case)
        if too_long := sum(words.pop(word) for word in list(words) if len(word) > _LONGEST_WORD):
            _log.warning("vocabulary: %d words of over %d characters left out", too_long, _LONGEST_WORD)
        if not words:
            raise UserError(f"cannot train a vocabulary: the corpus holds no word of 1 to {_LONGEST_WORD} characters")
        alphabet = _alphabet(_characters(words), size // 4)
        # The library numbers the pieces in the order of a randomly seeded hash map, and breaks ties by these numbers:
        # only with every one-character piece numbered beforehand do equal texts give equal vocabularies. The same map
        # decides which of equally frequent characters it drops; those of `initial_alphabet` it never drops.
        pieces = [*SPECIAL_TOKENS, *sorted(alphabet), *(f"##{c}" for c in sorted(alphabet))]
        known: dict[str, Any] = dict(limit_alphabet=len(alphabet), initial_alphabet=alphabet, special_tokens=pieces)
        trainer = trainers.WordPieceTrainer(vocab_size=size, min_frequency=2, show_progress=False, **known)
        tokenizer = bert_tokenizer(models.WordPiece(unk_token="[UNK]"), folds_accents, lower_case)
        tokenizer.train_from_iterator((f"{w} " * words[w] for w in sorted(words)), trainer)
        ids = tokenizer.get_vocab()
        return cls(sorted(ids, key=ids.__getitem__), folds_accents, lower_case)

    @property
    def fingerprint(self) -> str:
        kept = ([] if self.folds_accents else ["accents are kept"]) + ([] if self.lower_case else ["case is kept"])
        return files.fingerprint([self.tokens, *kept]) if kept else super().fingerprint

    def save(self, path: Path) -> None:
        """Writes `FILE`, whole or not at all."""
        text = "\n".join(self.tokens) if self.FILE == "vocab.txt" else self._tokenizer.to_str()
        files.write_text(path, text + "\n")


class _Words(dict[str, Sequence[int]]):
    """What stands between spaces -> its ids. No step of BERT's tokeniser looks across a space, so these are the text's.

    Nor across a mark of ASCII, which is a token of its own. It stays small: when it is full it begins anew, with the
    most frequent words first.
    """

    def __init__(self, ask: Callable[[str], Sequence[int]], unk_id: int, sep_id: int):
        self._ask, self._unk_id, self._sep_id = ask, unk_id, sep_id

    def __missing__(self, word: str) -> Sequence[int]:
        if word == SEPARATOR:
            return (self._sep_id,)
        if len(word) > _LONGEST_WORD and word.isascii() and word.isalnum():  # whatever the normaliser leaves of it
            return (self._unk_id,)
        if len(word) > _LONGEST_KEPT:
            return self._ask(word)
        parts = _PARTS.findall(word)
        ids = tuple(itertools.chain.from_iterable(map(self.__getitem__, parts)) if len(parts) > 1 else self._ask(word))
        if len(ids) <= _MOST_IDS:
            if len(self) >= _KEPT:
                self.clear()
            self[word] = ids
        return ids


def bert_tokenizer(model: models.WordPiece, folds_accents: bool, lower_case: bool) -> Tokenizer:
    """A model behind BERT's normaliser and splitter."""
    tokenizer = Tokenizer(model)
    # None: as lower case is, which is how the published tokenizers say it.
    strips = None if folds_accents == lower_case else folds_accents
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower_case, strip_accents=strips)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def bert_words(tokenizer: Tokenizer, text: str) -> list[str]:
    """The words of a text as its normaliser leaves them."""
    with _text_errors([text]):
        words = tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))
    return [word for word, _ in words]


def word_counts(texts: Iterable[str], lower_case: bool) -> tuple[Counter[str], bool]:
    """How often BERT's splitter finds each word, and whether it may strip accents."""
    written, words = Counter(word for text in texts for word in text.split()), Counter()
    folds_accents = lower_case and accents.can_be_stripped(_characters(written))
    splitter = bert_tokenizer(models.WordPiece(unk_token="[UNK]"), folds_accents, lower_case)
    for word, count in written.items():
        for part in bert_words(splitter, word):
            words[part] += count
    return words, folds_accents


def _characters(words: Counter[str]) -> Counter[str]:
    """In how many of the words each character is."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        counts.update(dict.fromkeys(word, count))
    return counts


def _alphabet(characters: Counter[str], most: int) -> list[str]:
    """The 1,000 most frequent characters, or more where these are few of the text, as in Chinese; `most` at most."""
    ordered = sorted(sorted(characters), key=characters.__getitem__, reverse=True)
    covered = itertools.accumulate(map(characters.__getitem__, ordered))
    needed = next(i for i, count in enumerate(covered, 1) if count >= _COVERED * characters.total())
    return ordered[: min(max(1000, needed), most)]
