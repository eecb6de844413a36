"""Articles to passages of token ids by the functions and the process pool of the prepare stage; MB of text a second.

It reads the articles' JSON, cuts by sentences, collects leads and links, and writes what the steps after it read.
"""

import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import articles, worker
from benchmarks.measure import timed
from retrieval.data.corpora import corpus_kind
from retrieval.data.corpora.passages import Limits
from retrieval.data.shards import local_runner, shard_steps
from retrieval.data.tokenizers.vocab import WordPiece


def prepare(settings: Mapping[str, Any]) -> worker.Turn:
    """Settings: articles (files), vocabulary, limits, shards, processes."""
    paths = [Path(path) for path in settings["articles"]]
    given = (Path(settings["vocabulary"]), Limits(*settings["limits"]), settings["shards"])
    megabytes = articles.megabytes(paths)

    def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            tasks = [(Path(folder) / f"{path.stem}.items", (path, *given)) for path in paths]
            local_runner.run_tasks("cut", tasks, cut, settings["processes"], total=len(tasks))

    return lambda: {"MB/s": megabytes / timed(work)[1]}


_worker_vocabulary = functools.cache(WordPiece.load)  # as in the stage


def cut(output: Path, articles: Path, vocabulary: Path, limits: Limits, num_shards: int) -> None:
    """A task of the process pool: a file of articles."""
    tokenizer = _worker_vocabulary(vocabulary)
    items = (
        item
        for article in corpus_kind.read_articles(articles)
        for item in shard_steps.cut_article(article, tokenizer, limits, num_shards)
    )
    local_runner.write_items(output, items, num_shards)


if __name__ == "__main__":
    worker.serve(prepare)
