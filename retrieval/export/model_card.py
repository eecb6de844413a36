"""The model card of a trained model: a README.md with the metadata that the Hugging Face Hub reads."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from ml_collections import ConfigDict

from retrieval.common.runtime import hub
from retrieval.data.corpora import tfds_source
from retrieval.data.tokenizers import prefixes, prompts
from retrieval.data.tokenizers.vocab import Vocabulary, WordPiece
from retrieval.evaluation import display, run_report
from retrieval.models import export_files as folders
from retrieval.models import two_tower
from retrieval.models.tower_head import DENSE, LAYER_NORM, NORMALIZE
from retrieval.recipes.recipe import recipe_of
from retrieval.runs.fitting import examples

_JOINED = "A document with a title is the title, a space and the text."
# What Text Embeddings Inference knows, by its source.
_TEI_POOLINGS, _TEI_ACTIVATIONS = ("cls", "mean", "last"), ("identity", "tanh")
_NO_TEI = ("t5", "gte")  # the latter under its older name alone


def _notes_of_towers(trained: ConfigDict) -> list[str]:
    model, data = trained.model, trained.data
    lengths = [
        f"Queries are cut to {data.query_length} tokens and documents to {data.document_length}, special ones too."
    ]
    if model.tied and data.query_length != data.document_length:
        lengths += ["One tower serves both, so this needs sentence-transformers 6 or newer, and `encode_query`."]
    titles = [
        "A document with a title is the pair (title, text), one without is the text alone, not one of an empty title.",
        "Of a document that is too long the longer of title and text is cut, then both.",
    ]
    again = "; with `normalize_embeddings=True` they have length 1 then, as in training" if model.normalize else ""
    truncated = [f"Of embeddings the first {model.truncate_dim} dimensions are kept{again}."]
    pooler = " Its pooler is of zeros: there is none." if model.family in folders.WITH_POOLER else ""
    loader = "T5EncoderModel" if model.family == "t5" else "AutoModel"
    notes = [
        *lengths,
        *([_JOINED] if data.titles == prefixes.JOINED else titles),
        *truncated * bool(model.truncate_dim),
    ]
    return [*notes, f"`{loader}` loads the encoder alone.{pooler}", note_of_tei(trained)]


def _notes(kind: "Kind", trained: ConfigDict) -> list[str]:
    """How to use the model, and what it is not good for; Markdown."""
    if not kind.notes:
        return _notes_of_towers(trained)
    notes = [note.format_map(trained.data.to_dict()) for note in kind.notes]
    if trained.model.sparse_queries == "idf":
        notes += ["A table weighs the tokens of queries, without an encoder."]
    lack = f"It was trained with titles as a text of their own, which {kind.library} does not have: leave them out."
    return [*notes, lack if kind.library and trained.data.titles != prefixes.JOINED else _JOINED]


class Kind(NamedTuple):
    """A kind of model.

    Attributes:
      summary: what it is.
      use: how it is called, in Python.
      task: what the Hub calls it.
      notes: how to use it, with fields of `config.data`; () of towers, which `_notes_of_towers` has.
      library: of theirs, which joins titles with their texts; '' where training does so anyway.
    """

    summary: str
    use: str
    task: str
    tags: tuple[str, ...]
    notes: tuple[str, ...] = ()
    library: str = ""


# By `Recipe.published_by`.
_KINDS = {
    "": Kind(
        "Two towers for dense retrieval: queries and documents become vectors, whose inner product is the score.",
        """from sentence_transformers import SentenceTransformer
model = SentenceTransformer("FOLDER")
queries, documents = model.encode_query(["a question"]), model.encode_document([("a title", "its text"), "a text"])
scores = model.similarity(queries, documents)""",
        "sentence-similarity",
        ("sentence-transformers", "feature-extraction", "sentence-similarity", "dense-retrieval"),
    ),
    "reranker": Kind(
        "A reranker: a query and a document are read together, and become a score.",
        """from sentence_transformers import CrossEncoder
model = CrossEncoder("FOLDER")
scores = model.predict([("a question", "a title its text"), ("a question", "a text")])""",
        "text-ranking",
        ("sentence-transformers", "cross-encoder", "reranker"),
        (
            "Query and document have {document_length} tokens together, [CLS] and two [SEP] among them.",
            "It was trained with queries of at most {query_length} tokens, and nothing here cuts them to that.",
        ),
    ),
    "late_interaction": Kind(
        "Late interaction: every token of a query and of a document has a vector, and their best matches are added up.",
        """from pylate import models, scores
model = models.ColBERT("FOLDER")
query, document = model.encode("a question", is_query=True), model.encode("a title its text", is_query=False)
score = scores.colbert_scores([query], [document])""",
        "sentence-similarity",
        ("PyLate", "ColBERT", "sentence-transformers", "feature-extraction", "late-interaction"),
        (
            "Queries have {query_length} tokens and documents at most {document_length}, special ones among them.",
            "A token has a vector. A score sums, over a query's tokens, the best product with one of the document's.",
        ),
        "PyLate",
    ),
    "splade": Kind(
        "Learned sparse retrieval: queries and documents become weights of the vocabulary's tokens.",
        """from sentence_transformers import SparseEncoder
