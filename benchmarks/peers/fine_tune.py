"""sentence-transformers' Trainer on labelled texts, as its guide has it: pairs a second, memory, and nDCG@10."""

import csv
import json
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import worker


def prepare(settings: Mapping[str, Any]) -> worker.Turn:
    """Settings: config, vocabulary, pairs, beir, steps, warm (not timed), seeds; test where the model is judged."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer import losses
    from transformers import TrainerCallback, set_seed
    from transformers.utils import logging

    from benchmarks.peers import towers

    logging.disable_progress_bar()
    config, steps, warm = settings["config"], settings["steps"], settings["warm"]
    rows = [json.loads(line) for line in Path(settings["pairs"]).read_text(encoding="utf-8").splitlines()]
    texts = Dataset.from_dict({"anchor": [row["query"] for row in rows], "positive": [_text(row) for row in rows]})

    class Clock(TrainerCallback):
        """When the steps after `warm` began and ended."""

        began = ended = 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.ended = time.perf_counter()
            if state.global_step == warm:
                self.began = self.ended

    def train(seed: int) -> tuple[Any, float]:
        """A model and its pairs a second."""
        train, clock = config["train"], Clock()
        with tempfile.TemporaryDirectory() as folder:
            length = config["data"]["document_length"]
            model = towers.build(
                config["model"], Path(settings["vocabulary"]), length, Path(folder) / "model", seed=seed
            )
            set_seed(seed)
            arguments = SentenceTransformerTrainingArguments(
                output_dir=folder,
                max_steps=steps,
                per_device_train_batch_size=train["batch_size"],
                learning_rate=train["learning_rate"],
                warmup_ratio=train["warmup_ratio"],
                save_strategy="no",
                report_to=[],
                logging_steps=warm,
                disable_tqdm=True,
                seed=seed,
            )
            loss = losses.MultipleNegativesRankingLoss(model, scale=1 / train["temperature"])
            SentenceTransformerTrainer(model, arguments, train_dataset=texts, loss=loss, callbacks=[clock]).train()
        return model, (steps - warm) * train["batch_size"] / (clock.ended - clock.began)

    def turn() -> dict[str, float]:
        scores, speeds = [], []
        for seed in settings["seeds"]:
            model, speed = train(seed)
            score = _ndcg(model, Path(settings["beir"]), settings["test"]) if settings.get("test") else None
            speeds.append(speed)
            scores += [] if score is None else [score]
            worker.tell(seed, speed, score)
        numbers = {"pairs/s": sorted(speeds)[len(speeds) // 2], "peak MB": worker.peak_mb()}
        return numbers | worker.learned(scores)

    return turn


def _text(row: Mapping[str, str]) -> str:
    return f"{row['title']} [SEP] {row['text']}"  # the tokens that ours have


def _ndcg(model: Any, beir: Path, test: str) -> float:
    """The mean nDCG@10 over the queries of a split, by inner products of the normalised embeddings."""
    grades: dict[str, dict[str, int]] = {}
    with open(test, encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines, delimiter="\t"):
            grades.setdefault(row["query-id"], {})[row["corpus-id"]] = int(row["score"])
    queries, candidates = (_rows(beir / name) for name in ("queries.jsonl", "corpus.jsonl"))
    queries = [row for row in queries if row["_id"] in grades]
    query_QE = model.encode([row["text"] for row in queries], normalize_embeddings=True, show_progress_bar=False)
    candidate_NE = model.encode([_text(row) for row in candidates], normalize_embeddings=True, show_progress_bar=False)
    best_QK = (-(query_QE @ candidate_NE.T)).argsort(axis=1)[:, :10]
    values = [
        ndcg([grades[query["_id"]].get(candidates[place]["_id"], 0) for place in best], grades[query["_id"]].values())
        for query, best in zip(queries, best_QK)
    ]
    return sum(values) / len(values)


def ndcg(found: Sequence[int], judged: Sequence[int]) -> float:
    """nDCG of grades in the order in which they were found, against the best order of all, as trec_eval has it."""

    def gain(grades: Sequence[int]) -> float:
        return sum(grade / math.log2(place + 2) for place, grade in enumerate(grades))

    best = gain(sorted(judged, reverse=True)[: len(found)])
    return gain(found) / best if best else 0.0


def _rows(path: Path) -> list[Mapping[str, str]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


if __name__ == "__main__":
    worker.serve(prepare)
