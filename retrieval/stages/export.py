"""The stage `export`: trained models as folders that Hugging Face's libraries load, with a model card."""

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval import files
from retrieval.data.corpora import tfds_source
from retrieval.data.labelled import sources
from retrieval.data.tokenizers import prefixes, prompts, tokenizer_files
from retrieval.data.tokenizers.vocab import Vocabulary, WordPiece
from retrieval.errors import UserError, unknown_name
from retrieval.evaluation import card, display
from retrieval.models import export_files as folders
from retrieval.models.two_tower import TwoTower
from retrieval.pipeline.records import is_current, is_done, record_of
from retrieval.pipeline.run import Run
from retrieval.pipeline.stage import STAGES, Read, Stage
from retrieval.recipes import adapters, examples, module_fields, prompted
from retrieval.recipes.initial_parameters import check_towers, load_adapted, load_towers, of_towers
from retrieval.recipes.recipe import recipe_of
from retrieval.recipes.towers import truncated
from retrieval.recipes.trained_model import TRAINED
from retrieval.runtime import hosts, hub, model_folder
from retrieval.search.index_kind import EXACT, INDEXES

_log = logging.getLogger(__name__)

FOLDER = "export"


def export(run: Run) -> dict[str, Any]:
    """Writes `export/`: tied towers as one model, others as one each in `query/` and `document/`, with a router above.

    A reranker is one model, a cross-encoder, and so is late interaction.
    """
    vocabulary, trainer = run.load_vocabulary(), run.holder("train")
    config, step = trainer.config, record_of(run, "train")["details"]["step"]
    found: dict[str, str] = {}
    # On every host, as checkpoints are read.
    if publisher := recipe_of(config).published_by:
        write_model = TRAINED[publisher].open(run, "", "config.base").write
        kind = {"classes": config.model.classes} if recipe_of(config).reranks else {}
    else:
        towers = load_towers(run, len(vocabulary))
        config = truncated(config, run.holder("encode").config.encode.truncate)
        _check_towers(towers, config.recipe)
        found = _prompts(of_towers(run))
        write_model = functools.partial(
            _write_towers,
            towers=towers,
            vocabulary=vocabulary,
            query_length=config.data.query_length,
            document_length=config.data.document_length,
            use=folders.Use(
                normalize=towers.normalize,
                truncate_dim=config.model.truncate_dim,
                prompts=found,
                include_prompt=_includes_prompts(config, vocabulary),
                titles=config.data.titles,
            ),
            default_prompt=_default_prompt(config, found),
            instead=_adapters_of(run) if run.config.export.adapter else None,
        )
        kind = {"tied": config.model.tied}

    def write() -> None:
        trained_on = _trained_on(
            config,
            trainer.holder("prepare").config.corpus,
            ",".join(own.pairs.files for own in sources.each(trainer.holder("pairs").config).values()),
            trainer.holder("sets").config,
        )
        model_card = _card(
            config,
            vocabulary,
            found,
            title=run.folder.resolve().name,
            license=run.config.export.license,
            trained_on=dict(trained_on),
            evaluated=_evaluated(run, step) if results(run) else [],
            divided=run.holder("sets").config.split,
        )
        _write(run.folder, write_model, model_card)

    hosts.on_first(write)
    _log.info("export: %s/%s", run.place, FOLDER)
    pushed = {}
    if name := run.config.export.hub:
        private = run.config.export.hub_private
        pushed = {"commit": hosts.on_first(lambda: hub.push(run.folder / FOLDER, name, private))}
        _log.info("export: pushed to %s", pushed["commit"])
    return kind | {"step": step} | pushed


def _adapters_of(run: Run) -> Callable[[str, Path], None]:
    """What writes the adapters of a tower in place of the encoder in its folder."""
    config, params = load_adapted(run.holder("train").folder, run.vocab_size, run.config.mesh)
    return functools.partial(adapters.write, config, params)


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
    config = run.holder("train").config
    if "train" not in config.stages:
        raise UserError(
            f"stage 'export': nothing is trained in {run.folder}, config.stages has no 'train'; name the work "
            "directory of a run that trains towers"
        )
    if not ((recipe := recipe_of(config)).has_towers or recipe.published_by):
        raise UserError(
            f"stage 'export': config.recipe={config.recipe} trains {recipe.label}, which has no towers; train them "
            f"from it with --config.train.init_from={run.folder} and export these"
        )
    if config.model.encoder != "transformer":
        raise UserError(
            f"stage 'export': config.model.encoder={config.model.encoder} is no module of sentence-transformers; only "
            "config.model.encoder=transformer can be exported (embeddings/ has this model's vectors as .npy)"
        )
    if run.config.export.adapter:
        adapters.check_export(config)


def check_hub(run: Run) -> None:
    """Checks that what is to be exported can be pushed, if it is to be.

    Raises:
      UserError: the hub does not answer, or nobody is logged in.
    """
    if run.config.export.hub and not is_current(run, "export"):
        hub.check_login(run.config.export.hub)


