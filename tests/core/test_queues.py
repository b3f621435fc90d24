"""The queue tree: what is refused at the door, what is committed, and that replay gives the same state."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayorch.core.admission import check_instance
from rayorch.core.codec import decode, encode
from rayorch.core.decisions import Resize, Start, Stop
from rayorch.core.errors import AdmissionError, RayorchError, SpecError, StalePlanError
from rayorch.core.events import AttemptEnded, Event, StopOrdered
from rayorch.core.lifecycle import Move
from rayorch.core.queues import NodeShape, QueueTree
from rayorch.core.reports import CheckpointCommitted, DemandReported, GrantApplied, StepReported
from rayorch.core.snapshot import Versions
from rayorch.core.types import (
    MAX_UNITS,
    Kind,
    NodeId,
    QueueId,
    Resources,
    Role,
    State,
    StopCause,
    StopOrder,
    TopologyRequest,
    WorkloadId,
)
from tests.build import apply, gpus, queue, seat, seats, tree, workload

V = Versions(1, 2, 3)
W = WorkloadId("w")


def start(id: str = "w", attempt: int = 1, count: int = 1) -> Start:
    return Start(WorkloadId(id), attempt, seats("n1", count), "fits")


def stop(cause: StopCause, deadline_s: float = 20.0, attempt: int = 1) -> Stop:
    return Stop(W, attempt, StopOrder(cause, cause.value, 10.0, deadline_s))


def ended(move: Move, cause: StopCause | None = None, attempt: int = 1, not_before_s: float = 0.0) -> AttemptEnded:
    return AttemptEnded(W, attempt, move, cause, None, "over", not_before_s, 30.0)


def running(**spec: object) -> QueueTree:
    built = tree(waiting=[workload("w", **spec)])  # type: ignore[arg-type]
    apply(built, built.commit_start(start(), V, 5.0))
    return built


# ---------------------------------------------------------------- the door


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("id", workload("")),
        ("id", workload("a/b")),
        ("id", workload("a\n")),
        ("id", workload("x" * 200)),
        ("roles", replace(workload("w"), roles=())),
        ("roles", replace(workload("w"), roles=(Role("a", gpus(1), 1, 1), Role("a", gpus(1), 1, 1)))),
        ("roles", replace(workload("w"), roles=(Role("a", gpus(1), 0, 3),))),
        ("roles.a.min_count", replace(workload("w"), roles=(Role("a", gpus(1), -1, 1),))),
        ("roles.a.max_count", replace(workload("w"), roles=(Role("a", gpus(1), 2, 1),))),
        ("roles.a.max_count", replace(workload("w"), roles=(Role("a", gpus(1), 1, 10**9),))),
        ("roles.a.bundle", replace(workload("w"), roles=(Role("a", Resources(), 1, 1),))),
        ("roles.a.bundle.GPU", replace(workload("w"), roles=(Role("a", Resources((("GPU", -1),)), 1, 1),))),
        ("roles.a.bundle.GPU", replace(workload("w"), roles=(Role("a", gpus(1.5), 1, 1),))),
        ("roles", replace(workload("w"), roles=(Role("a", Resources((("memory", MAX_UNITS),)), 2, 2),))),
        ("grace_s", workload("w", grace_s=float("nan"))),
        ("grace_s", workload("w", grace_s=-1.0)),
        ("min_runtime_s", workload("w", min_runtime_s=float("inf"))),
        ("max_retries", workload("w", max_retries=-1)),
    ],
)
def test_what_can_not_be_right_is_refused_with_its_field(field: str, spec: object) -> None:
    built = tree()
    with pytest.raises(SpecError) as error:
        built.submit(spec, 0.0)  # type: ignore[arg-type]
    assert error.value.field == field
    assert not built.workloads


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("queue", workload("w", queue="nowhere")),
        ("priority", workload("w", priority=11)),
        ("queue", workload("w", members=9)),  # deserved 4, may borrow 4
        ("roles.worker.bundle", workload("w", gpu=5)),
        ("roles", workload("w", members=2, gpu=3, queue="free")),  # one node only holds 3 whole
        ("topology.required", workload("w", members=4, gpu=1, queue="free", topology=TopologyRequest("node"))),
        ("topology.required", workload("w", queue="free", topology=TopologyRequest("zone"))),
        ("topology.required", workload("w", members=4, queue="free", topology=TopologyRequest("rack"))),
    ],
)
def test_what_this_cluster_can_never_hold_is_refused_with_its_field(field: str, spec: object) -> None:
    built = tree(queue("all", 8), queue("all/q", 4, 4, max_priority=10), queue("free"), queue("all/other", 4))
    shapes = (
        NodeShape(gpus(3, 8), 1, (("rack", "r1"),)),
        NodeShape(gpus(2, 8), 2, (("rack", "r2"),)),
        NodeShape(gpus(1, 8), 2, (("rack", "r2"),)),
    )
    built.set_capacity(shapes[:2] if "topology" not in field else (shapes[0], shapes[2]))
    fixed = replace(spec, queue=QueueId("all/q")) if spec.queue == "q" else spec  # type: ignore[attr-defined,type-var]
    with pytest.raises(AdmissionError) as error:
        built.submit(fixed, 0.0)  # type: ignore[arg-type]
    assert error.value.field == field


def test_without_known_nodes_everything_may_fit() -> None:
    assert len(tree().submit(workload("w", members=1000), 0.0)) == 1


def test_a_full_queue_refuses_and_so_does_a_full_parent() -> None:
    built = tree(queue("a", max_pending=2), queue("a/b", max_pending=1))
    apply(built, built.submit(workload("w1", queue="a/b"), 0.0))
    with pytest.raises(AdmissionError, match="'a/b' is full"):
        built.submit(workload("w2", queue="a/b"), 0.0)
    apply(built, built.submit(workload("w2", queue="a"), 0.0))
    with pytest.raises(AdmissionError, match="'a' is full"):
        built.submit(workload("w3", queue="a"), 0.0)
    apply(built, built.commit_start(start("w1"), V, 1.0))
    assert built.submit(workload("w3", queue="a/b"), 2.0)


@pytest.mark.parametrize("id", [".", "..", "a/b", "", " a", "a\n", "x" * 129, "\N{SNOWMAN}" * 64])
def test_an_id_that_can_name_no_folder_group_or_actor_is_refused(id: str) -> None:
    with pytest.raises(SpecError, match="id"):
        tree().submit(workload(id), 0.0)


@pytest.mark.parametrize("name", ["a/b", "", "..", "x" * 64, "a b"])
def test_an_instance_with_a_slash_would_be_taken_for_a_workload_of_another(name: str) -> None:
    with pytest.raises(SpecError, match="instance"):
        check_instance(name)
    check_instance("main-2.eu")


def test_submitting_again_is_nothing_new_but_the_id_is_taken() -> None:
    built = tree(waiting=[workload("w")])
    assert built.submit(workload("w"), 9.0) == ()
    with pytest.raises(AdmissionError) as error:
        built.submit(workload("w", members=2), 9.0)
    assert error.value.field == "id"


def test_queues_come_and_go_only_when_nothing_depends_on_them() -> None:
    built = tree(queue("a"), queue("a/b"), waiting=[workload("w", queue="a/b")])
    assert built.set_queue(queue("a"), 1.0) == ()
    with pytest.raises(AdmissionError, match="parent"):
        built.set_queue(queue("x/y"), 1.0)
    with pytest.raises(AdmissionError, match="child"):
        built.delete_queue(QueueId("a"), 1.0)
    with pytest.raises(AdmissionError, match="not ended"):
        built.delete_queue(QueueId("a/b"), 1.0)
    apply(built, built.cancel(W, "no", 1.0))
    apply(built, built.delete_queue(QueueId("a/b"), 1.0))
    assert built.delete_queue(QueueId("a/b"), 1.0) == ()
    assert set(built.queues) == {"a"}


@pytest.mark.parametrize("path", ["", "a//b", "/a", " a", "a/ "])
def test_a_queue_needs_a_path(path: str) -> None:
    with pytest.raises(SpecError):
        tree().set_queue(replace(queue("x"), id=QueueId(path)), 0.0)


# ---------------------------------------------------------------- commits


def test_a_start_is_committed_once() -> None:
    built = tree(waiting=[workload("w")])
    assert len(apply(built, built.commit_start(start(), V, 5.0))) == 1
    assert built.commit_start(start(), V, 6.0) == ()
    committed = built.workloads[W]
    assert (committed.state, committed.attempt, committed.placement) == (State.RUNNING, 1, seats("n1", 1))
    assert committed.size == (("worker", 1),)
    with pytest.raises(StalePlanError):
        built.commit_start(Start(W, 1, seats("n2", 1), "elsewhere"), V, 6.0)


def test_a_stale_start_is_refused() -> None:
    built = tree(waiting=[workload("w"), workload("c")])
    with pytest.raises(StalePlanError, match="next attempt"):
        built.commit_start(start(attempt=2), V, 5.0)
    with pytest.raises(StalePlanError, match="does not exist"):
        built.commit_start(start("unknown"), V, 5.0)
    apply(built, built.cancel(WorkloadId("c"), "no", 1.0))
    with pytest.raises(StalePlanError, match="CANCELLED"):
        built.commit_start(start("c"), V, 5.0)
    apply(built, built.commit_start(start(), V, 5.0))
    apply(built, built.end_attempt(ended(Move.REQUEUED, StopCause.NODE_LOST, not_before_s=40.0)))
    with pytest.raises(StalePlanError, match="must not start before"):
        built.commit_start(start(attempt=2), V, 39.0)
    assert built.commit_start(start(attempt=2), V, 40.0)


def test_a_start_above_quota_is_refused_and_room_comes_back_with_the_end() -> None:
    built = tree(queue("q", 2, 0), waiting=[workload("w", members=2), workload("v")])
    apply(built, built.commit_start(start(count=2), V, 5.0))
    assert built.used(QueueId("q")) == gpus(2)
    with pytest.raises(StalePlanError, match="GPU"):
        built.commit_start(start("v"), V, 6.0)
    apply(built, built.end_attempt(ended(Move.SUCCEEDED)))
    assert built.used(QueueId("q")) == Resources()
    assert built.commit_start(start("v"), V, 31.0)


def test_a_stop_is_ordered_once_and_only_a_stronger_or_an_earlier_one_replaces_it() -> None:
    built = running()
    assert len(apply(built, built.commit_stop(stop(StopCause.PREEMPTED), 10.0))) == 1
    assert built.commit_stop(stop(StopCause.RECLAIMED), 11.0) == ()
    assert len(apply(built, built.commit_stop(stop(StopCause.PREEMPTED, 15.0), 11.0))) == 1  # sooner
    assert len(apply(built, built.commit_stop(stop(StopCause.CANCELLED), 11.0))) == 1
    assert built.commit_stop(stop(StopCause.CANCELLED), 11.0) == ()
    assert built.commit_stop(stop(StopCause.PREEMPTED, 1.0), 11.0) == ()
    assert len(apply(built, built.commit_stop(stop(StopCause.NODE_LOST, 12.0), 12.0))) == 1
    order = built.workloads[W].stop
    assert order is not None and order.cause is StopCause.NODE_LOST
    with pytest.raises(StalePlanError):
        built.commit_stop(stop(StopCause.PREEMPTED, attempt=2), 11.0)
    apply(built, built.end_attempt(ended(Move.REQUEUED, StopCause.NODE_LOST)))
    assert built.commit_stop(stop(StopCause.PREEMPTED), 40.0) == ()


def test_a_victim_keeps_its_place_and_resumes_at_its_checkpoint() -> None:
    built = running(max_retries=0)
    apply(built, built.report(W, 1, CheckpointCommitted(7, "s3://w/7", 8.0), 8.0))
    apply(built, built.report(W, 1, StepReported(9, 9.0), 9.0))
    assert built.workloads[W].step == 9
    apply(built, built.commit_stop(stop(StopCause.PREEMPTED), 10.0))
    apply(built, built.end_attempt(ended(Move.REQUEUED, StopCause.PREEMPTED)))
    back = built.workloads[W]
    assert (back.state, back.submitted_s, back.step, back.preemptions, back.failures) == (State.PENDING, 0.0, 7, 1, 0)
    assert back.placement == () and back.stop is None and back.started_s is None


def test_an_own_failure_counts_and_a_lost_node_does_not() -> None:
    built = running()
    apply(built, built.end_attempt(ended(Move.REQUEUED)))
    apply(built, built.commit_start(start(attempt=2), V, 40.0))
    apply(built, built.end_attempt(ended(Move.REQUEUED, StopCause.NODE_LOST, attempt=2)))
    back = built.workloads[W]
    assert (back.failures, back.node_losses, back.preemptions) == (1, 1, 0)


def test_what_was_cancelled_in_the_meantime_is_not_requeued() -> None:
    built = running()
    apply(built, built.cancel(W, "changed my mind", 8.0))
    assert built.workloads[W].reason == "changed my mind"
    events = apply(built, built.end_attempt(ended(Move.REQUEUED, StopCause.LEASE_LAPSED)))
    assert [type(e) for e in events] == [StopOrdered, AttemptEnded]
    assert built.workloads[W].state is State.CANCELLED
    assert built.cancel(W, "again", 50.0) == ()
    assert built.end_attempt(ended(Move.REQUEUED)) == ()


def test_a_resize_changes_the_seats_once() -> None:
    built = running(most=3)
    grown = (*seats("n1", 1), seat("n2", 1, surplus=1))
    resize = Resize(W, 1, grown[1:], (), "room")
    assert len(apply(built, built.commit_resize(resize, grown, 8.0))) == 1
    assert built.commit_resize(resize, grown, 9.0) == ()
    assert built.workloads[W].members("worker") == 2
    shrink = Resize(W, 1, (), (1,), "needed elsewhere", 20.0, WorkloadId("v"))
    apply(built, built.commit_resize(shrink, seats("n1", 1), 10.0))
    small = built.workloads[W]
    assert (small.members("worker"), small.release_by_s, small.release_for) == (1, 20.0, "v")
    with pytest.raises(StalePlanError):
        built.commit_resize(replace(shrink, attempt=2), seats("n1", 1), 10.0)


# ---------------------------------------------------------------- attempts


def test_reports_of_a_replaced_attempt_are_refused() -> None:
    built = running()
    apply(built, built.end_attempt(ended(Move.REQUEUED, StopCause.NODE_LOST)))
    with pytest.raises(StalePlanError):
        built.report(W, 1, CheckpointCommitted(99, "s3://old", 31.0), 31.0)
    apply(built, built.commit_start(start(attempt=2), V, 40.0))
    with pytest.raises(StalePlanError):
        built.report(W, 1, CheckpointCommitted(99, "s3://old", 41.0), 41.0)
    assert not built.renew(W, 1, 41.0) and built.renew(W, 2, 41.0)


def test_reports_without_news_are_no_events() -> None:
    built = running()
    apply(built, built.report(W, 1, StepReported(5, 6.0), 6.0))
    assert built.report(W, 1, StepReported(5, 7.0), 7.0) == ()
    assert built.report(W, 1, StepReported(4, 7.0), 7.0) == ()
    apply(built, built.report(W, 1, CheckpointCommitted(5, "u", 7.0), 7.0))
    assert built.report(W, 1, CheckpointCommitted(4, "old", 8.0), 8.0) == ()
    apply(built, built.report(W, 1, DemandReported(3, 0, 7.0), 7.0))
    assert built.report(W, 1, DemandReported(3, 0, 8.0), 8.0) == ()
    assert len(built.report(W, 1, GrantApplied(2, 8.0), 8.0)) == 1


def test_the_demand_is_low_since_it_first_was() -> None:
    built = running(most=3, kind=Kind.SERVE)
    grown = (*seats("n1", 1), seat("n2", 1, surplus=1))
    apply(built, built.commit_resize(Resize(W, 1, grown[1:], (), "burst"), grown, 8.0))
    for at_s, ongoing, since_s in ((9.0, 2, None), (10.0, 1, 10.0), (11.0, 0, 10.0), (12.0, 2, None), (13.0, 1, 13.0)):
        apply(built, built.report(W, 1, DemandReported(ongoing, 0, at_s), at_s))
        assert built.workloads[W].demand_low_since_s == since_s
    apply(built, built.commit_resize(Resize(W, 1, (), (1,), "over"), seats("n1", 1), 14.0))
    assert built.workloads[W].demand_low_since_s is None


def test_a_lease_is_refused_after_the_deadline_of_a_stop() -> None:
    built = running()
    apply(built, built.commit_stop(stop(StopCause.PREEMPTED, deadline_s=20.0), 10.0))
    assert built.renew(W, 1, 20.0)
    assert not built.renew(W, 1, 20.1)
    assert not built.renew(WorkloadId("unknown"), 1, 1.0)


def test_after_a_restart_live_attempts_count_as_renewed() -> None:
    built = running()
    built.renew(W, 1, 7.0)
    again = QueueTree.restore(built.dump())
    again.renew_all(100.0)
    assert again.workloads[W].lease_renewed_s == 100.0


def test_no_seat_is_committed_on_a_node_that_was_cordoned_since_the_decision() -> None:
    built = tree(waiting=[workload("w", members=1, most=2)])
    apply(built, built.cordon(NodeId("n1"), "maintenance", None, 2.0))
    with pytest.raises(StalePlanError, match="n1 is cordoned"):
        built.commit_start(start(), V, 5.0)
    apply(built, built.uncordon(NodeId("n1"), "done", 6.0))
    apply(built, built.commit_start(start(), V, 7.0))
    apply(built, built.cordon(NodeId("n1"), "maintenance", None, 8.0))
    assert built.commit_start(start(), V, 9.0) == ()  # it has been committed: again is nothing new
    more = seat("n1", 1, surplus=1)
    with pytest.raises(StalePlanError, match="n1 is cordoned"):
        built.commit_resize(Resize(W, 1, (more,), (), "more"), (seat("n1"), more), 10.0)
    other = seat("n2", 1, surplus=1)
    assert built.commit_resize(Resize(W, 1, (other,), (), "more"), (seat("n1"), other), 10.0)


def test_cordons_are_kept_until_lifted() -> None:
    built = tree()
    apply(built, built.cordon(NodeId("n1"), "fan", None, 1.0))
    assert built.cordon(NodeId("n1"), "fan", None, 2.0) == ()
    apply(built, built.cordon(NodeId("n1"), "fan", 60.0, 2.0))
    assert built.cordons[NodeId("n1")].drain_by_s == 60.0
    apply(built, built.uncordon(NodeId("n1"), "mended", 3.0))
    assert built.uncordon(NodeId("n1"), "mended", 3.0) == () and not built.cordons


# ---------------------------------------------------------------- replay and readers


def random_command(rng: random.Random, built: QueueTree, now_s: float) -> tuple[Event, ...]:
    """What one of all commands answers, with random arguments."""
    id = WorkloadId(f"w{rng.randrange(5)}")
    known = built.workloads.get(id)
    attempt = known.attempt if known is not None else 0
    match rng.randrange(9):
        case 0:
            return built.submit(workload(id, members=2, most=4), now_s)
        case 1 | 2:
            return built.commit_start(start(id, attempt + 1, 2), V, now_s)
        case 3:
            order = StopOrder(rng.choice(list(StopCause)), "r", now_s, now_s + 5)
            return built.commit_stop(Stop(id, attempt, order), now_s)
        case 4:
            move = rng.choice([Move.REQUEUED, Move.SUCCEEDED, Move.FAILED])
            return built.end_attempt(AttemptEnded(id, attempt, move, None, 1, "over", now_s + 1, now_s))
        case 5:
            return built.report(id, attempt, CheckpointCommitted(int(now_s), "u", now_s), now_s)
        case 6:
            return built.ready(id, attempt, now_s)
        case 7:
            return built.cancel(id, "no", now_s)
        case _:
            grown = (*seats("n1", 2), seat("n2", 2, surplus=1))
            return built.commit_resize(Resize(id, attempt, (), (), "r"), grown, now_s)


def random_history(seed: int, length: int) -> tuple[list[Event], QueueTree]:
    """A tree after random commands, and its events."""
    rng = random.Random(seed)
    built = QueueTree()
    events: list[Event] = list(apply(built, built.set_queue(queue("q", 6, 2), 0.0)))
    for now in range(1, length):
        with contextlib.suppress(RayorchError):  # a command that makes no sense in this state changes nothing
            events += apply(built, random_command(rng, built, float(now)))
        if rng.random() < 0.3:
            for id, known in list(built.workloads.items()):
                built.renew(id, known.attempt, float(now))
    return events, built


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_replaying_the_journal_gives_the_same_tree(seed: int) -> None:
    events, built = random_history(seed, 120)
    again = QueueTree()
    for text in [encode(event) for event in events]:
        again.apply(decode(text))  # type: ignore[arg-type]
    again.renew_all(1e6)
    built.renew_all(1e6)
    assert again.dump() == built.dump()
    assert built.used(QueueId("q")) == again.used(QueueId("q"))
    restored = QueueTree.restore(decode(encode(built.dump())))  # type: ignore[arg-type]
    assert restored.dump() == built.dump()
    assert restored.used(QueueId("q")) == built.used(QueueId("q"))
    assert restored.pending(QueueId("q")) == sum(w.state is State.PENDING for w in built.workloads.values())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9))
def test_a_reader_of_changes_has_what_a_reader_of_everything_has(seed: int) -> None:
    events, _ = random_history(seed, 80)
    rng = random.Random(seed)
    built = QueueTree()
    copy: dict[WorkloadId, object] = {}
    version = renewals = 0
    for count, event in enumerate(events):
        built.apply(event)
        for id, live in list(built.workloads.items()):
            if rng.random() < 0.3:
                built.renew(id, live.attempt, float(count))
        if rng.random() < 0.3 or count == len(events) - 1:
            changes = built.changes_since(version, renewals)
            if changes.full:
                copy.clear()
            copy.update({w.id: w for w in changes.workloads})
            version, renewals = changes.version, changes.renewals
    assert copy == dict(built.workloads)
