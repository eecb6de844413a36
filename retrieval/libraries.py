"""Libraries that take seconds to import, for modules that most commands load and few use.

    from retrieval.libraries import tf

Each is imported when the first of its names is asked for. So a module that has its line here must not ask for a name
while it is itself imported: annotations are texts (`from __future__ import annotations`), and a class of ours that
inherits from one of theirs is in a module that is imported where it is needed.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from retrieval import extras


class _Late(ModuleType):
    """Stands for a module that is not yet imported, and hands on what is asked of it."""

    def __getattr__(self, name: str) -> Any:
        try:
            module = importlib.import_module(self.__name__)
        except ModuleNotFoundError as error:
            raise extras.missing("this", str(error.name), extras.TRAIN) from error
        return getattr(module, name)


if TYPE_CHECKING:
    import ir_measures
    import matplotlib
    import seqio
    import tensorflow as tf
    from clu import metric_writers as clu_writers
    from matplotlib import figure as figures
    from matplotlib import ticker as tickers
    from scipy import special
else:
    ir_measures, matplotlib, seqio, tf = map(_Late, ("ir_measures", "matplotlib", "seqio", "tensorflow"))
    clu_writers, figures, tickers = map(_Late, ("clu.metric_writers", "matplotlib.figure", "matplotlib.ticker"))
    special = _Late("scipy.special")

__all__ = ["clu_writers", "figures", "ir_measures", "matplotlib", "seqio", "special", "tf", "tickers"]
