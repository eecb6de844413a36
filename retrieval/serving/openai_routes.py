"""OpenAI's protocol: POST /v1/embeddings, GET /v1/models and GET /v1/models/NAME.

A model's name alone embeds documents; NAME:query embeds queries, and NAME:PROMPT what another prompt is for.
"""

import functools
from typing import Any

from starlette.responses import Response

from retrieval.errors import listed
from retrieval.runtime.model_folder import DOCUMENT, QUERY
from retrieval.serving import requests, vectors
from retrieval.serving.answers import written
from retrieval.serving.engine import Engine
from retrieval.serving.errors import RefusedError
from retrieval.serving.requests import Field, Given, Operation
from retrieval.serving.responses import json_response
from retrieval.serving.service import Service

_FLOAT, _BASE64 = "float", "base64"
_SIDES = {
    **{QUERY: QUERY, "search_query": QUERY},
    **{DOCUMENT: DOCUMENT, "search_document": DOCUMENT, "passage": DOCUMENT},
}
_NUMBERS = ": send text, not token numbers; in LangChain set check_embedding_ctx_length=False"


def operations(engine: Engine) -> tuple[Operation, ...]:
    """What OpenAI's clients may ask for."""
    limits = engine.limits
    texts = requests.one_or_several(limits.inputs_body, limits.inputs)
    fields = (
        Field("model", requests.text(1000), "as /v1/models names them", is_needed=True),
        Field("input", texts, "a text, or several", is_needed=True, remedy=_NUMBERS),
        Field("encoding_format", {"type": "string", "enum": [_FLOAT, _BASE64]}, "of little-endian float32", _FLOAT),
        Field("dimensions", requests.whole(1), "that are kept, of a model that was trained for it"),
        Field("input_type", {"type": "string", "enum": list(_SIDES)}, "what the texts are, in place of NAME:query"),
    )
    example = {"model": f"{engine.name}:{QUERY}", "input": ["how to install?"], "encoding_format": _BASE64}
    embed, names = functools.partial(_embeddings, engine), functools.partial(_models, engine)
    return (
        Operation(
            "POST",
            "/v1/embeddings",
            "an embedding of each text, as OpenAI's clients read them",
            embed,
            "Embeddings",
            fields,
            lacks="towers",
            is_foreign=True,
            example=example,
        ),
        Operation("GET", "/v1/models", "the names of models", names, "Models"),
        Operation(
            "GET", "/v1/models/{name:path}", "a model", functools.partial(_model, engine), "Model", lacks="such model"
        ),
    )


def prompts_of(service: Service) -> dict[str, str]:
    """What may stand behind a model's name: the names of prompts, and the side of each."""
    names = service.model.prompts if service.model else ()
    return {name: QUERY if name == QUERY or name.endswith(f"-{QUERY}") else DOCUMENT for name in names}


async def _embeddings(engine: Engine, given: Given) -> Response:
    service, model = engine.service, given["model"]
    name, _, prompt = model.rpartition(":") if model != engine.name else (model, "", "")
    sides = prompts_of(service)
    if name != engine.name or (prompt and prompt not in sides):
        raise _unknown(engine, model)
    side = sides.get(prompt) or _SIDES[given["input_type"] or DOCUMENT]
    texts = [given["input"]] if isinstance(given["input"], str) else given["input"]
    if not service.model:
        raise RefusedError(404, "the run has no towers that encode: serve one that trains them", "model")
    write = vectors.writer(service.model.card, given["dimensions"], given["encoding_format"] == _BASE64)
    embeddings, tokens = await engine.embed(side, texts, prompt or None, write, "input")
    data = b",".join(
        b'{"object":"embedding","index":%d,"embedding":%b}' % numbered for numbered in enumerate(embeddings)
    )
    rest = written({"model": model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})
    return json_response(b'{"object":"list","data":[' + data + b"]," + rest[1:])


async def _models(engine: Engine, given: Given) -> Response:
    return json_response(written({"object": "list", "data": [_about(name) for name in _names(engine)]}))


async def _model(engine: Engine, given: Given) -> Response:
    if given["name"] not in _names(engine):
        raise _unknown(engine, given["name"])
    return json_response(written(_about(given["name"])))


def _about(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "local"}


def _unknown(engine: Engine, model: str) -> RefusedError:
    known = listed(_names(engine)) or "none, for the run embeds nothing"
    return RefusedError(404, f"there is no model '{model[:100]}': known: {known}", "model", "model_not_found")


def _names(engine: Engine) -> list[str]:
    """The names of all models: with a reranker alone the bare one."""
    service = engine.service
    return [engine.name] * bool(service.model or service.reranker) + [
        f"{engine.name}:{prompt}" for prompt in prompts_of(service)
    ]