model = SparseEncoder("FOLDER")
queries, documents = model.encode_query(["a question"]), model.encode_document(["a title its text"])
scores = model.similarity(queries, documents)""",
        "feature-extraction",
        ("sentence-transformers", "sparse-encoder", "splade", "feature-extraction"),
        ("Queries were cut to {query_length} tokens in training, and documents to {document_length}.",),
        "`SparseEncoder`",
    ),
}


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
    """The card as Markdown.

    Args:
      trained: the config that the model was trained with.
      named: prompts by name.
      license: an identifier of the Hub's, such as apache-2.0; '' for none.
      trained_on: as the function of that name gives it.
      evaluated: rows of `results.json`.
      onnx: whether the folder `onnx` has the model, too.
    """
    kind = _KINDS[recipe_of(trained).published_by]
    start = {"parameters from": _names(trained.train.init_from)} if trained.train.init_from else {}
    data = [f"{what}: {', '.join(map(display.inline, names))}" for what, names in {**trained_on, **start}.items()]
    notes = [*_notes(kind, trained), *_notes_of_prompts(named)]
    notes += ["The folder `onnx` has the model as ONNX, with pooling inside."] if onnx else []
    notes += _notes_of_text(vocabulary, trained.model.dtype)
    results = run_report.results_tables([{**row, "seconds": None} for row in evaluated])  # those are of the machine
    parts = [
        f"---\n{_metadata(kind, license, trained_on)}---",
        f"# {display.inline(title)}",
        kind.summary,
        "## Use",
        f"```python\n{kind.use}\n```",
        _listed(notes),
        "## Training data",
        _listed(data),
        "## Results",
        *(results or ["The model has not been evaluated."]),
        "## Settings",
        display.markdown(["field", "value"], _settings(trained), left=2),
        "## License",
        f"`{license}`" if license else "None was given (`export.license`).",
    ]
    return "\n\n".join(parts) + "\n"


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


def note_of_tei(trained: ConfigDict) -> str:
    """Whether Text Embeddings Inference serves the folder of towers, and how; Markdown."""
    if reasons := list(dict.fromkeys(_tei_lacks(trained))):
        return f"Not for Text Embeddings Inference, which has no {' and no '.join(reasons)}."
    model = trained.model
    where = "this folder" if model.tied else "the folders `query` and `document`, each by itself"
    options = (
        [] if model.normalize and not model.truncate_dim else [f'"normalize": {str(bool(model.normalize)).lower()}']
    )
    options += [f'"dimensions": {model.truncate_dim}'] if model.truncate_dim else []
    request = f" Ask with `{', '.join(options)}`." if options else ""
    return (
        f"Text Embeddings Inference serves {where}.{request} It puts a prompt before texts where `prompt_name` says so."
    )


def _tei_lacks(trained: ConfigDict) -> Iterator[str]:
    """What towers have that it does not know: it would stop, or leave that out without a word."""
    model = trained.model
    for layer in two_tower.head_of(model.embed_dim, model.embed_norm, model.head):
        if layer.kind == LAYER_NORM:
            yield "LayerNorm behind the pooling"
        elif layer.kind == NORMALIZE:
            yield "normalisation before a dense layer"
        elif layer.kind == DENSE and layer.activation not in _TEI_ACTIVATIONS:
            yield f"{layer.activation} behind a dense layer"
    if model.pooling not in _TEI_POOLINGS:
        yield f"pooling `{model.pooling}`"
    if any(model.pool_from):
        yield "pooling without the prompt"
    if model.family in _NO_TEI:
        yield f"encoder of the family {model.family}"


def _names(value: Any) -> list[str]:
    """Files by their names, what the hub or TFDS has by its name there."""
    parts = [part for part in str(value).split(",") if part]
    are_named = [tfds_source.is_source(part) or hub.is_name(part) for part in parts]
    return [
        part.partition(":")[2].partition("?")[0] if is_named else Path(part).name
        for part, is_named in zip(parts, are_named)
    ]


def _notes_of_prompts(named: Mapping[str, str]) -> list[str]:
    notes = [f"`encode_{name}` puts {named[name]!r} before each text." for name in named if name in prompts.USUAL]
    others = [f"{display.inline(name)} {text!r}" for name, text in named.items() if name not in prompts.USUAL]
    return [*notes, *([f"Other prompts, which `prompt_name` takes: {', '.join(others)}."] if others else [])]


def _notes_of_text(vocabulary: Vocabulary, dtype: str) -> list[str]:
    special = "these tokens" if vocabulary.tokens_in_text else "text"
    notes = [f"Special tokens that are written in a text, such as [SEP], are {special}."]
    if isinstance(vocabulary, WordPiece):
        accents = "stripped" if vocabulary.folds_accents else "kept"
        case = "lower-cased" if vocabulary.lower_case else "cased"
        notes.append(f"Text is {case}, and accents are {accents}.")
    if dtype != "float32":
        notes.append(f"Trained with {display.inline(dtype)}; the parameters, and what they give here, are float32.")
    return notes


def _settings(trained: ConfigDict) -> list[list[str]]:
    """What the towers depend on, without the paths of a machine."""
    groups = {group: getattr(trained, group).to_dict() for group in ("model", "data", "train")}
    rows = [[f"{group}.{name}", str(value)] for group, fields in groups.items() for name, value in fields.items()]
    return [["seed", str(trained.seed)], *(row for row in rows if row[0] != "train.init_from")]


def _metadata(kind: Kind, license: str, trained_on: Mapping[str, list[str]]) -> str:
    """As YAML. The Hub refuses a name of other characters than these."""
    names = {re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-.") for of in trained_on.values() for name in of}
    fields = {"library_name": "sentence-transformers", "pipeline_tag": kind.task, "license": license}
    fields |= {"tags": list(kind.tags), "datasets": sorted(names - {""})}
    return yaml.safe_dump({name: value for name, value in fields.items() if value}, sort_keys=False)


def _listed(items: Sequence[str]) -> str:
    return "\n".join(f"- {item}" for item in items)
