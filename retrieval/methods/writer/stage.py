"""The stage `generate`: passages to queries that they may answer, by a model of this project or a published one."""

import functools
import importlib
import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from retrieval.common import files, libraries
from retrieval.common.errors import UserError, first_line, hub_hint, unknown_name
from retrieval.common.runtime import devices, hashing, hub
from retrieval.config.fields import of_fields
from retrieval.data.sets.beir import Candidate
from retrieval.evaluation.exact_match import normalised
from retrieval.methods.writer.decoding import BEAM, GREEDY, SAMPLE, TOP_K, Decoding, Writer, WrittenText
from retrieval.methods.writer.examples import MAKERS, Expansion, chosen, to_line
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Stage
from retrieval.runs.ranking import passage_lines, ranked_lists
from retrieval.runs.ranking.collection import GENERATED, collections, of_pairs
from retrieval.runs.ranking.passage_lines import Lines
from retrieval.runs.weights.trained_model import check_kind, open_trained

# What is counted of the texts that were written, and of questions beside these.
WRITTEN, KEPT, EMPTY = "texts", "kept", "left out: empty"
DUPLICATES, CUT = "left out: the passage has the same", "kept, but cut for want of room"
PROPOSED, SHORT = "answers proposed", "passages left out: too few words"
TOLD = "left out: the question has the answer"

_CONFIG = "config.json"
_TOKENISERS = ("tokenizer.json", "spiece.model", "vocab.json")  # without one transformers makes an empty one
_PACKAGES = ("torch", "transformers")
_TOKENS = 64  # of a text of a published model: docTTTTTquery's
_WORDS = 20  # of a passage that is asked about, at least

# From passages to what is written of each.
Write = Callable[[Sequence[Candidate]], list[list[WrittenText]]]


class Draft(NamedTuple):
    """A text of a passage; `answer` is what a question asks for, '' of a query."""

    passage: Candidate
    written: WrittenText
    answer: str = ""


def generate(run: Run) -> dict[str, Any]:
    """Writes `generated/NAME.jsonl` for every collection; returns the counts of each."""
    config, fields = run.config, run.config.generate

    # Models are opened where something is left to write.
    @functools.cache
    def writer() -> Writer | PublishedWriter:
        decoding = Decoding(fields.way, 1 if fields.answers else fields.queries, _TOKENS, config.seed)
        if fields.model:
            return PublishedWriter(hub.path(fields.model), decoding, config.data.document_length)
        trained = open_trained(run)
        return Writer(*trained, decoding._replace(tokens=trained.config.data.query_length - 1))

    def make(passages: Sequence[Candidate]) -> Lines:
        names = (WRITTEN, KEPT, EMPTY, DUPLICATES, CUT, *((PROPOSED, SHORT, TOLD) if fields.answers else ()))
        counts = Counter(dict.fromkeys(names, 0))
        if fields.answers:
            drafts = questions(passages, writer().write, fields, config.seed, counts)
        else:
            drafts = [Draft(each, text) for each, texts in zip(passages, writer().write(passages)) for text in texts]
        counts[passage_lines.LONG] = writer().cut(passages)
        return Lines(lines_of(kept(drafts, counts)), counts)

    known = {item.name: item for item in collections(run)}
    for name in fields.collections:
        if name not in known:
            raise unknown_name("collection in config.generate.collections", name, known)
    items = [known[name] for name in fields.collections or known]
    return passage_lines.write_all(run.folder / GENERATED, items, config.encode.shard_size, make)


def questions(
    passages: Sequence[Candidate], write: Write, fields: ConfigDict, seed: int, counts: Counter
) -> list[Draft]:
    """The questions that are written, each of an answer and its passage, but of passages of few words."""
    long = [passage for passage in passages if len(passage.text.split()) >= _WORDS]
    answers = [
        (passage, answer)
        for passage, spans in zip(long, MAKERS[fields.answers]([passage.text for passage in long]))
        for answer in chosen(passage.text, spans, fields.queries, seed)
    ]
    counts[SHORT], counts[PROPOSED] = len(passages) - len(long), len(answers)
    sources = [Candidate(f"{passage.id}\0{answer}", answer, passage.text) for passage, answer in answers]
    return [Draft(passage, text, answer) for (passage, answer), (text, *_) in zip(answers, write(sources))]


def kept(drafts: Sequence[Draft], counts: Counter) -> list[Draft]:
    """The texts that are kept: not empty, not there twice, and of questions those without their answer in them."""
    different: dict[tuple[str, str], Draft] = {}
    for draft in drafts:
        text = normalised(draft.written.text) if draft.answer else draft.written.text
        key, has_answer = (draft.passage.id, text), draft.answer and normalised(draft.answer) in text
        if why := EMPTY if not text else DUPLICATES if key in different else TOLD if has_answer else "":
            counts[why] += 1
        else:
            different[key] = draft
    left = list(different.values())
    counts[WRITTEN], counts[KEPT], counts[CUT] = len(drafts), len(left), sum(draft.written.is_cut for draft in left)
    return left


def lines_of(drafts: Sequence[Draft]) -> list[str]:
    """A line for each text."""
    return [to_line(Expansion(of.id, written.text, answer, written.log_probability)) for of, written, answer in drafts]


