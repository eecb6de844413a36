"""The API's own description, in OpenAPI 3.1: what `requests` reads, and what `app` answers."""

from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

from retrieval.api.document_index import Hit
from retrieval.serving.requests import Limits, Operation
from retrieval.serving.responses import OWN, form_of

_TYPES = {str: "string", float: "number", int: "integer"}


def _object(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields)}


def _optional(schema: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """An object with further fields, which it may have."""
    return schema | {"properties": schema["properties"] | fields}


def _list(of: Any) -> dict[str, Any]:
    return {"type": "array", "items": of}


def _by_name(of: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": of}


def _tuple(kind: Any) -> dict[str, Any]:
    """A named tuple of texts and numbers."""
    return _object(**{name: {"type": _TYPES[hint]} for name, hint in get_type_hints(kind).items()})


def _named(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


_TEXT, _NUMBER, _WHOLE, _SWITCH = ({"type": name} for name in ("string", "number", "integer", "boolean"))
_HIT, _PIECE = _tuple(Hit), {"type": "array", "prefixItems": [_TEXT, _SWITCH]}
_DETAILS = {"marked": _by_name(_list(_PIECE)), "alike": _WHOLE}  # where they are asked for
_PARTS = {name: _TEXT for name in ("title", "text", "section", "url")} | {"id": {"anyOf": [_TEXT, _WHOLE]}}
_ANSWER = _object(answer=_TEXT, score=_NUMBER, start=_WHOLE, end=_WHOLE, hit=_named("Hit"))
_OF_TEXTS = _list(_optional(_object(index=_WHOLE, score=_NUMBER), text=_TEXT))
_OF_DOCUMENTS = _object(
    id=_TEXT,
    model=_TEXT,
    results=_list(_optional(_object(index=_WHOLE, relevance_score=_NUMBER), document=_named("Document"))),
    usage=_object(total_tokens=_WHOLE),
    meta={"type": "object"},
)
_INFO = _optional(
    _object(model_id=_TEXT, max_client_batch_size=_WHOLE, max_concurrent_requests=_WHOLE),
    **{"model_dtype": _TEXT, "model_type": {"type": "object"}, "max_input_length": _WHOLE},
)
_MODEL = _object(id=_TEXT, object=_TEXT, created=_WHOLE, owned_by=_TEXT)
_STATUS = _optional(_object(status=_TEXT), passages=_WHOLE)
_ROUTE = _object(method=_TEXT, path=_TEXT, what=_TEXT, fields=_by_name(_TEXT))
_HAS = {name: _SWITCH for name in ("encode", "rerank", "answer")}
_SCHEMAS: Mapping[str, Any] = {
    "Error": _object(error=_TEXT),
    "Hit": _HIT | {"properties": _HIT["properties"] | _DETAILS},
    "Document": {"type": "object", "properties": _PARTS, "required": ["text"]},
    "Found": _object(query=_TEXT, milliseconds=_NUMBER, systems=_by_name(_list(_named("Hit")))),
    "FoundOrResults": {"anyOf": [_named("Found"), _object(results=_list(_named("Found")))]},
    "Encoded": _object(dimensions=_WHOLE, embeddings=_list(_list(_NUMBER))),
    "Reranked": _object(results=_list(_object(index=_WHOLE, score=_NUMBER))),
    "Answered": _object(query=_TEXT, milliseconds=_NUMBER, system=_TEXT, answers=_list(_ANSWER)),
    "Health": _object(
        status=_TEXT,
        passages=_WHOLE,
        opened=_NUMBER,
        systems=_by_name(_TEXT),
        prompts=_list(_TEXT),
        limits=_tuple(Limits),
        **_HAS,
    ),
    "Embeddings": _object(
        object=_TEXT,
        data=_list(_object(object=_TEXT, index=_WHOLE, embedding={"anyOf": [_list(_NUMBER), _TEXT]})),
        model=_TEXT,
        usage=_object(prompt_tokens=_WHOLE, total_tokens=_WHOLE),
    ),
    "Model": _MODEL,
    "Models": _object(object=_TEXT, data=_list(_MODEL)),
    "Vectors": _list(_list(_NUMBER)),
    "Info": _INFO,
    "ForeignReranked": {"anyOf": [_OF_TEXTS, _OF_DOCUMENTS]},
    "Predictions": _object(predictions=_list(_list(_NUMBER))),
    "Status": _STATUS,
    "JsonRpc": _optional(_object(jsonrpc=_TEXT), id={}, result={"type": "object"}, error={"type": "object"}),
    "Routes": _object(routes=_list(_ROUTE)),
    "OpenApi": {"type": "object"},
}


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
        parameter = {"name": in_path.partition(":")[0], "in": "path", "required": True, "schema": _TEXT}
        described["parameters"] = [parameter]
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
    content = _json(_named(operation.gives)) if operation.gives else {"text/plain": {"schema": _TEXT}}
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
    content = _json(_named("Error") if form == OWN else _like(body))
    return {str(status): {"description": text, "content": content} for status, text in sorted(why.items())}


def _like(value: Any) -> dict[str, Any]:
    """The schema of an object of texts, objects, and what may be null."""
    kinds = {
        name: _like(each) if isinstance(each, dict) else {"type": ["string", "null"]} for name, each in value.items()
    }
    return _object(**kinds)


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
