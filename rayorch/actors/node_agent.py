"""The actor on each node that looks at what Ray does not see: processes that an attempt has left behind.

A driver's children may leave their process group and live on when everything that Ray knows of is gone; they would
hold GPU memory that our books call free. Every process of an attempt carries the attempt in its environment.
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

from rayorch.actors.names import agent_name, owner_options
from rayorch.core.requests import AttemptRef
from rayorch.core.types import NodeId

log = logging.getLogger(__name__)

END_WAIT_S = 3.0
"""Between SIGTERM and SIGKILL, as Ray's own jobs have it."""
END_POLL_S = 0.1


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
    """One per node; holds nothing, so a restart loses nothing."""

    def __init__(self, instance: str) -> None:
        self._instance = instance

    @ray.method
    async def end_leftovers(self, attempt: AttemptRef) -> tuple[Leftover, ...]:
        """End what is left of an attempt that is over; answers with what was found."""
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
    async def ping(self) -> float:
        """This node's time [s since the epoch], as a sign of life."""
        return time.time()


NodeAgent = ray.remote(NodeAgentShell)


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
