"""One workload that can't be started must not keep the others from being started."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rayorch.actors import execution
from rayorch.actors.runner import RunnerSettings
from rayorch.core import reconcile as act
from rayorch.core.errors import ClusterError
from rayorch.core.runners import RunnerPhase, RunnerView
from rayorch.core.types import WorkloadId

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
    executor._cluster.allocator = SimpleNamespace(create=create)
    executor.carry_out((ORDER, act.CreateGroups(WorkloadId("good"), 1, (0,))))
    assert len(made) == 1
