"""From articles to TFRecord shards: the steps of `prepare`, each a pure function between two group-bys.

    article  --cut_article-->  REDIRECT title -> title     LEAD title -> lead        PASSAGE shard -> passage
                               REQUEST  title -> passage id (the passage links to that title)
    REDIRECT, REQUEST  by title  --resolve-->  RESOLVED title -> passage id
    LEAD, RESOLVED     by title  --attach-->   NEIGHBOUR shard -> (passage id, lead of the page it links to)
    PASSAGE, NEIGHBOUR by shard  --write_shard-->  passages-*.tfrecord, links-*.tfrecord, passages-*.jsonl

Every step yields `(tag, key, value)`. Values are made of str, int, bytes, lists and dicts, so that any runner can ship
them. The output does not depend on the order in which values reach a step, so every runner writes the same bytes.
"""

import collections
import contextlib
import dataclasses
import itertools
import json
import operator
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from retrieval import files, hashing
from retrieval.data.corpora import passages
from retrieval.data.corpora.articles import Article, KnownItem, Redirect
from retrieval.data.corpora.passages import Sentences
from retrieval.data.shards.external_sort import Sorter
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError

REDIRECT, LEAD, REQUEST, PASSAGE = "redirect", "lead", "request", "passage"
RESOLVED, NEIGHBOUR, COUNT = "resolved", "neighbour", "count"

Item = tuple[str, Any, Any]

WITHOUT_PAIR = "passages without a pair"

LOCAL = "local"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What decides the contents of the shards, and how they are made.

    Attributes:
      vocabulary: path of a vocabulary, or None to train one of `vocab_size` tokens on the corpus, in lower case or not,
        of a kind that `vocabularies.TRAINED` names.
      num_shards: files of each kind; a multiple of `data.lanes`.
      runner: 'local', or the name of a Beam runner.
      beam_options: further flags for Beam, such as `--region=...`.
      chunk_bytes: how much of the source one task parses; the unit of resuming.
    """

    vocabulary: Path | None
    vocab_size: int
    num_shards: int
    limits: passages.Limits
    runner: str = LOCAL
    beam_options: tuple[str, ...] = ()
    workers: int = 2
    chunk_bytes: int = 4 << 20
    lower_case: bool = True
    vocab_kind: str = "wordpiece"


def cut_article(
    item: Article | Redirect | KnownItem, vocabulary: Vocabulary, limits: passages.Limits, num_shards: int
) -> Iterator[Item]:
    """One article (or redirect) to its lead, its passages and what they link to. A known item gives nothing."""
    if isinstance(item, KnownItem):
        return
    if isinstance(item, Redirect):
        yield REDIRECT, item.title, item.target
        return
    counts: collections.Counter = collections.Counter()
    lead, cut = passages.cut(item, vocabulary, limits, counts)
    yield from ((COUNT, name, count) for name, count in counts.items())
    packed_lead = _pack(lead)
    title = _bytes(vocabulary.encode(item.title))
    if lead.ids:
        yield LEAD, item.linked_as, {"article": item.id, **packed_lead}
    yield COUNT, "articles", 1
    if item.url:
        yield COUNT, "articles with a web address", 1
    yield COUNT, "passages", len(cut)
    if not cut:
        yield COUNT, "articles without a passage (too short)", 1
    for passage in cut:
        body = {
            "id": passage.id,
            "title": item.title,
            "title_ids": title,
            "section": passage.section,
            "text": passage.text,
            "url": item.url,
            **_pack(passage.tokens),
            "in_lead": passage.in_lead,
            "links": len(passage.targets),
        }
        own_lead = packed_lead if not passage.in_lead else _pack(Sentences((), ()))
        shard = _hash(passage.id) % num_shards
        yield PASSAGE, shard, body | {"lead_ids": own_lead["ids"], "lead_lengths": own_lead["lengths"]}
        yield COUNT, "links in passages", len(passage.targets)
        for target in passage.targets:
            yield REQUEST, target, passage.id


def resolve(title: str, redirects: Iterable[str], requests: Iterable[str]) -> Iterator[Item]:
    """Links to a redirect become links to its target (one hop, as in MediaWiki)."""
    target = min(redirects, default=title)
    for passage_id in requests:
        yield RESOLVED, target, passage_id


def attach(title: str, leads: Iterable[dict], requests: Iterable[str], num_shards: int) -> Iterator[Item]:
    """WLP's join: every passage that links to a page, with the lead of that page."""
    requests = sorted(set(requests))
    lead = min(leads, default=None, key=lambda lead: lead["article"])
    if lead is None:
        yield COUNT, "links dropped: no such article, or it has no lead", len(requests)
        return
    for passage_id in requests:
        if passage_id.rpartition(":")[0] == lead["article"]:
            yield COUNT, "links dropped: to the same article", 1
        else:
            yield NEIGHBOUR, _hash(passage_id) % num_shards, {"passage": passage_id, "title": title, **lead}


