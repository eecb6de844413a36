"""From articles to TFRecord shards: the steps of `prepare`, each a pure function between two group-bys.

    article  --cut_article-->  REDIRECT title -> title     LEAD title -> lead        PASSAGE shard -> passage
                               REQUEST  title -> passage id (the passage links to that title)
                               SENTENCE digest -> [bucket, article, passages that read it, title if it is in the lead]
    SENTENCE           by digest --share-->    SHARED_LEAD title, SHARED shard -> a smaller bucket, of another article
    REDIRECT, REQUEST  by title  --resolve-->  RESOLVED title -> passage id
    LEAD, RESOLVED, SHARED_LEAD     by title  --attach-->  NEIGHBOUR shard -> (passage id, lead of the page it links to)
    PASSAGE, NEIGHBOUR, SHARED      by shard  --write_shard-->  passages-*.tfrecord, links-*.tfrecord, passages-*.jsonl

Buckets say which sentences training holds out (`holdout`).

Every step yields `(tag, key, value)`. Values are made of str, int, lists and dicts, so that any runner can ship
them. The output does not depend on the order in which values reach a step, so every runner writes the same bytes.
"""

import collections
import contextlib
import functools
import itertools
import json
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import hashing
from retrieval.data import holdout
from retrieval.data.corpora import passages
from retrieval.data.corpora.articles import Article, KnownItem, Redirect
from retrieval.data.shards import tfrecords
from retrieval.data.shards.external_sort import Sorter
from retrieval.data.tokenizers.vocab import Vocabulary

REDIRECT, LEAD, REQUEST, PASSAGE, SENTENCE = "redirect", "lead", "request", "passage", "sentence"
RESOLVED, NEIGHBOUR, SHARED, SHARED_LEAD, COUNT = "resolved", "neighbour", "shared", "shared lead", "count"
EXAMPLE = "example"  # of what is counted under a name; the first in order stays

CUT, WRITE = "cut", "write"  # the first step and the last
WORK = "work"  # the folder of what is written on the way

Item = tuple[str, Any, Any]
Parsed = Article | Redirect | KnownItem

WITHOUT_PAIR = "passages without a pair"
KEPT_SENTENCES = "sentences never trained on: they are kept for evaluation"
LAST_BUCKET = "pairs of bucket"

LOCAL = "local"


