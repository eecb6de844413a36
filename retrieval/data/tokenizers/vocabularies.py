"""The vocabulary of a file or a folder, of whichever kind it is."""

from pathlib import Path

from retrieval.common.errors import UserError
from retrieval.common.runtime import hub, model_folder
from retrieval.data.tokenizers import published
from retrieval.data.tokenizers.token_list import read_object
from retrieval.data.tokenizers.trigrams import KIND, Trigrams
from retrieval.data.tokenizers.vocab import Vocabulary, WordPiece

# Kinds that can be trained on a corpus.
TRAINED = {"wordpiece": WordPiece, "trigrams": Trigrams}

# Of several in a folder the first counts.
FILES = ("tokenizer.json", "vocab.txt")
ALL_FILES = (*FILES, "tokenizer_config.json")  # of a vocabulary in the corpus of a run


def find(place: Path) -> Path | None:
    """The file of a vocabulary: `place` itself, or the first of its kind in that folder. None where there is none.

    Of a folder of sentence-transformers it is where its encoder lies. An adapter that has none has that of its base.

    Raises:
      UserError: a folder's `modules.json` is damaged.
    """
    if place.is_file():
        return place
    folder = model_folder.encoder_folder(place)
    file = next((folder / name for name in FILES if (folder / name).is_file()), None)
    base = None if file else model_folder.base_of(folder)
    return find(base) if base else file


def named(value: str) -> Path | None:
    """The file that a field such as `config.vocab` names, itself or its folder; None where the field is empty.

    Raises:
      UserError: it is that of a model on the hub, and cannot be had.
    """
    place = hub.path(value) if value else None
    return place and (find(place) or place)


def files(path: Path | None) -> list[Path]:
    """The files that `load` reads for one that `find` or `named` gave."""
    return [path, *published.beside(path)] if path else []


def load(place: Path) -> Vocabulary:
    """The vocabulary of a file, or of a folder that has one."""
    path = find(Path(place))
    if path is None:
        remedy = "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) writes the first"
        raise UserError(f"vocabulary {place}: no such file, nor a folder with one of {', '.join(FILES)}; {remedy}")
    if path.suffix == ".json" and (read_object(path, {"model": dict}).get("model") or {}).get("type") == KIND:
        return Trigrams.load(path)
    if path.suffix != ".json" and not published.beside(path):
        return WordPiece.load(path)
    return published.load(path)
