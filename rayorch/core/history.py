"""What was learned from the past: who used how much, and how long finished work took."""

from __future__ import annotations

from dataclasses import dataclass

HALF_LIFE_S = 7 * 24 * 3600.0
"""After so long what was used counts half, unless a profile says otherwise (Slurm's and Kueue's default)."""


@dataclass(frozen=True, slots=True)
class History:
    """What a plan may know of the past."""

    half_life_s: float = HALF_LIFE_S
