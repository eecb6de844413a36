"""The stage `update`: documents of a run that have come, changed or gone since it indexed them."""

import logging
from pathlib import Path
from typing import Any

from retrieval.api import changing_documents
from retrieval.api.document_texts import check_documents
from retrieval.api.loading import of_run
from retrieval.errors import UserError
from retrieval.pipeline.run import Run
from retrieval.pipeline.stage import STAGES, Stage
from retrieval.recipes.initial_parameters import TEXT_FIELDS, check_towers
from retrieval.segments import generations
from retrieval.stages.collection import CORPUS, open_collection
from retrieval.stages.search import reads

_log = logging.getLogger(__name__)


def check_path(run: Run) -> None:
    """Looks at the documents that --update names.

    Raises:
      UserError: it names none, or the first record of one cannot be read.
    """
    if not run.asked.update:
        raise UserError("--stage=update needs --update=FOLDER: the documents as they are now, all of them")
    check_documents(Path(run.asked.update), run.holder("prepare").config.documents)


def update(run: Run) -> dict[str, Any]:
    """Makes the documents of a folder all that the run searches. What has not changed is not embedded again.

    Raises:
      UserError: there is no document, a record is broken, or the documents of this run cannot change.
    """
    model = of_run(run) if open_collection(run, CORPUS).has_embeddings() else None
    changing = changing_documents.of_run(run, model.towers if model else None, writes=True)
    changes = changing.replace_all(changing_documents.read_folder(run, Path(run.asked.update)))
    _log.info("update: %s", changes)
    changing.merge()
    # On a store the folders of segments are there before the generation that names them, and that before CURRENT.
    folder = run.folder / generations.FOLDER
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    for name in (*names, generations.CURRENT):
        run.put(f"{generations.FOLDER}/{name}")
    return changes._asdict()


STAGES.register(
    "update",
    Stage(
        update,
        check=(check_towers, check_path),
        uses=("seed", "model", *(f"data.{name}" for name in (*TEXT_FIELDS, "prompts")), "encode"),
        reads=reads,
        leaves=(generations.FOLDER,),
        files=Run.vocabulary_inputs,
    ),
)
