"""Protocols that other programs speak.

OpenAI's: POST /v1/embeddings, GET /v1/models and GET /v1/models/NAME. A model's name alone embeds documents; NAME:query
embeds queries, and NAME:PROMPT what another prompt is for.
Text Embeddings Inference's (TEI): POST /embed, POST /rerank and GET /info. POST / does what the model is for, as there:
with towers it is /embed, with a reranker alone /rerank.
Rerankers', at /rerank, /v1/rerank and /v2/rerank: TEI's clients send `texts`; Cohere's, Jina's and vLLM's `documents`.
Vertex AI's contract of a container: variables say where it asks for predictions and for health. An instance is a text,
or a record with a 'text' and a 'title'; its prediction is its embedding.
"""

import base64
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from retrieval.common.errors import listed, unknown_name
from retrieval.common.runtime.model_folder import DOCUMENT, QUERY
from retrieval.serving import requests
from retrieval.serving.engine import Engine
from retrieval.serving.requests import SWITCH, Field, Operation, Values
from retrieval.serving.responses import FieldError, RefusedError, written

PORT, HEALTH, _PREDICT = "AIP_HTTP_PORT", "AIP_HEALTH_ROUTE", "AIP_PREDICT_ROUTE"
_FLOAT, _BASE64 = "float", "base64"
_SIDES = {
    **{QUERY: QUERY, "search_query": QUERY},
    **{DOCUMENT: DOCUMENT, "search_document": DOCUMENT, "passage": DOCUMENT},
}
_NUMBERS = ": send text, not token numbers; in LangChain set check_embedding_ctx_length=False"
_reranked = itertools.count(1)


def operations(engine: Engine) -> tuple[Operation, ...]:
    """What programs may ask for in the words of other servers."""
    reranks = bool(engine.service.reranker and not engine.service.model)  # POST / does
    return (
        *_of_openai(engine),
        *_of_tei(engine, () if reranks else ("/",)),
        *_of_rerankers(engine, ("/",) if reranks else ()),
        *_of_vertex(engine),
    )


def _of_openai(engine: Engine) -> tuple[Operation, ...]:
    texts = requests.one_or_several(engine.limits.inputs_body, engine.limits.inputs)
    fields = (
        Field("model", requests.text(1000), "as /v1/models names them", is_needed=True),
        Field("input", texts, "a text, or several", is_needed=True, remedy=_NUMBERS),
        Field("encoding_format", {"type": "string", "enum": [_FLOAT, _BASE64]}, "of little-endian float32", _FLOAT),
        Field("dimensions", requests.whole(1), "that are kept, of a model that was trained for it"),
        Field("input_type", {"type": "string", "enum": list(_SIDES)}, "what the texts are, in place of NAME:query"),
    )
    what = "an embedding of each text, as OpenAI's clients read them"
    example = {"model": f"{engine.name}:{QUERY}", "input": ["how to install?"], "encoding_format": _BASE64}
    return (
        Operation("POST", "/v1/embeddings", what, _embeddings, "Embeddings", fields, (), "towers", True, example),
        Operation("GET", "/v1/models", "the names of models", _models, "Models"),
        Operation("GET", "/v1/models/{name:path}", "a model", _model, "Model", lacks="such model"),
    )


def _of_tei(engine: Engine, at_root: Sequence[str]) -> tuple[Operation, ...]:
    texts = requests.one_or_several(engine.limits.inputs_body, engine.limits.inputs)
    fields = (
        Field("inputs", texts, "a text, or several", is_needed=True),
        Field("normalize", SWITCH, "whether embeddings have length 1", True),
        Field("truncate", SWITCH, "whether long texts are cut; otherwise they are refused", False),
        Field("prompt_name", requests.text(1000), "'query' is for queries; by default texts are documents"),
        Field("dimensions", requests.whole(1), "that are kept, of a model that was trained for it"),
    )
    example = {"inputs": ["red"], "prompt_name": "query"}
    each = ("an embedding of each text, as TEI's clients read them", _embed, "Vectors", fields, (), "towers", True)
    return (
        *(Operation("POST", path, *each, example) for path in ("/embed", *at_root)),
        Operation("GET", "/info", "the model, and what a request may have", _info, "Info"),
    )


