"""CPU of the control plane when nothing happens, above that of as many actors that do nothing.

On 8 emulated nodes, with no work: the owners, the stores, the demand coordinator, an agent on each node and the
server's process with the gateway in it. Beside each of them, on the same node, stands an actor that does nothing; both
are counted in the same window, so that what Ray spends on any process drops out. Serve is not started.

    idle_cpu_pct  (CPU of the control plane - CPU of the do-nothing actors) / time, in % of one core
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from benchmarks.harness import Running, arguments, is_actor, rayorch_up, report, say

OWNERS = (
    "QueueShell",
    "InventoryShell",
    "AllocatorShell",
    "ControllerShell",
    "LogStoreShell",
    "ResultStoreShell",
    "GangCoordinator",
)
AGENT = "NodeAgentShell"
HEAD = "node:__internal_head__"
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
FOUND_TIMEOUT_S = 120.0
SETTLE_S = 15.0
"""Between the last start and the window: imports and first looks are over by then."""


class Nothing:
    """An actor of the owners' kind that does nothing."""

    @ray.method
    async def pid(self) -> int:
        """Its process."""
        return os.getpid()


def cpu_s(pid: int, proc: Path = Path("/proc")) -> float:
    """CPU time of a process with all its threads [s]."""
    fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S  # utime and stime, the 14th and 15th field of the whole line


def spent_s(before: dict[int, float], after: dict[int, float], pids: Iterable[int]) -> float:
    """What these processes spent between two readings [s]."""
    return sum(after[pid] - before[pid] for pid in pids)


def control_plane(running: Running, nodes: int) -> dict[int, str]:
    """Every process of the control plane, once all are there: pid to name. RuntimeError when one stays away."""
    give_up = time.monotonic() + FOUND_TIMEOUT_S
    while True:
        found: dict[int, str] = {running.server_pid: "server"}
        for pid, title in running.processes().items():
            for name in (*OWNERS, AGENT):
                if is_actor(title, name):
                    found[pid] = name
        missing = set(OWNERS) - set(found.values())
        if not missing and list(found.values()).count(AGENT) == nodes:
            return found
        if time.monotonic() > give_up:
            raise RuntimeError(f"missing: {missing}, agents: {list(found.values()).count(AGENT)} of {nodes}")
        time.sleep(0.5)


def start_nothing(count: int) -> dict[int, Any]:
    """As many do-nothing actors, spread as the control plane is: one on each node, the rest on the head. By pid."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    head = next(node for node in alive if HEAD in node["Resources"])
    places = [node["NodeID"] for node in alive]
    places += [head["NodeID"]] * (count - len(places))
    kind = ray.remote(num_cpus=0)(Nothing)
    actors = [kind.options(scheduling_strategy=NodeAffinitySchedulingStrategy(p, soft=False)).remote() for p in places]
    return dict(zip(ray.get([a.pid.remote() for a in actors], timeout=FOUND_TIMEOUT_S), actors, strict=True))


def measure(running: Running, seconds: int) -> dict[str, float]:
    """The figures of one window."""
    ours = control_plane(running, sum(node["Alive"] for node in ray.nodes()))
    say(f"{len(ours)} processes of the control plane; starting as many that do nothing")
    nothing = start_nothing(len(ours))
    time.sleep(SETTLE_S)
    say(f"counting for {seconds} s")
    pids = [*ours, *nothing]
    before, began = {pid: cpu_s(pid) for pid in pids}, time.monotonic()
    time.sleep(seconds)
    after, took_s = {pid: cpu_s(pid) for pid in pids}, time.monotonic() - began
    for name in sorted(set(ours.values())):
        mine = [pid for pid, called in ours.items() if called == name]
        say(f"{name:>18} x{len(mine)}: {100 * spent_s(before, after, mine) / took_s:6.2f} %")
    busy, base = spent_s(before, after, ours), spent_s(before, after, nothing)
    return {
        "idle_cpu_pct": 100 * (busy - base) / took_s,
        "control_plane_pct": 100 * busy / took_s,
        "nothing_pct": 100 * base / took_s,
        "processes": float(len(ours)),
    }


def main() -> int:
    """Run and report."""
    given = arguments("idle", {"seconds": 20, "nodes": 2}, {"seconds": 120, "nodes": 8})
    with rayorch_up(f"{given.nodes}x8") as running:
        figures = measure(running, given.seconds)
    return report("idle", figures, given.check)


if __name__ == "__main__":
    raise SystemExit(main())
