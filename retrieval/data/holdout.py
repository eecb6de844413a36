"""What training holds out: a share of the passages, and their sentences wherever else they stand.

A passage has a bucket below BUCKETS, by a hash of its id. A share holds out the passages of the lowest buckets. The
bucket of a sentence is the smallest of the passages that have it, to the token. So training reads no sentence of a
held-out passage: not in a copy, not in a lead that BFS or WLP asks with, not as a title. Boilerplate that one held-out
passage has goes from all others, too. Sentences of items that are kept for evaluation (`KnownItem`) are held out of
every training. What only contains such a sentence, as a part of a longer one, stays.
"""

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

BUCKETS = 10_000
# The bucket of what no passage has, and of what is kept for evaluation.
OPEN, KEPT = BUCKETS, -1


def document_id(passage_id: str) -> int:
    """31 bits that stand for a passage in a batch. A collision (one batch of 8192 in 65) only masks one negative."""
    return int.from_bytes(hashlib.blake2b(passage_id.encode(), digest_size=4).digest(), "big") >> 1


def bound(share: float) -> int:
    """The bucket below which passages and sentences are held out."""
    return round(share * BUCKETS)


def bucket(id: Any) -> Any:
    """The bucket of a passage, by its `document_id`: of a number, or of a tensor."""
    return id % BUCKETS  # the ids are hashes: their remainders are a fair draw


def is_held_out(passage_id: str, share: float) -> bool:
    """Whether a passage is held out of training."""
    return bucket(document_id(passage_id)) < bound(share)


def statistics_at(statistics: Mapping[str, Any], share: float) -> dict[str, Any]:
    """The statistics of a prepared corpus, with the pairs of each task that are left where a share is held out."""
    at = copy.deepcopy(dict(statistics))
    for task in at["tasks"].values():
        task["pairs"] = sum(count for number, count in task["last_buckets"].items() if int(number) >= bound(share))
    return at
