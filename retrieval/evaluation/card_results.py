"""The results in the metadata of a model card, `model-index` (docs of Hugging Face's hub): read, and written.

Cards of sentence-transformers have `cosine_ndcg@10` of 0.36 for `NanoMSMARCO`, those of mteb `ndcg_at_10` of 36.2 for
`MTEB NFCorpus`, and both are nDCG@10 here, a fraction.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from retrieval.errors import UserError, first_line

# Ours -> sentence-transformers' names, the first of which is written; mteb has some of its own.
_NAMES = {
    "nDCG": ("ndcg",),
    "R": ("recall",),
    "RR": ("mrr",),
    "AP": ("map",),
    "P": ("precision",),
    "Success": ("accuracy", "hit_rate"),
}
_OURS = {theirs: ours for ours, names in _NAMES.items() for theirs in names}
_WRITTEN = re.compile(r"(?:(?:cosine|dot|max_?sim)_)?([a-z_]+?)(?:@|_at_)([1-9]\d*)", re.IGNORECASE)
_MAIN = "main_score"  # which is nDCG@10 of nearly every retrieval task of mteb
_RETRIEVAL = {"retrieval", "informationretrieval"}
_FRONT = re.compile(r"\A---[ \t]*\n(.*?\n)---[ \t]*(?:\n|\Z)", re.DOTALL)
_MOST = 4 << 20  # characters of metadata


class CardResult(NamedTuple):
    """A value of a card.

    Attributes:
      dataset: its name as the card has it.
      names: what the set may be called, as `folded` gives it.
      split: '' where the card says none.
      task: the kind of task as the card has it.
      metric: ours; '' where it is none of ours.
      given: the metric as the card has it.
      value: a fraction.
    """

    dataset: str
    names: frozenset[str]
    split: str
    task: str
    metric: str
    given: str
    value: float

    @property
    def is_retrieval(self) -> bool:
        """Whether the task is to rank documents for queries."""
        return folded(self.task) in _RETRIEVAL


def folded(name: str) -> str:
    """A name without case, blanks and marks: 'MTEB NFCorpus' and 'mteb/nfcorpus' have one set in common, 'nfcorpus'."""
    return re.sub(r"[\W_]+", "", name.lower())


def library_name(metric: str) -> str:
    """The name of a metric with a cutoff in sentence-transformers: 'ndcg@10' of nDCG@10; as it is where it has none."""
    base, _, cut = metric.partition("@")
    return f"{_NAMES[base][0]}@{cut}" if base in _NAMES and cut else metric


def our_metric(name: str) -> str:
    """The metric that a card calls 'cosine_ndcg@10', 'ndcg_at_10' or 'main_score'; '' where it is none of ours."""
    if name == _MAIN:
        return "nDCG@10"
    match = _WRITTEN.fullmatch(name)
    return f"{_OURS[match[1].lower()]}@{match[2]}" if match and match[1].lower() in _OURS else ""


def read(path: Path) -> list[CardResult]:
    """The results of a card; the same value that is there twice, as mteb's main score, comes once.

    Raises:
      UserError: there is no card, or its metadata is not what the hub reads.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file: the model has no card, whose results could be compared")
    fenced = _FRONT.match(path.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n"))
    metadata = _parsed(path, fenced[1]) if fenced else {}
    found: dict[tuple, CardResult] = {}
    for model in _listed(metadata.get("model-index"), path):
        for result in _listed(model.get("results"), path):
            for each in _of_entry(result, path):
                found.setdefault((each.dataset, each.split, each.task, each.metric or each.given), each)
    if not found:
        raise UserError(f"{path}: no results in its metadata (model-index): there is nothing to compare with")
    return list(found.values())


def index(name: str, rows: Iterable[Mapping[str, Any]], score: str) -> list[str]:
    """Lines of YAML, `model-index`, with the values of some rows of results.json that other programs have too.

    Args:
      name: of the model.
      score: how embeddings are compared, 'cosine' or 'dot'; '' of a reranker.
    """
    of_sets: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if (theirs := library_name(row["metric"])) != row["metric"]:
            metric = f"{score}_{theirs}" if score else theirs
            of_sets.setdefault((row["dataset"], row["split"]), {})[metric] = row["value"]
    if not of_sets:
        return []
    lines = ["model-index:", f"- name: {json.dumps(name)}", "  results:"]
    for (dataset, split), values in of_sets.items():
        lines += ["  - task:", "      type: information-retrieval", "      name: Information Retrieval", "    dataset:"]
        lines += [
            f"      {key}: {json.dumps(value)}"
            for key, value in zip(("name", "type", "split"), (dataset, dataset, split))
        ]
        lines.append("    metrics:")
        for metric, value in values.items():
            lines += [f"    - type: {metric}", f"      value: {value}", f"      name: {metric}"]
    return lines


def _parsed(path: Path, text: str) -> Mapping[str, Any]:
    import yaml

    if len(text) > _MOST:
        raise UserError(f"{path}: its metadata is longer than {_MOST >> 20} MiB; leave out what is no result")
    try:
        metadata = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: its metadata is no YAML ({first_line(error)}); mend it") from error
    return metadata if isinstance(metadata, Mapping) else {}


def _of_entry(result: Mapping[str, Any], path: Path) -> Iterator[CardResult]:
    """The values of an entry. A share above 1 says that all of them are percentages."""
    dataset, task = (part if isinstance(part := result.get(name), Mapping) else {} for name in ("dataset", "task"))
    name, place, split, kind = (
        _text(of, key) for of, key in ((dataset, "name"), (dataset, "type"), (dataset, "split"), (task, "type"))
    )
    values = {_text(each, "type"): each.get("value") for each in _listed(result.get("metrics"), path)}
    numbers = {given: value for given, value in values.items() if isinstance(value, int | float) and value == value}
    highest = max((value for given, value in numbers.items() if our_metric(given)), default=0)
    for given, value in numbers.items():
        names = frozenset(filter(None, (_set_name(name), _set_name(place))))
        yield CardResult(
            name or place, names, split, kind, our_metric(given), given, value / (100 if highest > 1 else 1)
        )


def _set_name(name: str) -> str:
    """'nfcorpus' of 'MTEB NFCorpus (default)' and of 'mteb/nfcorpus'."""
    last = re.sub(r"\s*\(default\)\s*\Z", "", name).rpartition("/")[2]
    return folded(re.sub(r"\AMTEB\s+", "", last))


def _text(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    return str(value) if isinstance(value, str | int | float) else ""


def _listed(value: Any, path: Path) -> list[Mapping[str, Any]]:
    items = [] if value is None else value
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise UserError(
            f"{path}: model-index is not a list of models with results of metrics, as the hub has it; mend it"
        )
    return items
