"""What a turn does the next one does not undo: elastic work that has made room does not take it back at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.config import load_preset
from rayorch.core.planner import plan
from rayorch.core.planning.memory import Memory
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import Allocation, StopCause, Workload, WorkloadId
from tests.scenes import (
    NOW,
    grown,
    node,
    pending,
    queue,
    reserved,
    running,
    shrunk,
    snapshot,
    started,
    stopped,
    stopping,
)

KAI = load_preset("kai")


def test_who_has_given_seats_since_is_owed_nothing_more() -> None:
    """x made way for a, which took the room, and has then given a seat to b: the seat is b's, not a's again."""
    x = replace(pending("x", queue="other"), requeued_s=NOW - 9, yielded_to=WorkloadId("a"))
    a, held = running("a", ["n1"], (1, 2), queue="other")
    given = replace(a, release_by_s=NOW - 2 + a.spec.grace_s, release_for=WorkloadId("b"), resized_s=NOW - 2)
    work = [x, (given, held), pending("b", queue="q")]
    queues = [queue("q", 1), queue("other")]
    for preset in ("kai", "default"):
        made = plan(snapshot([node("n1", 2)], work, queues), load_preset(preset))
        assert (list(started(made)), grown(made)) == (["b"], {}), preset


def test_who_has_given_none_since_is_owed_what_was_freed_for_it() -> None:
    x = replace(pending("x", queue="other"), requeued_s=NOW - 9, yielded_to=WorkloadId("a"))
    a, held = running("a", ["n1"], (1, 2), queue="other")
    earlier = replace(a, release_by_s=NOW - 20 + a.spec.grace_s, release_for=WorkloadId("b"), resized_s=NOW - 9)
    work = [x, (earlier, held), pending("b", queue="other")]
    made = plan(snapshot([node("n1", 2)], work, [queue("other")]), KAI)
    assert grown(made) == {"a": ["n1"]}


@pytest.mark.parametrize(("given_s", "first"), [(NOW - 5, "b"), (NOW - 6, "a")])
def test_nor_while_its_victim_still_stops(given_s: float, first: str) -> None:
    """The victim was ordered to stop at NOW - 5: only what a gave before that does not count."""
    victim = stopping(running("x", ["n2"], queue="other"), "a")
    a, held = running("a", ["n1"], (1, 2), queue="other")
    given = replace(a, release_by_s=given_s + a.spec.grace_s, release_for=WorkloadId("b"), resized_s=given_s)
    work = [victim, (given, held), pending("b", queue="q")]
    made = plan(snapshot([node("n1", 2), node("n2", 1)], work, [queue("q", 1), queue("other")]), KAI)
    assert first in (grown(made) if first == "a" else started(made))


def test_what_a_shrink_freed_is_owed_to_whom_it_was_freed_for() -> None:
    """x, of its taker's own queue, has given a seat to a. Both may take one more now, and x would by its id."""
    assert grown(plan(after_a_shrink(), KAI)) == {"a": ["n1"]}
    assert grown(plan(after_a_shrink(release_for=None), KAI)) == {"0x": ["n1"]}


@pytest.mark.parametrize("time", ["started_s", "resized_s", "requeued_s"])
def test_until_it_has_changed_since(time: str) -> None:
    """In the moment of the shrink itself it may have changed before."""
    at_once, later = (after_a_shrink(a={time: NOW - 2 + more}) for more in (0.0, 0.5))
    assert grown(plan(at_once, KAI)) == {"a": ["n1"]}
    assert grown(plan(later, KAI)) == {"0x": ["n1"]}


def test_and_for_a_minute_from_when_the_seats_must_be_free() -> None:
    """As long as they may still be in use nobody can take them; grace is 30 s here."""
    for ago_s, first in ((90.0, "a"), (90.5, "0x")):
        assert list(grown(plan(after_a_shrink(ago_s=ago_s), KAI))) == [first]


def test_a_memory_of_former_turns_knows_when_the_minute_is_over() -> None:
    memory = Memory()
    for later_s in (0.0, 88.0, 88.5, 200.0):
        world = replace(after_a_shrink(), now_s=NOW + later_s)
        assert plan(world, KAI, memory).decisions == plan(world, KAI).decisions


def test_two_that_owe_each_other_go_in_the_order_of_all_others() -> None:
    """In one moment a and b have given a seat to each other. "b" is of the queue that holds less of its share."""
    a, b = (running(id, ["n1"] * n, (1, 4), queue=q) for id, q, n in (("a", "big", 2), ("b", "small", 1)))
    world = [gave(a, "b"), gave(b, "a")]
    queues = [queue("big", 2), queue("small", 2)]
    assert next(iter(grown(plan(snapshot([node("n1", 4)], world, queues), KAI)))) == "b"
    made = plan(snapshot([node("n1", 3), node("n2", 1)], [gave(a, "b"), gave(b, "a")], queues), KAI)
    assert grown(made) == {"b": ["n2"]}


