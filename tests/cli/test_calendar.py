"""Arrays, reservations and crons from the command line, against a fake cluster."""

from __future__ import annotations

import json
from dataclasses import replace

from rayorch.core.timing import After, ArrayProgress, ArraySpec, Dependency
from rayorch.core.types import State, WorkloadId
from rayorch.serve_apps.gateway.fake import FakeBackend
from tests.cli.conftest import Run, backend, run, served

__all__ = ["backend", "run", "served"]

CALENDAR = """
apiVersion: rayorch/v1
kind: Reservation
metadata: {name: evening, queue: default}
spec: {count: 2, resources: {GPU: 8}, start: 2000000000, duration: 2h}
---
apiVersion: rayorch/v1
kind: Cron
metadata: {name: nightly, queue: default}
spec:
  schedule: "0 3 * * *"
  workload: {entrypoint: python eval.py}
"""


def test_an_array_is_submitted_listed_and_looked_at_entry_by_entry(run: Run, backend: FakeBackend) -> None:
    words = [
        "submit",
        "--id",
        "sweep",
        "--array",
        "0-99%20",
        "--time",
        "2h",
        "--after",
        "singleton",
        "--",
        "python t.py",
    ]
    assert run(*words).exit_code == 0
    id = WorkloadId("sweep")
    spec = backend.known[id].spec
    assert (spec.array, spec.wall_limit_s) == (ArraySpec(100, 20), 7_200.0)
    assert spec.after == (Dependency(After.SINGLETON),)
    backend.known[id] = replace(backend.known[id], progress=ArrayProgress(61, 20, 18, 1))
    listed = run("ps")
    assert "100*1x0" in listed.stdout
    assert "of 100 entries 20 run, 61 wait, 18 succeeded, 1 failed" in " ".join(listed.stdout.split())
    (row,) = json.loads(run("ps", "-o", "json").stdout)
    assert (row["state"], row["progress"]["succeeded"]) == ("RUNNING", 18)
    entries = json.loads(run("entries", "sweep", "--first", "98", "-o", "json").stdout)
    assert [(e["id"], e["state"]) for e in entries] == [("sweep.98", "PENDING"), ("sweep.99", "PENDING")]
    assert run("entries", "nobody").exit_code != 0


def test_reservations_and_crons_are_applied_listed_and_deleted(run: Run, backend: FakeBackend) -> None:
    assert run("apply", "-f", "-", input=CALENDAR).exit_code == 0
    assert backend.reservations["evening"].count == 2
    assert backend.crons_set["nightly"].schedule == "0 3 * * *"
    (room,) = json.loads(run("reservation", "list", "-o", "json").stdout)
    assert (room["name"], room["state"], room["count"]) == ("evening", "upcoming", 2)
    (cron,) = json.loads(run("cron", "list", "-o", "json").stdout)
    assert (cron["name"], cron["schedule"], cron["submitted"]) == ("nightly", "0 3 * * *", 0)
    assert "evening" in run("reservation", "list").stdout
    assert "nightly" in run("cron", "list").stdout
    assert run("reservation", "delete", "evening").exit_code == 0
    assert run("cron", "delete", "nightly").exit_code == 0
    assert (backend.reservations, backend.crons_set) == ({}, {})
    assert run("cron", "delete", "nightly").exit_code != 0


def test_a_workload_of_the_past_shows_its_own_state(run: Run, backend: FakeBackend) -> None:
    run("submit", "--id", "sweep", "--array", "2", "--", "true")
    id = WorkloadId("sweep")
    backend.known[id] = replace(backend.known[id], progress=ArrayProgress(0, 0, 2))
    backend.advance("sweep", State.SUCCEEDED)
    (row,) = json.loads(run("ps", "-a", "-o", "json").stdout)
    assert row["state"] == "SUCCEEDED"
