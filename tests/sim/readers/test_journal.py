"""What happened live comes out as a trace: from the events of a cluster, through the file that the owner writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from rayorch.actors.journal import Journal
from rayorch.actors.journal_format import entry_of, pack_state
from rayorch.config import load_preset
from rayorch.core.errors import SpecError
from rayorch.core.events import AttemptEnded, AttemptReady, Event, QueueSet, Started, Submitted
from rayorch.core.lifecycle import Move
from rayorch.core.queues import QueueTree
from rayorch.core.types import UNIT, ArraySpec, Kind, Resources, Role, State, StopCause, WorkloadId
from rayorch.sim.checked import CheckedCluster
from rayorch.sim.models.observed import fit, observe
from rayorch.sim.models.runtime import Told
from rayorch.sim.readers import open_trace
from rayorch.sim.readers.journal import load
from rayorch.sim.trace.run import run
from rayorch.sim.work import SimWork
from tests.build import node, queue, seats, workload
from tests.sim.lives import live


def written(path: Path, events: Iterable[Event], compact_after: int | None = None) -> Path:
    """A journal with these events; with `compact_after`, a snapshot after every so many."""
    journal = Journal.open(path, create=True)
    tree = QueueTree()
    events = list(events)
    size = compact_after if compact_after is not None else max(1, len(events))
    for first in range(0, len(events), size):
        journal.append([entry_of(event) for event in events[first : first + size]])
        for event in events[first : first + size]:
            tree.apply(event)
        if compact_after is not None:
            journal.write_snapshot(journal.sequence, pack_state(tree.dump()))
    journal.close()
    return path


def lived() -> CheckedCluster:
    """Two small gangs, one that a larger one preempts, one that is cancelled while it waits, one that still runs."""
    sim = CheckedCluster((node("n1", gpu=4, model="T4"), node("n2", gpu=4, model="T4")), (queue("q"),))
    sim.submit(workload("first", 2, owner="ann", priority=1), SimWork(steps=40, rate=1.0, checkpoint_every=10))
    sim.submit(workload("low", 6), SimWork(steps=480, rate=1.0, checkpoint_every=60))
    sim.run(20)
    sim.submit(workload("high", 6, priority=5, expected_s=30.0), SimWork(steps=150, rate=1.0))
    sim.submit(workload("never", 8), SimWork(steps=10))
    sim.run(5)
    sim.cancel(WorkloadId("never"))
    sim.run_to_quiet()
    sim.submit(workload("still", 1), SimWork(steps=10_000))
    sim.run(30)
    return sim


@pytest.fixture(scope="module")
def sim() -> CheckedCluster:
    return lived()


@pytest.mark.parametrize("compact_after", [None, 50])
def test_a_journal_is_read_as_what_happened(sim: CheckedCluster, tmp_path: Path, compact_after: int | None) -> None:
    path = written(tmp_path / "journal.db", sim.history, compact_after)
    trace = open_trace(path)
    workloads = sim.tree.workloads
    jobs = {job.id: job for job in trace.jobs}
    assert jobs.keys() == {"first", "low", "high", "still"}
    start_s = min(workloads[WorkloadId(id)].submitted_s for id in jobs)
    for id, job in jobs.items():
        live = workloads[WorkloadId(id)]
        assert job.submit_s == live.submitted_s - start_s
        assert (job.ask.members, job.ask.each) == (live.spec.roles[0].min_count, live.spec.roles[0].bundle)
        assert (job.queue, job.user, job.priority) == (live.spec.queue, live.spec.owner, live.spec.priority)
        if live.state is State.SUCCEEDED:
            assert (job.duration_s, job.status, job.ended_s) == (live.progress_s, "succeeded", live.ended_s - start_s)
    assert (jobs["still"].status, jobs["still"].ended_s) == ("", None) and 20 < jobs["still"].duration_s <= 30
    assert workloads[WorkloadId("low")].preemptions == 1
    assert jobs["low"].duration_s == pytest.approx(80, abs=15)  # without what it lost and waited
    assert [row.reason for row in trace.refused] == ["never never started"]
    assert {spec.id for spec in trace.queues} == {"q"}
    if compact_after is None:
        assert [(n.id, n.total.gpu_units // 10_000, n.model) for n in trace.nodes] == [("n1", 4, "T4"), ("n2", 4, "T4")]


def test_a_journal_is_read_while_its_owner_writes_to_it(sim: CheckedCluster, tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal.open(path, create=True)
    journal.append([entry_of(event) for event in sim.history])
    held = load(path)
    assert [event for _, event in held.events] == list(sim.history)
    journal.append([entry_of(Submitted(workload("more"), 1e9))])
    assert len(load(path).events) == len(sim.history) + 1
    journal.close()


def test_without_what_still_runs(sim: CheckedCluster, tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path / "journal.db", sim.history), running=False)
    assert "still" not in {job.id for job in trace.jobs} and len(trace.refused) == 2


def test_records_that_can_not_be_understood_are_counted(sim: CheckedCluster, tmp_path: Path) -> None:
    path = written(tmp_path / "journal.db", sim.history)
    whole = open_trace(path)
    with sqlite3.connect(path) as connection:
        started = [n for n, e in enumerate(sim.history, 1) if isinstance(e, Started) and e.workload == "still"]
        connection.execute("UPDATE record SET body = '{' WHERE sequence = ?", (started[0],))
    trace = open_trace(path)
    assert (started[0], True) in [(row.line, "can't be read" in row.reason) for row in trace.refused]
    assert [job for job in trace.jobs if job.id != "still"] == [job for job in whole.jobs if job.id != "still"]


def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE t (a)")
    newer = written(tmp_path / "newer.db", [])
    with sqlite3.connect(newer) as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'format_version'")
    text = tmp_path / "text"
    text.write_text("no")
    with pytest.raises(SpecError, match="is not a file"):
        load(tmp_path / "nowhere.db")
    for path, why in ((other, "no such table"), (newer, "has format 99"), (text, "is not a journal")):
        with pytest.raises(SpecError, match=why):
            load(path)


def test_drivers_are_left_out_and_unlike_members_counted(tmp_path: Path) -> None:
    driver = replace(workload("a", 2), roles=(Role("driver", Resources.of({"CPU": 1}), 1, 1), *workload("a", 2).roles))
    unlike = replace(driver, id=WorkloadId("b"), roles=(Role("x", Resources.of({"GPU": 2}), 1, 1), *driver.roles))
    events: list[Event] = [QueueSet(queue("q"), 0.0)]
    for spec in (driver, unlike):
        events += [
            Submitted(spec, 0.0),
            Started(spec.id, 1, seats("n1", 2), 0, 0, 0, "", 1.0),
            AttemptReady(spec.id, 1, 2.0),
            AttemptEnded(spec.id, 1, Move.SUCCEEDED, None, 0, "", 0.0, 12.0),
        ]
    trace = open_trace(written(tmp_path / "journal.db", events))
    ((id, members, each, duration_s),) = [(j.id, j.ask.members, j.ask.each, j.duration_s) for j in trace.jobs]
    assert (id, members, each, duration_s) == ("a", 2, Resources.of({"GPU": 1}), 10.0)
    assert [row.reason for row in trace.refused] == ["b has members that are not alike"]


def test_a_node_is_as_large_as_what_a_short_attempt_held(tmp_path: Path) -> None:
    events: list[Event] = [QueueSet(queue("q"), 0.0)]
    for id, gpus, from_s in (("a", 1, 1.0), ("b", 4, 30.0)):
        events += [
            Submitted(workload(id, gpus), from_s),
            Started(WorkloadId(id), 1, seats("n1", gpus), 0, 0, 0, "", from_s),
            AttemptReady(WorkloadId(id), 1, from_s),
            AttemptEnded(WorkloadId(id), 1, Move.SUCCEEDED, None, 0, "", 0.0, from_s + 2.0),
        ]
    trace = open_trace(written(tmp_path / "journal.db", events))
    assert [spec.total.units("GPU") for spec in trace.nodes] == [4 * UNIT]


def test_entries_of_arrays_are_jobs(tmp_path: Path) -> None:
    sim = CheckedCluster((node("n1", gpu=4),), (queue("q"),))
    sim.submit(workload("sweep", 1, array=ArraySpec(5, max_running=2)), SimWork(steps=10, rate=1.0))
    sim.run_to_quiet()
    trace = open_trace(written(tmp_path / "journal.db", sim.history))
    assert [(job.id, job.status) for job in trace.jobs] == [(f"sweep.{n}", "succeeded") for n in range(5)]
    assert all(job.duration_s == pytest.approx(10, abs=1.5) for job in trace.jobs) and trace.refused == ()


@pytest.mark.parametrize("seed", [2, 7])
def test_every_submission_of_a_life_is_a_job_or_counted(seed: int, tmp_path: Path) -> None:
    """Nodes are lost, owners killed, messages lost: whatever was accepted is there once."""
    sim = live(seed, events=150)
    trace = open_trace(written(tmp_path / "journal.db", sim.history, 60))
    submitted = {event.spec.id for event in sim.history if isinstance(event, Submitted)}
    counted = [job.id for job in trace.jobs] + [row.reason.split()[0] for row in trace.refused]
    assert sorted(counted) == sorted(submitted)
    observe(sim.history)


def test_what_was_read_can_be_played_again(sim: CheckedCluster, tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path / "journal.db", sim.history))
    outcome = run(trace, trace.nodes, load_preset("default"), queues=trace.queues)
    assert {record.id: record.preemptions for record in outcome.records} == {
        "first": 0,
        "low": 1,
        "high": 0,
        "still": 0,
    }
    assert [record.state for record in outcome.records] == [State.SUCCEEDED] * 4


def test_the_models_are_fitted_to_what_happened(sim: CheckedCluster) -> None:
    seen = observe(sim.history)
    assert {run.name: run.run_s for run in seen.runs} == {
        id: sim.tree.workloads[WorkloadId(id)].progress_s for id in ("first", "low", "high")
    }
    assert [name for name, _ in seen.restarts] == ["low"]
    assert {name for name, _ in seen.starts} == {"first", "low", "high", "still"}
    models = fit(seen, [("pool", 100.0), ("pool", 200.0)])
    assert models.runtime.told is Told.EXPECTED and models.runtime.misstated.factor > 1
    assert models.restart.of("low").restart_s == seen.restarts[0][1]
    assert models.provisioning.of("pool").mean > 100
    assert models.failures.laws == () and seen.exposed_s > 0


def test_lost_nodes_are_counted_in_the_time_that_they_were_held() -> None:
    spec = workload("w", 2, kind=Kind.JOB)
    events: list[Event] = [Submitted(spec, 0.0)]
    for attempt in (1, 2, 3):
        at_s = 1000.0 * attempt
        events += [
            Started(spec.id, attempt, seats("n1", 2), 0, 0, 0, "", at_s),
            AttemptReady(spec.id, attempt, at_s + 10),
            AttemptEnded(spec.id, attempt, Move.REQUEUED, StopCause.NODE_LOST, None, "", at_s + 500, at_s + 500),
        ]
    seen = observe([QueueSet(queue("q"), 0.0), *events])
    assert (seen.losses, seen.exposed_s) == (3, 1500.0)
    assert [took_s for _, took_s in seen.restarts] == [10.0, 10.0]
    (law,) = fit(seen).failures.laws
    assert law.between.mean == pytest.approx(500.0)
