"""Lending: idle room beside a head whose time nobody knows, to those whom it may evict again, and to nobody else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rayorch.core.decisions import Plan, Start
from rayorch.core.planner import plan
from rayorch.core.policy import BackfillKnobs, Profile
from rayorch.core.types import QueueSpec, StopCause
from rayorch.policies.default import DEFAULT
from rayorch.sim.checkers import check_plan
from tests.scenes import node, pending, queue, running, snapshot, started, stopped

TWO = [node("n1", 4), node("n2", 4)]
BLOCKER = running("blocker", ["n1"], gpu=4, preemptible=False)
HEAD = pending("head", 2, gpu=4, priority=5)


def planned(*work: object, queues: tuple[QueueSpec, ...] = (), profile: Profile = DEFAULT) -> Plan:
    seen = snapshot(TWO, work, queues)
    made = plan(seen, profile)
    assert check_plan(seen, made) == ()
    return made


def small(id: str = "w", **asked: Any) -> object:
    return pending(id, gpu=1, submitted_s=1.0, **asked)


def test_less_important_work_uses_the_idle_node_and_is_told_whose_it_is() -> None:
    made = planned(BLOCKER, HEAD, small())
    assert started(made) == {"w": ["n2"]}
    (start,) = [d for d in made.decisions if isinstance(d, Start)]
    assert start.lent_by == ("head",)
    assert start.reason == "1 idle seats that are held for head, which takes them back when it can start"


def test_the_head_takes_it_back_as_soon_as_the_rest_is_free() -> None:
    made = planned(running("w", ["n2"], gpu=1), HEAD)
    assert stopped(made) == {"w": StopCause.PREEMPTED}


@pytest.mark.parametrize(
    "asked",
    [{"priority": 5}, {"preemptible": False}, {"min_runtime_s": 1.0}],
    ids=["of equal priority", "not preemptible", "must be left alone for a while"],
)
def test_what_the_head_could_not_stop_at_any_time_is_not_let_in(asked: dict[str, Any]) -> None:
    assert started(planned(BLOCKER, HEAD, small(**asked))) == {}


def test_nobody_lends_who_only_waits_until_a_victim_has_run_for_long_enough() -> None:
    young = running("young", ["n1"], gpu=4, min_runtime_s=1e6)
    assert started(planned(young, HEAD, small())) == {}


def test_quota_that_the_head_needs_is_not_lent() -> None:
    assert started(planned(BLOCKER, HEAD, small(), queues=(queue("q", 12, 0),))) == {}
    assert started(planned(BLOCKER, HEAD, small(), queues=(queue("q", 13, 0),))) == {"w": ["n2"]}


@pytest.mark.parametrize(("share", "lent"), [(0, True), (1, False)])
def test_a_queue_beside_the_heads_borrows_only_beyond_its_whole_share(share: float, lent: bool) -> None:
    queues = (queue("all", 16), queue("all/a", 12), queue("all/b", share, 8))
    blocker = running("blocker", ["n1"], gpu=4, preemptible=False, queue="all/a")
    head = pending("head", 2, gpu=4, priority=5, queue="all/a")
    made = planned(blocker, head, small(queue="all/b"), queues=queues)
    assert started(made) == ({"w": ["n2"]} if lent else {})


def test_across_a_fence_nothing_is_lent() -> None:
    queues = (queue("all", 16), replace(queue("all/a", 12), fence=True), queue("all/b", 0, 8))
    blocker = running("blocker", ["n1"], gpu=4, preemptible=False, queue="all/a")
    head = pending("head", 2, gpu=4, priority=5, queue="all/a")
    assert started(planned(blocker, head, small(queue="all/b"), queues=queues)) == {}


@pytest.mark.parametrize(
    "profile", [replace(DEFAULT, backfill=BackfillKnobs(lend=False)), replace(DEFAULT, preemption=False)]
)
def test_it_can_be_switched_off_and_needs_preemption(profile: Profile) -> None:
    assert started(planned(BLOCKER, HEAD, small(), profile=profile)) == {}


def test_how_many_are_looked_at_and_tried_is_bounded() -> None:
    many = [small(f"w{n}", cpu=n) for n in range(4)]
    few = replace(DEFAULT, backfill=BackfillKnobs(most_tries=2))
    assert len(started(planned(BLOCKER, HEAD, *many, profile=few))) == 2
    fewer = replace(DEFAULT, backfill=BackfillKnobs(most_looks=1))
    assert len(started(planned(BLOCKER, HEAD, *many, profile=fewer))) == 1
