"""The experiments. In a checkout they lie at its top, in `configs/`; a wheel has them here."""

from retrieval import REPOSITORY

__path__ = [str(REPOSITORY / "configs")]
