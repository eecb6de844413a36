"""The hash that folders which are there already were made with."""

from retrieval.common.runtime import hashing


def test_the_hash_is_what_it_always_was():
    assert hashing.digest("zip").hex() == "e71669e3412e1d5b"
    assert hashing.digest("zip", "archive").hex() == "06781c3c83bc576a"
    assert hashing.number("zip") == 0xE71669E3412E1D5B
