"""Behaves like Kueue as far as docs/presets.md says: cohorts, who stays within its share first, priority, then age.

As there, nobody is evicted unless `preemption` is switched on, and requeueing backs off from a minute to an hour.
"""

from __future__ import annotations

from dataclasses import replace

from rayorch.core.eviction import EvictionKnobs
from rayorch.policies.presets.default import PRESET as DEFAULT
from rayorch.policies.queue_order import cohort

PRESET = replace(
    DEFAULT,
    name="kueue",
    queue_order=cohort.key,
    preemption=False,
    eviction=EvictionKnobs(),
    retry_backoff_s=60.0,
    retry_backoff_max_s=3600.0,
)
