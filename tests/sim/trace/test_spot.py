"""Nodes that are taken back after a notice: each notice comes as long before as it should."""

from __future__ import annotations

from dataclasses import replace

from rayorch.core.types import NodeHealth, NodeId, State
from rayorch.policies.default import DEFAULT
from rayorch.sim.models import FailureModel, RestartCost, RestartModel, SimModels
from rayorch.sim.models.distributions import Fixed
from rayorch.sim.models.failures import MARKET_LABEL, spot
from rayorch.sim.trace.cluster import TraceCluster
from rayorch.sim.trace.events import Moment, Moments
from rayorch.sim.trace.faults import Faults
from rayorch.sim.trace.run import run
from tests.sim.trace.worlds import job, nodes, trace

NOTICE_S = 1_500.0
MODEL = FailureModel((spot(4_000.0, notice_s=NOTICE_S, away=Fixed(300.0)),))
SPOTS = tuple(replace(node, labels=((MARKET_LABEL, "spot"),)) for node in nodes(6))


def test_no_notice_is_late_where_many_overlap() -> None:
    cluster, moments = TraceCluster(SPOTS, (), DEFAULT), Moments()
    faults = Faults(cluster, MODEL, 1, moments, 50_000.0)
    now_s, known, lasted_s = 0.0, dict[int, float](), dict[str, float]()
    while (event := moments.due(float("inf"))) is not None:
        assert event.at_s >= now_s
        now_s = cluster.now_s = event.at_s
        change = faults.happen(event.kind, event.stamp, now_s)
        if event.kind is Moment.NOTICE:
            known[event.stamp] = now_s
            assert cluster.inventory.nodes[NodeId(change.nodes[0])].health is NodeHealth.DRAINING
        elif event.kind is Moment.FAULT:
            lasted_s[change.nodes[0]] = now_s - known.pop(event.stamp)
            assert lasted_s[change.nodes[0]] <= NOTICE_S + 1e-6
    assert len(lasted_s) == len(SPOTS)


def test_work_leaves_before_its_node_is_taken_back_and_loses_nothing() -> None:
    made = trace(*(job(f"j{n}", 100.0 * n, 2_000.0, gpus=8) for n in range(12)))
    hourly = RestartModel(default=RestartCost(interval_s=3_600.0))
    for seed in range(4):
        outcome = run(made, SPOTS, DEFAULT, models=SimModels(restart=hourly, failures=MODEL), seed=seed)
        known = {(f.nodes[0], round(f.at_s, 6)): f for f in MODEL.draw(SPOTS, seed, 50_000.0)}
        for record in outcome.records:
            for stretch in record.runs:
                fault = known.get((stretch.nodes[0], round(stretch.to_s, 6)))
                assert fault is None or fault.at_s - max(fault.announced_s, stretch.from_s) < 40, record.id


def test_work_on_spot_nodes_goes_on_elsewhere_or_later() -> None:
    made = trace(*(job(f"j{n}", 100.0 * n, 2_000.0, gpus=8) for n in range(12)))
    outcome = run(made, SPOTS, DEFAULT, models=SimModels(failures=MODEL), seed=1)
    assert all(record.state is State.SUCCEEDED for record in outcome.records)
    assert any(len(record.runs) > 1 for record in outcome.records)
