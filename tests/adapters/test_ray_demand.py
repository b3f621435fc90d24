"""The one request that Ray's autoscaler hears: what is in it, without Ray."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rayorch.adapters.ray_demand import coordinator
from rayorch.adapters.ray_demand.coordinator import GangCoordinator


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set."""
    now = [0.0]
    monkeypatch.setattr(coordinator.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def owner(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> GangCoordinator:
    """A coordinator that sends nowhere."""
    monkeypatch.setattr(coordinator, "request_cluster_resources", lambda address, request: None)
    context = SimpleNamespace(gcs_address="")
    monkeypatch.setattr(coordinator.ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(GangCoordinator, "_update_cluster_node_resources", lambda self: False)
    monkeypatch.setattr(coordinator.ray, "is_initialized", lambda: False)
    return GangCoordinator()


def _sent(owner: GangCoordinator) -> list[Any]:
    return [row["resources"] for row in owner.sent_request() or []]


def test_two_instances_on_one_cluster_are_both_heard(owner: GangCoordinator) -> None:
    assert owner.set_gang_demand([{"GPU": 8.0}], [{}], "a")
    assert owner.set_gang_demand([{"GPU": 4.0}], [{"rack": "r1"}], "b")
    assert _sent(owner) == [{"GPU": 8.0}, {"GPU": 4.0}]
    assert not owner.set_gang_demand([{"GPU": 8.0}], [{}], "a"), "the same again is no news"
    assert owner.set_gang_demand([], [], "a")
    assert owner.sent_request() == [{"resources": {"GPU": 4.0}, "label_selector": {"rack": "r1"}}]


def test_the_demand_of_an_instance_that_is_gone_is_dropped(owner: GangCoordinator, clock: list[float]) -> None:
    owner.set_gang_demand([{"GPU": 8.0}], [{}], "gone")
    owner.set_gang_demand([{"GPU": 4.0}], [{}], "here")
    clock[0] = coordinator.KEPT_S - 1.0
    owner.set_gang_demand([{"GPU": 4.0}], [{}], "here")
    clock[0] = coordinator.KEPT_S + 1.0
    owner._merge_and_send_requests()  # as Ray's own requesters and its clock make it do
    assert _sent(owner) == [{"GPU": 4.0}]