def write_shard(
    shard: int, items: Iterable[dict], neighbours: Iterable[dict], folder: Path, num_shards: int
) -> Iterator[Item]:
    """Joins and writes one shard of passages, and of (passage, linked lead) pairs, in the order of a hash.

    Both are sorted on disk: a shard may be larger than the memory.

    Raises:
      UserError: two passages have one id, as those of two pages of one id have.
    """
    table: collections.Counter = collections.Counter()
    with (
        _record_writer(shard_path(folder, "passages", shard, num_shards)) as examples,
        _record_writer(shard_path(folder, "links", shard, num_shards)) as linked,
        files.atomic(shard_path(folder, "passages", shard, num_shards, "jsonl")) as temporary,
        temporary.open("w", encoding="utf-8") as texts,
        Sorter(folder) as joined,
        Sorter(folder) as links,
    ):
        for item in items:
            joined.add((_hash(item["id"], "order"), item["id"], 0, "", msgpack.packb(item)))
        for lead in neighbours:
            joined.add((_hash(lead["passage"], "order"), lead["passage"], 1, lead["title"], msgpack.packb(lead)))
        for item, leads in _groups(joined):
            counts = _counts(item, len(leads))
            examples.write(_example(item, item, counts))
            for lead in leads:
                links.add((_hash(item["id"], lead["title"]), _example(item, _as_lead(lead), counts)))
            known = {name: item[name] for name in ("section", "url") if item[name]}
            text = {"_id": item["id"], "title": item["title"], **known, "text": item["text"]}
            texts.write(json.dumps(text, ensure_ascii=False) + "\n")
            table.update(_table_1(item, leads, counts))
            table.update(_without_pairs(item, counts))
        for _, example in links:
            linked.write(example)
    for name, count in table.items():
        yield COUNT, name, count


def shard_path(folder: Path, kind: str, shard: int, num_shards: int, suffix: str = "tfrecord") -> Path:
    """The file of shard number `shard` of 'passages' or 'links'."""
    return Path(folder) / f"{kind}-{shard:05d}-of-{num_shards:05d}.{suffix}"


def _groups(joined: Iterable[tuple]) -> Iterator[tuple[dict, list[dict]]]:
    """Passages in the order of the hash, each with the leads of the pages that it links to, by title."""
    for (_, id), records in itertools.groupby(joined, key=operator.itemgetter(0, 1)):
        groups: tuple[list[dict], list[dict]] = [], []
        for _, _, kind, _, packed in records:
            groups[kind].append(msgpack.unpackb(packed))
        (item, *others), leads = groups
        if others:
            raise UserError(
                f"two pages of the corpus have the id '{id.rpartition(':')[0]}'; give them ids of their own, or, where "
                "one file holds several dumps, each dump as a file of its own in config.corpus"
            )
        yield item, leads


def _counts(item: dict, num_links: int) -> list[int]:
    """How often an epoch of ICT, of BFS and of WLP draws the passage as a document.

    These are the numerators of Q(d).
    """
    return [int(_size(item["lengths"]) > 1), int(_size(item["lead_lengths"]) > 0), num_links]


def _table_1(item: dict, leads: list[dict], counts: list[int]) -> dict[str, float]:
    """Pairs, query tokens and document tokens of each task, as in Table 1 (a query's tokens in expectation)."""
    size, title = _size(item["ids"]), _size(item["title_ids"])
    sentence = size / _size(item["lengths"])
    queries = {"ict": sentence, "bfs": _mean(item["lead_lengths"])}
    queries["wlp"] = sum(_mean(lead["lengths"]) for lead in leads) / max(len(leads), 1)
    table: dict[str, float] = {"mlm pairs": 1, "mlm document tokens": size}
    for (task, query), pairs in zip(queries.items(), counts):
        document = size + title - sentence if task == "ict" else size
        table |= {f"{task} pairs": pairs, f"{task} query tokens": query * pairs}
        table[f"{task} document tokens"] = document * pairs
    return table


def _without_pairs(item: dict, counts: list[int]) -> Iterator[str]:
    """Why a passage has no pair of a task."""
    ict, bfs, wlp = counts
    if not ict:
        yield f"{WITHOUT_PAIR} of ICT: one sentence alone"
    if not bfs:
        yield f"{WITHOUT_PAIR} of BFS: {'part of the lead itself' if item['in_lead'] else 'no lead in its article'}"
    if not wlp:
        yield f"{WITHOUT_PAIR} of WLP: {'no link that leads to a lead' if item['links'] else 'no link'}"


def _as_lead(lead: dict) -> dict:
    return {"lead_ids": lead["ids"], "lead_lengths": lead["lengths"]}


def _example(item: dict, lead: dict, counts: list[int]) -> bytes:
    import tensorflow as tf  # only the processes that write shards need it

    columns = {
        "document_id": [passages.document_id(item["id"])],
        "title": _ints(item["title_ids"]),
        "ids": _ints(item["ids"]),
        "lengths": _ints(item["lengths"]),
        "lead_ids": _ints(lead["lead_ids"]),
        "lead_lengths": _ints(lead["lead_lengths"]),
        "counts": counts,
    }
    features = {name: tf.train.Feature(int64_list=tf.train.Int64List(value=values)) for name, values in columns.items()}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(deterministic=True)


@contextlib.contextmanager
def _record_writer(path: Path) -> Iterator[Any]:
    import tensorflow as tf

    with files.atomic(path) as temporary, tf.io.TFRecordWriter(str(temporary)) as writer:
        yield writer


def _pack(tokens: Sentences) -> dict[str, bytes]:
    return {"ids": _bytes(tokens.ids), "lengths": _bytes(tokens.lengths)}


def _bytes(values: Iterable[int]) -> bytes:
    return np.asarray(values, np.int32).tobytes()


def _size(packed: bytes) -> int:
    return len(packed) // np.dtype(np.int32).itemsize


def _ints(packed: bytes) -> list[int]:
    return np.frombuffer(packed, np.int32).tolist()


def _mean(packed: bytes) -> float:
    values = np.frombuffer(packed, np.int32)
    return float(values.mean()) if values.size else 0.0


def _hash(*parts: str) -> int:
    return hashing.number(*parts) >> 1
