"""The stage `train`: shards to a checkpoint."""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from retrieval import files, hosts, mirror
from retrieval.data import vocabularies
from retrieval.errors import UserError
from retrieval.models import two_tower
from retrieval.models.autoencoder import Autoencoder
from retrieval.models.mlm import MaskedLanguageModel
from retrieval.models.two_tower import TwoTower
from retrieval.stages import metric_writers, objective, pretrained, records, refresh, validation
from retrieval.stages import model as models
from retrieval.stages.examples import abstract_batch, make_batches
from retrieval.stages.run import Run
from retrieval.stages.versions import Versions
from retrieval.training import chips, loop, optimizer, sharding, work
from retrieval.training.checkpoint import Checkpointer, Follower, drop_damaged
from retrieval.training.loop import TrainState

_log = logging.getLogger(__name__)

# What a run goes on from, in the order of `Mirror.up`.
FOLLOWED = ("checkpoints", "refreshed", "metrics")

# Where a batch is kept whose updates were not finite.
BAD_BATCHES = "bad_batches"


def train(run: Run) -> dict[str, Any]:
    """Trains to the last step, from the newest checkpoint where there is one."""
    config = run.config
    vocabulary = vocabularies.load(run.corpus)
    check_start(run)
    mesh = models.make_mesh(config)
    refreshes = config.mine.refresh_every > 0
    # Before the model, for what may be wrong with the data.
    batches = Versions(run, vocabulary, mesh) if refreshes else make_batches(run, vocabulary, mesh)
    model = models.abstract(config, len(vocabulary))
    like = abstract_state(config, model, mesh)
    sharding.check_rules(like.params, config.mesh.rules)
    size = sum(leaf.size for leaf in jax.tree.leaves(like.params))
    _log.info("model: %.1f million parameters on %d devices", size / 1e6, mesh.size)
    drop_damaged(run.folder / "checkpoints")
    with _copied_up(run) as follower:
        checkpointer = open_checkpoints(run.folder, config, follower)
        resumed = checkpointer.latest_step() is not None
        state = like if resumed else initial_state(config, len(vocabulary), like)
        with jax.set_mesh(mesh):
            validate = validation.make(run, vocabulary, mesh) if config.loop.validate_every else None
            progress = loop.Progress(batches)
            if resumed:
                state = checkpointer.restore(like, progress)
            step_fn = make_step(config, model)
            writer = metric_writers.open_writer(run.folder, config, after=int(state.step))
            with hosts.watch(int(state.step)) as stops_at:
                cost = _cost(config, len(vocabulary), like, mesh)
                anew = refresh.Refresh(run, vocabulary, mesh, batches, checkpointer) if refreshes else None
                loop.train(
                    state,
                    step_fn,
                    progress,
                    checkpointer,
                    writer,
                    _settings(run),
                    validate=validate,
                    stops_at=stops_at,
                    cost=cost,
                    refresh=anew,
                )
            step = checkpointer.best_step()
            checkpointer.close()
            writer.close()
    told = {"parameters": size, "devices": mesh.size, "platform": jax.default_backend(), "step": step}
    return told | {"vocabulary": files.fingerprint(list(vocabulary.tokens))}


@contextlib.contextmanager
def _copied_up(run: Run) -> Iterator[Follower | None]:
    """Where the work directory is on a store, copies checkpoints there as they come, and at the end bad batches."""
    if not run.mirror:
        yield None
        return
    try:
        with run.mirror.following(FOLLOWED) as follower:
            yield follower
    finally:
        if (run.folder / BAD_BATCHES).exists():
            run.mirror.up([BAD_BATCHES])


def trained(run: Run, told: dict[str, Any]) -> list[Path]:
    """The folder of the step that other stages read."""
    return [run.folder / "checkpoints" / str(told["step"])]


def _settings(run: Run) -> loop.Settings:
    config = run.config
    return loop.Settings(
        steps=config.train.steps,
        log_every=config.loop.log_every,
        checkpoint_every=config.loop.checkpoint_every,
        validate_every=config.loop.validate_every,
        refresh_every=config.mine.refresh_every,
        bad_batches=run.folder / BAD_BATCHES,
        trace_steps=trace_steps(config),
        trace=run.folder / "profile",
    )


def _cost(config: ConfigDict, vocab_size: int, state: TrainState, mesh: jax.sharding.Mesh) -> loop.Cost:
    chip = chips.of(mesh.devices.flat[0])
    flops = useful_flops(config, vocab_size, state, abstract_batch(config, mesh))
    return loop.Cost(mesh.size * flops, chip and mesh.size * chip.peak_flops / chip.cores)


def check(config: ConfigDict) -> None:
    """Checks what the config says about steps.

    Raises:
      UserError: no update would ever come, or there is no such trace.
    """
    if config.train.accumulation > config.train.steps:
        raise UserError(
            f"config.train.accumulation={config.train.accumulation} is more than config.train.steps="
            f"{config.train.steps}, which are batches: nothing would ever be updated; lower it, or raise the steps"
        )
    trace_steps(config)


