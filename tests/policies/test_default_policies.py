"""The default policies, one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.decisions import GangDemand
from rayorch.core.placement import NodeView, PlacementView
from rayorch.core.policy import OrderView
from rayorch.core.slot import Slot
from rayorch.core.types import UNIT, Checkpoint, Demand, Kind, StopCause, TopologyRequest, WorkloadId
from rayorch.policies.adapt import elastic
from rayorch.policies.order import priority
from rayorch.policies.place import best_fit
from rayorch.policies.recover import whole_gang
from rayorch.policies.scale import gangs
from rayorch.policies.serve import demand
from rayorch.policies.victims import lost_work
from tests.scenes import NOW, gpus, node, pending, running


def test_priority_then_age() -> None:
    work = [pending("c", submitted_s=1.0), pending("b", submitted_s=2.0), pending("a", priority=1, submitted_s=3.0)]
    assert [w.id for w in sorted(work, key=lambda w: priority.key(w, OrderView(NOW)))] == ["a", "c", "b"]


def with_gpus_free(count: float) -> NodeView:
    """A node of eight GPUs of which so many are free."""
    spec = node("n1")
    slot = Slot.empty(spec)
    used = gpus(8 - count)
    return NodeView(spec, slot.minus(used, slot.choose(used)), spec.model)


def test_best_fit_leaves_fewest_gpus() -> None:
    rooms = [with_gpus_free(n) for n in (8, 2, 4)]
    assert min(rooms, key=lambda room: best_fit.score(gpus(2), room, PlacementView())).slot.gpu_units == 2 * UNIT


def test_a_fraction_fills_a_device_that_is_broken_already() -> None:
    broken, whole, view = with_gpus_free(3.5), with_gpus_free(1), PlacementView()
    assert best_fit.score(gpus(0.5), broken, view) < best_fit.score(gpus(0.5), whole, view)
    assert best_fit.score(gpus(0.6), whole, view) < best_fit.score(gpus(0.6), broken, view)


def test_lost_work_counts_from_the_last_checkpoint() -> None:
    workload, allocation = running("a", ["n1"], gpu=2, started_s=NOW - 100)
    assert lost_work.cost(workload, allocation, NOW) == (100 + lost_work.RESTART_S) * 2
    saved = replace(workload, checkpoint=Checkpoint(5, "file:///c", NOW - 10, 1))
    assert lost_work.cost(saved, allocation, NOW) == (10 + lost_work.RESTART_S) * 2


def test_a_checkpoint_of_a_former_attempt_does_not_make_a_young_one_dearer() -> None:
    workload, allocation = running("a", ["n1"], started_s=NOW - 5)
    saved = replace(workload, checkpoint=Checkpoint(5, "file:///c", NOW - 900, 1))
    assert lost_work.cost(saved, allocation, NOW) == 5 + lost_work.RESTART_S


def test_serving_and_starting_lose_only_the_restart() -> None:
    app, seats = running("app", ["n1"], kind=Kind.SERVE)
    assert lost_work.cost(app, seats, NOW) == lost_work.RESTART_S
    train, held = running("a", ["n1"])
    assert lost_work.cost(replace(train, ready_s=None), held, NOW) == lost_work.RESTART_S


def test_an_elastic_gang_wants_its_maximum_and_a_fixed_one_nothing() -> None:
    assert elastic.size(pending("a", (2, 5)), NOW) == 5
    assert elastic.size(pending("a", 3), NOW) == 0


@pytest.mark.parametrize(("ongoing", "queued", "replicas"), [(0, 0, 1), (2, 0, 1), (2, 1, 2), (5, 3, 4), (90, 90, 4)])
def test_replicas_follow_the_requests_between_minimum_and_maximum(ongoing: int, queued: int, replicas: int) -> None:
    app, _ = running("app", ["n1"], (1, 4), kind=Kind.SERVE)
    asked = replace(app, demand=Demand(ongoing, queued, NOW, target_per_replica=2.0))
    assert demand.size(asked, NOW) == replicas


def test_without_a_report_an_application_keeps_its_minimum() -> None:
    assert demand.size(pending("app", (2, 4), kind=Kind.SERVE), NOW) == 2


def test_a_gang_ends_with_any_lost_member_and_an_application_with_the_last() -> None:
    gang, seats = running("a", ["n1", "n2"])
    assert whole_gang.recover(gang, seats, ("n2",), NOW) is StopCause.NODE_LOST
    app, replicas = running("app", ["n1", "n2"], kind=Kind.SERVE)
    assert whole_gang.recover(app, replicas, ("n2",), NOW) is None
    assert whole_gang.recover(app, replicas, ("n1", "n2"), NOW) is StopCause.NODE_LOST


def test_whole_gangs_are_asked_for_in_order_up_to_a_bound() -> None:
    waiting = tuple(GangDemand(WorkloadId(f"w{i}"), (gpus(1),) * 2, TopologyRequest()) for i in range(300))
    assert gangs.wanted(waiting) == waiting[: gangs.MAX_GANGS]
