"""The stage `mine`: an index is asked for the hard negatives of a set's training questions, or of labelled pairs.

BM25's are those of DPR (Karpukhin et al. 2020, section 3.2), those of a trained model what ANCE begins with. Those of
pairs are found by the embedder that `config.mine.model` names (`pair_negatives`).
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.config.fields import of_fields
from retrieval.data.labelled import negatives_format
from retrieval.models.two_tower import TwoTower
from retrieval.recipes.parameters import local_mesh, parameters_of
from retrieval.recipes.towers import Embedder, query_tokens
from retrieval.runs.fitting import held_out_questions
from retrieval.runs.fitting.refresh_kind import MINED
from retrieval.runs.pairs import hard_negatives, pair_negatives
from retrieval.runs.pairs.hard_negatives import MinedExamples, Searched
from retrieval.runs.pipeline.records import details, read_record, record_of
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Read, Stage
from retrieval.runs.ranking import indexes
from retrieval.runs.ranking.collection import open_collection
from retrieval.runs.weights import prompted
from retrieval.runs.weights.trained_model import open_trained
from retrieval.runs.weights.trained_run import of_towers
from retrieval.search.index_kind import EXACT, INDEXES, RANDOM
from retrieval.search.mining import at_random

_log = logging.getLogger(__name__)


def read(system: str, model: str) -> list[str | Read]:
    """What the stage reads: of a run that trains later, what is searched is the base's."""
    return [] if model else ["prepare", "sets", *(Read(stage, from_base_if_later=True) for stage in needs(system))]


def needs(system: str, field: str = "config.mine.system") -> tuple[str, ...]:
    """The stages that make what is searched; `field` names the system."""
    if system == RANDOM:
        return ()
    kind = INDEXES.find(system, field)
    if kind.of_words:
        return ("index",)
    return ("train", "encode") if kind.name == EXACT else ("train", "encode", "index")


def mine(run: Run) -> dict[str, Any]:
    """Writes `negatives/`: `negatives.jsonl`, Tevatron's, another format beside it, and `provenance.json`.

    Returns what the last one says.

    Raises:
      UserError: the index is over other candidates, or leaves no negative and `pairs.keep_lone` is off.
    """
    config, folder, work = run.config, run.negatives, run.negatives / "work"
    mining = hard_negatives.mining_of(config.mine, config.split.seed)
    folder.mkdir(exist_ok=True)
    rule = {name: config.mine[name] for name in (*hard_negatives.RULE, "answers")} | {"seed": config.split.seed}
    with pair_negatives.opened(run, work) if config.mine.model else _of_set(run, mining.answers) as (searched, about):
        mined = hard_negatives.mine(mining, searched, keeps_lone=config.pairs.keep_lone)
        examples = MinedExamples(searched.questions, searched.candidates, mined.rows)
        for form in dict.fromkeys((negatives_format.TEVATRON, config.mine.format)):
            name = "negatives" if form == negatives_format.TEVATRON else form
            with files.atomic(folder / f"{name}.jsonl") as temporary:
                rows = negatives_format.write(temporary, examples, form, config.mine.negatives)
            if mined.counts["negatives"] and not rows:
                raise UserError(f"no question has config.mine.negatives={config.mine.negatives} left: lower that")
    files.remove(work)
    provenance = about | {"rule": rule} | mined.counts
    files.write_json(folder / "provenance.json", provenance)
    _log.info("mine: %d negatives of %d questions", mined.counts["negatives"], mined.counts["questions"])
    return provenance