class Settings(NamedTuple):
    """What decides the contents of the shards, and how they are made.

    Attributes:
      vocabulary: path of a vocabulary, or None to train one of `vocab_size` tokens on the corpus, in lower case or not,
        of a kind that `vocabularies.TRAINED` names.
      num_shards: files of each kind; a multiple of `data.lanes`.
      runner: 'local', or the name of a Beam runner.
      beam_options: further flags for Beam, such as `--region=...`.
      chunk_bytes: how much of the source one task parses; the unit of resuming.
      trains: whether TFRecords are written for training, beside the texts of the passages.
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
    trains: bool = True


def cut_article(item: Parsed, vocabulary: Vocabulary, limits: passages.Limits, num_shards: int) -> Iterator[Item]:
    """One article (or redirect) to its lead, its passages and what they link to. A known item gives its sentences."""
    if isinstance(item, KnownItem):
        for ids in passages.sentence_ids(item, vocabulary, limits):
            yield from ((SENTENCE, digest, [holdout.KEPT, "", [], ""]) for digest in _digests(ids, [len(ids)]))
        return
    if isinstance(item, Redirect):
        yield REDIRECT, item.title, item.target
        return
    counts: collections.Counter = collections.Counter()
    lead, cut = passages.cut(item, vocabulary, limits, counts)
    title = vocabulary.encode(item.title)
    of_title, in_lead = _digests(title, [len(title)]), _digests(*lead)
    of_passages = [_digests(*passage.tokens) for passage in cut]
    smallest, readers = _places(cut, of_passages, {*of_title}, {*in_lead})
    for digest, numbers in readers.items():
        linked_as = item.linked_as if digest in in_lead else ""
        yield SENTENCE, digest, [smallest.get(digest, holdout.OPEN), item.id, numbers, linked_as]

    def buckets(digests: Iterable[int]) -> list[int]:
        return [smallest.get(digest, holdout.OPEN) for digest in digests]

    own_lead = lead._asdict() | {"buckets": buckets(in_lead)}
    if lead.ids:
        yield LEAD, item.linked_as, {"article": item.id, **own_lead}
    counts.update({"articles": 1, "passages": len(cut), "links in passages": sum(len(p.targets) for p in cut)})
    counts.update(["articles with a web address"] if item.url else [])
    counts.update([] if cut else ["articles without a passage (too short)"])
    yield from ((COUNT, name, count) for name, count in counts.items())
    of_article = {"title": item.title, "title_ids": title, "title_bucket": buckets(of_title), "url": item.url}
    for passage, digests in zip(cut, of_passages):
        body = {"id": passage.id, "section": passage.section, "text": passage.text, "in_lead": passage.in_lead}
        body |= passage.tokens._asdict() | {"buckets": buckets(digests), "links": len(passage.targets)}
        shown = _as_lead(dict.fromkeys(own_lead, ()) if passage.in_lead else own_lead)
        yield PASSAGE, _shard(passage.id, num_shards), of_article | body | shown
        yield from ((REQUEST, target, passage.id) for target in passage.targets)


def _places(
    cut: Sequence[passages.Passage], of_passages: Sequence[Sequence[int]], of_title: set[int], of_lead: set[int]
) -> tuple[dict[int, int], dict[int, list[int]]]:
    """Sentence -> the smallest bucket of the passages of an article that have it.

    And the numbers of the passages whose records have it: as their own, as the title, or in the lead.
    """
    smallest: dict[int, int] = {}
    readers: dict[int, list[int]] = {digest: [] for digest in of_title | of_lead}
    for number, (passage, digests) in enumerate(zip(cut, of_passages)):
        own = holdout.bucket(holdout.document_id(passage.id))
        smallest |= {digest: min(own, smallest.get(digest, own)) for digest in digests}
        for digest in of_title.union(digests, () if passage.in_lead else of_lead):
            readers.setdefault(digest, []).append(number)
    return smallest, readers


class Step(NamedTuple):
    """A step behind a group-by: `run(key, *values of each input)` yields items.

    Attributes:
      inputs: the step, or CUT, and the tag that each of the values has.
    """

    name: str
    inputs: Sequence[tuple[str, str]]
    run: Callable[..., Iterator[Item]]


def steps(folder: Path, settings: Settings) -> Sequence[Step]:
    """The steps behind `cut_article`, in order. The keys of the last are the numbers of the shards, all of them."""
    of_shards = functools.partial(functools.partial, num_shards=settings.num_shards)
    write = of_shards(write_shard, folder=folder, trains=settings.trains)
    return (
        Step("share", [(CUT, SENTENCE)], of_shards(share)),
        Step("resolve", [(CUT, REDIRECT), (CUT, REQUEST)], resolve),
        Step("attach", [(CUT, LEAD), ("resolve", RESOLVED), ("share", SHARED_LEAD)], of_shards(attach)),
        Step(WRITE, [(CUT, PASSAGE), ("attach", NEIGHBOUR), ("share", SHARED)], write),
    )


def share(digest: int, places: Iterable[Sequence], num_shards: int) -> Iterator[Item]:
    """Gives a sentence the smallest bucket that it has in any article, in all articles that have it."""
    places = list(places)
    smallest = min(bucket for bucket, *_ in places)
    for bucket, article, numbers, linked_as in places:
        if bucket > smallest:
            yield from [(SHARED_LEAD, linked_as, [article, digest, smallest])] if linked_as else []
            for id in (f"{article}:{number}" for number in numbers):
                yield SHARED, _shard(id, num_shards), [id, digest, smallest]


def resolve(title: str, redirects: Iterable[str], requests: Iterable[str]) -> Iterator[Item]:
    """Links to a redirect become links to its target (one hop, as in MediaWiki)."""
    target = min(redirects, default=title)
    yield from ((RESOLVED, target, passage_id) for passage_id in requests)


def attach(
    title: str, leads: Iterable[dict], requests: Iterable[str], shared: Iterable[Sequence], num_shards: int
) -> Iterator[Item]:
    """WLP's join: every passage that links to a page, with the lead of that page."""
    requests = sorted(set(requests))
    lead = min(leads, default=None, key=lambda lead: lead["article"])
    if lead is None:
        yield COUNT, "links dropped: no such article, or it has no lead", len(requests)
        return
    smaller = {digest: bucket for article, digest, bucket in shared if article == lead["article"]}
    lead = {**lead, "buckets": _lowered(lead["buckets"], _digests(lead["ids"], lead["lengths"]), smaller)}
    for passage_id in requests:
        if passage_id.rpartition(":")[0] == lead["article"]:
            yield COUNT, "links dropped: to the same article", 1
        else:
            yield NEIGHBOUR, _shard(passage_id, num_shards), {"passage": passage_id, "title": title, **lead}


