"""Answers in passages, by brute force."""

import unicodedata


def tokens(text):
    """DPR's definition, a character at a time."""
    found, run = [], ""
    for char in unicodedata.normalize("NFD", text) + " ":
        kind = unicodedata.category(char)[0]
        if kind in "LNM":
            run += char
            continue
        found += [run.lower()] if run else []
        run = ""
        found += [] if kind in "ZC" else [char.lower()]
    return found


def brute_force(passage, answer):
    have, want = tokens(passage), tokens(answer)
    return any(have[start : start + len(want)] == want for start in range(len(have) - len(want) + 1)) and bool(want)
