"""When the owner's crons are due: the schedules in numbers, for the core that decides what follows."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from rayorch.config.calendar import label, moments
from rayorch.core.cron import MOST_MADE_UP, Cron, CronView, Moment

CRON_LOOK_S = 30.0
"""The longest time between two looks at the schedules; each is looked at again when it is due."""

HORIZON_S = 7 * 86_400.0
"""Of a schedule that has been due within this time, what lies before that is not looked at."""


@dataclass(frozen=True, slots=True)
class Due:
    """Moments that have come since the last look (the newest, if there were very many), and the next one."""

    moments: tuple[Moment, ...]
    next_s: float


def due_moments(cron: Cron, now_s: float) -> Due:
    """What has come of a cron's schedule."""
    found: deque[float] = deque(maxlen=MOST_MADE_UP + 1)
    schedule, zone, looked_s = cron.spec.schedule, cron.spec.time_zone, cron.looked_s
    recent_s = max(looked_s, now_s - HORIZON_S)
    after_s = recent_s if next(moments(schedule, zone, recent_s)) <= now_s else looked_s
    for moment_s in moments(schedule, zone, after_s):
        if moment_s > now_s:
            return Due(tuple(Moment(s, label(s)) for s in found), moment_s)
        found.append(moment_s)
    raise AssertionError("a schedule has no end")


def cron_view(cron: Cron, now_s: float) -> CronView:
    """With the time at which it is due next."""
    if cron.spec.suspended:
        return CronView(cron, None)
    return CronView(cron, next(moments(cron.spec.schedule, cron.spec.time_zone, max(now_s, cron.looked_s))))
