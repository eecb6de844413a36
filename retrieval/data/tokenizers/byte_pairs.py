"""Byte-level byte pair encoding (Radford et al. 2019), as in RoBERTa: vocabularies are loaded, none is trained."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from retrieval import files
from retrieval.data.tokenizers.vocab import Vocabulary, in_order, read_tokenizer
from retrieval.errors import UserError

SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
_SPLITTER = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}


class BytePairs(Vocabulary):
    """Text to token ids and back, on bytes: nothing is lower-cased, and no text has an unknown token.

    Padding has id 0 here, so the published tokens of padding and of id 0 change places.

    Attributes:
      published_ids: the id that each token has in the file.
    """

    FILE = "tokenizer.json"
    folds_accents = False

    def __init__(self, tokens: Sequence[str], merges: Sequence[tuple[str, str]]):
        self.published_ids = list(range(len(tokens)))
        pad = list(tokens).index(SPECIAL_TOKENS[0])
        self.published_ids[0], self.published_ids[pad] = pad, 0
        tokens = [tokens[number] for number in self.published_ids]
        self._merges = list(merges)
        tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, self._merges))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        super().__init__(tokens, SPECIAL_TOKENS, tokenizer)

    @classmethod
    def load(cls, path: Path) -> "BytePairs":
        """Reads a `tokenizer.json`, or a `vocab.json` with `merges.txt` beside it.

        Raises:
          UserError: a file cannot be read, is of another kind of tokeniser, or lacks a special token.
        """
        path = Path(path)
        if path.name == "vocab.json":
            tokens, lines = in_order(path, files.read_json(path)), _lines(path.with_name("merges.txt"))
            merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
        else:
            tokens, merges = _of_tokenizer(path)
        if missing := [token for token in SPECIAL_TOKENS if token not in tokens]:
            raise UserError(f"vocabulary {path}: lacks {', '.join(missing)}; one of RoBERTa has them")
        pairs = _pairs(path, tokens, merges)
        try:
            return cls(tokens, pairs)
        except Exception as error:  # the library says in its own way what else is wrong
            raise UserError(f"vocabulary {path}: {error}; copy it again") from error

    def save(self, path: Path) -> None:
        """Writes `tokenizer.json` with our order of tokens, whole or not at all."""
        files.write_text(path, self._tokenizer.to_str() + "\n")


def _of_tokenizer(path: Path) -> tuple[list[str], list[tuple[str, ...]]]:
    """Tokens and merges of a `tokenizer.json`."""
    config, tokens = read_tokenizer(path, "BPE")
    splitter = config.get("pre_tokenizer")
    same = isinstance(splitter, dict) and all(splitter.get(key, value) == value for key, value in _SPLITTER.items())
    if config.get("normalizer") or not same:
        raise UserError(f"vocabulary {path}: only byte pairs as RoBERTa has them are known (pre_tokenizer {_SPLITTER})")
    merges = config["model"].get("merges")
    if not isinstance(merges, list) or not all(isinstance(pair, str | list) for pair in merges):
        raise UserError(f"vocabulary {path}: its model has no merges; copy it again")
    return tokens, [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in merges]


def _pairs(path: Path, tokens: Sequence[str], merges: Sequence[tuple[str, ...]]) -> list[tuple[str, str]]:
    """The merges, checked. The library panics, without an error, at one that is too long."""
    known = set(tokens)
    for pair in merges:
        is_of_two = len(pair) == 2 and all(isinstance(part, str) for part in pair)
        if not is_of_two or not known.issuperset((*pair, "".join(pair))):
            raise UserError(
                f"vocabulary {path}: the merge {str(pair)[:80]} is not of two tokens that make a third; copy it again"
            )
    return [(left, right) for left, right in merges]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"vocabulary {path}: {error}; vocab.json needs merges.txt beside it") from error
