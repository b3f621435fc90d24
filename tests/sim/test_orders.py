"""Other orders than the default's in simulated lives with faults: all that holds of the default holds of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.config import ProfileSettings, load_profile
from rayorch.core.policy import Profile
from rayorch.sim.checked import CheckedCluster
from rayorch.sim.faults import RandomFaults
from rayorch.sim.work import SimWork
from tests.build import node, queue, workload

QUEUES = (queue("a", 2), queue("a/x", 2, 2), queue("b", 2, 2, weight=2))
ORDER = "rayorch.policies.order"
PROFILES = {
    "kueue": ProfileSettings(preset="kueue"),
    "volcano": ProfileSettings(preset="volcano"),
    "slurm": ProfileSettings(preset="slurm", ordering={"usage_half_life_s": 60.0}),
    "turns": ProfileSettings(
        policies={"order": "gandiva:owner_key"}, ordering={"slice_s": 15.0}, eviction={"by_order": True}
    ),
    "strict usage": ProfileSettings(policies={"order": f"{ORDER}.usage:key"}, ordering={"strict_fifo": True}),
}


def _profile(name: str) -> Profile:
    return replace(load_profile(PROFILES[name]), retry_backoff_s=2.0, retry_backoff_max_s=10.0)


@pytest.mark.parametrize("name", PROFILES)
def test_everything_ends_and_the_history_is_the_owners(name: str) -> None:
    faults = RandomFaults(7, share=0.02, until_s=1060.0)
    sim = CheckedCluster(
        (node("n1"), node("n2")), QUEUES, faults=faults, profile=_profile(name), at_calls=False, tick_s=1.0
    )
    for n in range(8):
        spec = workload(
            f"w{n}",
            members=1 + n % 2,
            gpu=1 + n % 3 % 2,
            queue=("a/x", "b")[n % 2],
            owner=("ann", "bob")[n % 3 > 0],
            priority=5 * (n == 7),
            max_retries=3,
        )
        sim.submit(spec, SimWork(steps=8 + 2 * n, checkpoint_every=5))
        for _ in range(2):
            sim.tick()
    sim.run_to_quiet(1500.0)
    seen = sim.snapshot().history
    assert seen == sim.tree.dump().history
    assert seen.half_life_s == sim.profile.ordering.usage_half_life_s
    assert {owner for _, owner in seen.accounts} == {"ann", "bob"}
    assert all(account.gpu_units == 0 for account in seen.accounts.values())
    assert sum(len(entry.samples) for entry in seen.classes.values() if entry.name == "kind/train") == 8
