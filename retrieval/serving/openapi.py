"""The API's own description, in OpenAPI 3.1: what `requests` reads, and what `app` answers."""

from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

from retrieval.api.document_index import Hit
from retrieval.serving.requests import Limits, Operation
from retrieval.serving.responses import OWN, form_of

_TYPES = {str: "string", float: "number", int: "integer", bool: "boolean", dict: "object"}


def _schema(of: Any) -> dict[str, Any]:
    """A schema of a type, of [items], of (one, or another), of a schema's name, of {"*": values} or of an object.

    An object has all fields but those whose names end in '?'. What is a schema already, with a 'type', stays one.
    """
    if isinstance(of, str):
        return {"$ref": f"#/components/schemas/{of}"}
    if isinstance(of, type):
        return {"type": _TYPES[of]}
    if isinstance(of, list):
        return {"type": "array", "items": _schema(of[0])}
    if isinstance(of, tuple):
        return {"anyOf": list(map(_schema, of))}
    if isinstance(of.get("type"), str | list):
        return of
    if "*" in of:
        return {"type": "object", "additionalProperties": _schema(of["*"])}
    fields = {name.rstrip("?"): _schema(each) for name, each in of.items()}
    return {"type": "object", "properties": fields, "required": [name for name in of if not name.endswith("?")]}


_PIECE = {"type": "array", "prefixItems": [_schema(str), _schema(bool)]}
_ANSWER = {"answer": str, "score": float, "start": int, "end": int, "hit": "Hit"}
_OF_DOCUMENTS = {
    **{"id": str, "model": str, "usage": {"total_tokens": int}, "meta": dict},
    "results": [{"index": int, "relevance_score": float, "document?": "Document"}],
}
_INFO = {"model_id": str, "max_client_batch_size": int, "max_concurrent_requests": int}
_MODEL = {"id": str, "object": str, "created": int, "owned_by": str}
_FORMS = {
    "Error": {"error": str},
    "Hit": {**get_type_hints(Hit), "marked?": {"*": [_PIECE]}, "alike?": int},  # the last two where they are asked for
    "Document": {"text": str, "title?": str, "section?": str, "url?": str, "id?": (str, int)},
    "Found": {"query": str, "milliseconds": float, "systems": {"*": ["Hit"]}},
    "FoundOrResults": ("Found", {"results": ["Found"]}),
    "Encoded": {"dimensions": int, "embeddings": [[float]]},
    "Reranked": {"results": [{"index": int, "score": float}]},
    "Answered": {"query": str, "milliseconds": float, "system": str, "answers": [_ANSWER]},
    "Health": {
        **{"status": str, "passages": int, "opened": float, "systems": {"*": str}, "prompts": [str]},
        **{"limits": get_type_hints(Limits), "encode": bool, "rerank": bool, "answer": bool},
    },
    "Embeddings": {
        **{"object": str, "model": str, "usage": {"prompt_tokens": int, "total_tokens": int}},
        "data": [{"object": str, "index": int, "embedding": ([float], str)}],
    },
    "Model": _MODEL,
    "Models": {"object": str, "data": [_MODEL]},
    "Vectors": [[float]],
    "Info": {**_INFO, "model_dtype?": str, "model_type?": dict, "max_input_length?": int},
    "ForeignReranked": ([{"index": int, "score": float, "text?": str}], _OF_DOCUMENTS),
    "Predictions": {"predictions": [[float]]},
    "Status": {"status": str, "passages?": int},
    "JsonRpc": {"jsonrpc": str, "id?": {"type": ["string", "integer", "null"]}, "result?": dict, "error?": dict},
    "Routes": {"routes": [{"method": str, "path": str, "what": str, "fields": {"*": str}}]},
    "OpenApi": dict,
}
_SCHEMAS = {name: _schema(of) for name, of in _FORMS.items()}


def description(operations: Sequence[Operation]) -> dict[str, Any]:
    """The document, with the systems that there are now."""
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(each.path.replace(":path}", "}"), {})[each.method.lower()] = _operation(each)
    info = {"title": "retrieval", "version": "1", "description": "Search, embeddings and scores of a run."}
    return {"openapi": "3.1.1", "info": info, "paths": paths, "components": {"schemas": _SCHEMAS}}


def routes(operations: Sequence[Operation]) -> dict[str, Any]:
    """The operations in short."""
    names = ("method", "path", "what")
    listed = [
        {name: getattr(each, name) for name in names} | {"fields": {field.name: field.what for field in each.fields}}
        for each in operations
    ]
    return {"routes": listed}


def _operation(operation: Operation) -> dict[str, Any]:
    address, _, in_path = operation.path.partition("{")
    name = f"{address}{'one' if in_path else ''}".strip("/").replace("/", "_").replace(".", "_") or "root"
    described: dict[str, Any] = {"operationId": f"{operation.method.lower()}_{name}", "summary": operation.what}
    if operation.method == "POST":
        example = {"example": operation.example} if operation.example else {}
        content = {"application/json": {"schema": _body(operation), **example}}
        described["requestBody"] = {"required": True, "content": content}
    elif operation.fields:
        described["parameters"] = [
            {"name": field.name, "in": "query", "style": "form", "explode": False, "description": field.what}
            | {"required": field.is_needed, "schema": field.schema}
            for field in operation.fields
        ]
    elif in_path:
        name = in_path.partition(":")[0]
        described["parameters"] = [{"name": name, "in": "path", "required": True, "schema": _schema(str)}]
    return described | {"responses": {"200": _answer(operation)} | _errors(operation)}


def _body(operation: Operation) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {field.name: field.schema | {"description": field.what} for field in operation.fields},
        "required": [field.name for field in operation.fields if field.is_needed],
        "additionalProperties": operation.is_foreign,
    }
    return schema | ({"oneOf": [{"required": [name]} for name in operation.one_of]} if operation.one_of else {})


def _answer(operation: Operation) -> dict[str, Any]:
    content = _json(_schema(operation.gives)) if operation.gives else {"text/plain": {"schema": _schema(str)}}
    return {"description": operation.what, "content": content}


def _errors(operation: Operation) -> dict[str, Any]:
    """What is answered with a sentence instead, by its status."""
    is_post, why, form = operation.method == "POST", {}, form_of(operation.path)
    if operation.fields:
        why = dict.fromkeys((400, *form.fields.values()), "a field is missing, or has a value that it cannot have")
    if operation.lacks:
        why[404] = f"the run has no {operation.lacks}" + ", or it is called another name" * operation.is_foreign
    if is_post:
        why |= {413: "the body is too long", 415: "the body is not sent as JSON"}
    why |= {401: "there is no key, or none that is known", 421: "the server does not answer for that host"}
    why |= {form.busy: "too many requests wait: ask again", form.failed: "the server could not answer"}
    why[503] = "the server is busy, was too slow, or is about to end: ask again"
    body = form.body(503, "what is wrong, and what to do", "input", "")
    content = _json(_schema("Error" if form == OWN else _like(body)))
    return {str(status): {"description": text, "content": content} for status, text in sorted(why.items())}


def _like(value: Any) -> dict[str, Any]:
    """What `_schema` takes, of an object of texts, objects, and what may be null."""
    return {
        name: _like(each) if isinstance(each, dict) else {"type": ["string", "null"]} for name, each in value.items()
    }


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
