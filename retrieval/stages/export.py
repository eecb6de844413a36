"""The stage `export`: trained towers or a reranker as folders that Hugging Face's libraries load, with a model card."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval import files
from retrieval.config.fields import Field, declare, matching
from retrieval.data.corpora import tfds_source
from retrieval.data.tokenizers import tokenizer_files
from retrieval.data.tokenizers.vocab import Vocabulary, WordPiece
from retrieval.errors import UserError
from retrieval.evaluation import card, display
from retrieval.models import export_files as folders
from retrieval.models.cross_encoder import CrossEncoder
from retrieval.models.cross_encoder_folder import write_cross_encoder
from retrieval.models.two_tower import TwoTower
from retrieval.pipeline.records import is_done, record_of
from retrieval.pipeline.stage import STAGES, Stage
from retrieval.recipes import examples, rerankers
from retrieval.recipes.initial_parameters import check_towers, load_towers
from retrieval.recipes.recipe import recipe_of
from retrieval.runtime import hosts
from retrieval.stage_outputs import Run

_log = logging.getLogger(__name__)

FOLDER = "export"

declare(
    "export",
    license=Field(
        "",
        matching("a license's identifier, such as apache-2.0, or ''", r"([a-z0-9][a-z0-9.+-]*)?"),
        "license that the model card names, such as apache-2.0; '': none was given",
    ),
)


def export(run: Run) -> dict[str, Any]:
    """Writes `export/`: tied towers as one model, others as one each in `query/` and `document/`, with a router above.

    A reranker is one model, a cross-encoder.
    """
    vocabulary, config = run.load_vocabulary(), _trained(run)
    # On every host, as checkpoints are read.
    if recipe_of(config).reranks:
        reranker = rerankers.open_reranker(run, "", "config.base").model
        hosts.on_first(
            lambda: _write(run, vocabulary, lambda folder: _write_reranker(folder, config, reranker, vocabulary))
        )
        return {"classes": config.model.classes, "step": record_of(run, "train")["details"]["step"]}
    towers = load_towers(run, len(vocabulary))
    _check_towers(towers, config.recipe)
    hosts.on_first(lambda: _write(run, vocabulary, lambda folder: _write_towers(folder, config, towers, vocabulary)))
    return {"tied": config.model.tied, "step": record_of(run, "train")["details"]["step"]}


def _check_towers(towers: TwoTower, recipe: str) -> None:
    """Checks that the other libraries would give the same embeddings."""
    if type(towers) is not TwoTower:
        raise UserError(f"stage 'export': towers of config.recipe={recipe} have parts that those libraries lack")
    if towers.token_types == "sides":
        raise UserError(
            "stage 'export': config.model.token_types=sides gives documents token type 1, and those libraries give a "
            "single text type 0: their embeddings would be others"
        )


def check(run: Run) -> None:
    """Checks that there is a model which the other libraries can have.

    Raises:
      UserError: nothing is trained, or an MLM is, or BoW-MLP.
    """
    config = _trained(run)
    if "train" not in config.stages:
        raise UserError(
            f"stage 'export': nothing is trained in {run.folder}, config.stages has no 'train'; name the work "
            "directory of a run that trains towers"
        )
    if not ((recipe := recipe_of(config)).has_towers or recipe.reranks):
        raise UserError(
            f"stage 'export': config.recipe={config.recipe} trains {recipe.label}, which has no towers; train them "
            f"from it with --config.train.init_from={run.folder} and export these"
        )
    if config.model.encoder != "transformer":
        raise UserError(
            f"stage 'export': config.model.encoder={config.model.encoder} is no module of sentence-transformers; only "
            "config.model.encoder=transformer can be exported (embeddings/ has this model's vectors as .npy)"
        )


def results(run: Run) -> list[Path]:
    """The record of the evaluation that the card shows, where there is one."""
    return [run.record("evaluate")] if _is_of_these_towers(run) and is_done(run, "evaluate") else []


def _is_of_these_towers(run: Run) -> bool:
    """Whether what was evaluated is what the run has: its base may have towers of its own."""
    return run.holder("evaluate").holder("train").folder == run.holder("train").folder


def _trained(run: Run) -> ConfigDict:
    """The config that the towers were trained with."""
    return run.holder("train").config


def _write(run: Run, vocabulary: Vocabulary, write_model: Callable[[Path], None]) -> None:
    files.remove_temporaries(run.folder, FOLDER)
    with files.atomic(run.folder / FOLDER) as folder:
        folder.mkdir()
        write_model(folder)
        files.write_text(folder / "README.md", _card(run, vocabulary))
    _log.info("export: %s/%s", run.place, FOLDER)


def _write_towers(folder: Path, config: ConfigDict, towers: TwoTower, vocabulary: Vocabulary) -> None:
    of_queries, of_documents = config.data.query_length, config.data.document_length
    if config.model.tied:
        _write_tower(folder, towers.query_tower, towers.normalize, vocabulary, of_documents, of_queries)
        return
    both = (
        (folders.QUERY, towers.query_tower, of_queries),
        (folders.DOCUMENT, towers.document_tower, of_documents),
    )
    for name, tower, length in both:
        (folder / name).mkdir()
        _write_tower(folder / name, tower, towers.normalize, vocabulary, length)
    folders.write_router(folder)


def _write_reranker(folder: Path, config: ConfigDict, reranker: CrossEncoder, vocabulary: Vocabulary) -> None:
    write_cross_encoder(folder, reranker)
    types = config.model.type_vocab_size
    tokenizer_files.write_tokenizer(folder, vocabulary, length=config.data.document_length, types=types)


def _write_tower(
    folder: Path, tower: Any, normalize: bool, vocabulary: Vocabulary, length: int, query_length: int | None = None
) -> None:
    folders.write_tower(folder, tower, normalize=normalize, length=length, query_length=query_length)
    types = tower.encoder.config.type_vocab_size
    tokenizer_files.write_tokenizer(folder, vocabulary, length=length, types=types)


def _card(run: Run, vocabulary: Vocabulary) -> str:
    config = _trained(run)
    data = dict(_data(run))
    start = {"parameters from": _names(config.train.init_from)} if config.train.init_from else {}
    reranks = recipe_of(config).reranks
    return card.model_card(
        card.RERANKER if reranks else card.TOWERS,
        title=run.folder.resolve().name,
        license=run.config.export.license,
        datasets=[name for names in data.values() for name in names],
        data=[f"{what}: {', '.join(map(display.inline, names))}" for what, names in (data | start).items()],
        notes=[*(_notes_of_reranker(config) if reranks else _notes_of_towers(config)), *_notes(config, vocabulary)],
        settings=dict(_settings(config)),
        results=[{**row, "seconds": None} for row in _results(run)],  # of the machine, not of the model
    )


def _data(run: Run) -> Iterator[tuple[str, list[str]]]:
    """What the towers were trained on, by names that say nothing of the machine where they were."""
    config = _trained(run)
    trainer = run.holder("train")
    if examples.unlabelled(config):
        yield "corpus", _names(trainer.holder("prepare").config.corpus)
    if examples.labelled(config):
        if labelled := trainer.holder("pairs").config.pairs.files:
            yield "labelled examples", _names(labelled)
        sets = trainer.holder("sets").config
        if not sets.split.set:
            return
        share = f"questions and their documents, {sets.split.ratio:.0%} of those of"
        yield share, _names(sets.sets.get(sets.split.set) or sets.split.set)


def _names(value: Any) -> list[str]:
    parts = [part for part in str(value).split(",") if part]
    return [
        part.partition(":")[2].partition("?")[0] if tfds_source.is_source(part) else Path(part).name for part in parts
    ]


def _notes_of_towers(config: ConfigDict) -> list[str]:
    data = config.data
    lengths = (
        f"Queries are cut to {data.query_length} tokens and documents to {data.document_length}, [CLS] and [SEP] among "
        "them."
    )
    if config.model.tied and data.query_length != data.document_length:
        lengths += " One tower serves both, so this needs sentence-transformers 6 or newer, and `encode_query`."
    return [
        lengths,
        "A document with a title is the pair (title, text), one without is the text alone: an empty title is not the "
        "same.",
        "Of a document that is too long the longer of title and text is cut, then both.",
        "`AutoModel` loads the encoder alone. Its pooler is of zeros: there is none.",
    ]


def _notes_of_reranker(config: ConfigDict) -> list[str]:
    data = config.data
    return [
        f"Query and document have {data.document_length} tokens together, [CLS] and two [SEP] among them.",
        f"It was trained with queries of at most {data.query_length} tokens, and nothing here cuts them to that.",
        "A document with a title is the title, a space and the text.",
    ]


def _notes(config: ConfigDict, vocabulary: Vocabulary) -> list[str]:
    notes = ["Special tokens that are written in a text, such as [SEP], are text."]
    if isinstance(vocabulary, WordPiece):
        accents = "stripped" if vocabulary.folds_accents else "kept"
        notes.append(f"Text is lower-cased, and accents are {accents}.")
    if config.model.dtype != "float32":
        notes.append(
            f"Trained with {display.inline(config.model.dtype)}; the parameters, and what they give here, are float32."
        )
    return notes


def _settings(config: ConfigDict) -> Iterator[tuple[str, Any]]:
    """What the towers depend on, without the paths of a machine."""
    yield "seed", config.seed
    for group in ("model", "data", "train"):
        fields = getattr(config, group).to_dict()
        yield from ((f"{group}.{name}", value) for name, value in fields.items() if name != "init_from")


def _results(run: Run) -> Sequence[Mapping]:
    return files.read_json(run.holder("evaluate").folder / "results.json") if results(run) else []


STAGES.register(
    "export",
    Stage(
        export,
        check=(check, Run.check_vocabulary, check_towers),
        reads="checkpoint, vocabulary, results",
        writes="`export/`: the model for Hugging Face's libraries, a model card",
        settings=("export",),
        needs=("prepare", "train"),
        wants=("evaluate",),
        inputs=lambda run: [*results(run), *run.vocabulary_inputs()],
        outputs=(FOLDER,),
        everywhere=True,
    ),
)
