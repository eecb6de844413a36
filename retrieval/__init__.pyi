from pathlib import Path

from retrieval.api.answering import Answer as Answer
from retrieval.api.document_index import DocumentIndex as DocumentIndex
from retrieval.api.document_index import Hit as Hit
from retrieval.api.finished_run import FinishedRun as FinishedRun
from retrieval.api.finished_run import run as run
from retrieval.api.loaded_model import Model as Model
from retrieval.api.loading import load as load
from retrieval.api.loading import load_index as load_index
from retrieval.api.mteb_models import MtebEncoder as MtebEncoder
from retrieval.api.mteb_models import MtebSearch as MtebSearch
from retrieval.api.tuning import fine_tune as fine_tune

__version__: str
LOCK: Path
REPOSITORY: Path
