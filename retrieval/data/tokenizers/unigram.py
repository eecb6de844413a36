"""SentencePiece's unigram model (Kudo 2018), as in XLM-R: vocabularies are loaded, none is trained."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from retrieval import files
from retrieval.data.tokenizers.byte_pairs import SPECIAL_TOKENS
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError, first_line

# The score of a special token as a piece of a text: any other pieces are likelier. The library derives that of an
# unknown character from the lowest; as no piece has such a character within it, that changes no choice.
_NEVER = -1e6


class Unigram(Vocabulary):
    """Text to the likeliest pieces, after the normaliser and the splitter of its file; case is kept.

    Padding has id 0 here, so the published tokens of padding and of id 0 change places. A special token that is written
    in a text is text, as long as its characters are pieces; those of XLM-R are.

    Attributes:
      published_ids: the id that each token has in the file.
    """

    FILE = "tokenizer.json"
    folds_accents = False

    def __init__(self, config: dict[str, Any]):
        """Args:
        config: a `tokenizer.json`.
        """
        pieces = [(str(piece), float(score)) for piece, score in config["model"]["vocab"]]
        names = [piece for piece, _ in pieces]
        pad = names.index(SPECIAL_TOKENS[0])
        self.published_ids = list(range(len(names)))
        self.published_ids[0], self.published_ids[pad] = pad, 0
        vocab = [(names[id], _NEVER if names[id] in SPECIAL_TOKENS else pieces[id][1]) for id in self.published_ids]
        tokens = [piece for piece, _ in vocab]
        model = config["model"] | {"vocab": vocab, "unk_id": tokens.index(SPECIAL_TOKENS[1])}
        alone = {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
        self._text = json.dumps(config | {"model": model} | alone, ensure_ascii=False)
        super().__init__(tokens, SPECIAL_TOKENS, Tokenizer.from_str(self._text))

    @classmethod
    def load(cls, path: Path) -> "Unigram":
        """Reads a `tokenizer.json`.

        Raises:
          UserError: the file cannot be read, is of another kind of tokeniser, or lacks a special token.
        """
        config = files.read_json(path)
        try:
            names = [piece for piece, _ in config["model"]["vocab"]]
            if missing := [token for token in SPECIAL_TOKENS if token not in names]:
                raise UserError(f"vocabulary {path}: lacks {', '.join(missing)}; one of XLM-R has them")
            return cls(config)
        except UserError:
            raise
        except Exception as error:  # the library says in its own way what is wrong
            raise UserError(f"vocabulary {path}: no unigram model ({first_line(error)}); copy it again") from error

    @property
    def fingerprint(self) -> str:
        return files.fingerprint([self.tokens, self._text])

    def save(self, path: Path) -> None:
        """Writes `tokenizer.json` with our order of tokens, whole or not at all."""
        files.write_text(path, self._text + "\n")
