"""Looking for garbage seldom while a whole trace runs.

What a run makes is frozen and holds no cycles, so that all of it goes by its count as soon as nobody holds it. With
Python's own thresholds a run that holds many jobs looks through them again and again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (50_000, 20, 20)
"""New objects before the young are looked through, and how often that happens before older ones are."""


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """Until it is left; then it is as it was before. One that is off stays off."""
    before = gc.get_threshold()
    gc.set_threshold(*(THRESHOLDS if before[0] else before))
    try:
        yield
    finally:
        gc.set_threshold(*before)
