"""Behaves like KAI as far as docs/presets.md and docs/preemption.md say."""

from __future__ import annotations

from dataclasses import replace

from rayorch.core.eviction import Action, EvictionKnobs
from rayorch.policies.presets.default import PRESET as DEFAULT

PRESET = replace(DEFAULT, name="kai", eviction=EvictionKnobs(passes=tuple(Action)))
