"""How often to write a checkpoint: the interval that loses the least, and the failure rate that it follows from.

C is what one checkpoint blocks the work for, M the mean time between failures of the whole gang [s]. Young (1974):
sqrt(2CM). Daly (2006), the higher-order form: sqrt(2CM)·(1 + sqrt(C/2M)/3 + C/18M) - C while C < 2M, else M.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SHORTEST_S = 60.0
LONGEST_S = 1800.0
"""What an interval is held within: half an hour of work is the most that anyone is asked to lose."""
HYSTERESIS = 0.2
"""An interval in force is kept while the best one is within this part of it."""

YEAR_S = 365.25 * 24 * 3600.0


def young_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Young's interval between two checkpoints; infinite where nothing ever fails."""
    return math.sqrt(2.0 * checkpoint_s * mtbf_s)


def daly_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Daly's interval of work between two checkpoints, within 0.1 % of the optimum for C < M/6."""
    if math.isinf(mtbf_s) or checkpoint_s <= 0:
        return young_s(checkpoint_s, mtbf_s)
    if checkpoint_s >= 2.0 * mtbf_s:
        return mtbf_s
    ratio = checkpoint_s / (2.0 * mtbf_s)
    return young_s(checkpoint_s, mtbf_s) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - checkpoint_s


def wasted_part(interval_s: float, checkpoint_s: float, mtbf_s: float) -> float:
    """What part of the time is lost to first order: checkpoints, and half an interval at each failure."""
    return checkpoint_s / interval_s + interval_s / (2.0 * mtbf_s)


@dataclass(frozen=True, slots=True)
class FailureRate:
    """A rate learned while it is observed: a Gamma prior of `failures` in `exposed_s` node-seconds, counted on.

    The prior is one failure in a node-year, so that a young cluster has a sane interval from the first hour on.
    """

    failures: float = 1.0
    exposed_s: float = YEAR_S

    def seen(self, failures: int, exposed_s: float) -> FailureRate:
        """With so many more failures in so many more node-seconds."""
        return FailureRate(self.failures + failures, self.exposed_s + exposed_s)

    def mtbf_s(self, nodes: int = 1) -> float:
        """Mean time between failures of a gang on so many nodes."""
        return self.exposed_s / (self.failures * max(1, nodes))


def interval_s(checkpoint_s: float, mtbf_s: float, in_force_s: float | None = None) -> float:
    """Daly's interval within the bounds; the one in force stays while it is close enough."""
    best_s = min(LONGEST_S, max(SHORTEST_S, daly_s(checkpoint_s, mtbf_s)))
    if in_force_s is not None and abs(best_s - in_force_s) <= HYSTERESIS * in_force_s:
        return in_force_s
    return best_s
