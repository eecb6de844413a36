"""The protocol of Text Embeddings Inference: POST /embed and GET /info; its /rerank is in `rerank_routes`.

POST / does what the model is for, as there: with towers it is /embed, with a reranker alone /rerank.
"""

import functools

from starlette.responses import Response

from retrieval.errors import unknown_name
from retrieval.runtime.model_folder import DOCUMENT
from retrieval.serving import requests, vectors
from retrieval.serving.answers import written
from retrieval.serving.engine import Engine
from retrieval.serving.errors import RefusedError
from retrieval.serving.openai_routes import prompts_of
from retrieval.serving.requests import SWITCH, Field, Given, Operation
from retrieval.serving.responses import json_response


def operations(engine: Engine) -> tuple[Operation, ...]:
    """What TEI's clients may ask for."""
    limits = engine.limits
    fields = (
        Field("inputs", requests.one_or_several(limits.inputs_body, limits.inputs), "a text, or several", None, True),
        Field("normalize", SWITCH, "whether embeddings have length 1", True),
        Field("truncate", SWITCH, "whether long texts are cut; otherwise they are refused", False),
        Field("prompt_name", requests.text(1000), "'query' is for queries; by default texts are documents"),
        Field("dimensions", requests.whole(1), "that are kept, of a model that was trained for it"),
    )
    embed, info = functools.partial(_embed, engine), functools.partial(_info, engine)
    what, example = "an embedding of each text, as TEI's clients read them", {"inputs": ["red"], "prompt_name": "query"}
    is_reranker = engine.service.reranker and not engine.service.model
    return (
        *(
            Operation("POST", path, what, embed, "Vectors", fields, (), "towers", True, example)
            for path in ("/embed", *(() if is_reranker else ("/",)))
        ),
        Operation("GET", "/info", "the model, and what a request may have", info, "Info"),
    )


async def _embed(engine: Engine, given: Given) -> Response:
    service = engine.service
    if not service.model:
        raise RefusedError(404, "the run has no towers that encode: serve one that trains them")
    sides, name = prompts_of(service), given["prompt_name"]
    if name is None:  # as TEI, which takes the folder's default
        name = service.model.card.default_prompt or DOCUMENT
    if name not in sides:
        raise unknown_name("prompt", name[:100], sides)
    texts = [given["inputs"]] if isinstance(given["inputs"], str) else given["inputs"]
    write = vectors.writer(service.model.card, given["dimensions"], normalize=given["normalize"])
    embeddings, _ = await engine.embed(sides[name], texts, name, write, "inputs", given["truncate"])
    return json_response(b"[" + b",".join(embeddings) + b"]")


async def _info(engine: Engine, given: Given) -> Response:
    service, limits = engine.service, engine.limits
    told = {"model_id": engine.name, "max_client_batch_size": limits.inputs, "max_concurrent_requests": limits.waiting}
    if service.model:
        card = service.model.card
        kind = {"embedding": {"pooling": card.pooling}}
        told |= {"model_dtype": card.dtype, "model_type": kind, "max_input_length": card.lengths[DOCUMENT]}
    elif service.reranker:
        told |= {"model_type": {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}}
    return json_response(written(told))
