"""How sure a mean is, and a difference of two systems."""

import math
import statistics
from collections.abc import Sequence

import numpy as np

from retrieval.common.libraries import special

LEVEL = 0.05  # below it a p-value counts
# Values have six digits, so what lies beyond is the noise of floats.
_DIGITS = 6
_BATCH = 1_000_000  # numbers drawn at once


def margin(values: Sequence[float]) -> float:
    """Half of the 95 % confidence interval of the mean of at least two values, by Student's t."""
    return float(special.stdtrit(len(values) - 1, 1 - LEVEL / 2)) * _error(values)


def p_value(values: Sequence[float]) -> float | None:
    """The two-sided p-value of Student's t that the mean of at least two values is 0.

    None where all are equal and not 0. Shares of a few hundred questions are coarse, and may be equal by chance. Then
    their spread is not known.
    """
    mean, error = statistics.mean(values), _error(values)
    if error == 0:
        return None if mean else 1.0
    return 2 * float(special.stdtr(len(values) - 1, -abs(mean) / error))


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrected p-values: the chance that any of the true null hypotheses is rejected stays below the level.

    Holm, "A simple sequentially rejective multiple test procedure" (1979). The smallest of n is multiplied by n, the
    next by n - 1, and so on. None is smaller than the one before it.
    """
    corrected, highest = [0.0] * len(p_values), 0.0
    for place, number in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[number]))
        corrected[number] = highest
    return corrected


def randomisation(differences_Q: np.ndarray, samples: int = 10_000, seed: int = 0) -> float:
    """The two-sided p-value of the paired randomisation test over questions (Fisher's; Smucker et al. 2007).

    Each sample swaps the two systems for a random half of the questions. Questions of one absolute difference swap as a
    binomial count. So the cost depends on the number of different values: 1 for Success@k, thousands for RR.

    Args:
      differences_Q: what one system's metric is above the other's, for every question that both answered.
    """
    rounded_Q = np.round(np.asarray(differences_Q, np.float64), _DIGITS)
    sizes_D, counts_D = np.unique(np.abs(rounded_Q[rounded_Q != 0]), return_counts=True)
    # Equal sums of other questions differ by as much as these were rounded.
    observed = abs(rounded_Q.sum()) - 10.0**-_DIGITS * max(1, np.count_nonzero(rounded_Q))
    generator, extreme = np.random.default_rng(seed), 0
    batch = max(1, _BATCH // max(1, len(sizes_D)))
    for start in range(0, samples, batch):
        shape = min(batch, samples - start), len(sizes_D)
        swapped_SD = generator.binomial(counts_D, 0.5, shape)
        extreme += int((np.abs((counts_D - 2 * swapped_SD) @ sizes_D) >= observed).sum())
    return (1 + extreme) / (1 + samples)


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))
