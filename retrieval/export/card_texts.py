"""What the card of a trained model says: how it is used, what it was trained on, and with which settings."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval.data.corpora import tfds_source
from retrieval.data.tokenizers import prefixes, prompts
from retrieval.data.tokenizers.vocab import Vocabulary, WordPiece
from retrieval.evaluation import card, display
from retrieval.export import tei
from retrieval.models import export_files as folders
from retrieval.recipes import examples
from retrieval.recipes.recipe import recipe_of
from retrieval.runtime import hub


def model_card(
    trained: ConfigDict,
    vocabulary: Vocabulary,
    named: Mapping[str, str],
    *,
    title: str,
    license: str,
    trained_on: Mapping[str, list[str]],
    evaluated: Sequence[Mapping[str, Any]],
    onnx: bool,
) -> str:
    """The text of the model card.

    Args:
      trained: the config that the model was trained with.
      named: prompts by name.
      trained_on: as the function of that name gives it.
      evaluated: rows of `results.json`.
      onnx: whether the folder `onnx` has the model, too.
    """
    lengths = trained.data.query_length, trained.data.document_length
    start = {"parameters from": _names(trained.train.init_from)} if trained.train.init_from else {}
    publisher = recipe_of(trained).published_by
    return card.model_card(
        card.KINDS[publisher],
        title=title,
        license=license,
        datasets=[name for names in trained_on.values() for name in names],
        data=[f"{what}: {', '.join(map(display.inline, names))}" for what, names in {**trained_on, **start}.items()],
        notes=[
            *_NOTES[publisher](*lengths, trained),
            *_notes_of_prompts(named),
            *(["The folder `onnx` has the model as ONNX, with pooling inside."] if onnx else []),
            *_notes(vocabulary, trained.model.dtype),
        ],
        settings=dict(_settings(trained)),
        results=[{**row, "seconds": None} for row in evaluated],  # of the machine, not of the model
    )


def trained_on(
    trained: ConfigDict, corpus: str, pair_files: str, divided: ConfigDict
) -> Iterator[tuple[str, list[str]]]:
    """What the towers were trained on, by names that say nothing of the machine where they were.

    Args:
      trained: the config that they were trained with.
      divided: the config of the run that has the evaluation sets, one of which may be divided for training.
    """
    if examples.unlabelled(trained):
        yield "corpus", _names(corpus)
    if examples.labelled(trained):
        if pair_files:
            yield "labelled examples", _names(pair_files)
        if name := divided.split.set:
            part = divided.split.train
            share = f"those of '{part}' in" if part else f"{divided.split.ratio:.0%} of those of"
            yield f"questions and their documents, {share}", _names(divided.sets.get(name) or name)


def _names(value: Any) -> list[str]:
    parts = [part for part in str(value).split(",") if part]
    return [
        part.partition(":")[2].partition("?")[0]
        if tfds_source.is_source(part) or hub.is_name(part)
        else Path(part).name
        for part in parts
    ]


def _notes_of_towers(query_length: int, document_length: int, trained: ConfigDict) -> list[str]:
    model, loader = trained.model, "T5EncoderModel" if trained.model.family == "t5" else "AutoModel"
    lengths = f"Queries are cut to {query_length} tokens and documents to {document_length}, special ones among them."
    if model.tied and query_length != document_length:
        lengths += " One tower serves both, so this needs sentence-transformers 6 or newer, and `encode_query`."
    titles = [
        "A document with a title is the pair (title, text), one without is the text alone: an empty title is not the "
        "same.",
        "Of a document that is too long the longer of title and text is cut, then both.",
    ]
    if trained.data.titles == prefixes.JOINED:
        titles = ["A document with a title is the title, a space and the text."]
    again = "; with `normalize_embeddings=True` they have length 1 then, as in training" if model.normalize else ""
    truncated = [f"Of embeddings the first {model.truncate_dim} dimensions are kept{again}."]
    pooler = " Its pooler is of zeros: there is none." if model.family in folders.WITH_POOLER else ""
    return [
        lengths,
        *titles,
        *(truncated if model.truncate_dim else []),
        f"`{loader}` loads the encoder alone.{pooler}",
        tei.note(trained),
    ]


def _notes_of_late_interaction(query_length: int, document_length: int, trained: ConfigDict) -> list[str]:
    return [
        f"Queries have {query_length} tokens and documents at most {document_length}, special ones among them.",
        "Every token has a vector. A score is the sum, over a query's tokens, of the best product with a document's.",
        "A document with a title is the title, a space and the text."
        if trained.data.titles == prefixes.JOINED
        else "It was trained with titles as a text of their own, which PyLate does not have: leave them out.",
    ]


def _notes_of_sparse(query_length: int, document_length: int, trained: ConfigDict) -> list[str]:
    by_table = "A table weighs the tokens of queries, without an encoder."
    return [
        f"Queries were cut to {query_length} tokens in training, and documents to {document_length}.",
        *([by_table] if trained.model.sparse_queries == "idf" else []),
        "A document with a title is the title, a space and the text."
        if trained.data.titles == prefixes.JOINED
        else "It was trained with titles as a text of their own, which `SparseEncoder` does not have: leave them out.",
    ]


def _notes_of_prompts(found: Mapping[str, str]) -> list[str]:
    notes = [
        f"`encode_{name}` puts {text!r} before each text." for name, text in found.items() if name in prompts.USUAL
    ]
    named = [f"{display.inline(name)} {text!r}" for name, text in found.items() if name not in prompts.USUAL]
    return [*notes, *([f"Other prompts, which `prompt_name` takes: {', '.join(named)}."] if named else [])]


def _notes_of_reranker(query_length: int, document_length: int, trained: ConfigDict) -> list[str]:
    return [
        f"Query and document have {document_length} tokens together, [CLS] and two [SEP] among them.",
        f"It was trained with queries of at most {query_length} tokens, and nothing here cuts them to that.",
        "A document with a title is the title, a space and the text.",
    ]


def _notes(vocabulary: Vocabulary, dtype: str) -> list[str]:
    told = ["text", "these tokens"][vocabulary.tokens_in_text]
    notes = [f"Special tokens that are written in a text, such as [SEP], are {told}."]
    if isinstance(vocabulary, WordPiece):
        accents = "stripped" if vocabulary.folds_accents else "kept"
        case = "lower-cased" if vocabulary.lower_case else "cased"
        notes.append(f"Text is {case}, and accents are {accents}.")
    if dtype != "float32":
        notes.append(f"Trained with {display.inline(dtype)}; the parameters, and what they give here, are float32.")
    return notes


def _settings(trained: ConfigDict) -> Iterator[tuple[str, Any]]:
    """What the towers depend on, without the paths of a machine."""
    yield "seed", trained.seed
    for group in ("model", "data", "train"):
        fields = getattr(trained, group).to_dict()
        yield from ((f"{group}.{name}", value) for name, value in fields.items() if name != "init_from")


_NOTES = {
    "": _notes_of_towers,
    "reranker": _notes_of_reranker,
    "late_interaction": _notes_of_late_interaction,
    "splade": _notes_of_sparse,
}
