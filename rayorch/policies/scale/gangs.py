"""Whole gangs: ask for room for a gang completely or not at all, first come first, and not for thousands at once.

Half a gang's nodes would idle. Beyond the bound, asking for more could not make the first ones come sooner.
"""

from __future__ import annotations

from rayorch.core.decisions import GangDemand

MAX_GANGS = 100
"""Most gangs that are asked for at a time."""


def wanted(waiting: tuple[GangDemand, ...]) -> tuple[GangDemand, ...]:
    """The first gangs in order, up to the bound."""
    return waiting[:MAX_GANGS]
