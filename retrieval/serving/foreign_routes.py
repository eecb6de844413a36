"""Protocols that other programs speak.

OpenAI's: POST /v1/embeddings, GET /v1/models and GET /v1/models/NAME. A model's name alone embeds documents; NAME:query
embeds queries, and NAME:PROMPT what another prompt is for.
Text Embeddings Inference's (TEI): POST /embed, POST /rerank and GET /info. POST / does what the model is for, as there:
with towers it is /embed, with a reranker alone /rerank. Models of late interaction are at /embed_all, which gives a
vector for each token that counts, and those of sparse vectors at /embed_sparse.
Rerankers', at /rerank, /v1/rerank and /v2/rerank: TEI's clients send `texts`; Cohere's, Jina's and vLLM's `documents`.
Vertex AI's contract of a container: variables say where it asks for predictions and for health. An instance is a text,
or a record with a 'text' and a 'title'; its prediction is its embedding.
"""

import base64
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from starlette.responses import Response

from retrieval.api.text_encoders import EMBEDDER
from retrieval.common.errors import listed, unknown_name
from retrieval.common.runtime.model_folder import DOCUMENT, QUERY
from retrieval.serving import requests
from retrieval.serving.engine import ENCODED_AT, Engine
from retrieval.serving.requests import OTHERS, SWITCH, Field, Operation, Values
from retrieval.serving.responses import FieldError, RefusedError, json_response, written

PORT, HEALTH, _PREDICT = "AIP_HTTP_PORT", "AIP_HEALTH_ROUTE", "AIP_PREDICT_ROUTE"
_FLOAT, _BASE64 = "float", "base64"
_NUMBERS = ": send text, not token numbers; in LangChain set check_embedding_ctx_length=False"
_reranked = itertools.count(1)


def operations(engine: Engine) -> Iterator[Operation]:
    """What programs may ask for in the words of other servers."""
    limits = engine.limits
    name, text = requests.text(1000), requests.text(limits.inputs_body)
    document = requests.document(limits.inputs_body)
    texts, documents = requests.several(text, limits.inputs), requests.several(document, limits.inputs)
    what, dimensions = "an embedding of each text", requests.whole(1)
    kept = Field("dimensions", dimensions, "that are kept, of a model that was trained for it")

    fields = (
        Field("model", name, "as /v1/models names them", is_needed=True),
        Field("input", {"anyOf": [document, documents]}, "a text, or several", is_needed=True, remedy=_NUMBERS),
        Field("encoding_format", {"type": "string", "enum": [_FLOAT, _BASE64]}, "of little-endian float32", _FLOAT),
        kept,
    )
    example: Values = {"model": f"{engine.name}:{QUERY}", "input": ["how to install?"], "encoding_format": _BASE64}
    yield Operation("POST", "/v1/embeddings", what, _embeddings, OTHERS, fields, (), True, example)
    yield Operation("GET", "/v1/models", "the names of models", _models, OTHERS)
    named = (Field("name", name, "of a model", is_needed=True),)
    yield Operation("GET", "/v1/models/{name:path}", "a model", _model, OTHERS, named, (), True)

    fields = (
        Field("inputs", {"anyOf": [text, texts]}, "a text, or several", is_needed=True),
        Field("normalize", SWITCH, "whether embeddings have length 1", True),
        Field("truncate", SWITCH, "whether long texts are cut; otherwise they are refused", False),
        Field("prompt_name", name, "'query' is for queries; by default texts are documents"),
        kept,
    )
    reranks = bool(engine.service.reranker and not engine.service.model)  # POST / does
    kind, root = engine.service.model.kind if engine.service.model else EMBEDDER, () if reranks else ("/",)
    for path in ("/embed", *(root if kind == EMBEDDER else ())):
        example = {"inputs": ["red"], "prompt_name": "query"}
        yield Operation("POST", path, what, functools.partial(_embed, EMBEDDER), OTHERS, fields, (), True, example)
    for path in (ENCODED_AT[kind], *root) if kind in _VECTORS else ():
        answer, of_texts = functools.partial(_embed, kind), (fields[0], *fields[2:4])
        yield Operation("POST", path, _VECTORS[kind][0], answer, OTHERS, of_texts, (), True, example)
    yield Operation("GET", "/info", "the model, and what a request may have", _info, OTHERS)

    fields = (
        Field("query", text, "a query", is_needed=True),
        Field("documents", documents, "of Cohere's clients: texts, or records with one"),
        Field("texts", texts, "of TEI's clients"),
        Field("model", name, "as /v1/models names it; by default the one that there is"),
        Field("top_n", dimensions, "documents: how many results there are; by default all"),
        Field("return_documents", SWITCH, "documents: whether results have their text", False),
        Field("raw_scores", SWITCH, "whether scores are logits, or probabilities", False),
        Field("return_text", SWITCH, "texts: whether results have their text", False),
        Field("truncate", SWITCH, "texts: whether long ones are cut; otherwise they are refused", False),
    )
    for path in ("/rerank", "/v1/rerank", "/v2/rerank", *(("/",) if reranks else ())):
        example = {"query": "how to install", "documents": ["It is red.", "Install it with pip."], "top_n": 1}
        how, one_of = "how well each document answers a query, best first", ("documents", "texts")
        yield Operation("POST", path, how, _rerank, OTHERS, fields, one_of, True, example)

    if path := os.environ.get(_PREDICT):
        fields = (
            Field("instances", documents, "texts, or records with a 'text' and a 'title'", is_needed=True),
            Field("parameters", {"type": "object"}, "'prompt_name', such as 'query', and 'dimensions'", {}),
        )
        example = {"instances": ["red"], "parameters": {"prompt_name": "query"}}
        yield Operation("POST", path, what, _predict, OTHERS, fields, (), True, example)


