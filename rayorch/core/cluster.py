"""The port between deciding and acting, and the whole loop.

`RayCluster` (actors/cluster.py) and `SimCluster` (sim/cluster.py) implement the port; nothing else differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rayorch.core.decisions import Decision, Plan
from rayorch.core.planner import plan
from rayorch.core.policy import Profile
from rayorch.core.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one decision: committed, or refused with the reason (it is simply planned again)."""

    decision: Decision
    committed: bool
    reason: str = ""


class Cluster(Protocol):
    """Where a plan takes effect."""

    def snapshot(self) -> Snapshot:
        """What is known now."""
        ...

    def commit(self, plan: Plan) -> tuple[Outcome, ...]:
        """Carry out the plan's decisions in order; each is re-checked against the newest facts of its owner."""
        ...


def step(cluster: Cluster, profile: Profile) -> tuple[Plan, tuple[Outcome, ...]]:
    """See, decide, commit: one turn of the loop."""
    decided = plan(cluster.snapshot(), profile)
    return decided, cluster.commit(decided)
