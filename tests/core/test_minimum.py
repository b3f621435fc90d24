"""What an attempt has left: whether that is its minimum, since when it is not, and whether it is of use."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.codec import decode, encode
from rayorch.core.decisions import Resize, Start
from rayorch.core.gang_shape import GroupSpec
from rayorch.core.minimum import is_stale, is_whole
from rayorch.core.planner import plan
from rayorch.core.queues import QueueTree
from rayorch.core.snapshot import Versions
from rayorch.core.types import Kind, Role, StopCause, Workload, WorkloadId, WorkloadSpec
from rayorch.policies.default import DEFAULT
from tests import scenes
from tests.build import apply, gpus, seat, tree, workload

W = WorkloadId("w")


def _app(**changes: object) -> WorkloadSpec:
    roles = (Role("model", gpus(1), 2, 4), Role("router", gpus(0, 1), 1, 1))
    return replace(workload("w", kind=Kind.SERVE), roles=roles, resizable=True, **changes)  # type: ignore[arg-type]


def test_a_gang_of_which_some_groups_suffice_is_whole_with_those() -> None:
    groups = (GroupSpec("any", min_children=1), GroupSpec("left", "any"), GroupSpec("right", "any"))
    roles = (Role("l", gpus(1), 2, 2, "left"), Role("r", gpus(1), 1, 1, "right"))
    spec = replace(workload("w"), roles=roles, groups=groups)
    assert is_whole(spec, {"l": 2}) and is_whole(spec, {"r": 1})
    assert not is_whole(spec, {"l": 1}) and is_stale(spec, {"l": 1})


@pytest.mark.parametrize(
    ("have", "own_s", "stale"),
    [
        ({"model": 2, "router": 1}, None, False),
        ({"model": 1, "router": 1}, None, False),  # it answers with one replica
        ({"model": 2}, None, True),  # nobody is left to route
        ({"router": 1}, None, True),
        ({"model": 1, "router": 1}, 30.0, True),  # it said that one is of no use
    ],
)
def test_an_application_is_stale_without_a_part_that_it_needs(
    have: dict[str, int], own_s: float | None, stale: bool
) -> None:
    assert is_stale(_app(stale_grace_s=own_s), have) is stale


def _running() -> QueueTree:
    built = tree(waiting=[workload("w", members=2, most=4, kind=Kind.SERVE)])
    members = tuple(replace(seat("n1"), index=n, surplus=n + 1) for n in range(2))
    apply(built, built.commit_start(Start(W, 1, members, "fits"), Versions(1, 2, 3), 5.0))
    return built


def _resize(built: QueueTree, count: int, at_s: float) -> Workload:
    members = tuple(replace(seat("n1"), index=n, surplus=n + 1) for n in range(count))
    apply(built, built.commit_resize(Resize(W, 1, (), (), "so it is"), members, at_s))
    return built.workloads[W]


def test_since_when_a_part_is_missing_is_in_the_journal_until_it_is_there_again() -> None:
    built = _running()
    assert built.workloads[W].short_since_s is None
    assert _resize(built, 1, 10.0).short_since_s == 10.0
    assert decode(encode(built.workloads[W])) == built.workloads[W]
    assert QueueTree.restore(built.dump()).workloads[W].short_since_s == 10.0
    assert _resize(built, 2, 20.0).short_since_s is None
    assert _resize(built, 3, 30.0).short_since_s is None


def _short(since_s: float, **spec: object) -> tuple[Workload, object]:
    live, held = scenes.running("w", ["n1"], members=2, gpu=2, kind=Kind.SERVE, **spec)
    return replace(live, short_since_s=since_s), held


@pytest.mark.parametrize(
    ("since_s", "own_s", "ends"),
    [(31.0, 30.0, True), (29.0, 30.0, False), (1e6, -1.0, False), (1e6, None, False)],
)
def test_it_is_ended_when_its_grace_is_over(since_s: float, own_s: float | None, ends: bool) -> None:
    work = [_short(scenes.NOW - since_s, stale_grace_s=own_s)]
    made = plan(scenes.snapshot([scenes.node("n1", 2)], work), DEFAULT)
    assert scenes.stopped(made) == ({"w": StopCause.STALE} if ends else {})


def test_who_is_given_what_it_lacks_in_this_turn_is_not_ended() -> None:
    work = [_short(scenes.NOW - 31.0, stale_grace_s=30.0)]
    made = plan(scenes.snapshot([scenes.node("n1", 2), scenes.node("n2", 2)], work), DEFAULT)
    assert scenes.stopped(made) == {} and list(scenes.grown(made)) == ["w"]
