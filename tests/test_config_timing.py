"""What documents ask of time: limits, begin, retries, dependencies, arrays, reservations, schedules."""

from __future__ import annotations

from typing import Any

import pytest

from rayorch.config import (
    ClusterDocument,
    CronDocument,
    ReservationDocument,
    WorkloadDocument,
    load_documents,
    parse_document,
)
from rayorch.core.cron import Concurrency, Missed
from rayorch.core.errors import SpecError
from rayorch.core.policy import BackfillKnobs
from rayorch.core.timing import After, ArraySpec, Dependency, RetryRule
from rayorch.core.types import WorkloadId, WorkloadSpec

NINE_IN_BERLIN_S = 1_796_112_000.0


def document(kind: str, **spec: Any) -> dict[str, Any]:
    metadata = {"name": "x", "queue": "research"}
    return {"apiVersion": "rayorch/v1", "kind": kind, "metadata": metadata, "spec": spec}


def submitted(**spec: Any) -> WorkloadSpec:
    parsed = parse_document(document("Workload", entrypoint="true", **spec))
    assert isinstance(parsed, WorkloadDocument)
    return parsed.to_core()


def test_everything_that_a_workload_may_ask() -> None:
    asked = submitted(
        wallLimit="4h",
        expected="90m",
        begin="2026-12-01T09:00:00+01:00",
        after=["afterok:prep:fetch", "singleton"],
        array="1-100%20",
        retry={"max": 1, "rules": [{"exitCodes": [137], "max": 5, "backoff": "30s"}], "maxRequeues": 9},
        reservation="r",
    )
    assert (asked.wall_limit_s, asked.expected_s, asked.begin_s) == (14_400.0, 5_400.0, NINE_IN_BERLIN_S)
    assert asked.after == (
        Dependency(After.OK, WorkloadId("prep")),
        Dependency(After.OK, WorkloadId("fetch")),
        Dependency(After.SINGLETON),
    )
    assert asked.array == ArraySpec(100, 20, 1)
    assert (asked.max_retries, asked.retries, asked.max_requeues) == (1, (RetryRule((137,), 5, 30.0),), 9)
    assert asked.reservation == "r"


@pytest.mark.parametrize(
    ("written", "meant"),
    [(7, ArraySpec(7)), ("0-6", ArraySpec(7)), ({"count": 7, "maxRunning": 2}, ArraySpec(7, 2)), (None, None)],
)
def test_an_array_may_be_written_shortly(written: object, meant: ArraySpec | None) -> None:
    assert submitted(array=written).array == meant


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("spec.wallLimit", {"wallLimit": 0}),
        ("spec.wallLimit", {"wallLimit": "soon"}),
        ("spec.begin", {"begin": "2026-12-01T09:00:00"}),
        ("spec.begin", {"begin": "tomorrow"}),
        ("spec.after[0]", {"after": ["afterok"]}),
        ("spec.after[0]", {"after": ["singleton:x"]}),
        ("spec.after[0]", {"after": ["when:x"]}),
        ("spec.after[0]", {"after": ["afterok::x"]}),
        ("spec.array", {"array": "9-1"}),
        ("spec.array", {"array": "all"}),
        ("spec.array.count", {"array": 100_001}),
        ("spec.array.count", {"array": 0}),
        ("spec.retry.rules[0].max", {"retry": {"rules": [{"max": -1}]}}),
    ],
)
def test_what_can_t_be_right_is_refused_with_its_field(field: str, spec: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as error:
        submitted(**spec)
    assert error.value.field == field


def test_reservations_once_repeated_and_standing() -> None:
    made = parse_document(
        document("Reservation", count=4, resources=8, start="2026-12-01T08:00:00Z", duration="2h", every="24h")
    )
    assert isinstance(made, ReservationDocument)
    spec = made.to_core()
    assert (spec.id, spec.queue, spec.count, spec.bundle.to_floats()) == ("x", "research", 4, {"GPU": 8.0})
    assert (spec.start_s, spec.end_s, spec.every_s) == (NINE_IN_BERLIN_S, NINE_IN_BERLIN_S + 7_200, 86_400.0)
    standing = parse_document(document("Reservation", count=1, resources=8, standing=True)).to_core()
    assert (standing.standing, standing.end_s) == (True, None)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("spec.count", {"count": 0, "resources": 8}),
        ("spec.end", {"count": 1, "resources": 8}),
        ("spec.duration", {"count": 1, "resources": 8, "end": 9e9, "duration": "1h"}),
        ("spec.resources", {"count": 1, "resources": 0, "standing": True}),
        ("spec.every", {"count": 1, "resources": 8, "start": 1.0, "duration": "2h", "every": "1h"}),
    ],
)
def test_reservations_that_can_t_be_right(field: str, spec: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as error:
        parse_document(document("Reservation", **spec)).to_core()
    assert error.value.field == field


def test_a_cron_holds_a_workload_and_its_rules() -> None:
    text = """
apiVersion: rayorch/v1
kind: Cron
metadata: {name: nightly, queue: research}
spec:
  schedule: "0 3 * * *"
  timeZone: Europe/Berlin
  concurrency: replace
  missed: all
  lateAfter: 5m
  workload:
    entrypoint: python eval.py
    wallLimit: 2h
"""
    (made,) = load_documents(text)
    assert isinstance(made, CronDocument)
    spec = made.to_core()
    assert (spec.id, spec.time_zone, spec.late_s) == ("nightly", "Europe/Berlin", 300.0)
    assert (spec.concurrency, spec.missed) == (Concurrency.REPLACE, Missed.ALL)
    assert (spec.template.queue, spec.template.wall_limit_s) == ("research", 7_200.0)


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("spec.schedule", {"schedule": "daily", "workload": {"entrypoint": "true"}}),
        ("spec.timeZone", {"schedule": "0 3 * * *", "timeZone": "CEST?", "workload": {"entrypoint": "true"}}),
        ("spec.missed", {"schedule": "0 3 * * *", "missed": "maybe", "workload": {"entrypoint": "true"}}),
        ("spec.workload.entrypoint", {"schedule": "0 3 * * *", "workload": {}}),
        ("spec.workload", {"schedule": "0 3 * * *"}),
    ],
)
def test_crons_that_can_t_be_right(field: str, spec: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as error:
        parse_document(document("Cron", **spec)).to_core()
    assert error.value.field == field


def test_a_cluster_says_how_far_backfill_looks_and_how_early_reservations_hold() -> None:
    text = """
apiVersion: rayorch/v1
kind: Cluster
metadata: {name: main}
spec:
  backfill: {heads: 2, mostTries: 50, hold: false, lend: false}
  reservations: {lead: 30m}
"""
    (made,) = load_documents(text)
    assert isinstance(made, ClusterDocument)
    profile = made.to_core().load_profile()
    assert profile.backfill == BackfillKnobs(hold=False, lend=False, heads=2, most_tries=50, most_looks=2_000)
    assert profile.reservations.lead_s == 1_800.0
