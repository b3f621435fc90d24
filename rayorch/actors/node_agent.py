"""The actor on each node that looks at what Ray does not see: how its GPUs are, and what an attempt has left behind.

A driver's children may leave their process group and live on when everything that Ray knows of is gone; they would
hold GPU memory that our books call free. Every process of an attempt carries the attempt in its environment.
The GPUs are looked at in a period and judged here; the inventory is told what has changed (docs/devices.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayorch.actors.device_watch import DeviceWatch, MachineSource, WatchSettings
from rayorch.actors.gpu_processes import GpuProcesses
from rayorch.actors.names import agent_name, find, inventory_name, owner_options
from rayorch.adapters.ray_visible import raylet_environment
from rayorch.core.devices import DeviceReport, NodeReading
from rayorch.core.errors import ClusterError
from rayorch.core.requests import AttemptRef
from rayorch.core.types import NodeId

log = logging.getLogger(__name__)

END_WAIT_S = 3.0
"""Between SIGTERM and SIGKILL, as Ray's own jobs have it."""
END_POLL_S = 0.1
NO_ENVIRONMENT = "the environment that this node's raylet was started with can't be read"
HISTORY_TIMEOUT_S = 10.0
"""How long a new agent waits for what its predecessor had told; without it, XIDs of before are not known here."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process that belongs to an attempt which is over."""

    pid: int
    command: str


def attempt_processes(instance: str, attempt: AttemptRef, proc: Path = Path("/proc")) -> tuple[Leftover, ...]:
    """The processes on this machine whose environment names the attempt, this process excluded."""
    wanted = {
        f"RAYORCH_INSTANCE={instance}".encode(),
        f"RAYORCH_WORKLOAD={attempt.workload}".encode(),
        f"RAYORCH_ATTEMPT={attempt.attempt}".encode(),
    }
    found: list[Leftover] = []
    for folder in proc.iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if wanted <= set((folder / "environ").read_bytes().split(b"\0")):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                found.append(Leftover(int(folder.name), command))
        except OSError:  # it has ended meanwhile, or belongs to another user
            continue
    return tuple(sorted(found, key=lambda leftover: leftover.pid))


class NodeAgentShell:
    """One per node. What it must remember of the devices the inventory gives back to it after a restart."""

    async def __init__(self, instance: str) -> None:  # type: ignore[misc]  # Ray awaits it
        self._instance = instance
        self._node = NodeId(ray.get_runtime_context().get_node_id())
        self._processes = GpuProcesses(instance)
        self._watch: DeviceWatch | None = None
        self._reading = NodeReading()
        self._looking = asyncio.create_task(self._look_at_devices())
        self._looking.add_done_callback(_say_end)

    async def _look_at_devices(self) -> None:
        environment = await asyncio.to_thread(raylet_environment)
        if environment is None:
            # It says what Ray's indices mean and whether to look at all: without it, a verdict would be a guess.
            log.error("the devices are not looked at: %s", NO_ENVIRONMENT)
            self._reading = NodeReading(error=NO_ENVIRONMENT)
            return
        settings = WatchSettings.of_environment(environment)
        if not settings.wanted:
            return
        former = await self._known()
        source = MachineSource(self._processes, environment)
        self._watch = DeviceWatch(settings, source, self._push, former)
        try:
            await self._watch.run()
        finally:
            self._watch.close()

    async def _known(self) -> DeviceReport | None:
        """What a former agent of this node had told the inventory."""
        try:
            owner = await asyncio.to_thread(find, inventory_name(self._instance))
            report: DeviceReport | None = await asyncio.wait_for(
                owner.device_report.remote(self._node), HISTORY_TIMEOUT_S
            )
        except (ClusterError, TimeoutError, ray.exceptions.RayError) as error:
            log.info("what was known of the devices is not known any more: %s", error)
            return None
        return report

    async def _push(self, report: DeviceReport) -> None:
        """Tell the inventory, without waiting for its answer: a report that is lost is repeated."""
        try:
            owner = await asyncio.to_thread(find, inventory_name(self._instance))
        except ClusterError as error:
            log.info("the devices could not be told of: %s", error)
            return
        owner.take_devices.remote((self._node, report))

    @ray.method
    async def end_leftovers(self, attempt: AttemptRef) -> tuple[Leftover, ...]:
        """End what is left of an attempt that is over; answers with what was found."""
        self._processes.over(attempt)
        found = await asyncio.to_thread(attempt_processes, self._instance, attempt)
        for leftover in found:
            log.warning("ending process %d, left behind by %s: %s", leftover.pid, attempt, leftover.command)
            _signal(leftover.pid, signal.SIGTERM)
        give_up_s = time.monotonic() + END_WAIT_S
        left = found
        while left and time.monotonic() < give_up_s:
            await asyncio.sleep(END_POLL_S)
            left = await asyncio.to_thread(attempt_processes, self._instance, attempt)
        for leftover in left:
            _signal(leftover.pid, signal.SIGKILL)
        return found

    @ray.method
    async def device_report(self) -> DeviceReport | None:
        """The last report, for an inventory that has begun anew; None where there is nothing to report."""
        return self._watch.report if self._watch is not None else None

    @ray.method
    async def reading(self) -> NodeReading:
        """Everything that was read of the devices last."""
        return self._watch.reading if self._watch is not None else self._reading

    @ray.method
    async def clear_device(self, index: int) -> bool:
        """Forget the XIDs and noisy facts of a device that somebody has dealt with. False where there is none."""
        return self._watch is not None and await self._watch.clear(index)

    @ray.method
    async def ping(self) -> float:
        """This node's time [s since the epoch], as a sign of life."""
        return time.time()


NodeAgent = ray.remote(NodeAgentShell)


def _say_end(task: asyncio.Task[None]) -> None:
    """Looking at the devices ends with the agent, or where it is switched off; anything else has to be seen."""
    if not task.cancelled() and task.exception() is not None:
        log.error("the devices are not looked at any more", exc_info=task.exception())


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def start_agent(instance: str, node: NodeId) -> Any:
    """The agent of a node, created if it does not run. It is pinned to the node and ends with it."""
    return NodeAgent.options(
        **owner_options(agent_name(instance, node)),
        enable_task_events=False,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    ).remote(instance)