def write_shard(
    shard: int,
    items: Iterable[dict],
    neighbours: Iterable[dict],
    shared: Iterable[list],
    folder: Path,
    num_shards: int,
    trains: bool,
) -> Iterator[Item]:
    """Joins and writes one shard of passages, and of (passage, linked lead) pairs, in the order of a hash.

    All are sorted on disk: a shard may be larger than the memory.

    Raises:
      UserError: two passages have one id, as those of two pages of one id have.
    """
    table: collections.Counter = collections.Counter()
    writer = tfrecords.writer if trains else contextlib.nullcontext
    with (
        writer(shard_path(folder, "passages", shard, num_shards)) as examples,
        writer(shard_path(folder, "links", shard, num_shards)) as linked,
        files.atomic(shard_path(folder, "passages", shard, num_shards, "jsonl")) as temporary,
        temporary.open("w", encoding="utf-8") as texts,
        Sorter(folder) as joined,
        Sorter(folder) as links,
    ):
        for item in items:
            joined.add((_hash(item["id"], "order"), item["id"], 0, "", msgpack.packb(item)))
        for lead in neighbours:
            joined.add((_hash(lead["passage"], "order"), lead["passage"], 1, lead["title"], msgpack.packb(lead)))
        for id, *pair in shared:
            joined.add((_hash(id, "order"), id, 2, "", msgpack.packb(pair)))
        for item, leads, smaller in _groups(joined):
            item = _with_lowered(item, smaller)
            last = _last_buckets(item, leads)
            counts = [sum(bucket > holdout.KEPT for bucket in buckets) for buckets in last.values()]
            if trains:
                examples.write(_example(item, item, last))
            for lead in leads if trains else ():
                links.add((_hash(item["id"], lead["title"]), _example(item, _as_lead(lead), last)))
            known = {name: item[name] for name in ("section", "url") if item[name]}
            text = {"_id": item["id"], "title": item["title"], **known, "text": item["text"]}
            texts.write(json.dumps(text, ensure_ascii=False) + "\n")
            table.update(_table_1(item, leads, counts))
            table.update(_without_pairs(item, counts))
            table.update(f"{task} {LAST_BUCKET} {bucket}" for task, buckets in last.items() for bucket in buckets)
            table.update([KEPT_SENTENCES] * item["buckets"].count(holdout.KEPT))
        for _, example in links:
            linked.write(example)
    yield from ((COUNT, name, count) for name, count in table.items())


def shard_path(folder: Path, kind: str, shard: int, num_shards: int, suffix: str = "tfrecord") -> Path:
    """The file of shard number `shard` of 'passages' or 'links'."""
    return Path(folder) / f"{kind}-{shard:05d}-of-{num_shards:05d}.{suffix}"


def _groups(joined: Iterable[tuple]) -> Iterator[tuple[dict, list[dict], dict[int, int]]]:
    """Passages in the order of the hash, each with the leads of the pages that it links to, by title.

    And with the smaller buckets of its sentences, by digest.
    """
    for (_, id), records in itertools.groupby(joined, key=operator.itemgetter(0, 1)):
        groups: tuple[list[dict], list[dict], list[tuple[int, int]]] = [], [], []
        for _, _, kind, _, packed in records:
            groups[kind].append(msgpack.unpackb(packed))
        (item, *others), leads, smaller = groups
        if others:
            raise UserError(f"two pages of the corpus have the id '{id.rpartition(':')[0]}'; give each one of its own")
        yield item, leads, dict(smaller)


