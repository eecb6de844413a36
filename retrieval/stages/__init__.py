"""The stages of the trunk, one a file."""

_FILES = "encode evaluate export handover index inspect mine pairs plan prepare report search serve sets teacher train"

NAMES = {"stage": {name: name for name in _FILES.split()} | {"serve": "serve mcp"}}
