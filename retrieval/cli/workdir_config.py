"""A file for --config: the config that a work directory keeps, whose fields can so be set from the shell."""

from ml_collections import ConfigDict

from retrieval.pipeline.preflight import read_config
from retrieval.runtime import artefacts


def get_config(workdir: str) -> ConfigDict:
    """The config of a work directory, which may be on a store.

    Raises:
      UserError: it is not whole, or not one of this version.
    """
    return read_config(artefacts.local(workdir))
