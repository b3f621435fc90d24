"""Surplus seats of training go to whoever waits, however important the two are to each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.decisions import Stop
from rayorch.core.eviction import EvictionKnobs
from rayorch.core.planner import plan
from rayorch.core.types import Kind, StopCause
from rayorch.policies.default import DEFAULT
from rayorch.policies.presets import kai, kueue, slurm, volcano, yunikorn
from rayorch.sim.models import Amdahl, RestartCost, RestartModel, SimModels
from rayorch.sim.trace.model import TraceJob
from rayorch.sim.trace.run import run
from tests.scenes import changes, node, pending, queue, reserved, resizes, running, shrunk, snapshot, stopped
from tests.sim.trace.worlds import job, nodes, trace

KEEPS = replace(DEFAULT, eviction=replace(DEFAULT.eviction, surplus_yields=False))
ON_EIGHT = ["n1"] * 8


def test_who_waits_takes_as_many_surplus_seats_as_it_needs_of_work_that_is_as_important() -> None:
    work = [running("grown", ON_EIGHT, members=(2, 8)), pending("waits", 3)]
    made = plan(snapshot([node("n1")], work), DEFAULT)
    assert shrunk(made) == {"grown": (4, 5, 6)}
    assert reserved(made) == {"waits": ["n1", "n1", "n1"]}
    assert resizes(made)[0].reason == "surplus seats given up for waits"
    assert changes(plan(snapshot([node("n1")], work), KEEPS)) == []


def test_nobody_gives_up_its_minimum_to_work_that_is_as_important() -> None:
    work = [running("grown", ON_EIGHT, members=(6, 8)), pending("waits", 3)]
    assert changes(plan(snapshot([node("n1")], work), DEFAULT)) == []


@pytest.mark.parametrize(("priority", "expected"), [(-1, {}), (0, {"grown": (6,)}), (5, {"grown": (6,)})])
def test_less_important_work_takes_nothing(priority: int, expected: dict[str, tuple[int, ...]]) -> None:
    work = [running("grown", ON_EIGHT, members=(2, 8)), pending("waits", priority=priority)]
    assert shrunk(plan(snapshot([node("n1")], work), DEFAULT)) == expected


def test_work_that_is_not_preemptible_and_applications_keep_what_they_have() -> None:
    fixed = running("grown", ON_EIGHT, members=(2, 8), preemptible=False)
    assert changes(plan(snapshot([node("n1")], [fixed, pending("waits")]), DEFAULT)) == []
    app = running("app", ON_EIGHT, members=(2, 8), kind=Kind.SERVE)
    assert shrunk(plan(snapshot([node("n1")], [app, pending("waits")]), DEFAULT)) == {}


def test_of_another_queue_only_what_it_borrowed_is_taken() -> None:
    for deserved, expected in ((8, {}), (6, {"grown": (5, 6)})):
        queues = [queue("a", deserved=deserved), queue("b")]
        work = [running("grown", ON_EIGHT, members=(2, 8), queue="a"), pending("waits", 2, queue="b")]
        assert shrunk(plan(snapshot([node("n1")], work, queues), DEFAULT)) == expected


def test_only_who_gets_all_that_it_needs_takes_anything() -> None:
    work = [running("grown", ON_EIGHT, members=(2, 8)), pending("waits", 7)]
    assert changes(plan(snapshot([node("n1")], work), DEFAULT)) == []


def test_less_important_work_makes_room_before_what_is_as_important() -> None:
    low = running("low", ["n1"] * 4, members=4, priority=-5)
    grown = running("grown", ["n1"] * 4, members=(2, 4))
    made = plan(snapshot([node("n1")], [low, grown, pending("waits", 2)]), DEFAULT)
    assert (stopped(made), shrunk(made)) == ({"low": StopCause.PREEMPTED}, {})


def test_where_neither_is_enough_alone_both_make_room() -> None:
    low = running("low", ["n1"] * 4, members=4, priority=-5)
    grown = running("grown", ["n1"] * 4, members=(2, 4))
    made = plan(snapshot([node("n1")], [low, grown, pending("waits", 6)]), DEFAULT)
    assert (stopped(made), shrunk(made)) == ({"low": StopCause.PREEMPTED}, {"grown": (1, 2)})
    (stop,) = (decision for decision in made.decisions if isinstance(decision, Stop))
    assert stop.order.reason.startswith("preempted for waits"), "a whole gang is no surplus"


def _elastic(one: TraceJob, least: int, most: int) -> TraceJob:
    return replace(one, ask=replace(one.ask, least=least, most=most))


def test_in_a_run_nobody_waits_behind_surplus_and_it_comes_back() -> None:
    models = SimModels(scaling=Amdahl(0.0), restart=RestartModel(default=RestartCost(restart_s=5.0)))
    made = trace(_elastic(job("long", 0, 1_000, members=2), 2, 8), job("new", 100, 50, members=4))

    long, new = run(made, nodes(1), DEFAULT, models=models).records
    kept, late = run(made, nodes(1), KEEPS, models=models).records

    assert (new.started_s, new.ended_s) == (100.0, 150.0)
    assert [(r.from_s, r.gpus) for r in long.runs] == [(0.0, 8.0), (100.0, 4.0), (150.0, 8.0)]
    assert late.started_s == kept.ended_s, "as the knob says"


def test_presets_of_other_schedulers_leave_it_as_it_is_there() -> None:
    for preset in (kai, kueue, slurm, volcano, yunikorn):
        assert not preset.PRESET.eviction.surplus_yields
    assert DEFAULT.eviction == EvictionKnobs(surplus_yields=True)
