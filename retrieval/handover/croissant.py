"""A description of tables of Parquet that others read: Croissant 1.1 of MLCommons, `croissant.json` beside them.

Each folder below is a record set of its name, whose fields are the columns of its parts. Several parts are a set of
files; its readers compare the SHA-256 of a single one alone.
"""

from pathlib import Path
from typing import Any

from retrieval import files

NAME = "croissant.json"
_TYPE, _PARTS = "application/x-parquet", "-parts"
_TERMS = (
    "column",
    "extract",
    "field",
    "fileObject",
    "fileSet",
    "includes",
    "isArray",
    "arrayShape",
    "recordSet",
    "source",
)
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    **{name: f"cr:{name}" for name in _TERMS},
}
# Bits too are text: there is no type of bytes.
_KINDS = {"floating": "sc:Float", "integer": "sc:Integer", "boolean": "sc:Boolean"}


def write(folder: Path, name: str, description: str) -> None:
    """Writes the description of the tables in the folders below one.

    Args:
      name: what the tables are called.
    """
    tables = {path: sorted(path.glob("*.parquet")) for path in sorted(folder.iterdir()) if path.is_dir()}
    sums = files.checksums(folder, [path for paths in tables.values() for path in paths])
    parts = [
        {
            "@type": "cr:FileObject",
            "@id": path,
            "name": path,
            "contentUrl": path,
            "contentSize": f"{(folder / path).stat().st_size} B",
            "encodingFormat": _TYPE,
            "sha256": sum,
        }
        for path, sum in sums.items()
    ]
    sets = [_file_set(path.name, paths) for path, paths in tables.items() if len(paths) > 1]
    said = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": name,
        "description": description,
        "distribution": parts + sets,
        "recordSet": [_record_set(path.name, paths) for path, paths in tables.items() if paths],
    }
    files.write_json(folder / NAME, said)


def _file_set(name: str, parts: list[Path]) -> dict[str, Any]:
    return {
        "@type": "cr:FileSet",
        "@id": name + _PARTS,
        "name": name + _PARTS,
        "containedIn": [{"@id": f"{name}/{part.name}"} for part in parts],
        "includes": f"{name}/*.parquet",
        "encodingFormat": _TYPE,
    }


def _record_set(name: str, parts: list[Path]) -> dict[str, Any]:
    from pyarrow import parquet

    one = {"fileObject": {"@id": f"{name}/{parts[0].name}"}}
    source = one if len(parts) == 1 else {"fileSet": {"@id": name + _PARTS}}
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"{name}/{column.name}",
            "name": column.name,
            "source": {**source, "extract": {"column": column.name}},
            **_type(column.type),
        }
        for column in parquet.read_schema(parts[0])
    ]
    return {"@type": "cr:RecordSet", "@id": name, "name": name, "field": fields}


def _type(kind: Any) -> dict[str, Any]:
    from pyarrow import types

    if types.is_list(kind) or types.is_fixed_size_list(kind):
        return _type(kind.value_type) | {"isArray": True, "arrayShape": str(getattr(kind, "list_size", -1))}
    return {"dataType": next((said for of, said in _KINDS.items() if getattr(types, f"is_{of}")(kind)), "sc:Text")}
