"""Behaves like YuniKorn as far as docs/presets.md says: fair sorting of queues by priority and by what they deserve."""

from __future__ import annotations

from dataclasses import replace

from rayorch.core.eviction import EvictionKnobs
from rayorch.policies.place import spread
from rayorch.policies.presets.default import PRESET as DEFAULT
from rayorch.policies.queue_order import fair

PRESET = replace(DEFAULT, name="yunikorn", queue_order=fair.key, score=spread.score, eviction=EvictionKnobs())
