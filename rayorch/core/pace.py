"""How fast work goes while it shares a GPU, by its own reports, and how fast it goes alone.

Time is cut into *windows*, in each of which the same others are on its GPUs. A window's pace is that between its first
and its last report of steps; it counts when these are far enough apart. The pace of a window in which nobody else was
there is the one *alone*, with which all others are compared: as a rate, of what it is alone. What is found out is
remembered by kind (`kind_of`), so that others of the kind need not find it out again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rayorch.core.ids import WorkloadId
from rayorch.core.values import changed

LEAST_S = 60.0
"""A window counts when its reports are at least so far apart …"""
LEAST_STEPS = 10
"""… and have so many steps between them."""
FRESH_S = 2.0
"""A report that is no older than that when a window begins is its first one."""
NEWEST = 0.5
"""What the newest measurement counts beside all former ones of its kind."""

Beside = tuple[tuple[WorkloadId, int], ...]
"""The attempts that share a GPU with one: (workload, attempt), in order."""
PaceKey = tuple[str, str, str]
"""(kind, kind beside it or nothing, model of GPU): of the first the pace alone, else its rate beside the other."""

_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Pace:
    """Of one workload. `beside`: who shares a GPU with it in this window; `ready`: whether all of them work already.

    `first_step` at `first_s`, `last_step` at `last_s`: the window's reports, negative before the first. `alone`: steps
    a second that it was last seen to do alone on a `model` of GPU, 0: never.
    """

    beside: Beside = ()
    ready: bool = False
    first_step: int = -1
    first_s: float = 0.0
    last_step: int = -1
    last_s: float = 0.0
    alone: float = 0.0
    model: str = ""

    def measured(self, least_s: float = LEAST_S) -> float:
        """Steps a second in this window, 0: not measured for long enough."""
        took_s, steps = self.last_s - self.first_s, self.last_step - self.first_step
        if not self.ready or self.first_step < 0 or took_s < max(least_s, LEAST_S) or steps < LEAST_STEPS:
            return 0.0
        return steps / took_s


def kind_of(owner: str, name: str) -> str:
    """Work of one owner and name goes alike; numbers in it don't matter."""
    return f"{owner}/{_DIGITS.sub('#', name)}"


def stepped(pace: Pace, step: int, at_s: float) -> Pace:
    """After a report. Where no time has passed since the last one the clock stands, as an owner's does after it was set
    back: steps of that time tell no pace, so the window begins here."""
    if pace.first_step < 0 or at_s <= pace.last_s:
        return changed(pace, first_step=step, first_s=at_s, last_step=step, last_s=at_s)
    return changed(pace, last_step=max(step, pace.last_step), last_s=at_s)


def opened(pace: Pace | None, beside: Beside, ready: bool, model: str, at_s: float) -> Pace:
    """A new window after this one."""
    if pace is None:
        return Pace(beside, ready, model=model)
    known = _alone(pace) if pace.model == model else 0.0
    if pace.last_step >= 0 and at_s - pace.last_s <= FRESH_S:
        return Pace(beside, ready, pace.last_step, pace.last_s, pace.last_step, pace.last_s, known, model)
    return Pace(beside, ready, alone=known, model=model)


def ended(pace: Pace) -> Pace:
    """What is left of it when its attempt has ended."""
    return Pace(alone=_alone(pace), model=pace.model)


def _alone(pace: Pace) -> float:
    return (pace.measured() if not pace.beside else 0.0) or pace.alone


def learned(
    pace: Pace, kind: str, others: Mapping[WorkloadId, str], known: Mapping[PaceKey, float]
) -> tuple[PaceKey, float] | None:
    """What a window that closes tells of its kind; `others`: the kinds of those beside it. None: nothing."""
    steps_per_s = pace.measured()
    if not steps_per_s or len(pace.beside) > 1:
        return None
    if not pace.beside:
        return (kind, "", pace.model), steps_per_s
    other = others.get(pace.beside[0][0])
    alone = pace.alone or known.get((kind, "", pace.model), 0.0)
    if other is None or not alone:
        return None
    return (kind, other, pace.model), steps_per_s / alone


def rate(
    pace: Pace, kind: str, other: str, known: Mapping[PaceKey, float], least_s: float = LEAST_S
) -> tuple[float, bool] | None:
    """How fast it is beside the one that shares its GPU, of what it is alone, and whether it was measured of itself.

    Else what was learned of the two kinds; None: nobody knows.
    """
    alone = pace.alone or known.get((kind, "", pace.model), 0.0)
    steps_per_s = pace.measured(least_s)
    if alone and steps_per_s:
        return steps_per_s / alone, True
    told = known.get((kind, other, pace.model))
    return None if told is None else (told, False)
