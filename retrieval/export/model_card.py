"""The model card of a trained model: a README.md with the metadata that the Hugging Face Hub reads."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from ml_collections import ConfigDict

from retrieval.common.runtime import hub
from retrieval.data.corpora import tfds_source
from retrieval.data.tokenizers import prefixes, prompts
from retrieval.data.tokenizers.vocab import Vocabulary, WordPiece
from retrieval.evaluation import display, run_report
from retrieval.models import export_files as folders
from retrieval.recipes.recipe import recipe_of
from retrieval.runs.fitting import examples

_JOINED = "A document with a title is the title, a space and the text."
_PAIRS = (
    "A document with a title is the pair (title, text), one without is the text alone, not one of an empty title. Of a "
    "document that is too long the longer of title and text is cut, then both."
)
_LACKS_PAIRS = "It was trained with titles as a text of their own, which {} does not have: leave them out."
_TOWERS = "towers"
_KINDS = tomllib.loads(Path(__file__).with_name("model_cards.toml").read_text(encoding="utf-8"))


def model_card(
    trained: ConfigDict,
    vocabulary: Vocabulary,
    named: Mapping[str, str],
    *,
    title: str,
    license: str,
    trained_on: Mapping[str, list[str]],
    evaluated: Sequence[Mapping[str, Any]],
) -> str:
    """The card as Markdown.

    Args:
      trained: the config that the model was trained with.
      named: prompts by name.
      license: an identifier of the Hub's, such as apache-2.0; '' for none.
      trained_on: as the function of that name gives it.
      evaluated: rows of `results.json`.
    """
    kind = _KINDS[recipe_of(trained).published_by or _TOWERS]
    start = {"parameters from": _names(trained.train.init_from)} if trained.train.init_from else {}
    data = [f"{what}: {', '.join(map(display.inline, names))}" for what, names in {**trained_on, **start}.items()]
    results = run_report.results_tables([{**row, "seconds": None} for row in evaluated])  # those are of the machine
    groups = {group: getattr(trained, group).to_dict() for group in ("model", "data", "train")}  # no paths of a machine
    rows = [[f"{group}.{name}", str(value)] for group, fields in groups.items() for name, value in fields.items()]
    settings = [["seed", str(trained.seed)], *(row for row in rows if row[0] != "train.init_from")]
    parts = [
        f"---\n{_metadata(kind, license, trained_on)}---",
        f"# {display.inline(title)}",
        kind["summary"],
        f"## Use\n\n```python\n{kind['use']}\n```",
        _listed(_notes(kind, trained, vocabulary, named)),
        f"## Training data\n\n{_listed(data)}",
        "## Results",
        *(results or ["The model has not been evaluated."]),
        "## Settings",
        display.markdown(["field", "value"], settings, left=2),
        "## License",
        f"`{license}`" if license else "None was given (`export.license`).",
    ]
    return "\n\n".join(parts) + "\n"


def trained_on(trained: ConfigDict, corpus: str, pairs: str, divided: ConfigDict) -> Iterator[tuple[str, list[str]]]:
    """What the towers were trained on, by names that say nothing of the machine where they were.

    Args:
      trained: the config that they were trained with.
      divided: the config of the run that has the evaluation sets, one of which may be divided for training.
    """
    if examples.unlabelled(trained):
        yield "corpus", _names(corpus)
    if examples.labelled(trained):
        if pairs:
            yield "labelled examples", _names(pairs)
        if name := divided.split.set:
            part = divided.split.train
            all_but = f"all but {fold}" if (fold := divided.split.fold) else f"{divided.split.ratio:.0%}"
            share = f"those of '{part}' in" if part else f"{all_but} of those of"
            yield f"questions and their documents, {share}", _names(divided.sets.get(name) or name)


def _notes(kind: Mapping[str, Any], trained: ConfigDict, vocabulary: Vocabulary, named: Mapping[str, str]) -> list[str]:
    """How to use the model, and what it is not good for; Markdown."""
    model, data, library = trained.model, trained.data, kind.get("library", "")
    notes = [note.format_map(data.to_dict()) for note in kind["notes"]]
    if kind is _KINDS[_TOWERS]:
        if model.tied and data.query_length != data.document_length:
            notes += ["One tower serves both, so this needs sentence-transformers 6 or newer, and `encode_query`."]
        if model.truncate_dim:
            again = " With `normalize_embeddings=True` they have length 1 then, as in training." * model.normalize
            notes += [f"Of embeddings the first {model.truncate_dim} dimensions are kept.{again}"]
        pooler = " Its pooler is of zeros: there is none." * (model.family in folders.WITH_POOLER)
        loader = "T5EncoderModel" if model.family == "t5" else "AutoModel"
        notes += [f"`{loader}` loads the encoder alone.{pooler}"]
    if model.sparse_queries == "idf":
        notes += ["A table weighs the tokens of queries, without an encoder."]
    if data.titles == prefixes.JOINED or not (library or kind is _KINDS[_TOWERS]):
        notes += [_JOINED]
    else:
        notes += [_LACKS_PAIRS.format(library) if library else _PAIRS]
    notes += [f"`encode_{name}` puts {named[name]!r} before each text." for name in named if name in prompts.USUAL]
    if others := [f"{display.inline(name)} {text!r}" for name, text in named.items() if name not in prompts.USUAL]:
        notes += [f"Other prompts, which `prompt_name` takes: {', '.join(others)}."]
    special = "these tokens" if vocabulary.tokens_in_text else "text"
    notes += [f"Special tokens that are written in a text, such as [SEP], are {special}."]
    if isinstance(vocabulary, WordPiece):
        accents = "stripped" if vocabulary.folds_accents else "kept"
        notes += [f"Text is {'lower-cased' if vocabulary.lower_case else 'cased'}, and accents are {accents}."]
    if model.dtype != "float32":
        notes += [f"Trained with {display.inline(model.dtype)}; the parameters, and what they give here, are float32."]
    return notes


def _names(value: Any) -> list[str]:
    """Files by their names, what the hub or TFDS has by its name there."""
    parts = [part for part in str(value).split(",") if part]
    are_named = [tfds_source.is_source(part) or hub.is_name(part) for part in parts]
    return [
        part.partition(":")[2].partition("?")[0] if is_named else Path(part).name
        for part, is_named in zip(parts, are_named)
    ]


def _metadata(kind: Mapping[str, Any], license: str, trained_on: Mapping[str, list[str]]) -> str:
    """As YAML. The Hub refuses a name of other characters than these."""
    names = {re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-.") for of in trained_on.values() for name in of}
    fields = {"library_name": "sentence-transformers", "pipeline_tag": kind["task"], "license": license}
    fields |= {"tags": kind["tags"], "datasets": sorted(names - {""})}
    return yaml.safe_dump({name: value for name, value in fields.items() if value}, sort_keys=False)


def _listed(items: Sequence[str]) -> str:
    return "\n".join(f"- {item}" for item in items)
