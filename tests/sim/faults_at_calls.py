"""What may go wrong at any call between two actors, for tests that strike each call once with each of it."""

from __future__ import annotations

from rayorch.core.types import WorkloadId
from rayorch.sim.faults import OWNERS, Cancel, Fault, Kill, Late, LoseReply, LoseRequest, Twice


def faults_at_calls(cancelled: WorkloadId) -> dict[str, Fault]:
    """By what happens: each owner dies, all die, messages are lost, doubled and late, the workload is cancelled."""
    return {
        **{f"{actor.value} killed before": Kill((actor,), False) for actor in OWNERS},
        **{f"{actor.value} killed after": Kill((actor,), True) for actor in OWNERS},
        "all killed after": Kill(OWNERS, True),
        "request lost": LoseRequest(),
        "reply lost": LoseReply(),
        "request twice": Twice(),
        "request late": Late(0.6),
        "request very late": Late(20.0),
        "cancelled": Cancel(cancelled),
    }
