"""The stage `export`: trained models as folders that Hugging Face's libraries load, with a model card."""

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import hosts, model_folder
from retrieval.data.labelled import sources
from retrieval.export import model_card
from retrieval.export.tower_folders import TrainedTowers
from retrieval.models import export_files as folders
from retrieval.recipes.recipe import recipe_of
from retrieval.runs.pipeline.records import is_done, record_of
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Read, Stage
from retrieval.runs.weights import adapters
from retrieval.runs.weights.trained_model import TRAINED
from retrieval.runs.weights.trained_run import check_towers, load_adapted

_log = logging.getLogger(__name__)

FOLDER = "export"


def export(run: Run) -> dict[str, Any]:
    """Writes `export/`: tied towers as one model, others as one each in `query/` and `document/`, with a router above.

    A reranker is one model, a cross-encoder, and so is late interaction.
    """
    trainer, fields = run.owner("train"), run.config.export
    config, step = trainer.config, record_of(run, "train")["details"]["step"]
    vocabulary, prompts = run.load_vocabulary(), {}
    # On every host, as checkpoints are read.
    if publisher := recipe_of(config).published_by:
        write_model = TRAINED[publisher].open(run, "", "config.base").write
        kind = {"classes": config.model.classes} if recipe_of(config).reranks else {}
    else:
        trained = TrainedTowers.of(run)
        config, prompts = trained.config, trained.prompts
        adapted = load_adapted(trainer.folder, run.vocab_size, run.config.mesh) if fields.adapter else None
        instead = functools.partial(adapters.write, *adapted) if adapted else None
        write_model = functools.partial(trained.write, instead=instead)
        kind = {"tied": config.model.tied}

    def write() -> None:
        pairs = [own.pairs.files for own in sources.each(trainer.owner("pairs").config).values()]
        corpus, sets = trainer.owner("prepare").config.corpus, trainer.owner("sets").config
        card = model_card.model_card(
            config,
            vocabulary,
            prompts,
            title=run.folder.resolve().name,
            license=fields.license,
            trained_on=dict(model_card.trained_on(config, corpus, ",".join(pairs), sets)),
            evaluated=_evaluated(run, step) if results(run) else [],
        )
        _write(run.folder, write_model, card)

    hosts.on_first(write)
    _log.info("export: %s/%s", run.display_path, FOLDER)
    return kind | {"step": step}


def check(run: Run) -> None:
    """Checks that there is a model which the other libraries can have."""
    trainer, fields = run.owner("train"), run.config.export
    config = trainer.config
    recipe, wrong = recipe_of(config), ""
    if not trainer.lists("train"):
        wrong = f"config.stages of {run.folder} has no 'train'; name a run that trains towers"
    elif not (recipe.has_towers or recipe.published_by):
        start = f"--config.train.init_from={run.folder}"
        wrong = f"{recipe.label} has no towers; train them from it with {start} and export these"
    elif config.model.encoder != "transformer":
        wrong = f"config.model.encoder={config.model.encoder} is no module of sentence-transformers"
    if wrong:
        raise UserError(f"stage 'export': {wrong}")
    if fields.adapter:
        adapters.check_export(config)


def results(run: Run) -> list[Path]:
    """The record of the evaluation that the card shows, where there is one."""
    # A base may have evaluated towers of its own.
    is_of_these = run.owner("evaluate").owner("train").folder == run.owner("train").folder
    return [run.record("evaluate")] if is_of_these and is_done(run, "evaluate") else []


def _evaluated(run: Run, step: int) -> list[dict[str, Any]]:
    """The rows of `results.json`, if they are of the model after `step`, and not of the one before it went on."""
    rows = files.read_json(run.owner("evaluate").folder / "results.json")
    return rows if {row["step"] for row in rows} <= {None, step} else []


def _write(workdir: Path, write_model: Callable[[Path], None], model_card: str) -> None:
    files.remove_temporaries(workdir, FOLDER)
    with files.atomic(workdir / FOLDER) as folder:
        folder.mkdir()
        write_model(folder)
        files.write_text(folder / model_folder.CARD, model_card)
        for path in (folder, *(folder / name for name in (folders.QUERY, folders.DOCUMENT))):
            if path.is_dir():
                model_folder.write_sums(path)


STAGES.register(
    "export",
    Stage(
        export,
        check=(check, Run.check_vocabulary, check_towers),
        fields=("export", "encode.truncate", "data.prompts"),
        reads=("prepare", "train", Read("evaluate", any_version=True)),
        files=lambda run: [*results(run), *run.vocabulary_inputs()],
        writes=(FOLDER,),
        on_every_host=True,
    ),
)
