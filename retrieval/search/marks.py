"""Which pieces of a text a query has matched, as an index of words sees it."""

from collections.abc import Collection, Iterable, Sequence

from retrieval.search.words import Words, spans

Pieces = list[tuple[str, bool]]
"""A text in pieces, each with whether it is one of the wanted words. Joined, the pieces are the text."""


def marked(texts: Sequence[str], wanted: Collection[str], words: Words) -> list[Pieces]:
    """The pieces of each text.

    Args:
      wanted: words of the query, as `words` gives them.
      words: what counts as a word, and as the same word: 'Größen' may be 'große'.
    """
    places = [list(spans(text)) for text in texts]
    # Words come again, within a text and in others: each is looked at once.
    runs = dict.fromkeys(text[start:end] for text, spots in zip(texts, places) for start, end in spots)
    found = {run for run, of_run in zip(runs, words.of(runs)) if any(word in wanted for word in of_run)}
    return [_pieces(text, spots, found) for text, spots in zip(texts, places)]


def _pieces(text: str, places: Iterable[tuple[int, int]], found: Collection[str]) -> Pieces:
    pieces: Pieces = []
    done = 0
    for start, end in places:
        if text[start:end] in found:
            if start > done:
                pieces.append((text[done:start], False))
            pieces.append((text[max(start, done) : end], True))  # pairs of letters overlap
            done = end
    return [*pieces, (text[done:], False)] if done < len(text) else pieces
