"""Strict first in, first out on Philly's first jobs: what AccaSim (PyPI) gives on the same file, to the second.

512 GPUs on 64 nodes of 8. A job is as many members of one GPU as it has processors; they may lie on any nodes. Equal
submit times keep the order of the file; a head that can't start blocks all.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rayorch.core.ordering import OrderKnobs
from rayorch.core.policy import BackfillKnobs, Profile
from rayorch.core.types import NodeId, NodeSpec, Resources
from rayorch.policies.default import DEFAULT
from rayorch.policies.order import fifo
from rayorch.policies.queue_order import plain
from rayorch.sim.readers import swf
from rayorch.sim.trace.model import Trace
from rayorch.sim.trace.outcome import Outcome
from rayorch.sim.trace.run import run

GPUS_OF_A_NODE = 8
NODES = 64
ACCASIM_WAIT_S, ACCASIM_MAKESPAN_S = 79_522.35, 5_944_538

FIFO: Profile = replace(
    DEFAULT,
    name="fifo",
    order=fifo.key,
    queue_order=plain.key,
    preemption=False,
    ordering=OrderKnobs(strict_fifo=True),
    backfill=BackfillKnobs(heads=0),
)
"""First come, first served, nobody is evicted, and nobody passes a head that can't start."""


def trace(data: Path, name: str = "philly_2k") -> Trace:
    """The jobs of one of the files, all in one queue."""
    return swf.read(data / "philly" / f"{name}.swf.gz")


def nodes(count: int = NODES) -> tuple[NodeSpec, ...]:
    """Nodes of 8 GPUs."""
    amount = Resources.of({"GPU": GPUS_OF_A_NODE, "CPU": 128})
    return tuple(NodeSpec(NodeId(f"n{n:05}"), f"n{n:05}", amount) for n in range(count))


def wait_s(outcome: Outcome) -> float:
    """The average time from submission to the start."""
    waits = [waited_s for record in outcome.records if (waited_s := record.wait_s) is not None]
    return sum(waits) / len(waits)


def makespan_s(outcome: Outcome) -> float:
    """From the first submission to the last end."""
    last_s = max(record.ended_s for record in outcome.records if record.ended_s is not None)
    return last_s - min(record.submit_s for record in outcome.records)


def fifo_figures(data: Path) -> dict[str, float]:
    """The average wait and the makespan, and how far they are off AccaSim's."""
    outcome = run(trace(data), nodes(), FIFO)
    waited_s, took_s = wait_s(outcome), makespan_s(outcome)
    return {
        "fifo_wait_s": waited_s,
        "fifo_makespan_s": took_s,
        "fifo_wait_off_s": abs(waited_s - ACCASIM_WAIT_S),
        "fifo_makespan_off_s": abs(took_s - ACCASIM_MAKESPAN_S),
    }
