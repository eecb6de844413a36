"""The stages of the trunk, and what they share."""

_ALONE = "encode evaluate export handover index inspect mine pairs plan prepare report search sets teacher train"

NAMES = {
    "stage": {name: name for name in _ALONE.split()} | {"serve": "serve mcp"},
    "refresh": {"mined_negatives": "negatives"},
}
