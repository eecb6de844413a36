"""Published encoder-decoders, T5 or BART, that write texts of passages: docTTTTTquery (Nogueira & Lin 2019) is one.

The package transformers runs them; it is not needed for anything else here. Each passage is a batch of its own with a
seed of its own, so its texts do not depend on the passages around it.
"""

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from retrieval import extras, files, hashing
from retrieval.data.sets.beir import Candidate
from retrieval.errors import UserError, first_line, hub_hint
from retrieval.methods.writer.writer import BEAM, SAMPLE, Decoding, WrittenText

_CONFIG = "config.json"
_TOKENISERS = ("tokenizer.json", "spiece.model", "vocab.json")  # without one transformers makes an empty one
_PACKAGES = ("torch", "transformers")
TOKENS = 64  # of a text, where the config does not say: docTTTTTquery's


class PublishedWriter:
    """Passages to texts, by a model of a folder that transformers loads."""

    def __init__(self, folder: Path, decoding: Decoding, length: int):
        """Args are the folder, how to write, and the tokens of a passage that are read, if the model reads so many.

        Raises:
          UserError: as `check`, or transformers is not installed, or cannot load the folder.
        """
        check(folder, decoding.tokens)
        self._torch, transformers = (_import(name) for name in _PACKAGES)
        self._decoding = decoding
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self._model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True).eval()
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            raise UserError(
                f"{folder}: transformers cannot load it ({first_line(error)}); an encoder-decoder is needed, "
                "with its tokeniser"
            ) from error
        self._length = min(length, getattr(self._model.config, "max_position_embeddings", length))

    def cut(self, passages: Sequence[Candidate]) -> int:
        """As `Writer.cut`."""
        return sum(len(self._tokenizer(_source(passage))["input_ids"]) > self._length for passage in passages)

    def write(self, passages: Sequence[Candidate]) -> list[list[WrittenText]]:
        """As `Writer.write`."""
        with self._torch.inference_mode():
            return [self._write(passage) for passage in passages]

    def _write(self, passage: Candidate) -> list[WrittenText]:
        source = self._tokenizer(_source(passage), truncation=True, max_length=self._length, return_tensors="pt")
        source = {name: source[name] for name in ("input_ids", "attention_mask")}
        self._torch.manual_seed(hashing.number(str(self._decoding.seed), passage.id) >> 1)
        ids_WT = self._model.generate(**source, **self._options())
        return [
            WrittenText(self._tokenizer.decode(ids_T, skip_special_tokens=True).strip(), *self._judged(source, ids_T))
            for ids_T in ids_WT
        ]

    def _options(self) -> dict[str, Any]:
        decoding = self._decoding
        options: dict[str, Any] = dict(max_new_tokens=decoding.tokens, do_sample=False, num_beams=1)
        if decoding.way == SAMPLE:
            options |= dict(do_sample=True, top_k=decoding.top_k, top_p=1.0, temperature=decoding.temperature)
        if decoding.way == BEAM:
            options |= dict(num_beams=decoding.beams, length_penalty=decoding.length_penalty)
        return options | dict(num_return_sequences=decoding.texts)

    def _judged(self, source: dict[str, Any], ids_T: Any) -> tuple[float, bool]:
        """The log-probability of a text by the model's own distribution, and whether it was cut."""
        written_T = ids_T[1:]  # behind the start token
        ends = (written_T == self._model.config.eos_token_id).nonzero()
        if len(ends):
            written_T = written_T[: int(ends[0]) + 1]
        logits_TV = self._model(**source, decoder_input_ids=ids_T[None, : len(written_T)]).logits[0]
        log_TV = self._torch.log_softmax(logits_TV.float(), dim=-1)
        return float(log_TV.gather(1, written_T[:, None]).sum()), not len(ends)


def inputs(folder: Path) -> list[Path]:
    """The files of a model."""
    return sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []


def check(folder: Path, tokens: int) -> None:
    """Checks that a folder has an encoder-decoder, with positions for so many tokens of a text.

    Raises:
      UserError: it has none.
    """
    if not (folder / _CONFIG).is_file():
        raise UserError(
            f"config.generate.model={folder}: no {_CONFIG} there; a folder of a T5 or BART is needed, as transformers "
            f"saves it{hub_hint(str(folder))}"
        )
    config = files.read_json(folder / _CONFIG)
    if not isinstance(config, dict) or not config.get("is_encoder_decoder"):
        raise UserError(f"config.generate.model={folder}: not an encoder-decoder, such as T5 or BART; only these write")
    if not any((folder / name).is_file() for name in _TOKENISERS):
        raise UserError(
            f"config.generate.model={folder}: no tokeniser there; put one of {', '.join(_TOKENISERS)} there"
        )
    if not any((*folder.glob("model*.safetensors"), *folder.glob("pytorch_model*.bin"))):
        raise UserError(f"config.generate.model={folder}: no weights there; put model.safetensors there")
    most = config.get("max_position_embeddings")
    if isinstance(most, int) and tokens > most:
        raise UserError(
            f"config.generate.tokens={tokens}: the model of {folder} has {most} positions: ask for {most} at most"
        )
    for name in _PACKAGES:
        if not importlib.util.find_spec(name):  # to import them takes seconds
            raise extras.missing("config.generate.model", name, "generate")


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"config.generate.model needs {name} ({first_line(error)}): {extras.install('generate')}"
        ) from error


def _source(passage: Candidate) -> str:
    return f"{passage.title} {passage.text}".strip()
