"""Whatever the cluster looks like, under the preset `kai` evictions come to an end: rounds change nothing any more."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rayorch.core.planner import plan
from rayorch.sim.conformance.adapter import apply, snapshot_of
from rayorch.sim.conformance.cases import Case
from rayorch.sim.conformance.pods import PENDING, RELEASING, RUNNING, World
from rayorch.sim.conformance.run import BEGIN_S, ROUND_S, kai_profile

ACTIONS = ("allocate", "consolidation", "reclaim", "preempt", "stalegangeviction")
ROUNDS = 8
QUIET = 3
"""In so many rounds at the end nobody who runs may be evicted."""


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A few nodes and queues with shares, weights and limits; jobs of all sizes and priorities, some of which run."""
    nodes = [{"name": f"n{i}", "gpus": draw(st.integers(1, 4))} for i in range(draw(st.integers(1, 3)))]
    free = {str(n["name"]): int(str(n["gpus"])) for n in nodes}
    queues: list[dict[str, object]] = [{"name": "d", "parent": None, "quota_gpus": -1}]
    for i in range(draw(st.integers(1, 3))):
        queues.append(
            {
                "name": f"q{i}",
                "parent": "d",
                "quota_gpus": draw(st.integers(0, 4)),
                "limit_gpus": draw(st.sampled_from([-1, -1, 4])),
                "over_quota_weight": draw(st.integers(0, 2)),
                "priority": draw(st.sampled_from([100, 100, 200])),
                "created_order": i,
            }
        )
    jobs: list[dict[str, object]] = []
    for number in range(draw(st.integers(2, 7))):
        gpus = draw(st.sampled_from([1, 1, 2, 3]))
        count = draw(st.integers(1, 3))
        seats = []
        if draw(st.booleans()):
            for name in sorted(free):
                while free[name] >= gpus and len(seats) < count:
                    free[name] -= gpus
                    seats.append(name)
        tasks = [
            {"id": f"j{number}-{i}", "state": RUNNING, "node": seats[i]}
            if len(seats) == count
            else {"id": f"j{number}-{i}", "state": PENDING}
            for i in range(count)
        ]
        if len(seats) != count:
            for name in seats:
                free[name] += gpus
        jobs.append(
            {
                "name": f"j{number}",
                "queue": draw(st.sampled_from([str(q["name"]) for q in queues[1:]])),
                "priority": draw(st.sampled_from([25, 50, 50, 75, 100])),
                "preemptibility": "preemptible",
                "age_minutes": 20 - number,
                "gpus_per_task": gpus,
                "min_available": draw(st.integers(1, count)),
                "tasks": tasks,
            }
        )
        if jobs[-1]["priority"] == 100:
            jobs[-1]["preemptibility"] = "non-preemptible"
    return Case.model_validate(
        {"id": "random", "mode": "rounds", "actions": ACTIONS, "nodes": nodes, "queues": queues, "jobs": jobs}
    )


@settings(max_examples=60)
@given(cases())
def test_evictions_come_to_an_end(case: Case) -> None:
    world, profile = World.of(case, BEGIN_S), kai_profile(case)
    for number in range(ROUNDS + QUIET):
        if number:
            world.settle(ROUND_S)
        ran = {pod.task.id for pod in world.pods if pod.status == RUNNING}
        apply(world, plan(snapshot_of(world), profile))
        evicted = [pod.task.id for pod in world.pods if pod.task.id in ran and pod.status == RELEASING]
        assert number < ROUNDS or not evicted, evicted
