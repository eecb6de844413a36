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
_PAIRS = (
    "A document with a title is the pair (title, text), one without is the text alone, not one of an empty title. Of a "
    "document that is too long the longer of title and text is cut, then both."
)
_LACKS_PAIRS = "It was trained with titles as a text of their own, which {} does not have: leave them out."
# What Text Embeddings Inference knows, by its source.
_TEI_POOLINGS, _TEI_ACTIVATIONS = ("cls", "mean", "last"), ("identity", "tanh")
_NO_TEI = ("t5", "gte")  # the latter under its older name alone


class Kind(NamedTuple):
    """A kind of model.

    Attributes:
      summary: what it is.
      use: how it is called, in Python.
      task: what the Hub calls it.
      notes: how to use it, with fields of `config.data`.
      library: of theirs, which joins titles with their texts; '' where it does not, or training does so too.
    """

    summary: str
    use: str
    task: str
    tags: tuple[str, ...]
    notes: tuple[str, ...]
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
        ("Queries are cut to {query_length} tokens and documents to {document_length}, special ones too.",),
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
    results = run_report.results_tables([{**row, "seconds": None} for row in evaluated])  # those are of the machine
    groups = {group: getattr(trained, group).to_dict() for group in ("model", "data", "train")}  # no paths of a machine
    rows = [[f"{group}.{name}", str(value)] for group, fields in groups.items() for name, value in fields.items()]
    settings = [["seed", str(trained.seed)], *(row for row in rows if row[0] != "train.init_from")]
    parts = [
        f"---\n{_metadata(kind, license, trained_on)}---",
        f"# {display.inline(title)}",
        kind.summary,
        f"## Use\n\n```python\n{kind.use}\n```",
        _listed(_notes(kind, trained, vocabulary, named, onnx)),
        f"## Training data\n\n{_listed(data)}",
        "## Results",
        *(results or ["The model has not been evaluated."]),
        "## Settings",
        display.markdown(["field", "value"], settings, left=2),
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
            all_but = f"all but {fold}" if (fold := divided.split.fold) else f"{divided.split.ratio:.0%}"
            share = f"those of '{part}' in" if part else f"{all_but} of those of"
            yield f"questions and their documents, {share}", _names(divided.sets.get(name) or name)


def _notes(kind: Kind, trained: ConfigDict, vocabulary: Vocabulary, named: Mapping[str, str], onnx: bool) -> list[str]:
    """How to use the model, and what it is not good for; Markdown."""
    model, data = trained.model, trained.data
    notes = [note.format_map(data.to_dict()) for note in kind.notes]
    if kind is _KINDS[""]:
        if model.tied and data.query_length != data.document_length:
            notes += ["One tower serves both, so this needs sentence-transformers 6 or newer, and `encode_query`."]
        if model.truncate_dim:
            again = " With `normalize_embeddings=True` they have length 1 then, as in training." * model.normalize
            notes += [f"Of embeddings the first {model.truncate_dim} dimensions are kept.{again}"]
        pooler = " Its pooler is of zeros: there is none." * (model.family in folders.WITH_POOLER)
        loader = "T5EncoderModel" if model.family == "t5" else "AutoModel"
        notes += [f"`{loader}` loads the encoder alone.{pooler}", _note_of_tei(model)]
    if model.sparse_queries == "idf":
        notes += ["A table weighs the tokens of queries, without an encoder."]
    if data.titles == prefixes.JOINED or not (kind.library or kind is _KINDS[""]):
        notes += [_JOINED]
    else:
        notes += [_LACKS_PAIRS.format(kind.library) if kind.library else _PAIRS]
    notes += [f"`encode_{name}` puts {named[name]!r} before each text." for name in named if name in prompts.USUAL]
    if others := [f"{display.inline(name)} {text!r}" for name, text in named.items() if name not in prompts.USUAL]:
        notes += [f"Other prompts, which `prompt_name` takes: {', '.join(others)}."]
    if onnx:
        notes += ["The folder `onnx` has the model as ONNX, with pooling inside."]
    special = "these tokens" if vocabulary.tokens_in_text else "text"
    notes += [f"Special tokens that are written in a text, such as [SEP], are {special}."]
    if isinstance(vocabulary, WordPiece):
        accents = "stripped" if vocabulary.folds_accents else "kept"
        notes += [f"Text is {'lower-cased' if vocabulary.lower_case else 'cased'}, and accents are {accents}."]
    if model.dtype != "float32":
        notes += [f"Trained with {display.inline(model.dtype)}; the parameters, and what they give here, are float32."]
    return notes


def _note_of_tei(model: Any) -> str:
    """Whether Text Embeddings Inference serves the folder of towers, and how; Markdown."""
    layers = two_tower.head_of(model.embed_dim, model.embed_norm, model.head)
    activations = {layer.activation for layer in layers if layer.kind == DENSE} - {*_TEI_ACTIVATIONS}
    lacks = {  # it would stop at these, or leave them out without a word
        "LayerNorm behind the pooling": any(layer.kind == LAYER_NORM for layer in layers),
        "normalisation before a dense layer": any(layer.kind == NORMALIZE for layer in layers),
        **{f"{name} behind a dense layer": True for name in sorted(activations)},
        f"pooling `{model.pooling}`": model.pooling not in _TEI_POOLINGS,
        "pooling without the prompt": any(model.pool_from),
        f"encoder of the family {model.family}": model.family in _NO_TEI,
    }
    if any(lacks.values()):
        return f"Not for Text Embeddings Inference, which has no {' and no '.join(n for n in lacks if lacks[n])}."
    where = "this folder" if model.tied else "the folders `query` and `document`, each by itself"
    truncate = model.truncate_dim
    options = [f'"normalize": {str(bool(model.normalize)).lower()}'] * (not model.normalize or bool(truncate))
    options += [f'"dimensions": {truncate}'] * bool(truncate)
    request = f" Ask with `{', '.join(options)}`." if options else ""
    return (
        f"Text Embeddings Inference serves {where}.{request} It puts a prompt before texts where `prompt_name` says so."
    )


def _names(value: Any) -> list[str]:
    """Files by their names, what the hub or TFDS has by its name there."""
    parts = [part for part in str(value).split(",") if part]
    are_named = [tfds_source.is_source(part) or hub.is_name(part) for part in parts]
    return [
        part.partition(":")[2].partition("?")[0] if is_named else Path(part).name
        for part, is_named in zip(parts, are_named)
    ]


def _metadata(kind: Kind, license: str, trained_on: Mapping[str, list[str]]) -> str:
    """As YAML. The Hub refuses a name of other characters than these."""
    names = {re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-.") for of in trained_on.values() for name in of}
    fields = {"library_name": "sentence-transformers", "pipeline_tag": kind.task, "license": license}
    fields |= {"tags": list(kind.tags), "datasets": sorted(names - {""})}
    return yaml.safe_dump({name: value for name, value in fields.items() if value}, sort_keys=False)


def _listed(items: Sequence[str]) -> str:
    return "\n".join(f"- {item}" for item in items)
