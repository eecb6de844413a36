"""Token ids, judgements, BM25's lists and weights for `benchmarks.fine_tuning.train`, which reads no text.

    python -m benchmarks.fine_tuning.prepare --model=MODEL --out=DATA \\
        --beir=nfcorpus --folds=cranfield,npl --pool=passage_pool

Sets of `--beir` have a train, a dev and a test split of their own. The queries of `--folds` are divided into five folds
with a fixed seed, and those of `--pool` once. Titles, lengths and prompts are as `--config=published:MODEL` has them.
Weights are written as float16, and of the vocabulary only the tokens that occur.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from flax import traverse_util
from ml_collections import ConfigDict

from retrieval.configs import fine_tune
from retrieval.data.sets import beir, splits
from retrieval.data.tokenizers import vocabularies
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.recipes.initial_parameters import init_from
from retrieval.recipes.placement import parameters_of
from retrieval.recipes.towers import build_towers, candidate_windows, query_tokens
from retrieval.search.bm25 import Bm25Index
from retrieval.search.bm25_kind import Bm25
from retrieval.search.words import Words

FOLDS, DEPTH, QUERY_LENGTH = 5, 100, 64
_POOL_SHARES = (0.45, 0.2)  # of the queries of a set without splits: to train on, to validate on
_SEED = 0
_TABLE = "query_tower/encoder/token_embedding/embedding"


@dataclasses.dataclass
class Tokenised:
    """A set: rows of queries and candidates are their ids.

    Attributes:
      queries, candidates: token ids of each.
      texts: of each candidate, a number that is the same for the same text.
      qrels: of each split, rows of (query, candidate, grade); of a set with folds there is 'all' alone.
      folds: of each query; empty where there are none.
      bm25_rows, bm25_scores: [Q, DEPTH] of all queries.
    """

    queries: list[list[int]]
    candidates: list[list[int]]
    texts: np.ndarray
    qrels: dict[str, np.ndarray]
    folds: np.ndarray
    bm25_rows: np.ndarray
    bm25_scores: np.ndarray


def tokenised(folder: Path, config: ConfigDict, vocabulary: Vocabulary, divided: str) -> Tokenised:
    """A BEIR folder as training reads it; `divided` is 'own', 'folds' or 'once'."""
    judged = beir.read_folder(folder)
    candidates, ids = list(judged.candidates), list(judged.queries)
    row_of, query_of = {c.id: row for row, c in enumerate(candidates)}, {id: row for row, id in enumerate(ids)}

    def triples(qrels: dict[str, dict[str, int]]) -> np.ndarray:
        rows = [(query_of[q], row_of[c], grade) for q, grades in qrels.items() for c, grade in grades.items()]
        return np.array(rows, np.int32).reshape(-1, 3)

    if divided == "own":
        test, training = splits.by_files(dataclasses.replace(judged), "train", "dev", 0.1, _SEED)
        kept = {"train": training.qrels[splits.TRAIN], "dev": training.qrels[splits.VALIDATION]}
        named = {
            name: {id: grades for id, grades in judged.qrels[name].items() if id in asked}
            for name, asked in kept.items()
        }
        named["test"] = test.qrels["test"]
    else:
        everything = {id: grades for rule in judged.qrels.values() for id, grades in rule.items()}
        named = {"all": everything}
    qrels = {name: triples(grades) for name, grades in named.items()}
    order, folds = np.random.default_rng(_SEED).permutation(len(ids)), np.zeros(0, np.int32)
    if divided == "folds":
        folds = np.empty(len(ids), np.int32)
        folds[order] = np.arange(len(ids)) % FOLDS
    if divided == "once":
        borders = (np.cumsum(_POOL_SHARES) * len(ids)).astype(int)
        everything = qrels.pop("all")
        for name, rows in zip(("train", "dev", "test"), np.split(order, borders)):
            qrels[name] = everything[np.isin(everything[:, 0], rows)]
    kind = Bm25()
    index = Bm25Index.build(map(kind.text, candidates), kind.document, words=Words("english", "none", True))
    scores_QK, rows_QK = index.search([judged.queries[id] for id in ids], DEPTH)
    _, texts = np.unique([f"{c.title}\0{c.text}" for c in candidates], return_inverse=True)
    return Tokenised(
        query_tokens(config, vocabulary, [judged.queries[id] for id in ids]),
        [windows[0] for windows in candidate_windows(config, vocabulary, candidates)],
        texts.astype(np.int32),
        qrels,
        folds,
        rows_QK.astype(np.int32),
        scores_QK.astype(np.float32),
    )


def write(path: Path, value: Tokenised, places: np.ndarray) -> None:
    """Writes a set; `places` is the row of each token in the table that is carried."""
    arrays = {"texts": value.texts, "folds": value.folds}
    arrays |= {"bm25_rows": value.bm25_rows.astype(np.uint16), "bm25_scores": value.bm25_scores}
    arrays |= {f"qrels_{name}": rows for name, rows in value.qrels.items()}
    for name, tokens in (("queries", value.queries), ("candidates", value.candidates)):
        arrays[name] = places[np.concatenate([np.asarray(ids, int) for ids in tokens])].astype(np.uint16)
        arrays[f"{name}_lengths"] = np.array([len(ids) for ids in tokens], np.uint16)
    np.savez_compressed(path, **arrays)  # pyright: ignore[reportArgumentType]


def in_planes(values: np.ndarray) -> np.ndarray:
    """float16 as uint8 [2, ...], the low bytes and the high ones: apart they take a fifth less when compressed."""
    return np.moveaxis(values.astype("<f2")[..., None].view(np.uint8), -1, 0)


def main(argv: Sequence[str] | None = None) -> None:
    """Writes DATA/NAME.npz of each set, and DATA/weights.npz."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--beir", default="")
    parser.add_argument("--folds", default="")
    parser.add_argument("--pool", default="")
    given = parser.parse_args(argv)
    config = fine_tune.get_config(given.model)
    config.data.query_length = QUERY_LENGTH
    vocabulary = vocabularies.load(Path(given.model))
    given.out.mkdir(parents=True, exist_ok=True)
    sets = {}
    for divided, folders in (("own", given.beir), ("folds", given.folds), ("once", given.pool)):
        for folder in map(Path, filter(None, folders.split(","))):
            sets[folder.name] = tokenised(folder, config, vocabulary, divided)
    used = np.unique(np.concatenate([[0], *(ids for s in sets.values() for ids in (*s.queries, *s.candidates))]))
    used = used.astype(int)  # 0, padding, stays 0
    places = np.zeros(len(vocabulary), int)
    places[used] = np.arange(len(used))
    for name, value in sets.items():
        write(given.out / f"{name}.npz", value, places)
    towers = build_towers(config, len(vocabulary))
    init_from(towers, config, len(vocabulary))
    weights = {
        "/".join(path): np.asarray(leaf) for path, leaf in traverse_util.flatten_dict(parameters_of(towers)).items()
    }
    weights[_TABLE] = weights[_TABLE][used]
    planes = {name: in_planes(leaf) for name, leaf in weights.items()}
    np.savez_compressed(given.out / "weights.npz", sep_id=places[vocabulary.sep_id], **planes)
    for path in sorted(given.out.iterdir()):
        print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
    print(f"{len(used)} of {len(vocabulary)} tokens")


if __name__ == "__main__":
    main()
