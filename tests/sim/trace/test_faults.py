"""Nodes that fail under work: what is lost, when it goes on, and who is slow for how long."""

from __future__ import annotations

import math
from dataclasses import replace

from rayorch.core.types import State
from rayorch.policies.default import DEFAULT
from rayorch.sim.models import SimModels
from rayorch.sim.models.distributions import Fixed
from rayorch.sim.models.failures import FailureModel, FaultKind, FaultLaw
from rayorch.sim.models.restart import RestartCost, RestartModel
from rayorch.sim.trace.run import run
from tests.sim.trace.worlds import FIFO, job, nodes, trace

AFTER_S = DEFAULT.lease_s + DEFAULT.lease_margin_s
"""So long after a loss was noticed what is left of an attempt may still run."""


def failing(kind: FaultKind, between_s: float, repair_s: float, slowdown: float = math.inf) -> FailureModel:
    """Every node, after so long, for so long."""
    return FailureModel((FaultLaw(kind, Fixed(between_s), Fixed(repair_s), slowdown=slowdown),))


def test_work_on_a_node_that_fails_goes_on_from_its_last_checkpoint_when_the_node_is_back() -> None:
    models = SimModels(
        restart=RestartModel(default=RestartCost(restart_s=5.0, interval_s=30.0)),
        failures=failing(FaultKind.NODE, 100.0, 40.0),
    )

    (record,) = run(trace(job("a", 0, 150, gpus=8)), nodes(1), FIFO, models=models).records

    # 90 of 100 s are saved; back at 140; 5 s to start over, then 60 s of work. The next failure comes at 240.
    assert [(r.from_s, r.to_s) for r in record.runs] == [(0.0, 100.0), (140.0, 205.0)]
    assert record.lost_gpu_s == (10 + 5) * 8
    assert record.preemptions == 0
    assert record.state is State.SUCCEEDED


def test_it_goes_on_elsewhere_when_nothing_of_it_can_run_any_more() -> None:
    models = SimModels(failures=FailureModel((_only("n0", 100.0, 1_000.0),)))
    where = tuple(replace(node, labels=(("name", node.id),)) for node in nodes(2))

    (record,) = run(trace(job("a", 0, 150, gpus=8)), where, FIFO, models=models).records

    assert [(r.from_s, r.to_s, r.nodes) for r in record.runs] == [
        (0.0, 100.0, ("n0",)),
        (100.0 + AFTER_S, 150.0 + AFTER_S, ("n1",)),
    ]


def _only(node: str, between_s: float, repair_s: float) -> FaultLaw:
    return FaultLaw(FaultKind.NODE, Fixed(between_s), Fixed(repair_s), labels=(("name", node),))


def test_a_slow_node_makes_its_work_slow_for_as_long_as_it_is() -> None:
    models = SimModels(failures=failing(FaultKind.SLOW, 100.0, 60.0, slowdown=3.0))

    (record,) = run(trace(job("a", 0, 150, gpus=8)), nodes(1), FIFO, models=models).records

    assert record.ended_s == 100 + 60 + 30  # 100 s of work, 20 s in 60, 30 s
    assert record.lost_gpu_s == 0


def test_lost_work_counts_for_as_long_as_it_took_at_the_speeds_that_it_had() -> None:
    never = RestartModel(default=RestartCost(0.0, interval_s=math.inf, on_request=False))
    models = SimModels(failures=failing(FaultKind.SLOW, 100.0, 60.0, slowdown=3.0), restart=never)
    made = trace(job("low", 0, 500, gpus=8), job("high", 130, 10, gpus=8, priority=9))

    low, _ = run(made, nodes(1), DEFAULT, models=models).records

    assert low.preemptions == 1
    assert low.lost_gpu_s == 130 * 8, "100 s at full speed and 30 s at a third of it"


def test_a_gpu_that_fails_ends_what_runs_on_it_alone_and_takes_nothing_new() -> None:
    law = FaultLaw(FaultKind.DEVICE, Fixed(100.0), Fixed(1_000.0), per="gpu", labels=(("name", "n0"),))
    where = tuple(replace(node, labels=(("name", node.id),)) for node in nodes(2, gpus=1))
    made = trace(job("a", 0, 150), job("b", 0, 150))

    a, b = run(made, where, FIFO, models=SimModels(failures=FailureModel((law,)))).records

    assert [(r.from_s, r.to_s, r.nodes) for r in b.runs] == [(0.0, 150.0, ("n1",))]
    assert [(r.from_s, r.to_s, r.nodes) for r in a.runs] == [(0.0, 100.0, ("n0",)), (150.0, 200.0, ("n1",))]


def test_the_series_knows_what_is_there() -> None:
    models = SimModels(failures=failing(FaultKind.NODE, 100.0, 40.0))

    series = run(trace(job("a", 0, 150, gpus=8)), nodes(1), FIFO, models=models).series

    at = dict(zip(series.times_s.tolist(), series.capacity_gpus.tolist(), strict=True))
    assert (at[0.0], at[100.0], at[140.0]) == (8.0, 0.0, 8.0)


def test_a_link_that_fails_makes_gangs_across_nodes_slow_and_leaves_others_alone() -> None:
    models = SimModels(failures=failing(FaultKind.LINK, 100.0, 60.0, slowdown=2.0))
    made = trace(job("wide", 0, 150, gpus=8, members=2), job("narrow", 0, 150, gpus=8))

    wide, narrow = run(made, nodes(3), FIFO, models=models).records

    assert (wide.ended_s, narrow.ended_s) == (100 + 60 + 20, 150)  # 100 s of work, 30 s in 60, 20 s


def test_a_link_that_is_gone_ends_gangs_across_nodes_only() -> None:
    models = SimModels(failures=failing(FaultKind.LINK, 100.0, 60.0))
    made = trace(job("wide", 0, 150, gpus=8, members=2), job("narrow", 0, 150, gpus=8))

    wide, narrow = run(made, nodes(3), replace(FIFO, retry_backoff_s=10.0), models=models).records

    assert [(r.from_s, r.to_s) for r in narrow.runs] == [(0.0, 150.0)]
    assert [(r.from_s, r.to_s) for r in wide.runs] == [(0.0, 100.0), (110.0, 160.0)]  # it fails, and tries again
    assert wide.state is State.SUCCEEDED


def test_a_rack_that_fails_takes_all_its_nodes() -> None:
    law = FaultLaw(FaultKind.NODE, Fixed(100.0), Fixed(40.0), per="rack")
    where = tuple(replace(node, topology=(("rack", f"r{n // 2}"),)) for n, node in enumerate(nodes(4)))
    only = replace(law, labels=(("first", "yes"),))
    where = tuple(replace(node, labels=(("first", "yes"),)) if n < 2 else node for n, node in enumerate(where))
    made = trace(*(job(f"j{n}", 0, 150, gpus=8) for n in range(4)))

    outcome = run(made, where, FIFO, models=SimModels(failures=FailureModel((only,))))

    broken = [record.id for record in outcome.records if record.runs[0].to_s == 100.0]
    at = dict(zip(outcome.series.times_s.tolist(), outcome.series.capacity_gpus.tolist(), strict=True))
    assert len(broken) == 2 and (at[0.0], at[100.0], at[140.0]) == (32.0, 16.0, 32.0)