def _of_rerankers(engine: Engine, at_root: Sequence[str]) -> tuple[Operation, ...]:
    limits = engine.limits
    text, document = requests.text(limits.inputs_body), requests.document(limits.inputs_body)
    documents = requests.several(document, limits.inputs)
    fields = (
        Field("query", text, "a query", is_needed=True),
        Field("documents", documents, "of Cohere's clients: texts, or records with one"),
        Field("texts", requests.several(text, limits.inputs), "of TEI's clients"),
        Field("model", requests.text(1000), "documents: as /v1/models names it; by default the one that there is"),
        Field("top_n", requests.whole(1), "documents: how many results there are; by default all"),
        Field("return_documents", SWITCH, "documents: whether results have their text", False),
        Field("raw_scores", SWITCH, "texts: whether scores are logits, or probabilities", False),
        Field("return_text", SWITCH, "texts: whether results have their text", False),
        Field("truncate", SWITCH, "texts: whether long ones are cut; otherwise they are refused", False),
    )
    what, one_of = "how well each document answers a query, best first", ("documents", "texts")
    example = {"query": "how to install", "documents": ["It is red.", "Install it with pip."], "top_n": 1}
    each = (what, _rerank, "ForeignReranked", fields, one_of, "reranker", True, example)
    return tuple(Operation("POST", path, *each) for path in ("/rerank", "/v1/rerank", "/v2/rerank", *at_root))


def _of_vertex(engine: Engine) -> tuple[Operation, ...]:
    if not (path := os.environ.get(_PREDICT)):
        return ()
    limits = engine.limits
    instances = requests.several(requests.document(limits.inputs_body), limits.inputs)
    fields = (
        Field("instances", instances, "texts, or records with a 'text' and a 'title'", is_needed=True),
        Field("parameters", {"type": "object"}, "'prompt_name', such as 'query', and 'dimensions'", {}),
    )
    what = "an embedding of each instance, as Vertex AI asks for them"
    example = {"instances": ["red"], "parameters": {"prompt_name": "query"}}
    return (Operation("POST", path, what, _predict, "Predictions", fields, (), "towers", True, example),)


async def _embeddings(engine: Engine, values: Values) -> Any:
    model, texts = values["model"], values["input"]
    name, _, prompt = model.rpartition(":") if model != engine.name else (model, "", "")
    sides = _prompts(engine)
    if name != engine.name or (prompt and prompt not in sides):
        raise _unknown(engine, model)
    side = sides.get(prompt) or _SIDES[values["input_type"] or DOCUMENT]
    write = _writer(engine, values["dimensions"], is_base64=values["encoding_format"] == _BASE64)
    texts = [texts] if isinstance(texts, str) else texts
    embeddings, tokens = await engine.embed(side, texts, prompt or None, write, "input")
    items = (b'{"object":"embedding","index":%d,"embedding":%b}' % numbered for numbered in enumerate(embeddings))
    rest = written({"model": model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})
    return b'{"object":"list","data":[' + b",".join(items) + b"]," + rest[1:]


async def _models(engine: Engine, values: Values) -> Any:
    return {"object": "list", "data": [_about(name) for name in _names(engine)]}


async def _model(engine: Engine, values: Values) -> Any:
    if values["name"] not in _names(engine):
        raise _unknown(engine, values["name"])
    return _about(values["name"])


async def _embed(engine: Engine, values: Values) -> Any:
    texts, card = values["inputs"], engine.model.card
    name = values["prompt_name"] or card.default_prompt or DOCUMENT  # as TEI, which takes the folder's default
    write = _writer(engine, values["dimensions"], normalize=values["normalize"])
    texts = [texts] if isinstance(texts, str) else texts
    embeddings, _ = await engine.embed(_side(engine, name), texts, name, write, "inputs", values["truncate"])
    return b"[" + b",".join(embeddings) + b"]"


async def _info(engine: Engine, values: Values) -> Any:
    service, limits = engine.service, engine.limits
    info = {"model_id": engine.name, "max_client_batch_size": limits.inputs, "max_concurrent_requests": limits.waiting}
    if service.model:
        card = service.model.card
        kind = {"embedding": {"pooling": card.pooling}}
        info |= {"model_dtype": card.dtype, "model_type": kind, "max_input_length": card.lengths[DOCUMENT]}
    elif service.reranker:
        info |= {"model_type": {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}}
    return info