def gave(held: tuple[Workload, Allocation], to: str | None, ago_s: float = 2.0) -> tuple[Workload, Allocation]:
    """The same, after it has given seats to another."""
    workload, allocation = held
    by_s = NOW - ago_s + workload.spec.grace_s
    taker = WorkloadId(to) if to is not None else None
    return replace(workload, release_by_s=by_s, release_for=taker, resized_s=NOW - ago_s), allocation


def after_a_shrink(ago_s: float = 2.0, release_for: str | None = "a", a: dict[str, float] | None = None) -> Snapshot:
    """ "0x" has given a seat to "a" and it has come free; all is alike of the two but their ids."""
    taker, held = running("a", ["n1"], (1, 2), queue="q")
    work = [gave(running("0x", ["n1"], (1, 2), queue="q"), release_for, ago_s), (replace(taker, **(a or {})), held)]
    return snapshot([node("n1", 3)], work, [queue("q", 4)])


def on_device(held: tuple[Workload, Allocation], device: int) -> tuple[Workload, Allocation]:
    """The same, with all its seats on one device."""
    workload, allocation = held
    members = tuple(replace(member, devices=(device,)) for member in allocation.members)
    return replace(workload, placement=members), replace(allocation, members=members)


def test_half_a_device_that_is_promised_is_not_taken_because_another_half_comes_free() -> None:
    """On n1 half of device 0 is free, and is where "moves" goes; half of device 1 is free when "leaves" has left.

    "grows" would get device 0 now; so it has to wait for the other.
    """
    work = [
        on_device(running("grows", ["n1"], (1, 2), gpu=0.5), 0),
        on_device(running("stays", ["n1"], gpu=0.5), 1),
        stopping(on_device(running("leaves", ["n1"], gpu=0.5), 1)),
        stopping(running("moves", ["n2"], gpu=0.5), "rack", cause=StopCause.MOVED),
    ]
    made = plan(snapshot([node("n1", 2), node("n2", 0)], work), KAI)
    assert grown(made) == {}
    assert reserved(made) == {"moves": ["n1"], "grows": ["n1"]}


def test_others_of_its_shape_still_start_elsewhere() -> None:
    """As above, and n3 has a whole GPU: "grows" has to wait for its half, and "new", behind it, need not."""
    work = [
        on_device(running("grows", ["n1"], (1, 2), gpu=0.5), 0),
        on_device(running("stays", ["n1"], gpu=0.5), 1),
        stopping(on_device(running("leaves", ["n1"], gpu=0.5), 1)),
        stopping(running("moves", ["n2"], gpu=0.5), "rack", cause=StopCause.MOVED),
        pending("new", gpu=0.5, priority=-1),
    ]
    made = plan(snapshot([node("n1", 2), node("n2", 0), node("n3", 1)], work), KAI)
    assert started(made) == {"new": ["n3"]}


def test_half_a_device_that_is_promised_to_nobody_is_taken() -> None:
    work = [
        on_device(running("grows", ["n1"], (1, 2), gpu=0.5), 0),
        on_device(running("stays", ["n1"], gpu=0.5), 1),
        stopping(on_device(running("leaves", ["n1"], gpu=0.5), 1)),
    ]
    made = plan(snapshot([node("n1", 2)], work), KAI)
    assert grown(made) == {"grows": ["n1"]}
    assert made.decisions[0].add[0].devices == (0,)  # type: ignore[union-attr]


def test_who_is_moved_keeps_as_many_seats_as_it_had() -> None:
    """To empty n1 for "large" one seat of "wide" finds room elsewhere, and the other does not: so nobody moves."""
    work = [
        running("wide", ["n1", "n1"], (1, 2), gpu=2, priority=1),
        running("tiny", ["n2"], gpu=2),
        running("rock2", ["n2"], gpu=4, preemptible=False),
        running("rock3", ["n3"], gpu=7, preemptible=False),
        running("rock4", ["n4"], gpu=7, preemptible=False),
        pending("large", gpu=8),
    ]
    nodes = [node(f"n{i}") for i in range(1, 5)]
    made = plan(snapshot(nodes, work, [queue("q", 32)]), KAI)
    assert (stopped(made), shrunk(made), reserved(made)) == ({}, {}, {})


def test_who_can_be_moved_with_all_its_seats_is() -> None:
    work = [
        running("wide", ["n1", "n1"], (1, 2), gpu=2, priority=1),
        running("tiny", ["n2"], gpu=2),
        running("rock2", ["n2"], gpu=2, preemptible=False),
        running("rock3", ["n3"], gpu=7, preemptible=False),
        pending("large", gpu=8),
    ]
    nodes = [node(f"n{i}") for i in range(1, 4)]
    made = plan(snapshot(nodes, work, [queue("q", 24)]), KAI)
    assert reserved(made)["large"] == ["n1"]
    assert stopped(made) == {"wide": StopCause.MOVED}