def trace_steps(config: ConfigDict) -> tuple[int, int]:
    """The first and the last step of the trace, 0 and 0 for none.

    Raises:
      UserError: they are not two, or not steps of the run.
    """
    steps = tuple(config.profile.steps) or (0, 0)
    if len(steps) != 2 or (any(steps) and not 0 < steps[0] <= steps[1] <= config.train.steps):
        raise UserError(
            f"config.profile.steps={','.join(map(str, steps))}: the first and the last step of the trace are needed, "
            f"such as 10,15, and at most config.train.steps={config.train.steps}"
        )
    return steps


def train_inputs(run: Run) -> Sequence[Path]:
    """What tells whether the parameters that this run starts from have changed.

    The record of the run that trained them, or the files of a folder of BERT's weights.
    """
    folder = run.config.train.init_from
    if not folder:
        return ()
    if weights := pretrained.inputs(run.config):
        return weights
    record = mirror.local(folder) / "stages" / "train.json"
    if not record.exists() or not files.read_json(record)["done"]:
        raise UserError(f"config.train.init_from={folder}: not a work directory with a finished train stage")
    return (record,)


def check_start(run: Run) -> None:
    """Checks that the run's parameters can start from those of `train.init_from`.

    Raises:
      UserError: that is a model of other sizes or of another vocabulary, or not trained.
    """
    start = run.config.train.init_from
    if not start:
        return
    train_inputs(run)
    if pretrained.folders(run.config):
        pretrained.check(run)
        return
    folder = mirror.local(start)
    check_vocabulary(run, folder, "config.train.init_from")
    check_sizes(run.config, ConfigDict(files.read_json(folder / "config.json")))


def check_sizes(config: ConfigDict, start: ConfigDict) -> None:
    """Checks that a model of a config can start from one of another config.

    Raises:
      UserError: they have other sizes, or are of another kind.
    """
    of_towers = not models.is_mlm(start)
    theirs = models.sizes(start, of_towers)
    for field, ours in models.sizes(config, of_towers).items():
        if ours != theirs.get(field):
            raise UserError(
                f"config.train.init_from={config.train.init_from}: a model of other sizes or another kind, "
                f"config.{field} is {theirs.get(field)} there and {ours} here: take the same, or another run to start "
                "from"
            )


def check_vocabulary(run: Run, folder: Path, field: str) -> None:
    """Checks that the model of a work directory was trained with the vocabulary of the run, as far as both are known.

    Raises:
      UserError: it was not; with as many tokens nobody would notice, and the model would read nonsense.
    """
    if not (folder / "config.json").exists():
        return
    trained = Run(ConfigDict(files.read_json(folder / "config.json")), folder, run.lock)
    try:
        theirs, ours = vocabularies.find(trained.corpus), vocabularies.find(run.corpus)
    except UserError:  # the base of that run has gone, and its vocabulary with it
        return
    ours = ours or vocabularies.named(run.config.vocab)
    if not ours or not theirs:
        return
    tokens = vocabularies.load(ours).tokens
    if tokens != vocabularies.load(theirs).tokens:
        raise UserError(
            f"{field}={folder}: trained with another vocabulary than {ours}; use its own, "
            f"--config.vocab={theirs}, in a --workdir of its own, or a config.base that has it"
        )
    then = (records.details(trained, "train") or {}).get("vocabulary")
    if then and then != files.fingerprint(list(tokens)):
        raise UserError(
            f"{field}={folder}: trained with another vocabulary than {ours} has now, which was made anew since: train "
            "it again, or make the corpus again with what it was made of"
        )


def open_checkpoints(folder: Path, config: ConfigDict, follower: Follower | None = None) -> Checkpointer:
    """The checkpoints of a work directory; those that are saved are left to a follower to copy."""
    best = config.loop.best if config.loop.validate_every else ""
    mine = config.get("mine", {})  # a model to start from may be older than the field
    every = mine.refresh_every if mine.get("refresh_lag") else 0  # what the second process of a refresh reads
    return Checkpointer(folder / "checkpoints", config.loop.keep_checkpoints, best, every, follower)


