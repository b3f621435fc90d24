"""Behaves like kai as far as docs/presets.md says."""

from __future__ import annotations

from dataclasses import replace

from rayorch.policies.presets.default import PRESET as DEFAULT

PRESET = replace(DEFAULT, name="kai", even_growth=True)
