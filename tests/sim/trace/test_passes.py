"""Runs under passes (as the preset `kai` works): nobody is moved to and fro for one who never gets the room."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rayorch.core.eviction import Action, EvictionKnobs
from rayorch.core.types import NodeSpec, Resources
from rayorch.policies.default import DEFAULT
from rayorch.sim.trace.model import Ask, Trace, TraceJob
from rayorch.sim.trace.run import run
from tests.scenes import node

PASSES = replace(DEFAULT, eviction=EvictionKnobs(passes=tuple(Action)))


def world(seed: int) -> tuple[Trace, list[NodeSpec]]:
    """A few nodes with GPUs of two models; parts of GPUs, whole ones and small gangs of three priorities come."""
    drawn = Random(seed)
    nodes = [
        node(f"n{i}", drawn.choice([1, 2, 4]), model=drawn.choice("AB"), exact=False)
        for i in range(drawn.randint(2, 5))
    ]
    models = sorted({one.devices[0].model for one in nodes})
    jobs: list[TraceJob] = []
    submit_s = 0.0
    for number in range(drawn.randint(4, 24)):
        submit_s += drawn.choice([0.0, 1.0, 10.0])
        gpus = drawn.choice([0.2, 0.3, 0.5, 0.6, 0.8, 1, 1, 1, 2])
        some = tuple(drawn.sample(models, 1)) if drawn.random() < 0.4 else ()
        id, duration_s = f"j{drawn.randint(0, 99):02}-{number}", drawn.choice([20.0, 60.0, 300.0])
        ask = Ask(drawn.choice([1, 1, 1, 2]) if gpus >= 1 else 1, Resources.of({"GPU": gpus}), some)
        priority, queue = drawn.randint(0, 2), drawn.choice(["all", "all", "all", "b"])
        jobs.append(TraceJob(id, submit_s, duration_s, ask, priority=priority, queue=queue))
    return Trace("made", tuple(jobs)), nodes


@settings(max_examples=10)
@given(st.integers(0, 10_000))
@example(7)
@example(87)
def test_moves_come_to_an_end_and_all_work_is_done(seed: int) -> None:
    made, nodes = world(seed)

    outcome = run(made, nodes, PASSES)

    for record in outcome.records:
        moments = [stretch.from_s for stretch in record.runs]
        assert all(moments.count(at_s) <= 3 for at_s in moments), (record.id, moments)
        assert record.ended_s is not None
