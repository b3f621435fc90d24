"""Gangs over several submissions: together or not at all, at the plan and at the commit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rayorch.core.decisions import Plan, Reserve, Start, Stop, WaitReason
from rayorch.core.errors import StalePlanError
from rayorch.core.events import AttemptEnded
from rayorch.core.lifecycle import Move
from rayorch.core.planner import plan
from rayorch.core.queues import QueueTree
from rayorch.core.snapshot import Versions
from rayorch.core.types import JointGang, State, StopCause, TopologyRequest, Workload, WorkloadId
from rayorch.policies.default import DEFAULT
from tests.build import apply, seats, tree
from tests.scenes import NOW, node, pending, queue, reasons, running, snapshot, spec, started

V = Versions()


def member(id: str, members: int = 2, count: int = 2, name: str = "j", **asked: Any) -> Workload:
    return pending(id, members, joint=JointGang(name, count), **asked)


def starts(made: Plan) -> dict[str, tuple[str, ...]]:
    """Who starts, and with whom."""
    return {d.workload: d.partners for d in made.decisions if isinstance(d, Start)}


# ---------------------------------------------------------------- the plan


def test_members_start_together_each_by_its_own_spec() -> None:
    nodes = [node("n1", 2, "r1"), node("n2", 4, "r2", model="H100")]
    work = [member("a", rack="required"), member("b", 4, accelerators=("H100",))]
    made = plan(snapshot(nodes, work), DEFAULT)
    assert started(made) == {"a": ["n1"] * 2, "b": ["n2"] * 4}
    assert starts(made) == {"a": ("b",), "b": ("a",)}


def test_where_there_is_no_room_for_all_nobody_starts_and_others_get_the_room() -> None:
    work = [member("a"), member("b", 4), pending("c", 3)]
    made = plan(snapshot([node("n1", 5)], work), DEFAULT)
    assert started(made) == {"c": ["n1"] * 3}
    assert reasons(made, "a") == reasons(made, "b") == [WaitReason.RESOURCES, WaitReason.NEVER_FITS_NOW]
    assert made.waits[WorkloadId("b")][0].need == 6
    assert set(made.positions) == {"a", "b"}


def test_nothing_starts_before_enough_submissions_are_there() -> None:
    made = plan(snapshot([node("n1", 8)], [member("a", count=3), member("b", count=3)]), DEFAULT)
    assert started(made) == {}
    (wait,) = made.waits[WorkloadId("a")]
    assert (wait.reason, wait.need, wait.have) == (WaitReason.JOINT, 3, 2)
    assert wait.detail == "2 of the 3 submissions of j are there"


def test_who_says_a_smaller_number_than_a_partner_waits_with_it() -> None:
    two = [member("a", count=2), member("b", count=3)]
    made = plan(snapshot([node("n1", 8)], two), DEFAULT)
    assert started(made) == {}
    assert {made.waits[WorkloadId(id)][0].detail for id in "ab"} == {"2 of the 3 submissions of j are there"}
    whole = plan(snapshot([node("n1", 8)], [*two, member("c", count=2)]), DEFAULT)
    assert starts(whole) == {"a": ("b", "c"), "b": ("a", "c"), "c": ("a", "b")}
    books = tree(waiting=[replace(w.spec) for w in two])
    with pytest.raises(StalePlanError, match="starts with 2 more of j, not with 1"):
        first, second = (Start(w.id, 1, seats("n1", 2), "") for w in two)
        books.commit_start(first, V, NOW, (second,))


def test_one_that_can_not_start_yet_keeps_the_others() -> None:
    work = [member("a"), replace(member("b"), not_before_s=NOW + 9.0)]
    made = plan(snapshot([node("n1", 8)], work), DEFAULT)
    assert started(made) == {}
    assert reasons(made, "a") == [WaitReason.JOINT]
    assert made.waits[WorkloadId("a")][0].blockers == ("b",)
    assert WaitReason.JOINT not in reasons(made, "b")


def test_one_that_was_requeued_joins_those_that_run() -> None:
    nodes = [node("n1", 8)]
    partner = running("a", ["n1"] * 2, joint=JointGang("j", 2))
    assert started(plan(snapshot(nodes, [partner, replace(member("b"), attempt=1)]), DEFAULT)) == {"b": ["n1"] * 2}
    alone = replace(member("b"), attempt=1)
    assert started(plan(snapshot(nodes, [alone]), DEFAULT)) == {"b": ["n1"] * 2}, "the other one has ended"


def test_quota_holds_for_all_of_them_together() -> None:
    made = plan(snapshot([node("n1", 8)], [member("a"), member("b")], [queue("q", 3, 0)]), DEFAULT)
    assert started(made) == {}
    assert reasons(made, "a") == [WaitReason.QUOTA]


def test_room_is_made_for_all_of_them_or_for_nobody() -> None:
    weak = running("weak", ["n1"] * 4, priority=-1)
    fits = plan(snapshot([node("n1", 4)], [weak, member("a"), member("b")]), DEFAULT)
    assert [d.workload for d in fits.decisions if isinstance(d, Stop)] == ["weak"]
    assert [len(d.members) for d in fits.decisions if isinstance(d, Reserve)] == [4]
    none = plan(snapshot([node("n1", 4)], [weak, member("a"), member("b", 3)]), DEFAULT)
    assert [d for d in none.decisions if isinstance(d, Stop)] == []


def test_members_keep_to_domains_of_their_own() -> None:
    nodes = [node(f"n{i}", 2, f"r{i // 2}") for i in range(4)]
    work = [member(id, 4, topology=TopologyRequest(required="rack")) for id in "ab"]
    made = started(plan(snapshot(nodes, work), DEFAULT))
    assert [sorted(set(made[id])) for id in "ab"] == [["n0", "n1"], ["n2", "n3"]]


def test_two_joint_gangs_in_one_queue_do_not_mix_and_one_of_them_starts() -> None:
    work = [member("a1", name="a"), member("b1", name="b"), member("a2", name="a"), member("b2", name="b")]
    assert set(started(plan(snapshot([node("n1", 4)], work), DEFAULT))) in ({"a1", "a2"}, {"b1", "b2"})


# ---------------------------------------------------------------- the commit


def built(*ids: str, count: int = 2) -> QueueTree:
    return tree(waiting=[spec(id, 2, joint=JointGang("j", count)) for id in ids])


def start_of(id: str, attempt: int = 1) -> Start:
    return Start(WorkloadId(id), attempt, seats(f"n-{id}", 2), "fits")


def test_a_commit_starts_all_of_them_or_is_refused() -> None:
    books = built("a", "b")
    with pytest.raises(StalePlanError, match="a starts with 1 more of j, not with 0"):
        books.commit_start(start_of("a"), V, 1.0)
    with pytest.raises(StalePlanError):
        books.commit_start(start_of("a"), V, 1.0, (start_of("b", attempt=2),))
    apply(books, books.commit_start(start_of("a"), V, 1.0, (start_of("b"),)))
    assert [w.state for w in books.workloads.values()] == [State.RUNNING, State.RUNNING]
    assert books.commit_start(start_of("a"), V, 2.0, (start_of("b"),)) == (), "the same again is nothing new"


def test_a_commit_over_quota_starts_none_of_them() -> None:
    books = built("a", "b")
    apply(books, books.set_queue(queue("q", 3, 0), 0.0))
    with pytest.raises(StalePlanError, match="4 GPU"):
        books.commit_start(start_of("a"), V, 1.0, (start_of("b"),))


def test_a_member_that_was_cancelled_is_not_counted_and_one_that_comes_later_may_join() -> None:
    books = built("a", "b", count=2)
    apply(books, books.cancel(WorkloadId("b"), "no", 1.0))
    with pytest.raises(StalePlanError):
        books.commit_start(start_of("a"), V, 1.0)
    apply(books, books.submit(spec("c", 2, joint=JointGang("j", 2)), 2.0))
    apply(books, books.commit_start(start_of("a"), V, 3.0, (start_of("c"),)))
    apply(books, books.submit(spec("d", 2, joint=JointGang("j", 2)), 4.0))
    assert len(apply(books, books.commit_start(start_of("d"), V, 5.0))) == 1


def test_when_one_of_them_can_not_start_the_others_that_began_with_it_wait_again() -> None:
    books = built("a", "b")
    apply(books, books.commit_start(start_of("a"), V, NOW, (start_of("b"),)))
    apply(books, books.ready(WorkloadId("b"), 1, NOW + 1.0))
    ended = AttemptEnded(WorkloadId("a"), 1, Move.REQUEUED, StopCause.START_FAILED, None, "no group", 0.0, NOW + 2.0)
    apply(books, books.end_attempt(ended))
    _, held = running("b", ["n-b"] * 2, started_s=NOW)
    work = [books.workloads[WorkloadId("a")], (books.workloads[WorkloadId("b")], held)]
    made = plan(replace(snapshot([node("n-a"), node("n-b")], work), now_s=NOW + 3.0), DEFAULT)
    assert [(d.workload, d.order.cause) for d in made.decisions if isinstance(d, Stop)] == [
        ("b", StopCause.START_FAILED)
    ]
    later = replace(books.workloads[WorkloadId("b")], started_s=NOW - 50.0)
    made = plan(replace(snapshot([node("n-a"), node("n-b")], [work[0], (later, held)]), now_s=NOW + 3.0), DEFAULT)
    assert [d for d in made.decisions if isinstance(d, Stop)] == [], "that one began before it"