async def _embeddings(engine: Engine, values: Values) -> Any:
    model, texts = values["model"], values["input"]
    if model not in (names := _names(engine)):
        raise _unknown(model, names)
    prompt = names[model]
    write = _writer(engine, values["dimensions"], is_base64=values["encoding_format"] == _BASE64)
    texts = texts if isinstance(texts, list) else [texts]
    side = _sides(engine).get(prompt, DOCUMENT)
    embeddings, tokens, cut = await engine.embed(side, texts, prompt or None, write, "input")
    items = (b'{"object":"embedding","index":%d,"embedding":%b}' % numbered for numbered in enumerate(embeddings))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens} | ({"truncated_inputs": cut} if cut else {})
    rest = written({"model": model, "usage": usage})
    return _counted(b'{"object":"list","data":[' + b",".join(items) + b"]," + rest[1:], cut)


async def _models(engine: Engine, values: Values) -> Any:
    return {"object": "list", "data": [_about(name) for name in _names(engine)]}


async def _model(engine: Engine, values: Values) -> Any:
    if values["name"] not in (names := _names(engine)):
        raise _unknown(values["name"], names)
    return _about(values["name"])


async def _embed(kind: str, engine: Engine, values: Values) -> Any:
    texts = values["inputs"] if isinstance(values["inputs"], list) else [values["inputs"]]
    name = values["prompt_name"] or engine.model(kind).card.default_prompt or DOCUMENT  # as TEI: the folder's default
    if kind == EMBEDDER:
        write = _writer(engine, values["dimensions"], normalize=values["normalize"])
    else:
        write = _VECTORS[kind][1]
    side, truncate = _side(engine, name), values["truncate"]
    embeddings, _, cut = await engine.embed(side, texts, name, write, "inputs", truncate, kind)
    return _counted(b"[" + b",".join(embeddings) + b"]", cut)


def _of_tokens(vectors: Sequence[np.ndarray]) -> list[bytes]:
    """JSON of the vectors [T, E] of each text."""
    return [written(each.tolist()) for each in vectors]


