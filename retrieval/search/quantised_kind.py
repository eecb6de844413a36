"""The kind of index 'quantised': exact search over codes of the embeddings, which are smaller. Nothing is saved."""

from typing import Any

import jax
import numpy as np

from retrieval.errors import UserError
from retrieval.search import row_views
from retrieval.search.exact import ExactIndex, Rows, finite_embeddings
from retrieval.search.index_kind import IndexKind, Options, register
from retrieval.search.row_views import CodedRows
from retrieval.search.vector_codes import BINARY, Form


def build(
    rows_NE: Rows, precision: str, symmetric: float = 0, bits: bool = False, mesh: jax.sharding.Mesh | None = None
) -> ExactIndex:
    """Exact search over codes of rows; the ranges that codes need are those of all rows.

    Args:
      rows_NE: float32; read twice where ranges are needed, else once, some rows at a time. What is no array checks its
        rows itself.
      symmetric: the range of all dimensions; 0: each has its own.
      bits: whether queries become bits too.

    Raises:
      UserError: there are no rows, one holds NaN or infinity, or the dimensions do not fill whole bytes.
    """
    if isinstance(rows_NE, np.ndarray):
        rows_NE = finite_embeddings(rows_NE, "candidate")
    if not len(rows_NE):
        raise UserError("there are no candidates to search: the list of embeddings is empty")
    form = row_views.calibrated(Form(precision, rows_NE.shape[1], symmetric=symmetric or None), rows_NE)
    return ExactIndex(CodedRows(rows_NE, form), mesh=mesh, form=form, bits=bits)


@register
class Quantised(IndexKind):
    """Exact search over codes."""

    name, title, system = "quantised", "quantised search", "dense (quantised)"
    is_saved, spreads = False, True
    options = ("index.precision", "index.symmetric", "index.binary_queries", "index.rescore")

    def check(self, options: Options) -> None:
        if options["index.binary_queries"] and options["index.precision"] != BINARY:
            raise UserError(
                f"config.index.binary_queries=True: config.index.precision={options['index.precision']} has no bits; "
                f"set the first to False, or the second to {BINARY}"
            )

    def build(self, contents: Any, options: Options, mesh: jax.sharding.Mesh | None = None) -> ExactIndex:
        bits = options["index.binary_queries"]
        return build(contents, options["index.precision"], options["index.symmetric"], bits, mesh)
