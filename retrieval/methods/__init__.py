"""Methods: what a paper adds to the trunk, one folder each.

A method declares its fields in `fields.py`. Its other files are named after the table that they register in:
`stage.py`, `recipe.py`, `loss.py`, `task.py`, `refresh.py`, or `NAME_stage.py` where there are two. A table imports one
when an entry is asked for that it has by `NAMES`. A method imports the trunk. It imports no other method, and the trunk
imports none.
"""

import importlib
import pkgutil

from retrieval.config import tree  # noqa: F401  (its fields come before those of methods)

for _method in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_method.name}.fields")
