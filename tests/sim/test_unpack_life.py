"""A life with faults, as the controller leads it, in which those that share GPUs are watched and taken apart."""

from __future__ import annotations

from dataclasses import replace

from rayorch.config import ProfileSettings, load_profile
from rayorch.core.events import Accompanied, AttemptEnded
from rayorch.core.types import StopCause
from rayorch.sim.checked import CheckedCluster
from rayorch.sim.faults import RandomFaults
from rayorch.sim.work import SimWork
from tests.build import node, queue, workload

PROFILE = load_profile(
    ProfileSettings(
        policies={"score": "apart", "device": "apart"},
        packing={"unpack": True, "measure_s": 60.0, "cooldown_s": 30.0, "worth": 0.0, "least_together": 2.0},
    )
)
"""Two that share a GPU hinder each other as soon as both are at all slower than alone."""


def test_who_shares_gpus_is_noted_and_everything_ends() -> None:
    faults = RandomFaults(5, share=0.01, until_s=1200.0)
    profile = replace(PROFILE, retry_backoff_s=2.0, retry_backoff_max_s=10.0)
    nodes = tuple(replace(node(name, 1), exact=True) for name in ("n1", "n2"))
    sim = CheckedCluster(nodes, (queue("a", 2),), faults=faults, profile=profile, at_calls=False, tick_s=1.0)
    for n in range(6):
        spec = workload(f"w{n}", members=1, gpu=0.5, queue="a", max_retries=5)
        # The later ones are slower, for which those beside them get the blame.
        sim.submit(replace(spec, name="train"), SimWork(steps=300, rate=3.0 if n < 2 else 1.0, checkpoint_every=10))
        for _ in range(70 if n < 2 else 5):
            sim.tick()
    sim.run_to_quiet(4000.0)
    beside = [len(event.beside) for event in sim.history if isinstance(event, Accompanied)]
    assert {0, 1} <= set(beside)
    causes = [event.cause for event in sim.history if isinstance(event, AttemptEnded)]
    assert StopCause.UNPACKED in causes or StopCause.MOVED in causes, causes
    assert sim.snapshot().history.paces
