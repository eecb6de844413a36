"""The stage `serve_models`: a server for a model that encodes, a reranker, or one of each, without documents."""

from pathlib import Path

from ml_collections import ConfigDict

from retrieval.api import loading
from retrieval.common.errors import UserError
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Stage
from retrieval.runs.weights.text_embedder import kind_of
from retrieval.runs.weights.trained_model import TRAINED
from retrieval.stages.serve import SETTINGS, answer, check_keys, check_packages, limits

_FIELD, _RERANKER = "config.served.models", "reranker"


def serve_models(run: Run) -> None:
    """Answers until the process is told to end."""
    from retrieval.serving.service import Current, Service, model_service

    models, rerankers = _by_kind(run)
    names = {place: Path(place.removeprefix("hf:").rstrip("/")).name for place in (*models, *rerankers)}

    def open_service() -> Service:
        model = loading.load(models[0]) if models else None
        reranker = TRAINED[_RERANKER].open(run, rerankers[0], _FIELD) if rerankers else None
        return model_service(model, reranker, names[rerankers[0]] if rerankers else "", limits(run).batch)

    name = run.config.serve.name or next(iter(names.values()))
    answer(run, lambda: Current(open_service, lambda: ""), name, f"with {', '.join(names)}")


def check_models(config: ConfigDict) -> None:
    """Checks that models are named."""
    if not config.served.models:
        raise UserError(f"{_FIELD} is empty: name a model, as in `retrieval serve --model=hf:NAME`")


def check(run: Run) -> None:
    """Checks the file of keys, that there is at most one model of each kind, and the reranker."""
    check_keys(run)
    for each in _by_kind(run):
        if len(each) > 1:
            why = f"{' and '.join(each)} are for the same requests: leave one out, or start a server for each"
            raise UserError(f"{_FIELD}: {why}")
    for place in _by_kind(run)[1]:
        TRAINED[_RERANKER].check(run, place, _FIELD)


def _by_kind(run: Run) -> tuple[list[str], list[str]]:
    """The models that encode, and those that rerank."""
    kinds = {place: kind_of(place, _FIELD, run) is TRAINED[_RERANKER] for place in run.config.served.models}
    return [place for place in kinds if not kinds[place]], [place for place in kinds if kinds[place]]


STAGES.register(
    "serve_models",
    Stage(
        serve_models,
        check_config=(check_packages, check_models),
        check=(check,),
        also_reads=("served", *SETTINGS, "rerank.length", "model.dtype", "model.unroll", "encode"),
    ),
)
