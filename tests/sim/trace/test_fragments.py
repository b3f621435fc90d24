"""Fragmentation of runs, against what can be worked out on paper and against a sum made anew at every moment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.types import UNIT, Device, Member, NodeHealth, Resources, WorkloadId
from rayorch.policies.default import DEFAULT
from rayorch.sim.models import FailureModel, FaultKind, FaultLaw, SimModels
from rayorch.sim.models.distributions import Fixed
from rayorch.sim.trace.fragments import Fragments
from rayorch.sim.trace.outcome import Outcome
from rayorch.sim.trace.run import run
from tests.sim.trace.worlds import FIFO, job, nodes, trace


def at(outcome: Outcome) -> dict[float, float]:
    """Fragmentation from each moment on."""
    series = outcome.series
    assert series.fragmentation is not None
    return dict(zip(series.times_s.tolist(), series.fragmentation.tolist(), strict=True))


def test_what_is_free_is_of_no_use_to_jobs_that_need_more_of_one_node() -> None:
    # Of four jobs two ask for 8 GPUs of a node and two for 2: what is left of a node is lost to half of them.
    made = trace(job("a", 0, 100, gpus=2), job("b", 10, 50, gpus=8), job("c", 20, 10, gpus=2), job("d", 200, 1, gpus=8))

    seen = at(run(made, nodes(2), FIFO, fragmentation=True))

    # a on n0: 6 free, of no use to half; b fills n1; c beside a: 4 free; all of n1 is free again; nothing runs.
    assert seen == {0.0: 3.0, 10.0: 3.0, 20.0: 2.0, 30.0: 3.0, 60.0: 3.0, 100.0: 0.0, 200.0: 0.0, 201.0: 0.0}


def test_a_lost_node_and_a_lost_device_have_nothing_that_is_free() -> None:
    device = FaultLaw(FaultKind.DEVICE, Fixed(100.0), Fixed(50.0), per="gpu", labels=(("name", "n1"),))
    whole = FaultLaw(FaultKind.NODE, Fixed(120.0), Fixed(10.0), labels=(("name", "n2"),))
    where = tuple(replace(node, labels=(("name", node.id),)) for node in nodes(3, gpus=1))
    made = trace(job("a", 0, 300), job("b", 0, 1, gpus=2), job("c", 0, 1, gpus=2))  # a is on n0; the others never fit

    failures = FailureModel((device, whole))
    seen = at(run(made, where, FIFO, models=SimModels(failures=failures), fragmentation=True))

    first = {time: round(gpus, 6) for time, gpus in seen.items() if time <= 150.0}
    useless, both = 0.666667, 1.333333  # of one free GPU, and of two, to two jobs of three
    assert first == {0.0: both, 100.0: useless, 120.0: 0.0, 130.0: useless, 150.0: both}


def test_measuring_changes_nothing_and_costs_nothing_where_it_is_off() -> None:
    made = trace(*(job(f"j{n}", 10.0 * n, 95.0, gpus=1 + n % 4) for n in range(30)))

    off, on = run(made, nodes(2), DEFAULT), run(made, nodes(2), DEFAULT, fragmentation=True)

    assert off.series.fragmentation is None
    assert off.log_sha256 == on.log_sha256
    assert off.turns == on.turns


@pytest.mark.parametrize("listed", [False, True])
def test_what_is_kept_is_what_it_would_be_anew(listed: bool) -> None:
    where = nodes(3, gpus=4)
    if listed:
        where = tuple(replace(node, devices=tuple(Device(i, "T4") for i in range(4))) for node in where)
    asked = trace(job("x", 0, 1, gpus=0.5), job("y", 0, 1, gpus=2), job("z", 0, 1, gpus=4)).jobs
    kept, held = Fragments(where, asked), dict[str, tuple[Member, ...]]()

    def member(node: int, gpus: float, *devices: int) -> Member:
        return Member("worker", 0, where[node].id, Resources.of({"GPU": gpus}), devices=devices)

    steps = [
        ("a", (member(0, 2, 0, 1), member(1, 0.5, 3))),
        ("b", (member(1, 0.5, 3), member(2, 4, 0, 1, 2, 3))),
        ("a", (member(0, 2, 2, 3),)),
        ("b", ()),
        ("c", (member(2, 1, 1),)),
    ]
    for id, members in steps:
        kept.hold(WorkloadId(id), members)
        held[id] = members
        anew = Fragments(where, asked)
        for other, seats in held.items():
            anew.hold(WorkloadId(other), seats)
        assert kept.gpus == anew.gpus

    # n0 and n2 have 2 and 3 free (of no use to the job of 4), n1 all.
    assert kept.gpus == pytest.approx((2 + 3) / 3)
    kept.see([replace(where[0], health=NodeHealth.DRAINING)])
    assert kept.gpus == pytest.approx(3 / 3)
    assert UNIT == 10_000


def test_a_seat_is_on_the_device_that_it_was_given_also_where_the_node_lists_its_devices_later() -> None:
    """A node that names no devices counts them from 0; when one of them fails, the inventory names all."""
    (where,) = nodes(1, gpus=2)
    kept = Fragments([where], trace(job("x", 0, 1, gpus=1), job("y", 0, 1, gpus=2)).jobs)

    def seat(device: int) -> tuple[Member, ...]:
        return (Member("worker", 0, where.id, Resources.of({"GPU": 1}), devices=(device,)),)

    kept.hold(WorkloadId("a"), seat(1))
    assert kept.gpus == pytest.approx(1 / 2)  # the other GPU is of no use to one job of two
    kept.see([replace(where, devices=(Device(0), Device(1)))])
    kept.hold(WorkloadId("b"), seat(0))
    assert kept.gpus == 0.0
    kept.see([replace(where, devices=(Device(0, sick="lost"), Device(1)))])
    kept.hold(WorkloadId("a"), ())
    assert kept.gpus == pytest.approx(1 / 2)
