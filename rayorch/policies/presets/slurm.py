"""Behaves like Slurm as far as docs/presets.md says: one order for all queues by the multifactor priority.

Slurm's own weights are all 0, which is first come, first served; these are of the size that sites use. As there,
nobody is evicted unless `preemption` is switched on, and a requeued job waits for two minutes.
"""

from __future__ import annotations

from dataclasses import replace

from rayorch.core.eviction import EvictionKnobs
from rayorch.core.ordering import OrderKnobs
from rayorch.policies.order import multifactor
from rayorch.policies.presets.default import PRESET as DEFAULT
from rayorch.policies.queue_order import plain

PRESET = replace(
    DEFAULT,
    name="slurm",
    order=multifactor.key,
    queue_order=plain.key,
    preemption=False,
    eviction=EvictionKnobs(),
    retry_backoff_s=120.0,
    ordering=OrderKnobs(weight_age=1000.0, weight_fair_share=10_000.0, weight_queue=1000.0, weight_priority=10_000.0),
)
