"""Vertex AI's contract of a container: variables that say where it asks for predictions and for health.

An instance is a text, or a record with a 'text' and a 'title'; its prediction is its embedding.
"""

import functools
import os

from starlette.responses import Response

from retrieval.errors import unknown_name
from retrieval.runtime.model_folder import DOCUMENT
from retrieval.serving import requests, vectors
from retrieval.serving.engine import Engine
from retrieval.serving.errors import RefusedError
from retrieval.serving.openai_routes import prompts_of
from retrieval.serving.requests import Field, Given, Operation
from retrieval.serving.responses import json_response

PORT, HEALTH, _PREDICT = "AIP_HTTP_PORT", "AIP_HEALTH_ROUTE", "AIP_PREDICT_ROUTE"


def operations(engine: Engine) -> tuple[Operation, ...]:
    """The predictions, where a variable says at which address."""
    if not (path := os.environ.get(_PREDICT)):
        return ()
    limits = engine.limits
    instances = requests.several(requests.document(limits.inputs_body), limits.inputs)
    fields = (
        Field("instances", instances, "texts, or records with a 'text' and a 'title'", None, True),
        Field("parameters", {"type": "object"}, "'prompt_name', such as 'query', and 'dimensions'", {}),
    )
    what, predict = "an embedding of each instance, as Vertex AI asks for them", functools.partial(_predict, engine)
    example = {"instances": ["red"], "parameters": {"prompt_name": "query"}}
    return (Operation("POST", path, what, predict, "Predictions", fields, (), "towers", True, example),)


async def _predict(engine: Engine, given: Given) -> Response:
    service, parameters = engine.service, given["parameters"]
    if not service.model:
        raise RefusedError(404, "the run has no towers that encode: serve one that trains them")
    name, sides = str(parameters.get("prompt_name", DOCUMENT)), prompts_of(service)
    if name not in sides:
        raise unknown_name("prompt", name[:100], sides)
    write = vectors.writer(service.model.card, parameters.get("dimensions"))
    embeddings, _ = await engine.embed(sides[name], given["instances"], name, write, "instances")
    return json_response(b'{"predictions":[' + b",".join(embeddings) + b"]}")
