"""Texts that a model wrote against references: BLEU (Papineni et al. 2002) and ROUGE-L (Lin 2004).

sacrebleu and rouge-score compute them.
"""

import importlib
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from retrieval import extras

_ORDERS = (1, 2, 3, 4)
_BETA = 1.2  # recall counts so much more than precision in ROUGE-L, as in papers on question generation


class Written(NamedTuple):
    """A text and the references that it is compared with, one or more."""

    text: str
    references: Sequence[str]


def scores(written: Sequence[Written], as_is: bool = False) -> dict[str, float]:
    """BLEU-1 to BLEU-4 over all texts, and the mean of ROUGE-L, as fractions.

    Of several references BLEU counts all, and ROUGE-L the best.

    Args:
      written: at least one.
      as_is: whether words are what stands between spaces; otherwise punctuation is apart, and case does not count.

    Raises:
      UserError: a package is not installed.
    """
    try:
        sacrebleu: Any = importlib.import_module("sacrebleu")
        words = importlib.import_module("sacrebleu.tokenizers.tokenizer_13a").Tokenizer13a()
        rouge_scorer: Any = importlib.import_module("rouge_score.rouge_scorer")
    except ImportError as error:
        raise extras.missing("retrieval score", str(error.name), "scores") from error
    if not as_is:
        written = [Written(words(w.text.lower()), [words(text.lower()) for text in w.references]) for w in written]
    texts, most = [each.text for each in written], max(len(each.references) for each in written)
    # A list for the first reference of each text, one for the second ...; None where a text has fewer.
    references: Any = [[dict(enumerate(each.references)).get(place) for each in written] for place in range(most)]
    bleu = (
        sacrebleu.BLEU(max_ngram_order=order, tokenize="none", smooth_method="none", force=True) for order in _ORDERS
    )
    of_bleu = {f"BLEU-{each.max_ngram_order}": each.corpus_score(texts, references).score / 100 for each in bleu}
    rouge = rouge_scorer.RougeScorer(["rougeL"], tokenizer=_Spaces())
    best = (max(_f(rouge.score(text, each.text)["rougeL"]) for text in each.references) for each in written)
    return of_bleu | {"ROUGE-L": statistics.mean(best)}


class _Spaces:
    """Words between spaces, for rouge-score, whose own words are of ASCII alone."""

    def tokenize(self, text: str) -> list[str]:
        return text.split()


def _f(score: Any) -> float:
    """F with `_BETA`, of a precision and a recall."""
    below = score.recall + _BETA**2 * score.precision
    return (1 + _BETA**2) * score.precision * score.recall / below if below else 0.0
