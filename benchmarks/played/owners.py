"""The live owners over a cluster that is only written down: nodes, placement groups and runners are played.

The queue owner is the real one, and so are the rules, the calls and the loop of the others. What a node would be asked
for is answered at once: a group is ready when it is asked for, and a runner ends by itself after the time that its
workload says (`runtime_s` in its metadata), or when it is told to stop.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, replace
from typing import Any

import ray

from rayorch.actors.allocator import AllocatorSettings, AllocatorShell
from rayorch.actors.controller import ControllerSettings, ControllerShell
from rayorch.actors.execution import Executor
from rayorch.actors.inventory import InventorySettings, InventoryShell
from rayorch.actors.names import allocator_name, controller_name, inventory_name, owner_options
from rayorch.core import reconcile as act
from rayorch.core.errors import StalePlanError
from rayorch.core.runners import RunnerKey, RunnerPhase, RunnerView
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import NodeSpec, WorkloadId

TOLD_TO_STOP = 143


@dataclass(frozen=True, slots=True)
class PlayedNodes(InventorySettings):
    """`nodes`: those that there are, for ever."""

    nodes: tuple[NodeSpec, ...] = ()


class PlayedInventory(InventoryShell):
    """Sees the nodes that it was told of, once."""

    async def _observe_forever(self) -> None:
        assert isinstance(self._settings, PlayedNodes)
        self._inventory.observe(self._settings.nodes, time.time())
        self._observed.set()


class PlayedAllocator(AllocatorShell):
    """Keeps the books; its placement groups are there as soon as they are asked for."""

    async def _compare(self) -> None:
        if not self._synced:
            self._synced = True
            self._poker.poke()

    async def _create(self, workload: WorkloadId, attempt: int, surplus: int) -> None:
        try:
            if self._books.creating(workload, attempt, surplus):
                self._books.ready(workload, attempt, surplus, f"{workload}-{attempt}-{surplus}")
        except StalePlanError:
            return

    async def _remove(self, workload: WorkloadId, attempt: int, surplus: int) -> None:
        self._books.removed(workload, attempt, surplus)


class PlayedExecutor(Executor):
    """Runners that only let their time pass."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._working: dict[RunnerKey, RunnerView] = {}

    def keep_agents(self, snapshot: Snapshot) -> None:
        """No node has an agent."""

    def find_runners(self) -> tuple[RunnerView, ...]:
        """None outlives its controller."""
        return ()

    def dispose(self, key: RunnerKey) -> None:
        """There is nothing to let go of."""

    def _finish_log(self, attempt: Any) -> None:
        """There is no log."""

    def _sweep(self, attempt: Any) -> None:
        """Nothing is left behind."""

    def _start(self, action: act.StartRunner) -> None:
        key = (action.workload, action.attempt)
        grant = replace(action.grant, version=1)
        view = RunnerView(*key, RunnerPhase.RUNNING, grant=grant, applied_version=1, revision=1)
        self._seen(view)
        self._working[key] = view
        payload = json.loads(self._cluster.workloads[action.workload].spec.payload)
        runtime_s = float(payload["metadata"]["runtime_s"])
        self._loop.call_soon_threadsafe(self._loop.call_later, runtime_s, self._end, key, 0)

    def _end(self, key: RunnerKey, code: int) -> None:
        """It ends, if it has not: by itself or because it was told to."""
        view = self._working.pop(key, None)
        if view is not None:
            self._seen(replace(view, phase=RunnerPhase.ENDED, exit_code=code, ended_s=time.time(), revision=9))

    def _update(self, action: act.UpdateRunner) -> None:
        if action.grant.stop is not None:
            key = (action.workload, action.attempt)
            view = self._working.get(key)
            if view is not None:
                self._working[key] = replace(view, grant=replace(action.grant, version=2))
            self._end(key, TOLD_TO_STOP)

    def _kill(self, key: RunnerKey, reason: str) -> None:
        if self._working.pop(key, None) is not None:
            self._seen(RunnerView(*key, RunnerPhase.GONE, message=reason, ended_s=time.time()))


class PlayedController(ControllerShell):
    """The loop, over played runners."""

    async def __init__(self, settings: ControllerSettings) -> None:  # type: ignore[misc]  # Ray awaits it
        await super().__init__(settings)
        self._executor = PlayedExecutor(settings.runner, self._cluster, self._loop, self._runner_seen)
        await asyncio.sleep(0)


def start_played(instance: str, nodes: tuple[NodeSpec, ...], controller: ControllerSettings) -> tuple[Any, Any, Any]:
    """The played inventory, allocator and controller of an instance, by the names of the real ones."""
    inventory = (
        ray.remote(PlayedInventory)
        .options(**owner_options(inventory_name(instance)))
        .remote(PlayedNodes(instance, levels=("block", "rack"), nodes=nodes))
    )
    allocator = (
        ray.remote(PlayedAllocator)
        .options(**owner_options(allocator_name(instance)))
        .remote(AllocatorSettings(instance))
    )
    loop = ray.remote(PlayedController).options(**owner_options(controller_name(instance))).remote(controller)
    return inventory, allocator, loop
