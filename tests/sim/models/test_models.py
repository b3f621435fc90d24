"""Models are drawn from by seed and fitted to what was drawn; a misstatement changes what is told only."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayorch.core.errors import SpecError
from rayorch.core.types import Device, NodeId, NodeSpec, Resources
from rayorch.sim.models import (
    FailureModel,
    FaultKind,
    FaultLaw,
    Misstatement,
    ProvisioningModel,
    RestartCost,
    RestartModel,
    RuntimeModel,
    SimModels,
    Told,
    stream,
)
from rayorch.sim.models.distributions import Empirical, Fixed, Lognormal, Weibull
from rayorch.sim.models.failures import GPU, LARGE_CLUSTER, MARKET_LABEL, FaultSample, spot
from rayorch.sim.models.restart import NEVER_SAVED, POLLUX, SIA, SIA_CHARGED
from rayorch.sim.models.runtime import RunSample

DAY_S = 86_400.0


def _nodes(count: int, racks: int = 2, **more: object) -> list[NodeSpec]:
    return [
        NodeSpec(
            NodeId(f"n{n:03d}"),
            f"n{n:03d}",
            Resources.of({"GPU": 4, "CPU": 8}),
            devices=tuple(Device(i) for i in range(4)),
            topology=(("zone", "z"), ("rack", f"r{n % racks}")),
            **more,  # type: ignore[arg-type]
        )
        for n in range(count)
    ]


# ---------------------------------------------------------------- distributions


@given(st.floats(1e-3, 1e6), st.floats(0.0, 2.0), st.integers(0, 2**31))
def test_a_lognormal_is_found_again(median: float, sigma: float, seed: int) -> None:
    rng = stream(seed, "x")
    true = Lognormal(median, sigma)
    found = Lognormal.fit([true.draw(rng) for _ in range(400)])
    assert found.median == pytest.approx(median, rel=0.3 * sigma + 1e-9)
    assert found.sigma == pytest.approx(sigma, rel=0.2, abs=1e-9)


@pytest.mark.parametrize("shape", [0.5, 0.8, 1.0, 2.5])
def test_a_weibull_is_found_again(shape: float) -> None:
    rng = stream(3, "weibull")
    true = Weibull.of_mean(1000.0, shape)
    found = Weibull.fit([true.draw(rng) for _ in range(4_000)])
    assert true.mean == pytest.approx(1000.0)
    assert found.shape == pytest.approx(shape, rel=0.06)
    assert found.mean == pytest.approx(1000.0, rel=0.1)


def test_an_empirical_distribution_keeps_quantiles_and_bounds() -> None:
    samples = np.random.default_rng(0).lognormal(3, 2, 50_000)
    found = Empirical.fit(samples.tolist())
    rng = stream(1, "e")
    drawn = [found.draw(rng) for _ in range(20_000)]
    assert np.quantile(drawn, [0.1, 0.5, 0.9]) == pytest.approx(np.quantile(samples, [0.1, 0.5, 0.9]), rel=0.06)
    assert min(drawn) >= samples.min() and max(drawn) <= samples.max()


def test_nothing_to_fit_to_is_refused() -> None:
    for fit in (Lognormal.fit, Weibull.fit, Empirical.fit):
        with pytest.raises(SpecError):
            fit([])
    with pytest.raises(SpecError):
        Lognormal.fit([0.0, -1.0, math.nan])


# ---------------------------------------------------------------- run times


def test_the_default_world_is_the_trace_itself() -> None:
    models = SimModels()
    times = models.runtime.draw(np.array([10.0, 20.0]), stream(0, "runtime"))
    assert times.actual_s.tolist() == [10.0, 20.0] and times.told(1) == 20.0
    assert models.restart.draw("any", stream(0, "r")) == 0.0
    assert models.restart.of("any").saved_s(123.4, announced=False) == 123.4
    assert list(models.failures.draw(_nodes(3), 0, 1e9)) == []


def test_a_spread_keeps_the_load_and_a_misstatement_what_happens() -> None:
    durations_s = np.full(20_000, 100.0)
    spread = RuntimeModel(spread=0.5).draw(durations_s, stream(1, "runtime"))
    assert spread.actual_s.mean() == pytest.approx(100.0, rel=0.02)
    assert spread.told_s.tolist() == spread.actual_s.tolist()
    wrong = RuntimeModel(spread=0.5, misstated=Misstatement(2.0, 0.3)).draw(durations_s, stream(1, "runtime"))
    assert wrong.actual_s.tolist() == spread.actual_s.tolist()
    assert np.median(wrong.told_s / wrong.actual_s) == pytest.approx(2.0, rel=0.02)
    silent = RuntimeModel(told=Told.NOTHING).draw(durations_s, stream(1, "runtime"))
    assert silent.told(0) is None


def test_run_times_are_found_again() -> None:
    true = RuntimeModel(spread=0.4, misstated=Misstatement(1.7, 0.2))
    classes = np.repeat(np.geomspace(10, 1e5, 200), 10)
    times = true.draw(classes, stream(5, "runtime"))
    found = RuntimeModel.fit(
        RunSample(f"class {n // 10}", float(a), float(t))
        for n, (a, t) in enumerate(zip(times.actual_s, times.told_s, strict=True))
    )
    assert found.spread == pytest.approx(0.4, rel=0.05)
    assert found.misstated.factor == pytest.approx(1.7, rel=0.05)
    assert found.misstated.noise == pytest.approx(0.2, rel=0.05)
    assert RuntimeModel.fit([RunSample("a", 5.0), RunSample("a", 6.0)]).told is Told.NOTHING
    with pytest.raises(SpecError):
        RuntimeModel.fit([])


# ---------------------------------------------------------------- restarts


def test_published_restart_costs() -> None:
    assert (POLLUX.of("cifar10").restart_s, POLLUX.of("cifar10").start_s) == (30.0, 30.0)
    assert (SIA.of("cifar10").restart_s, SIA.of("gpt").restart_s) == (50.0, 30.0)
    assert SIA_CHARGED.of("yolov3").restart_s == 45.0


def test_what_is_saved_when_an_attempt_ends() -> None:
    regular = RestartCost(30.0, 10.0, interval_s=600.0)
    assert regular.saved_s(1999.0, announced=False) == 1800.0
    assert regular.saved_s(1999.0, announced=True) == 1999.0
    assert RestartCost(interval_s=600.0, on_request=False).saved_s(1999.0, announced=True) == 1800.0
    assert RestartCost(interval_s=NEVER_SAVED).saved_s(1999.0, announced=False) == 0.0
    assert regular.stretch() == pytest.approx(1.0 + 10 / 600)
    daly = RestartCost(checkpoint_s=60.0, interval_s=None)
    assert daly.interval(86_400.0) == pytest.approx(3180.06, abs=0.01)
    assert daly.saved_s(1e6, announced=False, mtbf_s=86_400.0) > 1e6 - 3181
    assert daly.stretch(math.inf) == 1.0


def test_restart_costs_are_found_again() -> None:
    true = RestartModel((("a", RestartCost(30.0, sigma=0.3)), ("b", RestartCost(300.0))))
    rng = stream(2, "restarts")
    found = RestartModel.fit([(name, true.draw(name, rng)) for name in "ab" * 500])
    assert found.of("a").restart_s == pytest.approx(30.0, rel=0.05)
    assert found.of("a").sigma == pytest.approx(0.3, rel=0.1)
    assert found.of("b").restart_s == pytest.approx(300.0)
    assert 30.0 < found.of("other").restart_s < 300.0
    assert RestartModel.fit([], true) == true


def test_a_policy_is_charged_what_is_misstated() -> None:
    model = RestartModel(SIA.costs, RestartCost(30.0), Misstatement(2.0))
    told = model.told(stream(0, "told"))
    assert told.of("bert").restart_s == 240.0 and model.of("bert").restart_s == 120.0


# ---------------------------------------------------------------- failures

LAWS = FailureModel(
    (
        FaultLaw(FaultKind.NODE, Weibull.of_mean(20 * DAY_S, 0.8), Lognormal(3600.0, 1.0)),
        FaultLaw(FaultKind.DEVICE, Weibull.of_mean(50 * DAY_S), Fixed(3600.0), per=GPU),
        FaultLaw(FaultKind.LINK, Weibull.of_mean(30 * DAY_S), Fixed(600.0), per="rack"),
        FaultLaw(FaultKind.SLOW, Weibull.of_mean(15 * DAY_S), Fixed(6000.0), slowdown=1.3),
    )
)


def test_faults_come_in_order_and_no_node_moves_another_ones() -> None:
    nodes = _nodes(6)
    faults = list(LAWS.draw(nodes, 7, 100 * DAY_S))
    assert faults == sorted(faults, key=lambda fault: fault.sort_key) and len(faults) > 50
    assert faults == list(LAWS.draw(nodes[::-1], 7, 100 * DAY_S))
    assert faults != list(LAWS.draw(nodes, 8, 100 * DAY_S))
    of_one = [f for f in faults if f.nodes == ("n001",)]
    assert of_one == [f for f in LAWS.draw(nodes[1:2], 7, 100 * DAY_S) if f.nodes == ("n001",) and f.kind != "link"]
    later = list(LAWS.draw(nodes, 7, 100 * DAY_S, from_s=40 * DAY_S))
    assert later == [f for f in faults if f.at_s >= 40 * DAY_S]
    assert list(islice(LAWS.draw(nodes, 7, 100 * DAY_S), 5)) == faults[:5]


def test_a_unit_fails_again_only_after_its_repair() -> None:
    last: dict[object, float] = {}
    for fault in LAWS.draw(_nodes(6), 3, 300 * DAY_S):
        unit = (fault.kind, fault.nodes, fault.device)
        assert fault.at_s >= last.get(unit, 0.0) and fault.until_s > fault.at_s
        last[unit] = fault.until_s


def test_a_rack_takes_all_its_nodes() -> None:
    racks = {f.nodes for f in LAWS.draw(_nodes(6), 3, 300 * DAY_S) if f.kind is FaultKind.LINK}
    assert racks == {("n000", "n002", "n004"), ("n001", "n003", "n005")}


def test_only_spot_nodes_are_taken_back_and_with_a_notice() -> None:
    nodes = [*_nodes(2, labels=((MARKET_LABEL, "spot"),)), *(n for n in _nodes(4) if n.id > "n001")]
    faults = list(FailureModel((spot(DAY_S, notice_s=120.0),)).draw(nodes, 1, 30 * DAY_S))
    assert {f.nodes[0] for f in faults} == {"n000", "n001"}
    assert all(f.at_s - 120.0 <= f.announced_s <= f.at_s for f in faults)
    assert sum(f.announced_s == f.at_s - 120.0 for f in faults) > 0.9 * len(faults)  # the others had just come back
    mixed = FailureModel((spot(DAY_S, notice_s=7200.0), *LAWS.laws))
    known = [f.announced_s for f in mixed.draw(nodes, 1, 30 * DAY_S)]
    assert known == sorted(known)


def test_how_often_a_gang_fails() -> None:
    model = FailureModel(
        (FaultLaw(FaultKind.NODE, Weibull.of_mean(DAY_S)), FaultLaw(FaultKind.SLOW, Fixed(1.0), slowdown=2))
    )
    assert model.mtbf_s(nodes=4) == pytest.approx(DAY_S / 4)
    assert math.isinf(FailureModel().mtbf_s(1000, 8000))
    assert model.told(0).mtbf_s() == model.mtbf_s()
    wrong = FailureModel(model.laws, Misstatement(0.5))
    assert wrong.told(0).mtbf_s() == pytest.approx(DAY_S / 2) and wrong.mtbf_s() == pytest.approx(DAY_S)
    interrupted = LARGE_CLUSTER.mtbf_s(nodes=2048, gpus=16_384)
    assert 1.5 * 3600 < interrupted < 4 * 3600


def test_failures_are_found_again() -> None:
    true = FaultLaw(FaultKind.NODE, Weibull.of_mean(DAY_S, 0.7), Lognormal(600.0, 0.5))
    nodes, until_s = _nodes(20), 100 * DAY_S
    faults = list(FailureModel((true,)).draw(nodes, 11, until_s))
    back: dict[object, float] = {}
    intervals = []
    for fault in faults:
        intervals.append(fault.at_s - back.get(fault.nodes, 0.0))
        back[fault.nodes] = fault.until_s
    repairs = tuple(f.until_s - f.at_s for f in faults)
    exposed_s = 20 * until_s - sum(repairs)
    sample = FaultSample(FaultKind.NODE, len(faults), exposed_s, intervals_s=tuple(intervals), repairs_s=repairs)
    (found,) = FailureModel.fit([sample]).laws
    assert isinstance(found.between, Weibull) and found.between.shape == pytest.approx(0.7, rel=0.1)
    assert found.between.mean == pytest.approx(DAY_S, rel=0.1)
    assert found.repair.mean == pytest.approx(true.repair.mean, rel=0.1)
    assert FailureModel.fit([FaultSample(FaultKind.NODE, 0, 1e9)], LAWS).laws == tuple(
        sorted(LAWS.laws, key=lambda law: law.key)
    )


# ---------------------------------------------------------------- provisioning


def test_provisioning_is_found_again_and_can_be_refused() -> None:
    true = ProvisioningModel(Lognormal(300.0, 0.4), (("a100", Lognormal(900.0, 0.2)),), refused=0.25)
    rng = stream(4, "provisioning")
    drawn = [(group, true.draw(group, rng)) for group in ("a100", "h100") * 400]
    came = [(group, took_s) for group, took_s in drawn if took_s is not None]
    assert len(came) / len(drawn) == pytest.approx(0.75, abs=0.06)
    found = ProvisioningModel.fit(came)
    assert found.of("a100").mean == pytest.approx(true.of("a100").mean, rel=0.05)
    assert found.of("h100").mean == pytest.approx(true.default.mean, rel=0.05)
    late = sum(took_s > true.told_s(group, 0) for group, took_s in came) / len(came)
    assert late == pytest.approx(0.1, abs=0.04)
    assert ProvisioningModel(Fixed(60.0), misstated=Misstatement(3.0)).told_s("g", 0) == 180.0
    assert ProvisioningModel.fit([("g", 1e9)], true) == true


def test_streams_have_names() -> None:
    assert stream(1, "a", 2).random() == stream(1, "a", "2").random()
    assert len({stream(seed, name).random() for seed in range(3) for name in "abc"}) == 9
