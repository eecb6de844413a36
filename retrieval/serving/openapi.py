"""The API's own description, in OpenAPI 3.1: what `requests` reads, and what is answered.

The answers of other servers' protocols are described by those.
"""

import re
from collections.abc import Sequence
from typing import Any, get_type_hints

from retrieval.api.document_index import Hit
from retrieval.serving.requests import OTHERS, Limits, Operation
from retrieval.serving.responses import form_of

_TYPES = {str: "string", float: "number", int: "integer", bool: "boolean", dict: "object", type(None): "null"}


def _schema(of: Any) -> dict[str, Any]:
    """A schema of a type, of [items], of (one, or another), of a schema's name, of {"*": values} or of an object.

    An object has all fields but those whose names end in '?'.
    """
    if isinstance(of, str):
        return {"$ref": f"#/components/schemas/{of}"}
    if isinstance(of, type):
        return {"type": _TYPES[of]}
    if isinstance(of, list):
        return {"type": "array", "items": _schema(of[0])}
    if isinstance(of, tuple):
        return {"anyOf": list(map(_schema, of))}
    if "*" in of:
        return {"type": "object", "additionalProperties": _schema(of["*"])}
    fields = {name.rstrip("?"): _schema(each) for name, each in of.items()}
    return {"type": "object", "properties": fields, "required": [name for name in of if not name.endswith("?")]}


_HIT = {name: of for name, of in get_type_hints(Hit).items() if name != "metadata"}  # which passages of a run have not
_ANSWER = {"answer": str, "score": float, "start": int, "end": int, "hit": "Hit"}
_FORMS = {
    # The last two where they are asked for; a piece is a text, and whether the query has matched it.
    "Hit": {**_HIT, "marked?": {"*": [[(str, bool)]]}, "alike?": int},
    "Document": {"text": str, "title?": str, "section?": str, "url?": str, "id?": (str, int)},
    "Found": {"query": str, "milliseconds": float, "systems": {"*": ["Hit"]}},
    "FoundOrResults": ("Found", {"results": ["Found"]}),
    "Answered": {"query": str, "milliseconds": float, "system": str, "answers": [_ANSWER]},
    "WholeDocument": {"id": str, "title": str, "url": str, "passages": [dict.fromkeys(("id", "section", "text"), str)]},
    "About": {"name": str, "passages": int, "documents": int, "examples": [str], "far": {"*": float}, "cosine": bool},
    "Health": {
        **{"status": str, "passages": int, "opened": float, "systems": {"*": str}, "prompts": [str]},
        **{"limits": get_type_hints(Limits), "encode": bool, "rerank": bool, "answer": bool},
    },
    "Status": {"status": str, "passages?": int},
    "OpenApi": dict,
}


def description(operations: Sequence[Operation]) -> dict[str, Any]:
    """The document, with the systems that there are now."""
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(each.path.replace(":path}", "}"), {})[each.method.lower()] = _operation(each)
    info = {"title": "retrieval", "version": "1", "description": "Search, embeddings and scores of a run."}
    schemas = {name: _schema(of) for name, of in _FORMS.items()}
    return {"openapi": "3.1.1", "info": info, "paths": paths, "components": {"schemas": schemas}}


def _operation(operation: Operation) -> dict[str, Any]:
    name = re.sub(r"\W+", "_", f"{operation.method.lower()}{operation.path.removesuffix(':path}')}").strip("_")
    described: dict[str, Any] = {"operationId": name, "summary": operation.what}
    if operation.method == "POST":
        content = {"schema": _body(operation), "example": operation.example}
        described["requestBody"] = {"required": True, "content": {"application/json": content}}
    else:
        place = "path" if "{" in operation.path else "query"
        described["parameters"] = [
            {"name": field.name, "in": place, "explode": False, "description": field.what}
            | {"required": field.is_needed, "schema": field.schema}
            for field in operation.fields
        ]
    kind = "application/json" if operation.response else "text/plain"
    form = {} if operation.response == OTHERS else _schema(operation.response or str)
    why = "what is wrong, and what to do"
    refusal = _like(form_of(operation.path).body(503, why, "input", ""))
    described["responses"] = {
        "200": {"description": operation.what, "content": {kind: {"schema": form}}},
        "default": {"description": why, "content": {"application/json": {"schema": _schema(refusal)}}},
    }
    return described


def _body(operation: Operation) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {field.name: field.schema | {"description": field.what} for field in operation.fields},
        "required": [field.name for field in operation.fields if field.is_needed],
        "additionalProperties": operation.is_foreign,
    }
    return schema | ({"oneOf": [{"required": [name]} for name in operation.one_of]} if operation.one_of else {})


def _like(value: dict[str, Any]) -> dict[str, Any]:
    """The form of an object of texts, objects, and what may be null."""
    return {name: _like(each) if isinstance(each, dict) else (str, type(None)) for name, each in value.items()}
