"""Failures in words, and that each kind acts in a run."""

from __future__ import annotations

import math

import pytest

from rayorch.core.errors import SpecError
from rayorch.experiment import options
from rayorch.experiment.faults import check_acts, laws_of
from rayorch.experiment.nodes import from_words
from rayorch.experiment.side_by_side import simulate
from rayorch.policies.default import DEFAULT
from rayorch.sim.models import FaultKind
from rayorch.sim.models.failures import LARGE_CLUSTER
from rayorch.sim.trace.run import run
from tests.sim.trace.worlds import job, trace

MADE = trace(*(job(f"j{n}", 300.0 * n, 7_200.0, gpus=4, members=1 + n % 3) for n in range(20)))
NODES = from_words("4x8", racks=2).nodes


def test_words_become_laws() -> None:
    node, slow, device, spot, link = laws_of(
        [
            "node=60d,per=rack,repair=2h,shape=0.7",
            "slow=30d,slowdown=1.3,label=zone:b",
            "device=1000d,repair=12h",
            "spot=1d,notice=2m",
            "link=300d,slowdown=inf",
        ]
    )
    assert node.kind is FaultKind.NODE and node.per == "rack" and node.between.mean == pytest.approx(60 * 86_400.0)
    assert node.ends_work and node.notice_s == 0.0
    assert (slow.slowdown, slow.labels, slow.ends_work) == (1.3, (("zone", "b"),), False)
    assert device.per == "gpu" and (spot.notice_s, spot.labels) == (120.0, ())
    assert math.isinf(link.slowdown)
    assert laws_of(["large-cluster"]) == LARGE_CLUSTER.laws
    assert len(options.models_of(node_mtbf="10d", faults=["slow=1d"]).failures.laws) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fire=1d", "must be KIND=TIME"),
        ("node", "node:"),
        ("node=0s", "node must be more than nothing"),
        ("node=1d,repair", "takes repair"),
        ("node=1d,repair=1h,repair=2h", "each once"),
        ("node=1d,slowdown=2", "slowdown is of slow and link only"),
        ("slow=1d,slowdown=0.5", "slowdown must be at least 1"),
        ("slow=1d,notice=1m", "a notice comes before"),
        ("device=1d,per=node", "a device fails by itself"),
        ("node=1d,per=gpu", "per=gpu is of device only"),
        ("node=1d,label=spot", "label must be NAME:VALUE"),
        ("node=1d,shape=nan", "shape must be"),
        ("node=1d,large-cluster", "takes repair"),
    ],
)
def test_what_can_not_be_is_refused(text: str, said: str) -> None:
    with pytest.raises(SpecError, match="--fault") as caught:
        laws_of([text])
    assert said in str(caught.value)


def test_a_refusal_says_once_what_it_got() -> None:
    for text, said in (
        ("node=nan", "--fault: node: must be a duration such as 120s, 30m or 24h, got 'nan' in 'node=nan'"),
        ("slow=1d,slowdown=nan", "--fault: slowdown must be at least 1, got 'nan' in 'slow=1d,slowdown=nan'"),
    ):
        with pytest.raises(SpecError) as caught:
            laws_of([text])
        assert str(caught.value) == said


def test_what_is_said_twice_or_hits_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match="node is given twice"):
        laws_of(["node=1d", "node=2d"])
    with pytest.raises(SpecError, match="exclude each other"):
        options.models_of(node_mtbf="10d", faults=["node=1d"])
    check_acts(options.models_of(faults=["node=1d,per=rack"]).failures, NODES)
    with pytest.raises(SpecError, match="no node is in any zone"):
        check_acts(options.models_of(faults=["node=1d,per=zone"]).failures, NODES)
    with pytest.raises(SpecError, match="no node has the label zone:b"):
        simulate(MADE, "4x8", models=options.models_of(faults=["spot=1d,label=zone:b"]), progress=False)


@pytest.mark.parametrize("words", ["node=4h", "node=4h,per=rack", "device=1d", "slow=4h", "spot=4h", "link=4h"])
def test_each_kind_acts_in_a_run(words: str) -> None:
    models = options.models_of(faults=[words], checkpoint_every="10m")
    calm, rough = run(MADE, NODES, DEFAULT), run(MADE, NODES, DEFAULT, models=models, seed=1)
    assert rough.log_sha256 != calm.log_sha256
    ended = [r.ended_s for r in rough.records if r.ended_s is not None]
    assert max(ended) > max(r.ended_s or 0.0 for r in calm.records)
