"""Towers as a table of vectors, one for each token, in the form of model2vec: a text is the mean of its tokens.

Each token goes alone through the document tower. The vectors are reduced by PCA, and each is weighed down by how often
its token occurs: a / (a + p), the smooth inverse frequency of Arora et al. (2017). Prefixes are left out.

    static/model.safetensors, config.json, tokenizer.json, modules.json
"""

import logging
import shutil
from collections.abc import Iterable
from pathlib import Path

import jax
import numpy as np

from retrieval import files
from retrieval.data.sets import beir
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.export import tower_function
from retrieval.export.tower_folders import TrainedTowers
from retrieval.models.export_files import PACKAGE, write_tensors
from retrieval.runtime.model_folder import MODULES

_log = logging.getLogger(__name__)

FOLDER = "static"
_SIZE = 256
_SIF = 1e-4  # the `a` of its authors
_BATCH = 1024  # tokens, and texts whose tokens are counted


def write(trained: TrainedTowers, folder: Path) -> None:
    """Writes `static/` into the folder of an export.

    Raises:
      UserError: there are no documents whose tokens could be counted.
    """
    if not trained.documents:
        raise UserError(
            "config.export.formats=static: tokens are weighed by how often they occur, and the run has no passages: "
            "name a corpus, or a set in config.sets"
        )
    vocabulary, path = trained.vocabulary, folder / FOLDER
    counts_V = _counts(vocabulary, (each for file in trained.documents for each in beir.read_candidates(file)))
    table_VE = reduced(token_vectors(trained), _SIZE) * weights(counts_V)[:, None]
    path.mkdir()
    write_tensors(path, {"embeddings": table_VE.astype(np.float16)})
    source = next(p for p in (folder, folder / "document") if (p / "tokenizer.json").exists())
    shutil.copyfile(source / "tokenizer.json", path / "tokenizer.json")
    config = {
        "model_type": "model2vec",
        "architectures": ["StaticModel"],
        "normalize": True,
        "hidden_dim": table_VE.shape[1],
        "max_length": trained.config.data.document_length,
        "embedding_dtype": "float16",
        "sif_coefficient": _SIF,
    }
    files.write_json(path / "config.json", config)
    kinds = [(".", "StaticEmbedding"), ("1_Normalize", "Normalize")]
    modules = [
        {"idx": n, "name": str(n), "path": place, "type": f"{PACKAGE}.{kind}"} for n, (place, kind) in enumerate(kinds)
    ]
    files.write_json(path / MODULES, modules)
    _log.info("%s: %d tokens of %d dimensions", FOLDER, *table_VE.shape)


def token_vectors(trained: TrainedTowers) -> np.ndarray:
    """The embedding of each token as a document of its own, float32 [V, E]."""
    tower, vocabulary = tower_function.of(trained)[-1], trained.vocabulary
    rows = [vocabulary.single([id], trained.config.data.document_length) for id in range(len(vocabulary))]
    embed = jax.jit(tower.embed)
    rows += rows[:1] * (-len(rows) % _BATCH)  # one shape for all batches
    batches = (rows[start : start + _BATCH] for start in range(0, len(rows), _BATCH))
    found = [np.asarray(embed(*tower_function.arrays(batch))[0]) for batch in batches]
    return np.concatenate(found)[: len(vocabulary)]


def reduced(table_VE: np.ndarray, size: int) -> np.ndarray:
    """The principal components of vectors, at most `size` of them; the largest entry of an axis is positive."""
    centred_VE = table_VE - table_VE.mean(axis=0)
    _, axes_EE = np.linalg.eigh((centred_VE.T @ centred_VE).astype(np.float64))
    axes_ED = axes_EE[:, ::-1][:, :size]
    signs_D = np.sign(axes_ED[np.abs(axes_ED).argmax(axis=0), np.arange(axes_ED.shape[1])])
    return (centred_VE @ (axes_ED * signs_D)).astype(np.float32)


def weights(counts_V: np.ndarray) -> np.ndarray:
    """The smooth inverse frequency of tokens that occur so often, float32 [V]."""
    return (_SIF / (_SIF + counts_V / counts_V.sum())).astype(np.float32)


def _counts(vocabulary: Vocabulary, documents: Iterable[beir.Candidate]) -> np.ndarray:
    counts_V, texts = np.ones(len(vocabulary)), []

    def count() -> None:
        ids = [id for text in vocabulary.encode_batch(texts) for id in text]
        np.add.at(counts_V, ids, 1)
        texts.clear()

    for document in documents:
        texts.append(f"{document.title} {document.text}")
        if len(texts) == _BATCH:
            count()
    count()
    return counts_V
