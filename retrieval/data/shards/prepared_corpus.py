"""A corpus to tokenised shards: articles, then the vocabulary, then passages with their links.

    corpus/articles/*.jsonl          one article, redirect or known item (held out for evaluation) a line
    corpus/vocab.txt                 the WordPiece vocabulary; tokenizer.json for one of another kind
    corpus/passages-*.tfrecord       a passage, its title and (outside the lead itself) the lead of its article
    corpus/links-*.tfrecord          a passage and the lead of an article that it links to (WLP)
    corpus/passages-*.jsonl          the text of the passages
    corpus/stats.json                what was read, kept and dropped, and the numbers of Table 1

The same functions run under two runners: worker processes on this machine (`local_pipeline`), or Apache Beam
(`beam_pipeline`). Both write the same bytes.
"""

import collections
import importlib
import itertools
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import hashing
from retrieval.data.corpora import corpus_kind, passages
from retrieval.data.corpora.articles import Article
from retrieval.data.corpora.corpus_kind import Source
from retrieval.data.shards import shard_steps
from retrieval.data.shards.shard_steps import LOCAL, Settings
from retrieval.data.tokenizers import vocabularies

# Shares above which something is a problem: of the tokens, that are cut off; of the passages, that ICT has no query of.
_MOST_CUT, _MOST_ALONE = 0.01, 0.5
_REMEDY = "raise config.prepare.longest_passage"
_PIECE = 1 << 16  # characters of a paragraph that are looked at, or not, for the vocabulary


def prepare(source: Source, folder: Path, settings: Settings) -> dict[str, Any]:
    """Writes the corpus below `folder` and returns its statistics; goes on where an earlier call was cut off.

    Raises:
      UserError: the source cannot be read, or holds no passage.
    """
    files.remove_temporaries(folder)
    if of_others := list((folder / "articles").glob("beam-*" if settings.runner == LOCAL else "[0-9]*")):
        for path in (*of_others, folder / shard_steps.WORK):  # begun by another runner: the same in other files
            files.remove(path)
    pipeline = importlib.import_module(f"{__package__}.{'local' if settings.runner == LOCAL else 'beam'}_pipeline")
    counts, examples = pipeline.write_articles(source, folder, settings)
    _vocabulary(folder, settings, counts)
    counts.update(pipeline.write_shards(folder, settings))  # not +=, which forgets what is 0
    if not counts["passages"]:
        remedy = f"give longer texts, or lower config.prepare.least_passage={settings.limits.least}"
        raise UserError(f"no passage came out of config.corpus ({_counted(counts)}): {remedy}")
    shutil.rmtree(folder / shard_steps.WORK, ignore_errors=True)
    statistics = _statistics(counts, settings.trains) | {"shards": settings.num_shards}
    statistics["examples"] = dict(sorted(examples.items()))
    files.write_json(folder / "stats.json", statistics)
    return statistics


def _counted(counts: Mapping[str, int]) -> str:
    """What was counted of the pages, for errors."""
    return ", ".join(f"{what} {count:,}" for what, count in sorted(counts.items()) if count) or "no page was read"


def _vocabulary(folder: Path, settings: Settings, counts: Mapping[str, int]) -> None:
    if settings.vocabulary is not None:
        vocabulary = vocabularies.load(settings.vocabulary)
    elif vocabularies.find(folder):
        return
    else:
        texts, kind = _sample_texts(folder, budget=16 << 20), vocabularies.TRAINED[settings.vocab_kind]
        try:
            vocabulary = kind.train(texts, settings.vocab_size, settings.lower_case)
        except UserError as error:
            raise UserError(f"config.corpus: {error} ({_counted(counts)})") from error
    vocabulary.save(folder / vocabulary.FILE)


def _sample_texts(folder: Path, budget: int) -> Iterator[str]:
    """About `budget` characters of the paragraphs: enough to count word pieces by.

    A hash chooses them, in pieces of which none is long: runners write articles in other orders, and a book may be one
    paragraph.
    """
    every = max(1, sum(path.stat().st_size for path in corpus_kind.article_files(folder)) // budget)
    for article in itertools.chain.from_iterable(map(corpus_kind.read_articles, corpus_kind.article_files(folder))):
        if not isinstance(article, Article):
            continue
        texts = (paragraph.text for section in article.sections for paragraph in section.paragraphs)
        pieces = (text[start : start + _PIECE] for text in texts for start in range(0, len(text), _PIECE))
        for number, piece in enumerate(pieces):
            if every == 1 or hashing.number(article.id, str(number)) % every == 0:
                yield piece


def _statistics(counts: collections.Counter, trains: bool) -> dict[str, Any]:
    """Counts by name, Table 1 by task where these are trained on, and what broke."""
    tasks = {}
    for task in ("ict", "bfs", "wlp", "mlm"):
        pairs, query, document = (counts.pop(f"{task} {k}", 0) for k in ("pairs", "query tokens", "document tokens"))
        last = [name for name in counts if name.startswith(f"{task} {shard_steps.LAST_BUCKET} ")]
        last_buckets = sorted((int(name.rpartition(" ")[2]), counts.pop(name)) for name in last)
        if not trains:
            pairs, query, document, last_buckets = 0, 0, 0, []
        tasks[task] = {"pairs": pairs, "last_buckets": {str(bucket): count for bucket, count in last_buckets}}
        means = (("query_tokens", query), ("document_tokens", document))
        tasks[task] |= {"tokens": round(query + document)} | {name: round(n / max(pairs, 1), 2) for name, n in means}
    broken = sorted(name for name in counts if name.startswith("broken: "))
    unsaid = () if trains else (shard_steps.WITHOUT_PAIR, shard_steps.KEPT_SENTENCES)  # of examples
    plain = {name: n for name, n in sorted(counts.items()) if name not in broken and not name.startswith(unsaid)}
    problems = [*(name.removeprefix("broken: ") for name in broken), *_losses(counts, trains)]
    return {"counts": plain, "tasks": tasks, "problems": problems}


def _losses(counts: collections.Counter, trains: bool) -> Iterator[str]:
    """What is lost to an unusual degree, and what helps."""
    tokens, cut = counts[passages.TOKENS], counts[passages.CUT_OFF]
    if cut > _MOST_CUT * tokens:
        sentences = f"{counts[passages.LONG_SENTENCES]:,} of {counts[passages.SENTENCES]:,} sentences"
        yield f"{cut / tokens:.1%} of the tokens are cut off: {sentences} are longer than a passage; {_REMEDY}"
    alone = counts[f"{shard_steps.WITHOUT_PAIR} of ICT: one sentence alone"]
    if trains and alone > _MOST_ALONE * counts["passages"]:
        what = f"{alone:,} of {counts['passages']:,} passages are one sentence alone, of which ICT makes no pair"
        yield f"{what}; {_REMEDY} or config.prepare.shortest_paragraph"
