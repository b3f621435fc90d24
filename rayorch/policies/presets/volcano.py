"""Behaves like Volcano as far as docs/presets.md says: proportion across queues, priority and age within.

As in its default configuration (enqueue, allocate, backfill) nobody is evicted unless `preemption` is switched on.
"""

from __future__ import annotations

from dataclasses import replace

from rayorch.core.eviction import EvictionKnobs
from rayorch.policies.presets.default import PRESET as DEFAULT
from rayorch.policies.queue_order import proportion

PRESET = replace(DEFAULT, name="volcano", queue_order=proportion.key, preemption=False, eviction=EvictionKnobs())
