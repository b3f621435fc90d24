"""Who goes first: strict order and best effort, within queues and across them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.decisions import WaitReason
from rayorch.core.ordering import Basis, OrderKnobs, OrderView, basis_of
from rayorch.core.planner import plan
from rayorch.core.policy import OrderPolicy, Profile
from rayorch.core.types import Kind, NodeHealth, WorkloadId
from rayorch.policies.default import DEFAULT
from rayorch.policies.order import fifo, priority
from tests.scenes import NOW, gpus, grown, node, pending, queue, reasons, running, snapshot, started

STRICT = replace(DEFAULT, ordering=OrderKnobs(strict_fifo=True))


def test_with_best_effort_those_behind_a_head_that_finds_no_room_start() -> None:
    nodes = [node("n1", 8), node("n2", 2)]
    work = [
        running("old", ["n1"] * 6),
        pending("first", 1, gpu=4, submitted_s=1.0),
        pending("second", 1, submitted_s=2.0),
    ]
    assert started(plan(snapshot(nodes, work), DEFAULT)) == {"second": ["n2"]}


def test_with_strict_order_a_head_that_finds_no_room_blocks_its_own_queue_only() -> None:
    nodes = [node("n1", 8), node("n2", 2)]
    work = [
        running("old", ["n1"] * 6),
        pending("first", 1, gpu=4, submitted_s=1.0),
        pending("second", 1, submitted_s=2.0),
        pending("other", 1, submitted_s=3.0, queue="r"),
    ]
    decided = plan(snapshot(nodes, work, [queue("q"), queue("r")]), STRICT)
    assert started(decided) == {"other": ["n2"]}
    (wait,) = decided.waits[WorkloadId("second")]
    assert (wait.reason, wait.blockers) == (WaitReason.BEHIND_HEAD, ("first",))


@pytest.mark.parametrize(("profile", "strict", "starts"), [(DEFAULT, True, []), (STRICT, False, ["second"])])
def test_a_queue_decides_for_itself_whether_it_is_strict(profile: Profile, strict: bool, starts: list[str]) -> None:
    work = [pending("first", 1, gpu=4, submitted_s=1.0), pending("second", 1, submitted_s=2.0)]
    queues = [replace(queue("q", 2, borrow=0), strict=strict)]
    assert list(started(plan(snapshot([node("n1", 8)], work, queues), profile))) == starts


@pytest.mark.parametrize(("profile", "starts"), [(DEFAULT, ["short"]), (STRICT, [])])
def test_short_work_is_let_past_a_head_but_not_past_a_strict_one(profile: Profile, starts: list[str]) -> None:
    work = [
        running("old", ["n1"] * 6, wall_limit_s=5000.0),
        pending("first", 1, gpu=8, submitted_s=1.0),
        pending("short", 1, submitted_s=2.0, wall_limit_s=10.0, grace_s=1.0),
    ]
    assert list(started(plan(snapshot([node("n1", 8)], work), profile))) == starts


def test_what_waits_for_its_time_blocks_nobody() -> None:
    later = replace(pending("first", 1, submitted_s=1.0), not_before_s=NOW + 60, exit_code=1)
    decided = plan(snapshot([node("n1", 8)], [later, pending("second", 1, submitted_s=2.0)]), STRICT)
    assert list(started(decided)) == ["second"]


def test_a_replica_that_finds_no_room_blocks_nobody() -> None:
    app = running("app", ["n1"], (1, 4), kind=Kind.SERVE, gpu=8, priority=5, demand=(30, 0))
    decided = plan(snapshot([node("n1", 8), node("n2", 4)], [app, pending("batch", 1)]), STRICT)
    assert list(started(decided)) == ["batch"]


def test_strict_order_still_says_why_its_head_waits() -> None:
    work = [pending("first", 16, submitted_s=1.0), pending("second", 1, submitted_s=2.0)]
    decided = plan(snapshot([node("n1", 8)], work), STRICT)
    assert WaitReason.BEHIND_HEAD not in reasons(decided, "first") and reasons(decided, "first")


@pytest.mark.parametrize(("order", "grows"), [(priority.key, "new"), (fifo.key, "old")])
def test_running_gangs_grow_in_the_order_of_the_profile_where_growth_is_not_even(
    order: OrderPolicy, grows: str
) -> None:
    old = running("old", ["n1"], (1, 3), submitted_s=1.0)
    new = running("new", ["n1"], (1, 3), submitted_s=2.0, priority=5)
    decided = plan(snapshot([node("n1", 3)], [old, new]), replace(DEFAULT, order=order, even_growth=False))
    assert list(grown(decided)) == [grows]


def test_a_policy_says_how_long_its_keys_hold() -> None:
    assert basis_of(priority.key) is Basis.WORKLOAD
    assert basis_of(lambda workload, view: ()) is Basis.TURN


def test_a_view_makes_its_tables_once() -> None:
    made: list[float] = []

    def table(view: OrderView) -> float:
        made.append(view.now_s)
        return view.now_s

    view = OrderView(NOW)
    assert (view.once(table), view.once(table), made) == (NOW, NOW, [NOW])


def test_the_cluster_is_what_takes_new_work() -> None:
    nodes = (node("n1", 8, cpu=64), node("n2", 8, cpu=64, health=NodeHealth.CORDONED))
    assert OrderView(NOW, nodes=nodes).cluster == gpus(8, CPU=64)