def _with_lowered(item: dict, smaller: dict[int, int]) -> dict:
    """A passage with the smaller buckets of its title, its sentences and its article's lead."""
    digests = {"title_bucket": _digests(item["title_ids"], [len(item["title_ids"])])} if smaller else {}
    digests |= {f"{of}buckets": _digests(item[f"{of}ids"], item[f"{of}lengths"]) for of in ("", "lead_") if smaller}
    return item | {name: _lowered(item[name], own, smaller) for name, own in digests.items()}


def _lowered(buckets: Sequence[int], digests: Sequence[int], smaller: dict[int, int]) -> list[int]:
    return [smaller.get(digest, bucket) for digest, bucket in zip(digests, buckets, strict=True)]


def _last_buckets(item: dict, leads: list[dict]) -> dict[str, list[int]]:
    """For each pair of ICT, of BFS and of WLP with the passage as its document, the last bucket that leaves it.

    ICT needs two sentences, the others one and a sentence of the lead. No sentence's bucket is above the passage's.
    """
    own = sorted(item["buckets"])
    of_leads = [item["lead_buckets"], *(lead["buckets"] for lead in leads)]
    bfs, *wlp = [[min(own[-1], max(buckets))] if buckets else [] for buckets in of_leads]
    return {"ict": own[-2:-1], "bfs": bfs, "wlp": list(itertools.chain.from_iterable(wlp)), "mlm": own[-1:]}


def _table_1(item: dict, leads: list[dict], counts: list[int]) -> dict[str, float]:
    """Pairs, query tokens and document tokens of each task, as in Table 1 (a query's tokens in expectation)."""
    size, sentence = len(item["ids"]), _mean(item["lengths"])
    of_links = sum(_mean(lead["lengths"]) for lead in leads) / max(len(leads), 1)
    queries = {"ict": sentence, "bfs": _mean(item["lead_lengths"]), "wlp": of_links, "mlm": None}
    table: dict[str, float] = {}
    for (task, query), pairs in zip(queries.items(), counts):
        document = size + len(item["title_ids"]) - sentence if task == "ict" else size
        table |= {f"{task} pairs": pairs, f"{task} document tokens": document * pairs}
        table |= {f"{task} query tokens": query * pairs} if query is not None else {}
    return table


def _without_pairs(item: dict, counts: list[int]) -> list[str]:
    """Why a passage has no pair of a task."""
    bfs = "part of the lead itself" if item["in_lead"] else "no lead in its article"
    wlp = "no link that leads to a lead" if item["links"] else "no link"
    reasons = {"ICT": "one sentence alone", "BFS": bfs, "WLP": wlp}
    return [f"{WITHOUT_PAIR} of {task}: {why}" for (task, why), count in zip(reasons.items(), counts) if not count]


def _as_lead(lead: dict) -> dict:
    return {f"lead_{name}": lead[name] for name in ("ids", "lengths", "buckets")}


def _example(item: dict, lead: dict, last_buckets: dict[str, list[int]]) -> bytes:
    columns = {"document_id": [holdout.document_id(item["id"])], "title": item["title_ids"]}
    columns |= {name: item[name] for name in ("title_bucket", "ids", "lengths", "buckets")}
    columns |= {name: lead[name] for name in ("lead_ids", "lead_lengths", "lead_buckets")}
    return tfrecords.serialized(columns | {f"{task}_buckets": last_buckets[task] for task in ("ict", "bfs", "wlp")})


def _digests(ids: Sequence[int], lengths: Iterable[int]) -> list[int]:
    """A hash of each sentence of a text; an empty one is none."""
    ends = itertools.pairwise(itertools.accumulate(lengths, initial=0))
    return [_hash(*map(str, ids[start:end])) for start, end in ends if start < end]


def _mean(lengths: Sequence[int]) -> float:
    return sum(lengths) / len(lengths) if lengths else 0.0


def _shard(passage_id: str, num_shards: int) -> int:
    return _hash(passage_id) % num_shards


def _hash(*parts: str) -> int:
    return hashing.number(*parts) >> 1
