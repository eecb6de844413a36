"""The stages of the trunk, one a file."""

_FILES = """
adopt encode evaluate export handover index inspect mine pairs plan prepare report search serve serve_models sets
teacher
"""

NAMES = {"stage": {name: name for name in (*_FILES.split(), "train")} | {"serve": "serve mcp"}}
