"""Calendar arithmetic: when a cron schedule is due, in which time zone.

Wall-clock hours that a change to summer time skips run right after it, those that the change back repeats run once;
what runs every hour or minute follows real hours (Debian's cron, by cronsim). Zones are those of the IANA database, the
machine's or the one that `tzdata` brings.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from rayorch.core.errors import SpecError

MAX_SCHEDULE = 200


def check_schedule(schedule: str, time_zone: str, field: str = "") -> None:
    """SpecError for a schedule that is none, or is never due, and for a time zone that nobody knows."""
    prefix = f"{field}." if field else ""
    zone = _zone(time_zone, f"{prefix}time_zone")
    if not isinstance(schedule, str) or len(schedule) > MAX_SCHEDULE:
        raise SpecError(f"{prefix}schedule", f"must be text of at most {MAX_SCHEDULE} characters")
    try:
        next(CronSim(schedule, datetime.fromtimestamp(0, zone)), None)
    except CronSimError as error:
        raise SpecError(f"{prefix}schedule", f"must be five cron fields, got {schedule!r}: {error}") from error
    if next(moments(schedule, time_zone, 0.0), None) is None:
        raise SpecError(f"{prefix}schedule", f"{schedule!r} is never due")


def moments(schedule: str, time_zone: str, after_s: float) -> Iterator[float]:
    """The times at which it is due after `after_s` [s since the epoch], the first one first, without end."""
    start = datetime.fromtimestamp(after_s, _zone(time_zone, "time_zone"))
    for moment in CronSim(schedule, start):
        yield moment.timestamp()


def label(moment_s: float) -> str:
    """A moment as part of a name: 20261201T0300Z."""
    return datetime.fromtimestamp(moment_s, UTC).strftime("%Y%m%dT%H%MZ")


def _zone(name: str, field: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, TypeError, OSError) as error:  # ZoneInfoNotFoundError is a KeyError
        raise SpecError(field, f"must be a time zone such as Europe/Berlin, got {str(name)[:60]!r}") from error
