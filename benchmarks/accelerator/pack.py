"""The data of a day on an accelerator, as few megabytes: a prepared corpus and SQuAD as token ids.

    python -m benchmarks.accelerator.pack --workdir=runs/accelerator --reqa=train-v1.1.json,dev-v1.1.json --out=DATA

`runs/accelerator` has a prepared corpus (benchmarks/README.md has the command). Ids are those of a vocabulary of the
tokens that occur, the frequent ones first, which packs better.
"""

import argparse
import collections
import io
import itertools
import json
import shutil
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_collections
import numpy as np

from benchmarks.accelerator import data
from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.data.corpora import sentences
from retrieval.data.examples.tasks.corpus_tasks import LINKS, PASSAGES, read_training
from retrieval.data.sets import relevance, reqa
from retrieval.data.sets.beir import RetrievalSet
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.work_directory import kept_config

# The curves: steps of 8,192 pairs, as many as there is time for.
SETTINGS = {
    "arms": ["none", "ict", "all", "bow", "mlm"],
    "first": ["none", "ict", "all"],  # which the time of a visit is planned for; the others have as many steps
    "batch": 8192,
    "chunk": 2048,
    "steps": 2000,  # at most
    "fine_tuning": {"steps": 100, "batch_size": 256, "learning_rate": 5e-4, "share": 0.05},
    "learning_rate": 2e-3,
    "rates": {"ict": 50.2, "bfs": 17.5, "wlp": 24.9},  # Chang et al. 2020, Table 1
    "data": {"query_length": 32, "document_length": 128},
    "model": {
        "num_layers": 4,
        "hidden_size": 256,
        "num_heads": 4,
        "mlp_size": 1024,
        "embed_dim": 512,
        "dtype": "bfloat16",
        "remat": "none",
        "unroll": 1,  # compiles in less time than it costs in so few steps
        "matmul_dtype": "dtype",
        "pooling": "mean",
        "tied": True,  # half of the parameters, each trained by both sides
        "normalize": True,
        "dropout": 0.0,
    },
    "bow": {"hidden_size": 512, "mlp_size": 512},
    "encode": 4096,  # texts at a time
}


class _Ids:
    """Ids in the order of how often they occur; padding stays 0, and the special tokens follow."""

    def __init__(self, vocabulary: Vocabulary, tokens_N: np.ndarray):
        counts = np.bincount(tokens_N, minlength=len(vocabulary))
        first = [0, vocabulary.unk_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id]
        counts[first] = 0
        order = np.argsort(-counts, kind="stable")
        self.kept = [*first, *order[counts[order] > 0].tolist()]
        self.new = np.zeros(len(vocabulary), np.uint16)
        self.new[self.kept] = np.arange(len(self.kept))