async def _predict(engine: Engine, values: Values) -> Any:
    parameters = values["parameters"]
    name = str(parameters.get("prompt_name", DOCUMENT))
    write = _writer(engine, parameters.get("dimensions"))
    embeddings, _ = await engine.embed(_side(engine, name), values["instances"], name, write, "instances")
    return b'{"predictions":[' + b",".join(embeddings) + b"]}"


async def _rerank(engine: Engine, values: Values) -> Any:
    if values["model"] not in (None, engine.name):
        raise _unknown(engine, values["model"], [engine.name])
    texts, query = values["texts"], values["query"]
    if texts:
        logits_N, _ = await engine.rerank(query, texts, "texts", values["truncate"])
        ranked = best_first(logits_N, logits_N if values["raw_scores"] else _probabilities(logits_N))
        with_text = values["return_text"]
        return [{"index": i, "score": score} | ({"text": texts[i]} if with_text else {}) for i, score in ranked]
    documents = [{"text": each} if isinstance(each, str) else each for each in values["documents"]]
    logits_N, tokens = await engine.rerank(query, documents, "documents")
    ranked, with_text = best_first(logits_N, _probabilities(logits_N))[: values["top_n"]], values["return_documents"]
    results = [
        {"index": i, "relevance_score": score} | ({"document": documents[i]} if with_text else {})
        for i, score in ranked
    ]
    about = {"id": f"r-{next(_reranked)}", "model": engine.name, "results": results}
    meta = {"usage": {"total_tokens": tokens}, "meta": {"api_version": {"version": "2"}}}
    return about | meta


def best_first(logits_N: np.ndarray, shown_N: np.ndarray) -> list[tuple[int, float]]:
    """The places of documents in the order of their logits, of equals the first, with what is shown of each."""
    return [(place, shown_N[place].item()) for place in np.argsort(-logits_N, kind="stable").tolist()]


def _probabilities(logits_N: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -logits_N))


def _prompts(engine: Engine) -> dict[str, str]:
    """What may stand behind a model's name: the names of prompts, and the side of each."""
    names = engine.service.model.prompts if engine.service.model else ()
    return {name: QUERY if name == QUERY or name.endswith(f"-{QUERY}") else DOCUMENT for name in names}


def _side(engine: Engine, prompt: str) -> str:
    """The side of the texts that have a prompt."""
    if engine.model and prompt not in (sides := _prompts(engine)):
        raise unknown_name("prompt", prompt[:100], sides)
    return sides[prompt]


def _writer(
    engine: Engine, dimensions: int | None, is_base64: bool = False, normalize: bool = False
) -> Callable[[np.ndarray], list[bytes]]:
    """What makes JSON of embeddings [N, E].

    Args:
      dimensions: that are kept, where a request says so; embeddings that are cut are brought to length 1 again.
      is_base64: of little-endian float32; otherwise as lists.
      normalize: whether to bring all to length 1.
    """
    sizes = engine.model.card.sizes
    *others, full = sizes
    if dimensions not in (None, *sizes):
        known = f"of {', '.join(map(str, sizes))}" if others else f"of {full} alone, and was trained for no others"
        raise FieldError(f"'dimensions' is {dimensions}: the model gives embeddings {known}", field="dimensions")

    def write(embeddings_NE: np.ndarray) -> list[bytes]:
        embeddings_NE = embeddings_NE[:, :dimensions]
        if normalize or dimensions not in (None, full):
            lengths_N1 = np.linalg.norm(embeddings_NE, axis=1, keepdims=True)
            embeddings_NE = embeddings_NE / np.maximum(lengths_N1, np.finfo(np.float32).tiny)
        if is_base64:
            return [b'"%b"' % base64.b64encode(row.astype("<f4").tobytes()) for row in embeddings_NE]
        return [written(row.tolist()) for row in embeddings_NE]

    return write


def _about(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "local"}


def _unknown(engine: Engine, model: str, names: Sequence[str] | None = None) -> RefusedError:
    known = listed(names or _names(engine)) or "none, for the run embeds nothing"
    return RefusedError(404, f"there is no model '{model[:100]}': known: {known}", "model", "model_not_found")


def _names(engine: Engine) -> list[str]:
    """The names of all models: with a reranker alone the bare one."""
    service = engine.service
    bare = [engine.name] * bool(service.model or service.reranker)
    return bare + [f"{engine.name}:{prompt}" for prompt in _prompts(engine)]
