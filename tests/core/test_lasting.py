"""Applications have no end: no nodes are held for a head that needs what they hold, unless it may take it by right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rayorch.core.decisions import Plan, WaitReason
from rayorch.core.planner import plan
from rayorch.core.policy import Profile
from rayorch.core.types import Allocation, CellShare, Kind, QueueSpec, Workload
from rayorch.policies.default import DEFAULT
from tests.scenes import held_for, node, pending, queue, reasons, running, shrunk, snapshot, started

Held = tuple[Workload, Allocation]


def app(on: list[str], members: tuple[int, int] = (1, 4), demand: int = 1, **asked: Any) -> Held:
    """An application "chat" with a replica of one GPU on each of these nodes, and as much demand as it serves."""
    asked = {"priority": 100, "queue": "serve", **asked}
    return running("chat", on, members, demand=(demand, 0), kind=Kind.SERVE, **asked)


def rock(on: str, gpu: float = 8) -> Held:
    """Work that ends, nobody knows when, and that nobody may stop."""
    return running(f"rock-{on}", [on], gpu=gpu, preemptible=False)


def planned(
    *work: Workload | Held, nodes: int = 2, queues: tuple[QueueSpec, ...] = (), profile: Profile = DEFAULT
) -> Plan:
    return plan(snapshot([node(f"n{i + 1}") for i in range(nodes)], list(work), list(queues)), profile)


def test_a_head_that_needs_what_an_application_holds_keeps_nobody_waiting() -> None:
    made = planned(app(["n1"]), rock("n2", 4), pending("head", 2, gpu=8), pending("small", gpu=3, submitted_s=1.0))

    assert held_for(made) == {}
    assert started(made) == {"small": ["n2"]}
    assert WaitReason.APPLICATIONS in reasons(made, "head")
    (told,) = (wait for wait in made.waits["head"] if wait.reason is WaitReason.APPLICATIONS)
    assert (told.blockers, told.have, told.unit) == (("chat",), 1.0, "GPU")
    assert "1 GPU of chat" in told.detail


def test_without_the_application_it_holds_its_nodes() -> None:
    made = planned(rock("n2", 4), pending("head", 2, gpu=8), pending("small", gpu=3, submitted_s=1.0))
    assert held_for(made) == {"head": ["n1", "n2"]}
    assert started(made) == {}
    assert WaitReason.APPLICATIONS not in reasons(made, "head")


def test_who_fits_beside_the_applications_holds_nodes_that_come_free() -> None:
    """n1 is in use least, and never free as a whole."""
    made = planned(app(["n1"]), rock("n2"), pending("head", gpu=8), pending("small", gpu=2, submitted_s=1.0))
    assert held_for(made) == {"head": ["n2"]}
    assert started(made) == {"small": ["n1"]}
    assert WaitReason.APPLICATIONS not in reasons(made, "head")


def test_who_fits_on_what_is_left_of_its_node_holds_that() -> None:
    made = planned(app(["n1"]), rock("n1", 4), rock("n2"), pending("head", gpu=7))
    assert held_for(made) == {"head": ["n1"]}


def test_what_its_demand_asks_for_stays_too() -> None:
    """A minimum of one, and demand for both replicas, for who knows how long."""
    made = planned(app(["n1", "n2"], demand=2), rock("n1", 4), pending("head", gpu=8))
    assert held_for(made) == {}
    assert WaitReason.APPLICATIONS in reasons(made, "head")


def test_what_it_gives_back_does_not() -> None:
    chat, held = app(["n1", "n2"], demand=1)
    low = replace(chat, demand_low_since_s=0.0)
    made = planned((low, held), rock("n1", 4), pending("head", gpu=8))
    assert WaitReason.APPLICATIONS not in reasons(made, "head")


def test_who_is_more_important_takes_it_when_the_rest_is_free() -> None:
    work = [app(["n1"], priority=0), rock("n2"), pending("head", 2, gpu=8, priority=5)]
    assert held_for(planned(*work)) == {"head": ["n1", "n2"]}
    assert held_for(planned(*work, profile=replace(DEFAULT, preemption=False))) == {}
    fenced = (replace(queue("serve"), fence=True), queue("q"))
    assert held_for(planned(*work, queues=fenced)) == {}


def test_one_that_may_not_be_stopped_keeps_all_that_it_has() -> None:
    """Nobody may take the second replica of "chat" either, so nothing is held for who would need it."""
    for preemptible, holds in ((True, {"head": ["n1", "n2"]}), (False, {})):
        chat = app(["n1", "n1"], (1, 2), demand=2, priority=0, gpu=4, preemptible=preemptible)
        work = [chat, running("wall", ["n2"], gpu=8, preemptible=False), pending("head", 2, gpu=8, priority=5)]
        found = planned(*work)
        assert {id: sorted(on) for id, on in held_for(found).items()} == holds
        assert (WaitReason.APPLICATIONS in reasons(found, "head")) == (not holds)
    fixed = app(["n1", "n1"], (1, 2), demand=2, priority=0, gpu=4, preemptible=False)
    alone = planned(fixed, pending("head", gpu=4, priority=5), nodes=1)
    assert (shrunk(alone), held_for(alone)) == ({}, {}), "as it is for evictions"


def test_what_lies_in_cells_of_others_keeps_its_minimum() -> None:
    """It goes for work of the queue that has the cells only; the second replica goes for whoever is more important."""
    chat, held = app(["n1", "n1"], (1, 2), demand=2, priority=0, gpu=4)
    in_cells = (replace(chat, cell="serve"), held)
    wall = running("wall", ["n2"], gpu=8, preemptible=False)
    queues = (replace(queue("serve"), cells=(CellShare("node", 1),)), queue("q"))
    for owner, applications in (("serve", False), ("q", True)):
        made = planned(in_cells, wall, pending("head", 2, gpu=8, priority=5, queue=owner), queues=queues)
        assert (WaitReason.APPLICATIONS in reasons(made, "head")) == applications, owner


def test_what_its_queue_borrows_is_taken_back_when_the_rest_is_free() -> None:
    work = [app(["n1"]), rock("n2"), pending("head", 2, gpu=8)]
    borrower = queue("serve", 0, borrow=16)
    assert held_for(planned(*work, queues=(queue("q", 24), borrower))) == {"head": ["n1", "n2"]}
    assert held_for(planned(*work, queues=(queue("q", 24), queue("serve", 4)))) == {}  # it is within its share
    assert held_for(planned(*work, queues=(queue("q", 12), borrower))) == {}  # and this beyond its own


def test_the_next_one_is_the_head() -> None:
    work = [
        app(["n1"]),
        rock("n2"),
        pending("never", 2, gpu=8),
        pending("next", gpu=8, submitted_s=1.0),
        pending("behind", gpu=3, submitted_s=2.0),
    ]
    made = planned(*work)
    assert held_for(made) == {"next": ["n2"]}
    assert started(made) == {"behind": ["n1"]}