class _Texts:
    """Texts of sentences that are collected; the same text twice is one."""

    def __init__(self):
        self._known: dict[tuple[tuple[int, ...], ...], int] = {}

    def add(self, text: Iterable[Sequence[int]]) -> int:
        """The number of a text."""
        return self._known.setdefault(tuple(map(tuple, text)), len(self._known))

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The tokens of all, and how many tokens each sentence and sentences each text has."""
        all_sentences = [sentence for text in self._known for sentence in text]
        tokens = np.fromiter((token for sentence in all_sentences for token in sentence), np.int32)
        return (
            tokens,
            np.array([*map(len, all_sentences)], np.uint16),
            np.array([len(text) for text in self._known], np.uint16),
        )


def write(run: Run, found: RetrievalSet, out: Path, settings: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
    """Packs the corpus of a run and a set of ReQA's, and returns what was counted.

    Args:
      settings: of the works, as `SETTINGS` has them.
      seed: of the questions that are for fine-tuning.

    Raises:
      UserError: the corpus has no links, or the vocabulary more than 65,536 tokens.
    """
    vocabulary = run.load_vocabulary()
    texts = {name: _Texts() for name in data.TEXTS}
    arrays = _corpus(run, texts) | _questions(found, vocabulary, texts, settings["fine_tuning"]["share"], seed)
    parts = [texts[name].arrays() for name in data.TEXTS]
    tokens = np.concatenate([part[0] for part in parts])
    ids = _Ids(vocabulary, tokens)
    if len(ids.kept) > 1 << 16:
        raise UserError(f"{len(ids.kept)} tokens occur, and an id has 16 bits: take a smaller vocabulary")
    new = ids.new[tokens]
    arrays |= {"tokens_low": (new & 255).astype(np.uint8), "tokens_high": (new >> 8).astype(np.uint8)}
    for name, (_, lengths, counts) in zip(data.TEXTS, parts):
        arrays |= {f"{name}_lengths": lengths, f"{name}_sentences": counts}
    specials = {name: int(ids.new[getattr(vocabulary, f"{name}_id")]) for name in ("cls", "sep", "mask")}
    counted = {name: len(part[2]) for name, part in zip(data.TEXTS, parts)}
    counted |= {"tokens": len(tokens), "candidates": len(found.candidates), "links": len(arrays["link_lead"])}
    config = run.config.copy_and_resolve_references()
    facts = {
        "version": data.VERSION,
        "counts": counted,
        "vocab_size": len(ids.kept),
        "specials": specials,
        "settings": dict(settings),
        "config": json.loads(config.to_json()),
    }
    out.mkdir(parents=True, exist_ok=True)
    _save(out / data.ARRAYS, arrays)
    _copy_packages(out / data.PACKAGES)
    files.write_text(out / data.VOCABULARY, "".join(f"{vocabulary.tokens[id]}\n" for id in ids.kept))
    files.write_json(out / data.FACTS, facts)
    return counted


def _corpus(run: Run, texts: Mapping[str, _Texts]) -> dict[str, np.ndarray]:
    passages, columns = {}, collections.defaultdict(list)
    for record in read_training(run.corpus, PASSAGES, 0.0):
        id = record["document_id"]
        passages[id] = texts["passages"].add(_cut(record["ids"], record["lengths"]))
        if passages[id] < len(columns["passage_title"]):  # the same passage of another article
            continue
        columns["passage_title"].append(texts["titles"].add([record["title"][: data.TITLE]]))
        has_lead = len(record["lead_ids"]) > 0
        lead = texts["leads"].add(_cut(record["lead_ids"], record["lead_lengths"])) if has_lead else -1
        columns["passage_lead"].append(lead)
        ict, bfs, wlp = record["counts"]
        columns["counts"].append([ict, bfs if has_lead else 0, wlp])
    links = [
        (passages[record["document_id"]], texts["leads"].add(_cut(record["lead_ids"], record["lead_lengths"])))
        for record in read_training(run.corpus, LINKS, 0.0)
        if len(record["lead_ids"]) and record["document_id"] in passages
    ]
    if not links:
        raise UserError(
            f"{run.display_path}: the corpus has no links, which WLP is trained on: prepare a dump that has some"
        )
    link_N2 = np.array(links, np.int32)
    # What is left out above is drawn as often as it is there, not as often as the records say.
    counts = np.array(columns["counts"], np.uint16)
    counts[:, 2] = np.bincount(link_N2[:, 0], minlength=len(counts))
    return {
        "passage_title": np.array(columns["passage_title"], np.int32),
        "passage_lead": np.array(columns["passage_lead"], np.int32),
        "counts": counts,
        "link_passage": link_N2[:, 0],
        "link_lead": link_N2[:, 1],
    }


def _questions(
    found: RetrievalSet, vocabulary: Vocabulary, texts: Mapping[str, _Texts], share: float, seed: int
) -> dict[str, np.ndarray]:
    places: dict[str, int] = {}
    candidates, paragraphs = [], {}
    for number, item in enumerate(found.candidates):
        places[item.id] = number
        if item.text not in paragraphs:
            spans = [item.text[start:end] for start, end in sentences.split(item.text)]
            paragraphs[item.text] = texts["paragraphs"].add(vocabulary.encode_batch(spans)), spans
        paragraph, spans = paragraphs[item.text]
        candidates.append((paragraph, spans.index(item.title)))
    golds, queries = [], [*found.queries]
    asked: dict[int, list[int]] = {}
    for id, ids in zip(queries, vocabulary.encode_batch([found.queries[id] for id in queries])):
        # Questions of the same tokens are one, which may find the answer of either.
        question = texts["questions"].add([ids])
        asked.setdefault(question, []).extend(places[gold] for gold in found.qrels[relevance.PAIR][id])
    golds = [sorted(set(asked[question])) for question in range(len(asked))]
    order = np.random.default_rng(seed).permutation(len(golds))
    candidate_N2 = np.array(candidates, np.int32)
    return {
        "candidate_paragraph": candidate_N2[:, 0],
        "candidate_sentence": candidate_N2[:, 1],
        "gold": np.concatenate(golds).astype(np.int32),
        "gold_ends": np.cumsum([0, *map(len, golds)]).astype(np.int32),
        "labelled": np.sort(order[: max(1, int(len(golds) * share))]).astype(np.int32),
    }


def _cut(ids: Sequence[int], lengths: Sequence[int]) -> list[Sequence[int]]:
    ends = np.cumsum([0, *lengths]).tolist()
    return [ids[start:end] for start, end in itertools.pairwise(ends)]


def _copy_packages(folder: Path) -> None:
    """What a config is made of, which no other library here brings along."""
    source, target = Path(ml_collections.__file__).parent, folder / "ml_collections"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(
        source / "config_dict", target / "config_dict", ignore=shutil.ignore_patterns("tests", "__pycache__")
    )
    shutil.copy(source / "__init__.py", target)


def _save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """As `np.savez_compressed`, with LZMA, which is a fifth smaller."""
    with files.atomic(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_LZMA) as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, array, allow_pickle=False)
            archive.writestr(f"{name}.npy", buffer.getvalue())


def main(arguments: Sequence[str]) -> None:
    """Packs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", required=True, help="a run with a prepared corpus")
    parser.add_argument("--reqa", required=True, help="files of SQuAD v1.1, separated by commas")
    parser.add_argument("--out", required=True, type=Path, help="the folder for the packed data")
    given = parser.parse_args(arguments)
    run = Run(kept_config(Path(given.workdir)), Path(given.workdir), Path(given.workdir) / "none")
    counted = write(run, reqa.read_squad([Path(path) for path in given.reqa.split(",")]), given.out, SETTINGS)
    megabytes = sum(path.stat().st_size for path in given.out.rglob("*")) / 1e6
    print(", ".join(f"{name} {count:,}" for name, count in counted.items()), f"{megabytes:.1f} MB", sep="; ")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
