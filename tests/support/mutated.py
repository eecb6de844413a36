"""Random damage to bytes and to JSON."""

import copy
import json
import random

VALUES = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 1.5, -0.0, 1e308, float("nan"), float("inf"), -float("inf")),
    *("", " ", "a", "a b", "1", "NaN", "\ud800", "\udc00\ud800", "\x00", "\u2028", "\r\n", "é" * 3000, "[SEP]", "q1"),
    *([], {}, [[]], [None], [[], {}], [[[[[1]]]]], {"a": {"b": {}}}, {"": None}, ["a", 1], {"get": 1, "items": 2}),
]
BYTES = [
    *(
        b"\x00",
        b"\xff",
        b"\xc3",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b"\n",
        b"\r",
        b"\r\n",
        b"\t",
        b" ",
        b'"',
        b"\\",
        b",",
    ),
    *(b"{", b"}", b"[", b"]", b"null", b"NaN", b"-Infinity", b"1e999", b"9" * 5000, b"[" * 3000, b'{"a":' * 3000),
    *(b'"\\ud800"', b"\\u0000", b"\xe2\x80\xa8", b"-", b"0x1", b"1_0", b"\xd9\xa3"),
]


def damaged(rng: random.Random, data: bytes) -> bytes:
    """`data` with one to three changes of bytes; now and then none is left."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        i, j = sorted(rng.choices(range(len(data) + 1), k=2))
        change = rng.randrange(8)
        if change == 0:
            data = data[:i]
        elif change == 1:
            data = data[:i] + data[j:]
        elif change == 2:
            data = data[:j] + data[i:]
        elif change == 3:
            data = b"".join(rng.sample(lines := data.splitlines(keepends=True), len(lines)))
        elif change == 4:
            data = data[:i] + rng.choice(BYTES) + data[i + rng.choice([0, 1, 5]) :]
        elif change == 5:
            data = rng.choice([b"", rng.choice(BYTES), rng.randbytes(100), data + data])
        elif data:
            i = rng.randrange(len(data))
            data = data[:i] + bytes([data[i] ^ 1 << rng.randrange(8)]) + data[i + 1 :]
    return data


def changed(rng: random.Random, value):
    """A copy of a JSON value with one to three places deleted, repeated, exchanged or given another value."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        places = list(containers(value))
        if not places:
            return rng.choice(VALUES)
        parent = rng.choice(places)
        keys = list(parent) if isinstance(parent, dict) else range(len(parent))
        key, other = rng.choice(keys), rng.choice(keys)
        change = rng.randrange(6)
        if change == 0:
            del parent[key]
        elif change == 1 and isinstance(parent, list):
            parent.insert(key, copy.deepcopy(parent[other]))
        elif change == 1:
            parent[rng.choice(["x", "", "a.b", f"{key} "])] = parent.pop(key)
        elif change == 2:
            parent[key], parent[other] = parent[other], parent[key]
        elif change == 3:
            parent[key] = nested(rng, parent[key])
        else:
            parent[key] = copy.deepcopy(rng.choice(VALUES))
    return value


def containers(value):
    """Every list and object of a JSON value that is not empty."""
    if isinstance(value, list | dict) and value:
        yield value
        for item in value.values() if isinstance(value, dict) else value:
            yield from containers(item)


def nested(rng: random.Random, value):
    for _ in range(rng.choice([1, 2, 100])):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def as_json(value) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
