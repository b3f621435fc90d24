"""Looking for garbage seldom, in the actors that hold many values for long.

Our values are frozen and hold no cycles, so nearly all of what is dropped goes at once, by its count. With Python's own
thresholds a process that holds many workloads spends a good part of its time on looking through them again and again.
"""

from __future__ import annotations

import gc

THRESHOLDS = (50_000, 20, 20)
"""New objects before the young are looked through, and how often that happens before older ones are."""


def collect_seldom() -> None:
    """Asked for once, when such an actor begins."""
    gc.set_threshold(*THRESHOLDS)
