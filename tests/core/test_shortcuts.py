"""Shortcuts of a turn give what the long way gives: the doorkeeper, and the index of a what-if."""

from __future__ import annotations

import importlib
import pkgutil
import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.played.crowd import Crowd
from rayorch.core import planner
from rayorch.core.ordering import is_by_class
from rayorch.core.planner import plan
from rayorch.core.planning import walk
from rayorch.core.planning.index import View
from rayorch.core.planning.overlay import Overlay
from rayorch.core.planning.walk import Walk
from rayorch.core.room import Room
from rayorch.core.slot import Slot
from rayorch.core.topology import Topology
from rayorch.core.types import NodeId, Resources
from rayorch.policies import queue_order
from rayorch.policies.default import DEFAULT
from tests.core.test_planner_memory import HAPPENINGS, Remembering, parts
from tests.core.test_planner_properties import World, worlds


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.lists(st.tuples(st.sampled_from(HAPPENINGS), st.integers(0, 5)), max_size=4))
def test_who_is_turned_away_would_have_found_nothing(world: World, happened: list[tuple[str, int]]) -> None:
    played = Remembering(world)
    played.turn()
    played.submit()
    for what, index in happened:
        played.turn()
        played.happens(what, index)
    seen = played.see()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "Doorkeeper", lambda draft, walk: None)
        thorough = parts(plan(seen, DEFAULT))
    assert parts(plan(seen, DEFAULT)) == thorough


def test_in_a_crowd_most_are_turned_away_and_the_plan_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd.of(30, 300, (2, 2, 2), seed=3)
    looked: list[int] = []
    claim = Walk._claim

    def counted(self: Walk, *given: object) -> object:
        looked.append(1)
        return claim(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Walk, "_claim", counted)
    for _ in range(3):
        crowd.carry_out(plan(crowd.snapshot(), DEFAULT))
    seen = crowd.snapshot()
    looked.clear()
    quick, few = parts(plan(seen, DEFAULT)), len(looked)
    monkeypatch.setattr(planner, "Doorkeeper", lambda draft, walk: None)
    looked.clear()
    assert parts(plan(seen, DEFAULT)) == quick
    assert few < len(looked) / 2


@pytest.mark.parametrize("name", [module.name for module in pkgutil.iter_modules(queue_order.__path__)])
def test_heads_of_one_class_have_one_key_across_queues(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An order across queues that says that it is by class gives the plan that it gives when asked about each head."""
    policy = getattr(importlib.import_module(f"rayorch.policies.queue_order.{name}"), "key", None)
    if policy is None:
        return  # what the others share
    assert is_by_class(policy)
    profile = replace(DEFAULT, queue_order=policy)
    crowd = Crowd.of(20, 200, (2, 2, 2), seed=5)
    for _ in range(2):
        crowd.carry_out(plan(crowd.snapshot(), profile))
    seen = crowd.snapshot()
    quick = parts(plan(seen, profile))
    monkeypatch.setattr(walk, "is_by_class", lambda policy: False)
    assert parts(plan(seen, profile)) == quick


def _loss_first(dear: frozenset[NodeId]) -> object:
    def score(bundle: Resources, node: NodeId, slot: Slot) -> tuple[float, int]:
        return (float(node in dear), slot.gpu_units)

    return score


@pytest.mark.parametrize("seed", range(6))
def test_the_index_of_a_what_if_answers_as_one_made_anew_would(seed: int) -> None:
    rng = random.Random(seed)
    crowd = Crowd.of(40, 10, (1, 1, 2), seed=seed)
    topology = Topology.of(crowd.nodes.values())
    room = Room.of(crowd.nodes.values(), crowd.held.values(), crowd.now_s)
    closed = frozenset(rng.sample(sorted(crowd.nodes), 3))
    plain = View(lambda: (room,), closed, topology, lambda b, n, slot: (0.0, slot.gpu_units), ())
    trial, touched = room.copy(), set[NodeId]()
    for id in rng.sample(sorted(crowd.held), 5):
        for member in crowd.held[id].members:
            trial.give(member.node, member.bundle, member.devices)
            touched.add(member.node)
    score = _loss_first(frozenset(rng.sample(sorted(touched), 2)))
    over = Overlay(plain, trial, touched, score)  # type: ignore[arg-type]
    fresh = View(lambda: (trial,), closed, topology, score, ())  # type: ignore[arg-type]
    racks = topology.at("rack")
    for gpus in (1, 2, 8):
        bundle = Resources.of({"GPU": gpus, "CPU": 2 * gpus})
        for model in ("", "H100", "A100"):
            models = (model,) if model else ()
            assert over.best(bundle, models) == fresh.best(bundle, models)
            assert over.able(racks, ((bundle, 3),), model) == fresh.able(racks, ((bundle, 3),), model)
            assert [over.count(bundle, model, r) for r in racks] == [fresh.count(bundle, model, r) for r in racks]
            wanted = fresh.first(((bundle, 4),), model)
            assert wanted is None or set(wanted) <= set(over.first(((bundle, 4),), model) or ())
    assert [over.units(r) for r in racks] == [fresh.units(r) for r in racks]
