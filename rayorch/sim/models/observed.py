"""What a live cluster's journal tells about run times, restarts and lost nodes: what the models are fitted to.

The events go through the queue owner's own class, so that progress, attempts and seats are what the owner takes them
for. Provisioning times are not in the journal: the inventory's owner has them (`core.provision_times`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rayorch.core.events import AttemptEnded, AttemptReady, Event
from rayorch.core.lifecycle import Move
from rayorch.core.queues import QueueTree
from rayorch.core.tree_state import TreeState
from rayorch.core.types import Kind, StopCause, Workload
from rayorch.sim.models import SimModels
from rayorch.sim.models.failures import FailureModel, FaultKind, FaultSample
from rayorch.sim.models.provisioning import ProvisioningModel
from rayorch.sim.models.restart import RestartModel
from rayorch.sim.models.runtime import RunSample, RuntimeModel


@dataclass(frozen=True, slots=True)
class Observed:
    """`runs`: work that succeeded. `restarts`: (name, seconds until its work went on) of attempts after the first.

    `starts`: the same of first attempts. `losses`: attempts that a lost node ended, in `exposed_s` node-seconds held.
    """

    runs: tuple[RunSample, ...] = ()
    starts: tuple[tuple[str, float], ...] = ()
    restarts: tuple[tuple[str, float], ...] = ()
    losses: int = 0
    exposed_s: float = 0.0


def observe(events: Iterable[Event], state: TreeState | None = None) -> Observed:
    """All that the events tell, which follow `state` (None: they are a journal's first)."""
    tree = QueueTree() if state is None else QueueTree.restore(state)
    runs: list[RunSample] = []
    starts: list[tuple[str, float]] = []
    restarts: list[tuple[str, float]] = []
    losses, exposed_s = 0, 0.0
    for event in events:
        before = tree.workloads.get(event.workload) if isinstance(event, AttemptReady | AttemptEnded) else None
        tree.apply(event)
        if before is None or before.spec.kind is Kind.SERVE:
            continue
        if isinstance(event, AttemptReady):
            if before.started_s is not None and before.ready_s is None:
                took = (before.spec.name, event.at_s - before.started_s)
                (starts if event.attempt <= 1 else restarts).append(took)
        elif isinstance(event, AttemptEnded):
            exposed_s += _held_node_s(before, event.at_s)
            losses += event.cause is StopCause.NODE_LOST
            after = tree.workloads.get(event.workload)
            if event.move is Move.SUCCEEDED and after is not None and after.progress_s > 0:
                runs.append(RunSample(after.spec.name, after.progress_s, after.spec.expected_s))
    return Observed(tuple(runs), tuple(starts), tuple(restarts), losses, exposed_s)


def fit(observed: Observed, provisioned: Iterable[tuple[str, float]] = (), base: SimModels | None = None) -> SimModels:
    """The models of that cluster; where nothing was seen, those of `base`. `provisioned`: (node group, seconds)."""
    base = base if base is not None else SimModels()
    return SimModels(
        RuntimeModel.fit(observed.runs) if observed.runs else base.runtime,
        RestartModel.fit(observed.restarts or observed.starts, base.restart),
        FailureModel.fit([FaultSample(FaultKind.NODE, observed.losses, observed.exposed_s)], base.failures),
        ProvisioningModel.fit(provisioned, base.provisioning),
    )


def _held_node_s(workload: Workload, at_s: float) -> float:
    if workload.started_s is None:
        return 0.0
    return max(0.0, at_s - workload.started_s) * len({member.node for member in workload.placement})
