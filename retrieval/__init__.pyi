from pathlib import Path

from retrieval import errors as errors
from retrieval.api.document_index import DocumentIndex as DocumentIndex
from retrieval.api.document_index import Hit as Hit
from retrieval.api.finished_run import FinishedRun as FinishedRun
from retrieval.api.finished_run import run as run
from retrieval.api.loaded_model import Model as Model
from retrieval.api.loaded_model import load as load
from retrieval.methods.reader.answering import Answer as Answer

__version__: str
LOCK: Path
REPOSITORY: Path
