"""The stage `handover`: a collection's vectors, texts and metadata, in the files that other systems load.

handover/TARGET/    as `retrieval.handover.TARGET` says, with README.md, check.jsonl and manifest.json
"""

import logging
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval.config.fields import of_fields
from retrieval.errors import UserError, no_path
from retrieval.handover import folder
from retrieval.handover.target import TARGETS, Target
from retrieval.pipeline.run import Run
from retrieval.pipeline.stage import STAGES, Read, Stage
from retrieval.recipes.initial_parameters import TEXT_FIELDS, check_towers
from retrieval.stages import handover_source
from retrieval.stages.collection import of_pairs
from retrieval.stages.handover_codes import check_lines
from retrieval.stages.handover_metadata import Metadata

_log = logging.getLogger(__name__)

FOLDER = "handover"
_CHECKED = 50  # queries of `check.jsonl`


def hand_over(run: Run) -> dict[str, Any]:
    """Writes vectors, texts and metadata of a collection as other systems load them; returns what is in each folder."""
    fields, targets = run.config.handover, _targets(run.config.handover.to)
    collection = handover_source.chosen(run, fields.collection)
    metadata, columns = Metadata(Path(fields.metadata) if fields.metadata else None), _names(fields.columns)
    metadata.check_columns(columns)
    documents = handover_source.documents(run, collection, fields.dtype, metadata, columns)
    for target in targets:
        target.check(documents)
    queries = handover_source.queries(run, collection, fields.dtype)
    check = list(check_lines(*handover_source.asked(run, collection, _CHECKED), documents))
    metadata.log_unused()
    out, counts = fields.out or str(run.folder / FOLDER), {}
    for target in targets:
        counts[target.name] = found = folder.write(out, target, documents, queries, check, run.folder)
        what = ", ".join(f"{count:,} {name}" for name, count in found.items())
        _log.info("handover: %s, for %s, in %s/%s: %s", collection.name, target.title, out, target.name, what)
    return {"collection": collection.name} | counts


def check(handover: ConfigDict) -> None:
    """Checks the targets, and that the file of metadata is there.

    Raises:
      UserError: a target is none, is named twice, or does not take the dtype.
    """
    for target in _targets(handover.to):
        target.check_dtype(handover.dtype)
    if handover.metadata and not Path(handover.metadata).is_file():
        raise no_path(Path(handover.metadata), "config.handover.metadata")


def _names(value: str) -> tuple[str, ...]:
    return tuple(name for name in map(str.strip, value.split(",")) if name)


def _targets(value: str) -> list[Target]:
    names = _names(value)
    if not names or len(set(names)) < len(names):
        raise UserError(f"config.handover.to={value}: name one or more of {', '.join(TARGETS)}, each once")
    return [TARGETS.find(name, "config.handover.to") for name in names]


def _files(run: Run) -> list[Path]:
    named = run.config.handover.metadata
    return [*([Path(named)] if named else []), *run.vocabulary_inputs()]


STAGES.register(
    "handover",
    Stage(
        hand_over,
        check_config=(of_fields(check, "handover"),),
        check=(check_towers, Run.check_vocabulary),
        fields=("handover", "data.prompts", "documents.base_url"),
        uses=("model", *(f"data.{name}" for name in TEXT_FIELDS)),
        reads=lambda config: (
            Read("encode", required=True, same=True),
            Read("train", optional=True),
            Read("prepare", same=True),
            "sets",
            *of_pairs(config),
        ),
        files=_files,
        leaves=(FOLDER,),
    ),
)
