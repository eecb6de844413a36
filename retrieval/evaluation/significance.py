"""How sure a mean is."""

import math
import statistics
from collections.abc import Sequence

import scipy.special


def margin(values: Sequence[float]) -> float:
    """Half of the 95 % confidence interval of the mean of at least two values, by Student's t."""
    error = statistics.stdev(values) / math.sqrt(len(values))
    return float(scipy.special.stdtrit(len(values) - 1, 0.975)) * error
