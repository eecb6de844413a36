"""The stages of the trunk, and what they share."""

_FILES = "encode evaluate export handover index inspect mine pairs plan prepare report search serve sets teacher train"

NAMES = {
    "stage": {name: name for name in _FILES.split()} | {"serve": "serve mcp"},
    "refresh": {"mined_negatives": "negatives"},
}
