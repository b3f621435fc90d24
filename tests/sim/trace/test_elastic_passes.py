"""Elastic work and applications under the preset `kai`: what a shrink frees is not taken and given back without end."""

from __future__ import annotations

from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rayorch.config import load_preset
from rayorch.core.types import Resources
from rayorch.sim.trace.model import Ask, Service, Trace, TraceJob
from rayorch.sim.trace.run import run
from tests.sim.trace.worlds import nodes

KAI = load_preset("kai")
ALL_GPUS = 16


def world(seed: int) -> Trace:
    """Sixteen jobs, two in three of them elastic, in two queues and of two priorities, and perhaps an application."""
    drawn = Random(seed)
    jobs: list[TraceJob] = []
    for number in range(16):
        members, gpus = drawn.choice([1, 1, 2, 4]), drawn.choice([0.5, 1, 1, 2, 4])
        least, most = drawn.choice([(0, 0), (1, 2 * members), (members, 3 * members)])
        submit_s, duration_s = drawn.random() * 600, 20 + drawn.random() * 900
        ask = Ask(members, Resources.of({"GPU": gpus}), least=least, most=most)
        queue, priority = drawn.choice("ab"), drawn.choice([0, 0, 0, 5])
        jobs.append(TraceJob(f"j{number}", submit_s, duration_s, ask, queue=queue, priority=priority))
    demand = tuple((300.0 * n, 6 * drawn.random()) for n in range(8))
    services: tuple[Service, ...] = ()
    if drawn.random() < 0.6:
        services = (Service("s0", demand, Resources.of({"GPU": 1}), most=6, priority=drawn.choice([0, 100])),)
    return Trace("made", tuple(sorted(jobs, key=lambda one: one.submit_s)), services=services)


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 10_000))
@example(4)  # two of whom each takes what the other gave for a third
@example(43)  # what an application gave, and takes again
@example(60)  # two that give to each other in one moment
@example(151)  # a shrink in the moment of its beneficiary's start
def test_no_moment_is_cut_short_and_all_work_is_done(seed: int) -> None:
    made = world(seed)

    outcome = run(made, nodes(2, ALL_GPUS // 2), KAI, until_s=30_000.0)

    assert outcome.cut_short == 0
    for record in outcome.records:  # an application leaves no room for what needs every GPU
        assert record.ended_s is not None or (made.services and record.gpus == ALL_GPUS), record.id