def make_optimizer(config: ConfigDict) -> optax.GradientTransformation:
    """Adam as the config has it; the schedule counts updates."""
    train = config.train
    tx = optimizer.make_optimizer(
        learning_rate=train.learning_rate,
        steps=max(1, train.steps // train.accumulation),
        warmup_ratio=train.warmup_ratio,
        weight_decay=train.weight_decay,
        clip_norm=train.clip_norm or None,
    )
    if train.accumulation == 1:
        return tx
    return optax.MultiSteps(tx, train.accumulation).gradient_transformation()


def make_step(config: ConfigDict, model: TwoTower | MaskedLanguageModel) -> Callable:
    """The config's train step, as `loop.make_step` gives it; the model may be abstract."""
    return loop.make_step(objective.make(config, model), make_optimizer(config), config.seed)


def useful_flops(config: ConfigDict, vocab_size: int, state: TrainState, batch: Mapping[str, Any]) -> float:
    """Operations of a device in a step, if nothing were computed twice; state and batch may be shapes."""
    once = config.copy_and_resolve_references()
    once.model.remat, once.train.chunk_size = "none", 0
    return work.of(make_step(once, models.abstract(once, vocab_size)).trace(state, batch).jaxpr).flops


def abstract_state(config: ConfigDict, model: TwoTower | MaskedLanguageModel, mesh: jax.sharding.Mesh) -> TrainState:
    """Shapes, types and shardings of the state that the config trains, without a single value of it."""
    params = models.parameters(model)
    params = jax.tree.map(_at, params, models.shardings(params, config, mesh))
    with jax.set_mesh(mesh):
        state = jax.eval_shape(functools.partial(TrainState.create, optimizer=make_optimizer(config)), params)
    # What the optimizer keeps for a parameter lies where the parameter does; the rest are a few numbers.
    return jax.tree.map(
        lambda leaf: _at(leaf, NamedSharding(mesh, leaf.sharding.spec if leaf.sharding else P())), state
    )


def initial_state(config: ConfigDict, vocab_size: int, like: TrainState) -> TrainState:
    """The state before the first step, where `like` has it.

    To be called without a mesh: then the parameters are whole on one device before they are spread, and on no other.
    """
    model = models.build(config, vocab_size)
    if config.train.init_from:
        init_from(model, config, vocab_size)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, like)
    params = jax.tree.map(
        lambda leaf, to: sharding.place(np.asarray(leaf), to), models.parameters(model), shardings.params
    )
    create = functools.partial(TrainState.create, optimizer=make_optimizer(config))
    return jax.jit(create, out_shardings=shardings)(params)


def _at(leaf: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def load_parameters(
    folder: Path, vocab_size: int, mesh: ConfigDict
) -> tuple[ConfigDict, TwoTower | MaskedLanguageModel]:
    """The trained model of a work directory (its best validated step, or its last one), and its config.

    Args:
      mesh: how this host's devices share the parameters, whatever the mesh that they were trained on.

    Raises:
      UserError: there is no finished checkpoint, or it is of a model with another vocabulary.
    """
    config = ConfigDict(files.read_json(folder / "config.json") | {"mesh": mesh})
    model = models.abstract(config, vocab_size)
    like = abstract_state(config, model, models.local_mesh(config))
    checkpointer = open_checkpoints(folder, config)
    trained = checkpointer.restore(like, step=checkpointer.best_step()).params
    checkpointer.close()
    return config, models.bind(model)(trained)


def load_towers(run: Run, vocab_size: int) -> TwoTower:
    """The trained towers of a run; those of an MLM run have its encoder and an untrained projection."""
    check_vocabulary(run, run.holder("train").folder, "config.base")
    _, trained = load_parameters(run.holder("train").folder, vocab_size, run.config.mesh)
    if isinstance(trained, TwoTower):
        return trained
    towers = models.build_towers(run.config, vocab_size)
    two_tower.init_encoders(towers, trained.encoder)
    return towers


def of_towers(run: Run) -> ConfigDict:
    """The run's config with the sizes and lengths of the towers that it has: its base's, where they were trained there.

    An MLM trains no towers: those with its encoder are as the run's own config has them.
    """
    trained = run.holder("train").config
    if models.is_mlm(trained):
        return run.config
    config = run.config.copy_and_resolve_references()
    config.model = trained.model
    config.data.query_length, config.data.document_length = trained.data.query_length, trained.data.document_length
    return config


def init_from(model: TwoTower | MaskedLanguageModel, config: ConfigDict, vocab_size: int) -> None:
    """Starts a model from what `train.init_from` names.

    That is BERT's weights, or a trained model: all of it, or an MLM's encoder in both towers; of two MLMs, one of which
    has a decoder, the parameters of the MLM.
    """
    if pretrained.folders(config):
        pretrained.init(model, config)
        return
    folder = mirror.local(config.train.init_from)
    if not (folder / "config.json").exists():
        raise UserError(f"config.train.init_from={folder}: not a work directory (no config.json)")
    _, trained = load_parameters(folder, vocab_size, config.mesh)
    if isinstance(trained, MaskedLanguageModel) and isinstance(model, TwoTower):
        two_tower.init_encoders(model, trained.encoder)
    else:
        _copy(trained, model, folder)
    _log.info("parameters start from %s", folder)


def _copy(source: Any, target: Any, folder: Path) -> None:
    from flax import nnx

    wanted, given = (dict(nnx.to_flat_state(nnx.state(model, nnx.Param))) for model in (target, source))
    if isinstance(source, MaskedLanguageModel) and isinstance(source, Autoencoder) != isinstance(target, Autoencoder):
        both = wanted.keys() & given.keys()
        wanted, given = ({path: value[path] for path in both} for value in (wanted, given))
    if {path: value.shape for path, value in wanted.items()} != {path: value.shape for path, value in given.items()}:
        raise UserError(f"config.train.init_from={folder}: a model of other sizes or another kind")
    nnx.update(target, nnx.from_flat_state({path: jax.tree.map(jax.numpy.copy, v) for path, v in given.items()}))
