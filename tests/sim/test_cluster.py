"""The whole loop on simulated nodes: the same step as on Ray, with all invariants checked at every step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.cluster import step
from rayorch.core.events import AttemptEnded, Event, Resized, Started, StopOrdered
from rayorch.core.lifecycle import Move
from rayorch.core.types import Kind, NodeId, State, StopCause, Workload, WorkloadId
from rayorch.sim.checked import CheckedCluster
from rayorch.sim.faults import OWNERS, Actor
from rayorch.sim.work import SimWork
from tests.build import node, queue, workload

W, VIP = WorkloadId("w"), WorkloadId("vip")


def cluster(*gpus: int) -> CheckedCluster:
    return CheckedCluster(tuple(node(f"n{i + 1}", gpu=count) for i, count in enumerate(gpus)), (queue("q"),))


def of(sim: CheckedCluster, id: str = "w") -> Workload:
    return sim.tree.workloads[WorkloadId(id)]


def events(sim: CheckedCluster, kind: type, id: str = "w") -> list[Event]:
    return [event for event in sim.history if type(event) is kind and getattr(event, "workload", None) == id]


def ends(sim: CheckedCluster, id: str = "w") -> list[tuple[Move, StopCause | None]]:
    return [(e.move, e.cause) for e in events(sim, AttemptEnded, id) if isinstance(e, AttemptEnded)]


# ---------------------------------------------------------------- work of each kind


@pytest.mark.parametrize("kind", [Kind.TRAIN, Kind.JOB])
def test_a_gang_runs_to_its_end_and_leaves_nothing(kind: Kind) -> None:
    sim = cluster(4)
    sim.submit(workload("w", members=2, kind=kind), SimWork(steps=20))
    sim.run_to_quiet()
    assert (of(sim).state, of(sim).attempt, of(sim).step) == (State.SUCCEEDED, 1, 20)


def test_the_same_step_runs_on_the_simulated_cluster() -> None:
    sim = cluster(4)
    sim.submit(workload("w"))
    sim.run(1.0)  # the allocator's first comparison with the world
    sim.submit(workload("v"))
    plan, outcomes = step(sim, sim.profile)
    assert [o.decision for o in outcomes] == list(plan.decisions) and all(o.committed for o in outcomes)
    assert of(sim, "v").state is State.RUNNING


def test_a_leased_gang_ends_when_its_client_sends_no_heartbeats() -> None:
    sim = cluster(2)
    sim.submit(workload("w", members=2, kind=Kind.GANG), SimWork(heartbeats_s=30.0))
    sim.run(25)
    assert of(sim).ready_s is not None
    sim.run_to_quiet()
    assert of(sim).state is State.CANCELLED and "heartbeat" in of(sim).reason


def test_training_yields_to_a_burst_of_requests_and_grows_back() -> None:
    """The main job in small: no step is lost, no request is without its replicas for long, all comes back."""
    sim = cluster(4)
    sim.submit(workload("w", 2, 4), SimWork(steps=600, rate=1.0, checkpoint_every=50))
    burst = SimWork(demand=((0.0, 0), (40.0, 2), (90.0, 0)))
    sim.run(20)
    assert of(sim).members("worker") == 4
    sim.submit(workload("app", 1, 2, kind=Kind.SERVE, priority=10), burst)
    sim.run(65)
    app = of(sim, "app")
    assert (app.members("worker"), of(sim).members("worker")) == (2, 2)
    sim.run(60)
    assert (of(sim, "app").members("worker"), of(sim).members("worker")) == (1, 3)
    sim.cancel(WorkloadId("app"))
    sim.run_to_quiet()
    done = of(sim)
    assert (done.state, done.attempt, done.preemptions, done.step) == (State.SUCCEEDED, 1, 0, 600)
    shrinks = [e for e in events(sim, Resized) if isinstance(e, Resized) and e.release_by_s is not None]
    assert {e.beneficiary for e in shrinks} == {"app"}
    steps = [write.step for write in sim.attempts.writes if write.workload == "w"]
    assert steps == sorted(steps)


# ---------------------------------------------------------------- stops


@pytest.mark.parametrize("deaf", [False, True])
def test_a_victim_resumes_from_its_checkpoint(deaf: bool) -> None:
    sim = cluster(2)
    sim.submit(workload("w", members=2, grace_s=8.0), SimWork(steps=40, checkpoint_every=10, deaf=deaf))
    sim.run(9)
    step_then = of(sim).step
    sim.submit(workload("vip", members=2, priority=10), SimWork(steps=12))
    sim.run_to_quiet()
    assert ends(sim) == [(Move.REQUEUED, StopCause.PREEMPTED), (Move.SUCCEEDED, None)]
    assert (of(sim).failures, of(sim).submitted_s) == (0, sim.start_s)
    second = [write.step for write in sim.attempts.writes if write.attempt == 2 and write.workload == "w"]
    assert min(second) > (step_then - 10 if deaf else step_then)


def test_cancelled_at_any_moment_it_is_cancelled_once() -> None:
    for ticks in range(0, 30, 2):
        sim = cluster(2)
        sim.submit(workload("w", members=2, grace_s=5.0), SimWork(steps=60))
        for _ in range(ticks):
            sim.tick()
        sim.cancel(W)
        sim.run_to_quiet()
        assert of(sim).state is State.CANCELLED


def test_an_own_failure_is_retried_and_then_final() -> None:
    sim = cluster(2)
    sim.submit(workload("w", max_retries=2), SimWork(steps=30, fails_at=12, failing_attempts=2))
    sim.submit(workload("v", max_retries=1), SimWork(steps=30, fails_at=12, failing_attempts=2))
    sim.run_to_quiet()
    assert ends(sim) == [(Move.REQUEUED, None), (Move.REQUEUED, None), (Move.SUCCEEDED, None)]
    assert ends(sim, "v") == [(Move.REQUEUED, None), (Move.FAILED, None)]


def test_a_drained_node_is_empty_at_its_deadline() -> None:
    sim = cluster(2, 2)
    sim.submit(workload("w", members=2, grace_s=5.0), SimWork(steps=80))
    sim.run(6)
    (where,) = {m.node for m in of(sim).placement}
    drain_by_s = sim.now_s + 10
    sim.record(sim.tree.cordon(where, "maintenance", drain_by_s, sim.now_s))
    while sim.now_s < drain_by_s + 1.0:
        sim.tick()
    assert not [g for g in sim.world.groups.values() if any(node == where for node, _ in g.bundles)]
    sim.run_to_quiet()
    assert ends(sim) == [(Move.REQUEUED, StopCause.DRAINED), (Move.SUCCEEDED, None)]


# ---------------------------------------------------------------- what breaks


def test_a_lost_node_ends_the_attempt_and_the_next_one_waits_for_the_lease() -> None:
    sim = cluster(2, 2)
    sim.submit(workload("w", members=2), SimWork(steps=60, checkpoint_every=5))
    sim.run(10)
    (where,) = {m.node for m in of(sim).placement}
    lost_s = sim.now_s
    sim.world.lose_node(where)
    sim.run_to_quiet()
    assert ends(sim) == [(Move.REQUEUED, StopCause.NODE_LOST), (Move.SUCCEEDED, None)]
    second = events(sim, Started)[1]
    assert isinstance(second, Started) and second.at_s >= lost_s + sim.profile.lease_s
    assert (of(sim).failures, of(sim).node_losses) == (0, 1)


def test_a_runner_that_is_cut_off_ends_itself_before_it_is_replaced() -> None:
    sim = cluster(2, 2)
    sim.submit(workload("w", members=2), SimWork(steps=100))
    sim.run(10)
    (runner,) = sim.attempts.runners.values()
    runner.cut = True
    sim.run(sim.profile.lease_s + 1)
    assert not sim.attempts.children
    sim.run_to_quiet()
    assert ends(sim)[0] == (Move.REQUEUED, StopCause.LEASE_LAPSED) and of(sim).state is State.SUCCEEDED


def test_work_that_outlives_its_runner_ends_before_it_is_replaced() -> None:
    sim = cluster(2, 2)
    sim.submit(workload("w", members=2), SimWork(steps=100))
    sim.run(10)
    sim.attempts.lose_runner((W, 1))
    sim.run_to_quiet()
    assert ends(sim)[0] == (Move.REQUEUED, StopCause.LEASE_LAPSED) and of(sim).state is State.SUCCEEDED


def test_a_node_on_which_no_group_gets_ready_is_avoided() -> None:
    sim = cluster(2, 2)
    sim.submit(workload("w", members=2))
    sim.world.stuck = {NodeId("n1"), NodeId("n2")}
    sim.run(3)
    (first,) = {m.node for m in of(sim).placement}
    sim.world.stuck = {first}
    sim.run_to_quiet()
    assert ends(sim) == [(Move.REQUEUED, StopCause.START_FAILED), (Move.SUCCEEDED, None)]
    second = events(sim, Started)[1]
    assert isinstance(second, Started) and first not in {m.node for m in second.members}


def test_a_head_restart_without_its_state_requeues_every_attempt() -> None:
    sim = cluster(2, 2)
    for id in ("w", "v"):
        sim.submit(workload(id, members=2), SimWork(steps=60, checkpoint_every=5))
    sim.run(10)
    sim.restart_head()
    sim.run_to_quiet()
    for id in ("w", "v"):
        assert ends(sim, id) == [(Move.REQUEUED, StopCause.NODE_LOST), (Move.SUCCEEDED, None)]
        resumed = [write.step for write in sim.attempts.writes if write.workload == id and write.attempt == 2]
        assert min(resumed) > 5


@pytest.mark.parametrize("actors", [*[(actor,) for actor in OWNERS], OWNERS])
def test_a_restart_of_owners_takes_nothing_from_running_work(actors: tuple[Actor, ...]) -> None:
    sim = cluster(4, 4)
    sim.submit(workload("w", 2, 4), SimWork(steps=200))
    sim.submit(workload("app", 1, 2, kind=Kind.SERVE), SimWork(demand=((0.0, 2),)))
    sim.submit(workload("g", kind=Kind.GANG), SimWork())
    sim.run(20)
    before = {key: held.members for key, held in sim.books.allocations.items()}
    groups = dict(sim.world.groups)
    for actor in actors:
        sim.kill(actor)
    sim.run(5)
    assert sim.world.groups == groups
    after = {key: held.members for key, held in sim.books.allocations.items()}
    plain = [{k: [replace(m, devices=()) for m in v] for k, v in books.items()} for books in (before, after)]
    assert plain[0] == plain[1]
    assert all(not events(sim, kind, id) for kind in (AttemptEnded, StopOrdered) for id in ("w", "app", "g"))


def test_books_that_are_not_compared_with_the_world_start_nothing() -> None:
    sim = cluster(4)
    sim.submit(workload("w"))
    sim.run(5)
    sim.kill(Actor.ALLOCATOR)
    assert not sim.synced
    sim.submit(workload("v"))
    plan, _ = step(sim, sim.profile)
    assert {wait.reason.value for wait in plan.waits[WorkloadId("v")]} >= {"Syncing"}
    sim.run_to_quiet()
