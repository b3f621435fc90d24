"""One workload that can't be started must not keep the others from being started."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rayorch.actors import execution
from rayorch.actors.allocator import GroupsOf
from rayorch.actors.runner import RunnerSettings
from rayorch.core import reconcile as act
from rayorch.core.capacity import Capacity, GroupName, GroupState, Instance, InstancePhase, NodeGroup, Provider
from rayorch.core.errors import ClusterError
from rayorch.core.runners import RunnerPhase, RunnerView
from rayorch.core.snapshot import Snapshot, Versions
from rayorch.core.types import Allocation, NodeHealth, NodeId, Resources, WorkloadId
from tests.build import node, seat

ORDER = act.StartRunner(WorkloadId("bad"), 3, cast(Any, None))


def _executor(seen: list[RunnerView], failure: Exception, monkeypatch: pytest.MonkeyPatch) -> execution.Executor:
    def refuse(*_: object) -> None:
        raise failure

    monkeypatch.setattr(execution, "start_runner", refuse)
    cluster = cast(Any, SimpleNamespace(workloads={WorkloadId("bad"): None}, queues=None, allocator=None))
    loop = cast(asyncio.AbstractEventLoop, None)  # only a runner that was started is watched
    return execution.Executor(RunnerSettings(), cluster, loop, seen.append)


def test_a_start_that_ray_refuses_is_the_works_own_failure_and_the_turn_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[RunnerView] = []
    _executor(seen, TypeError("setup_timeout_seconds must be of type int"), monkeypatch).carry_out((ORDER,))
    (view,) = seen
    assert (view.workload, view.attempt, view.phase, view.exit_code) == ("bad", 3, RunnerPhase.ENDED, 1)
    assert view.message == "could not be started: setup_timeout_seconds must be of type int"


def test_a_cluster_that_does_not_answer_is_nobodys_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[RunnerView] = []
    _executor(seen, ClusterError("the control store is silent"), monkeypatch).carry_out((ORDER,))
    assert seen == []


def test_what_fails_for_one_workload_is_done_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = _executor([], ClusterError("its package is not taken"), monkeypatch)
    made: list[object] = []
    create = SimpleNamespace(remote=made.append)
    executor._cluster = cast(Any, SimpleNamespace(workloads={WorkloadId("bad"): None}, queues=None, allocator=None))
    executor._cluster.allocator = SimpleNamespace(create_many=create)
    monkeypatch.setattr(execution, "find_or_none", lambda name: 1 // 0)  # a defect
    kill = act.KillRunner(WorkloadId("worse"), 1, "it is over")
    executor.carry_out((ORDER, kill, act.CreateGroups(WorkloadId("good"), 1, (0,))))
    assert made == [(GroupsOf(WorkloadId("good"), 1, (0,)),)]


NOW_S = 1_000.0


def _snapshot(provider: Provider, leaving: tuple[str, ...] = (), held: tuple[str, ...] = (), **idle: float) -> Snapshot:
    """Nodes n1 to n3; `idle` says since when some are."""
    nodes = tuple(replace(node(f"n{i}"), idle_since_s=idle.get(f"n{i}")) for i in (1, 2, 3))
    phases = {name: InstancePhase.LEAVING if name in leaving else InstancePhase.RUNNING for name in ("n1", "n2", "n3")}
    instances = tuple(Instance(n, n, phase, 0.0, 1.0, NodeId(n)) for n, phase in phases.items())
    group = NodeGroup(GroupName("g"), Resources.of({"GPU": 1}), replicas=3, instances=instances)
    gang = Allocation(WorkloadId("w"), 1, tuple(seat(name) for name in held), 0.0, 30.0)
    return Snapshot(
        versions=Versions(),
        now_s=NOW_S,
        queues=(),
        workloads=(),
        nodes=nodes,
        allocations=(gang,) if held else (),
        capacity=Capacity(provider, (GroupState(group),)),
    )


@pytest.mark.parametrize(
    ("snapshot", "alone"),
    [
        (_snapshot(Provider.NONE, n1=0.0), ()),
        (_snapshot(Provider.OURS, n1=0.0), ()),  # the agent ends when the node is told to leave
        (_snapshot(Provider.OURS, leaving=("n2",), n1=0.0), ("n2",)),
        (_snapshot(Provider.OURS, leaving=("n2",), held=("n2",)), ()),  # it is taken away under a gang: still needed
        (_snapshot(Provider.RAY, n1=0.0, n2=NOW_S - execution.AGENT_IDLE_S + 1), ("n1",)),
        (_snapshot(Provider.RAY, held=("n1",), n1=0.0), ()),  # a gang has just been given it
    ],
)
def test_agents_stay_away_from_nodes_that_they_would_keep(snapshot: Snapshot, alone: tuple[str, ...]) -> None:
    assert execution.let_alone(snapshot) == set(alone)


def test_an_agent_ends_when_its_node_is_let_alone_or_gone_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = _executor([], ClusterError("not used"), monkeypatch)
    agents: list[tuple[str, str]] = []
    monkeypatch.setattr(execution, "start_agent", lambda _, node: agents.append(("start", node)) or node)
    monkeypatch.setattr(execution.ray, "kill", lambda handle: agents.append(("end", handle)))

    executor.keep_agents(_snapshot(Provider.OURS))
    assert sorted(agents) == [("start", "n1"), ("start", "n2"), ("start", "n3")]
    agents.clear()
    executor.keep_agents(_snapshot(Provider.OURS, leaving=("n1",)))
    assert agents == [("end", "n1")]
    executor.keep_agents(_snapshot(Provider.OURS))  # it stays after all
    lost = replace(_snapshot(Provider.OURS), nodes=(replace(node("n1"), health=NodeHealth.LOST), node("n2")))
    executor.keep_agents(lost)
    assert agents[1:] and sorted(agents[1:]) == [("end", "n1"), ("end", "n3"), ("start", "n1")]