class PublishedWriter:
    """Passages to texts, by a T5 or BART of a folder that transformers loads: docTTTTTquery (Nogueira & Lin 2019).

    Each passage is a batch of its own with a seed of its own, so its texts do not depend on the passages around it.
    """

    def __init__(self, folder: Path, decoding: Decoding, length: int):
        """Args are the folder, how to write, and the tokens of a passage that are read, if the model reads so many.

        Raises:
          UserError: as `check_published`, or transformers cannot load the folder.
        """
        positions = check_published(folder)
        self._decoding, self._length = decoding._replace(tokens=min(decoding.tokens, positions)), min(length, positions)
        try:
            self._torch, transformers = map(importlib.import_module, _PACKAGES)
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self._model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True).eval()
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            why = first_line(error)
            raise UserError(f"{folder}: transformers cannot load it ({why}); an encoder-decoder is needed") from error

    def cut(self, passages: Sequence[Candidate]) -> int:
        """As `Writer.cut`."""
        return sum(len(self._tokenizer(_source(passage))["input_ids"]) > self._length for passage in passages)

    def write(self, passages: Sequence[Candidate]) -> list[list[WrittenText]]:
        """As `Writer.write`."""
        with self._torch.inference_mode():
            return [self._write(passage) for passage in passages]

    def _write(self, passage: Candidate) -> list[WrittenText]:
        decoding = self._decoding
        options: dict[str, Any] = {
            GREEDY: dict(do_sample=False, num_beams=1),
            SAMPLE: dict(do_sample=True, num_beams=1, top_k=TOP_K, top_p=1.0, temperature=1.0),
            BEAM: dict(do_sample=False, num_beams=decoding.beams, length_penalty=0.0),
        }[decoding.way]
        options |= dict(max_new_tokens=decoding.tokens, num_return_sequences=decoding.texts)
        source = self._tokenizer(_source(passage), truncation=True, max_length=self._length, return_tensors="pt")
        source = {name: source[name] for name in ("input_ids", "attention_mask")}
        self._torch.manual_seed(hashing.number(str(decoding.seed), passage.id) >> 1)
        ids_WT, end = self._model.generate(**source, **options)[:, 1:].tolist(), self._model.config.eos_token_id
        texts = self._tokenizer.batch_decode(ids_WT, skip_special_tokens=True)
        return [WrittenText(text.strip(), None, end not in ids_T) for text, ids_T in zip(texts, ids_WT)]


def check_published(folder: Path) -> int:
    """Checks that a folder has an encoder-decoder; returns how many tokens it has positions for.

    Raises:
      UserError: it has none, or a package that runs it is not installed.
    """
    path = folder / _CONFIG
    config = files.read_json(path) if path.is_file() else {}
    has_tokeniser = any((folder / name).is_file() for name in _TOKENISERS)
    if not (isinstance(config, dict) and config.get("is_encoder_decoder") and has_tokeniser):
        needed = f"a T5 or BART is needed, as transformers saves it, with its tokeniser{hub_hint(str(folder))}"
        raise UserError(f"config.generate.model={folder}: no encoder-decoder with a tokeniser; {needed}")
    for name in _PACKAGES:
        if not importlib.util.find_spec(name):  # to import them takes seconds
            raise libraries.missing("config.generate.model", name, "generate")
    positions = config.get("max_position_embeddings")
    return positions if isinstance(positions, int) else sys.maxsize


def _source(passage: Candidate) -> str:
    return f"{passage.title} {passage.text}".strip()


def check_settings(generate: ConfigDict) -> None:
    """Checks how queries are to be written, by the group `generate` of the config."""
    if generate.way == GREEDY and generate.queries > 1 and not generate.answers:
        raise UserError(f"config.generate.queries={generate.queries}, and {GREEDY} gives 1: set 1, or way={SAMPLE}")


def check(run: Run) -> None:
    """Checks that the model writes, and that what proposes answers is installed."""
    fields = run.config.generate
    if fields.answers:
        MAKERS[fields.answers]([])
    if fields.model:
        check_published(hub.path(fields.model))
        return
    run.check_vocabulary()
    check_kind(run, "generation", "stage 'generate' needs a model that writes", "seq2seq")
    trained = run.owner("train").config
    for name in ("query_length", "document_length"):
        if (length := run.config.data[name]) != trained.data[name]:
            raise UserError(f"config.data.{name}={length}: the model was trained with {trained.data[name]}; set that")


def inputs(run: Run) -> Sequence[Path]:
    """The files of the published model, without one those of the vocabulary."""
    if model := run.config.generate.model:
        return sorted(path for path in hub.path(model).glob("*") if path.is_file())
    return run.vocabulary_inputs()


STAGES.register(
    "generate",
    Stage(
        generate,
        check_config=(of_fields(check_settings, "generate"),),
        check=(check, devices.check),
        fields=(
            *("seed", "generate", "encode.corpus", "encode.shard_size"),
            *("data.query_length", "data.document_length", "model.dtype"),
        ),
        reads=lambda config: ("prepare", "sets", *of_pairs(config), *ranked_lists.train_unless(config.generate.model)),
        files=inputs,
        writes=(GENERATED,),
        on_every_host=True,
    ),
)
