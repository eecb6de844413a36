"""Which pieces of a text a query has matched, as an index of words sees it."""

from collections.abc import Collection

from retrieval.search.words import Words, spans


def marked(text: str, wanted: Collection[str], words: Words) -> list[tuple[str, bool]]:
    """A text in pieces, each with whether it is one of the wanted words. Joined, the pieces are the text.

    Args:
      wanted: words of the query, as `words` gives them.
      words: what counts as a word, and as the same word: 'Größen' may be 'große'.
    """
    places = list(spans(text))
    runs = dict.fromkeys(text[start:end] for start, end in places)  # many words of a text come again
    found = {run for run, of_run in zip(runs, words.of(runs)) if any(word in wanted for word in of_run)}
    pieces: list[tuple[str, bool]] = []
    done = 0
    for start, end in places:
        if text[start:end] in found:
            if start > done:
                pieces.append((text[done:start], False))
            pieces.append((text[max(start, done) : end], True))  # pairs of letters overlap
            done = end
    return [*pieces, (text[done:], False)] if done < len(text) else pieces