def _of_terms(vectors: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[bytes]:
    """JSON of the terms and the weights, [K], of each text."""
    pairs = (zip(terms.tolist(), weights.tolist()) for terms, weights in vectors)
    return [written([{"index": term, "value": weight} for term, weight in each]) for each in pairs]


# By the kind of a model what it gives, and its JSON.
_VECTORS = {
    "late_interaction": ("a vector for each token of each text", _of_tokens),
    "splade": ("the weights of the terms of each text", _of_terms),
}


def _counted(body: bytes, cut: int) -> Response:
    """JSON, whose header says how many texts were cut."""
    return json_response(body, headers={"x-truncated-inputs": str(cut)} if cut else None)


async def _info(engine: Engine, values: Values) -> Any:
    service, limits = engine.service, engine.limits
    info = {"model_id": engine.name, "max_client_batch_size": limits.inputs, "max_concurrent_requests": limits.waiting}
    if service.model:
        card = service.model.card
        kind = {"embedding": {"pooling": card.pooling or service.model.kind}}
        info |= {"model_dtype": card.dtype, "model_type": kind, "max_input_length": card.lengths[DOCUMENT]}
    elif service.reranker:
        info |= {"model_type": {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}}
    return info


async def _predict(engine: Engine, values: Values) -> Any:
    parameters = values["parameters"]
    name, size = (parameters.get(each) for each in ("prompt_name", "dimensions"))
    if not isinstance(name, str | None) or not (size is None or (isinstance(size, int) and size > 0)):
        raise FieldError("parameters: 'prompt_name' is a text, and 'dimensions' a whole number", field="parameters")
    write, name = _writer(engine, size), DOCUMENT if name is None else name
    embeddings, *_ = await engine.embed(_side(engine, name), values["instances"], name, write, "instances")
    return b'{"predictions":[' + b",".join(embeddings) + b"]}"


async def _rerank(engine: Engine, values: Values) -> Any:
    if values["model"] not in (None, *(names := {engine.name: "", engine.service.reranker_name or engine.name: ""})):
        raise _unknown(values["model"], names)
    is_tei = bool(values["texts"])
    field, score, part = ("texts", "score", "text") if is_tei else ("documents", "relevance_score", "document")
    documents, query = values[field], values["query"]
    logits_N, tokens = await engine.rerank(query, documents, field, values["truncate"] or not is_tei)
    scores_N = logits_N if values["raw_scores"] else np.exp(-np.logaddexp(0, -logits_N))
    best = np.argsort(-logits_N, kind="stable").tolist()  # scores near 1 are equal as probabilities
    results: list[Values] = [{"index": place, score: scores_N[place].item()} for place in best]
    if values["return_text" if is_tei else "return_documents"]:
        shown = documents if is_tei else [{"text": each} if isinstance(each, str) else each for each in documents]
        results = [each | {part: shown[each["index"]]} for each in results]
    if is_tei:
        return results
    about = {"id": f"r-{next(_reranked)}", "model": engine.name, "results": results[: values["top_n"]]}
    return about | {"usage": {"total_tokens": tokens}, "meta": {"api_version": {"version": "2"}}}


def _sides(engine: Engine) -> dict[str, str]:
    """The side of the texts that have a prompt, by its name."""
    names = engine.service.model.prompts if engine.service.model else ()
    return {name: QUERY if name == QUERY or name.endswith(f"-{QUERY}") else DOCUMENT for name in names}


def _side(engine: Engine, prompt: str) -> str:
    if prompt not in (sides := _sides(engine)):
        raise unknown_name("prompt", prompt[:100], sides)
    return sides[prompt]


def _writer(
    engine: Engine, dimensions: int | None, is_base64: bool = False, normalize: bool = False
) -> Callable[[Sequence[np.ndarray]], list[bytes]]:
    """What makes JSON of embeddings [E].

    Args:
      dimensions: that are kept, where a request says so; embeddings that are cut are brought to length 1 again.
      is_base64: of little-endian float32; otherwise as lists.
      normalize: whether to bring all to length 1.
    """
    sizes = engine.model().card.sizes
    *others, full = sizes
    if dimensions not in (None, *sizes):
        known = f"of {', '.join(map(str, sizes))}" if others else f"of {full} alone, and was trained for no others"
        raise FieldError(f"'dimensions' is {dimensions}: the model gives embeddings {known}", field="dimensions")

    def write(embeddings: Sequence[np.ndarray]) -> list[bytes]:
        embeddings_NE = np.stack(embeddings)[:, :dimensions]
        if normalize or dimensions not in (None, full):
            lengths_N1 = np.linalg.norm(embeddings_NE, axis=1, keepdims=True)
            embeddings_NE = embeddings_NE / np.maximum(lengths_N1, np.finfo(np.float32).tiny)
        if is_base64:
            return [b'"%b"' % base64.b64encode(row.astype("<f4").tobytes()) for row in embeddings_NE]
        return [written(row.tolist()) for row in embeddings_NE]

    return write


def _about(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "local"}


def _unknown(model: str, names: Iterable[str]) -> RefusedError:
    known = listed(names) or "none, for the run embeds nothing"
    return RefusedError(404, f"there is no model '{model[:100]}': known: {known}", "model", "model_not_found")


def _names(engine: Engine) -> dict[str, str]:
    """The prompts of all models by their names, '' where none is named: with a reranker there is the bare one alone."""
    service = engine.service
    bare = {engine.name: ""} if service.model or service.reranker else {}
    bare |= {service.reranker_name: ""} if service.reranker_name else {}
    return bare | {f"{engine.name}:{prompt}": prompt for prompt in _sides(engine)}