def results(run: Run) -> list[Path]:
    """The record of the evaluation that the card shows, where there is one."""
    # A base may have evaluated towers of its own.
    is_of_these = run.holder("evaluate").holder("train").folder == run.holder("train").folder
    return [run.record("evaluate")] if is_of_these and is_done(run, "evaluate") else []


def _evaluated(run: Run, step: int) -> list[dict[str, Any]]:
    """The rows of `results.json`, if they are of the model after `step`, and not of the one before it went on."""
    rows = files.read_json(run.holder("evaluate").folder / "results.json")
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


def _write_towers(
    folder: Path,
    *,
    towers: TwoTower,
    vocabulary: Vocabulary,
    query_length: int,
    document_length: int,
    use: folders.Use,
    default_prompt: str,
    instead: Callable[[str, Path], None] | None,
) -> None:
    write = functools.partial(folders.write_tower, use=use, pad_id=vocabulary.pad_id)
    query_tower: Any = towers.query_tower  # of BERT's kind: `check` lets no other pass
    if not hasattr(towers, "document_tower"):  # they are tied
        write(
            folder,
            query_tower,
            length=document_length,
            query_length=query_length,
            default_prompt=default_prompt,
        )
        _write_tokenizer(folder, query_tower, vocabulary, document_length)
        if instead:
            instead("query_tower", folder)
        return
    document_tower: Any = towers.document_tower
    both = (
        (folders.QUERY, query_tower, query_length),
        (folders.DOCUMENT, document_tower, document_length),
    )
    for name, tower, length in both:
        (folder / name).mkdir()
        write(folder / name, tower, length=length, default_prompt=name)
        _write_tokenizer(folder / name, tower, vocabulary, length)
        if instead:
            instead(f"{name}_tower", folder / name)
    folders.write_router(folder, use, default_prompt)


def _prompts(config: ConfigDict) -> dict[str, str]:
    """All prompts by name; of the two sides those that there are."""
    found = prompted.table(config)
    return {name: text for name, text in found.items() if text or name not in prompts.USUAL}


def _default_prompt(config: ConfigDict, found: Mapping[str, str]) -> str:
    """The name of the prompt of a text of which nobody says what it is; '' for none.

    Raises:
      UserError: there is no such prompt.
    """
    name = config.data.default_prompt
    if name and name not in (*found, *prompts.USUAL):
        raise unknown_name("prompt in config.data.default_prompt", name, (*found, *prompts.USUAL))
    return name


def _includes_prompts(config: ConfigDict, vocabulary: Vocabulary) -> bool:
    """Whether the pooling takes the tokens of prefixes.

    Raises:
      UserError: it begins at places that those libraries do not have.
    """
    places = tuple(config.model.pool_from)
    if any(places) and places != (behind := module_fields.behind_prefixes(config, vocabulary)):
        raise UserError(
            f"stage 'export': config.model.pool_from={places}, and those libraries pool everything, or what stands "
            f"behind the prefixes, which is {behind} here: train with one of these"
        )
    return not any(places)


def _write_tokenizer(folder: Path, tower: Any, vocabulary: Vocabulary, length: int) -> None:
    config = tower.encoder.config
    types = config.type_vocab_size if config.architecture.token_types else 0
    tokenizer_files.write_tokenizer(folder, vocabulary, length=length, types=types)


def _card(
    trained: ConfigDict,
    vocabulary: Vocabulary,
    named: Mapping[str, str],
    *,
    title: str,
    license: str,
    trained_on: Mapping[str, list[str]],
    evaluated: Sequence[Mapping[str, Any]],
    divided: ConfigDict,
) -> str:
    """The text of the model card.

    Args:
      trained: the config that the model was trained with.
      named: prompts by name.
      trained_on: as `_trained_on` gives it.
      evaluated: rows of `results.json`.
      divided: `config.split` of the run that has the evaluation sets.
    """
    # Of a set that was divided by chance nobody else has the same test queries.
    not_theirs = divided.set if not divided.train else ""
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
            *_notes(vocabulary, trained.model.dtype),
        ],
        settings=dict(_settings(trained)),
        results=[{**row, "seconds": None} for row in evaluated],  # of the machine, not of the model
        own=[row for row in evaluated if row["system"] == INDEXES[EXACT].system and row["dataset"] != not_theirs],
        score="cosine" if trained.model.normalize else "dot",
    )


def _trained_on(
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


STAGES.register(
    "export",
    Stage(
        export,
        check=(
            check,
            check_hub,
            Run.check_vocabulary,
            check_towers,
        ),
        fields=("export", "encode.truncate", "data.prompts"),
        reads=("prepare", "train", Read("evaluate", loose=True)),
        files=lambda run: [*results(run), *run.vocabulary_inputs()],
        writes=(FOLDER,),
        everywhere=True,
    ),
)