@contextlib.contextmanager
def _of_set(run: Run, needs_answers: bool) -> Iterator[tuple[Searched, dict[str, Any]]]:
    """The training questions of the set that is divided, and what is searched for them."""
    config, source, name = run.config, run.as_seen_by("mine"), held_out_questions.divided_set(run)
    system, stage = config.mine.system, (needs(config.mine.system) or ("sets",))[-1]
    file, searched = run.sets / name / "corpus.jsonl", source.owner(stage)
    if _candidates(run, name) != _candidates(searched, name):
        other = f"{searched.folder}: its index is over other candidates than {file.parent}"
        raise UserError(f"{other}; use a config.base with the same config.sets")
    with hard_negatives.open_questions(run.training, file, needs_answers=needs_answers) as (questions, candidates):
        texts = [question.text for question in questions]
        if system == RANDOM:
            queries, search = texts, at_random(len(candidates), config.split.seed)
        else:
            queries, search = open_search(source, name, system, texts)
        owner, inputs = source.owner(stage).folder.name, record_of(source, stage)["inputs"]
        step = details(source, "train")["step"] if "train" in needs(system) else None
        about = {"system": system, "run": owner, "index": inputs, "step": step}
        yield Searched(questions, candidates, queries, search), about


def check_index(run: Run) -> None:
    """Checks that a stage before `mine`, or the base, makes what is searched."""
    system, source = run.config.mine.system, run.as_seen_by("mine")
    if system == RANDOM:
        return
    kind = INDEXES.find(system, "config.mine.system")
    for need in needs(system):
        if need not in source.owner(need).config.stages:
            way = "put 'index' before 'mine' in config.stages" if kind.of_words else "use config.mine.system=bm25"
            lack = f"config.mine.system={system} needs the stage '{need}' before 'mine'"
            raise UserError(f"{lack}: {way}, or set config.base to a run that has it")
    is_own = source.owner("index").folder == run.folder  # what a base has is looked at when it is read
    if kind.of_words and is_own and kind not in [built.kind for built in indexes.built_by(run.config)[:-1]]:
        built = f"config.index.words={tuple(run.config.index.words)}"
        raise UserError(f"config.mine.system={system}: no such index is built by {built}: add it there")


def _candidates(run: Run, name: str) -> str | None:
    """The SHA-256 of a set's candidates, by the record of the stage `sets`."""
    return (read_record(run, "sets") or {}).get("outputs", {}).get(f"sets/{name}/corpus.jsonl")


def open_search(
    source: Run, name: str, system: str, texts: list[str]
) -> tuple[Any, Callable[[Any, int], hard_negatives.Lists]]:
    """Questions as the search of a set takes them, texts or embeddings [Q, E], and that search, of a run's index.

    Raises:
      UserError: there is no such index.
    """
    kind, collection = INDEXES[system], open_collection(source, name)
    if kind.of_words:
        return texts, indexes.open_words(kind, collection).search
    if kind.is_saved and not (kind.available() and collection.index(kind.name).exists()):
        raise UserError(f"{collection.index(kind.name)}: no {kind.title} index there; take the system 'exact'")
    options = indexes.options_of(kind, source.owner("index").config)
    return embedded(source, name, texts), indexes.open_dense(kind, collection, options).search


def embedded(source: Run, name: str, texts: list[str]) -> np.ndarray:
    """Questions [Q, E] as the model of a run embeds them, as it has embedded the candidates of the set."""
    trained, vocabulary, model = open_trained(source)
    if not isinstance(model, TwoTower):
        folder = source.owner("train").folder
        raise UserError(f"{folder}: a masked language model has no towers to mine with: another config.base")
    config = prompted.of_set(of_towers(source.owner("encode")), vocabulary, name)
    config.mesh = trained.mesh
    embedder = Embedder(config, vocabulary, local_mesh(config))
    return embedder.embed_rows(embedder.queries(parameters_of(model)), query_tokens(config, vocabulary, texts))


def check(run: Run) -> None:
    """Checks that there is something to mine from, and something to mine for."""
    if run.config.mine.model:
        pair_negatives.check(run)
    else:
        check_index(run)
        hard_negatives.check_questions(run)


STAGES.register(
    "mine",
    Stage(
        mine,
        check_config=(of_fields(hard_negatives.check, "data.negatives", "mine"),),
        check=(check,),
        fields=("mine.system", *MINED, *pair_negatives.FIELDS),
        also_reads=("encode.batch_tokens", "encode.shard_size"),
        reads=of_fields(read, "mine.system", "mine.model"),
        files=lambda run: pair_negatives.inputs(run) if run.config.mine.model else run.vocabulary_inputs(),
        fetch=pair_negatives.fetch,
        writes=("negatives",),
    ),
)
