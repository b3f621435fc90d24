"""Schedules in time zones: what is due when the clocks change, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice

import pytest

from rayorch.config.calendar import check_schedule, label, moments
from rayorch.core.errors import SpecError


def due(schedule: str, zone: str, after: str, count: int) -> list[str]:
    start_s = datetime.fromisoformat(after).timestamp()
    return [
        datetime.fromtimestamp(m, UTC).strftime("%d %H:%M") for m in islice(moments(schedule, zone, start_s), count)
    ]


def test_a_schedule_is_read_in_its_zone() -> None:
    assert due("0 3 * * *", "UTC", "2026-12-01T00:00Z", 2) == ["01 03:00", "02 03:00"]
    assert due("0 3 * * *", "Asia/Kolkata", "2026-12-01T00:00Z", 1) == ["01 21:30"]
    assert due("*/20 * * * *", "UTC", "2026-12-01T00:00Z", 3) == ["01 00:20", "01 00:40", "01 01:00"]
    assert due("0 0 * * 1", "UTC", "2026-12-01T00:00Z", 1) == ["07 00:00"]


def test_an_hour_that_summer_time_skips_is_due_right_after_it() -> None:
    """On 29 March 2026 the clocks of Berlin go from 2:00 to 3:00, which is 1:00 UTC."""
    assert due("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00Z", 2) == ["29 01:00", "30 00:30"]


def test_an_hour_that_comes_twice_is_due_once_but_every_hour_is_due_each_time() -> None:
    """On 25 October 2026 the clocks of Berlin go from 3:00 back to 2:00, which is 1:00 UTC."""
    assert due("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00Z", 2) == ["25 00:30", "26 01:30"]
    hours = ["24 23:00", "25 00:00", "25 01:00", "25 02:00"]
    assert due("0 * * * *", "Europe/Berlin", "2026-10-24T22:00Z", 4) == hours


@pytest.mark.parametrize(
    ("field", "schedule", "zone"),
    [
        ("schedule", "", "UTC"),
        ("schedule", "* * * *", "UTC"),
        ("schedule", "61 * * * *", "UTC"),
        ("schedule", "0 0 31 2 *", "UTC"),
        ("schedule", "@daily", "UTC"),
        ("schedule", "0 " * 200, "UTC"),
        ("time_zone", "0 0 * * *", "Mars/Olympus"),
        ("time_zone", "0 0 * * *", "../../etc/passwd"),
        ("time_zone", "0 0 * * *", ""),
    ],
)
def test_what_is_no_schedule_or_zone_is_refused(field: str, schedule: str, zone: str) -> None:
    with pytest.raises(SpecError) as error:
        check_schedule(schedule, zone)
    assert error.value.field == field


def test_a_moment_has_a_name() -> None:
    assert label(datetime(2026, 12, 1, 3, tzinfo=UTC).timestamp()) == "20261201T0300Z"
