"""What documents say of eviction: the cluster's knobs, a workload's delay, a queue's weights."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from rayorch.config import ClusterDocument, QueueDocument, WorkloadDocument, parse_document
from rayorch.config.eviction import DURATIONS, TIMES, DefragmentSection, EvictionSection
from rayorch.core.errors import SpecError
from rayorch.core.eviction import DefragmentKnobs, EvictionKnobs
from rayorch.policies.moves import nobody, sampled_search


def _document(kind: str, spec: dict[str, Any], queue: str = "q") -> Any:
    metadata = {"name": "one"} if kind != "Workload" else {"name": "one", "queue": queue}
    return parse_document({"apiVersion": "rayorch/v1", "kind": kind, "metadata": metadata, "spec": spec})


def test_every_knob_of_eviction_can_be_set_in_the_cluster_document() -> None:
    spec = {
        "exempt": "1m",
        "priorityDoubles": 10,
        "lazy": True,
        "consolidate": False,
        "startWorth": "5m",
        "wholeNodeWorth": "2m",
        "moveAfterCheckpoint": "30s",
        "moveCooldown": "1h",
        "movesPerTurn": 3,
        "saturation": 1.5,
        "consolidationVictims": -1,
        "staleGrace": "never",
        "byOrder": True,
        "byPlace": True,
        "surplusYields": True,
        "orderWorth": "1h",
    }
    made = _document("Cluster", {"eviction": spec})
    assert isinstance(made, ClusterDocument)
    numbers = (60.0, 10.0, True, False, 300.0, 120.0, 30.0, 3600.0, 3, 1.5, -1, -1.0)
    expected = EvictionKnobs((), *numbers, by_order=True, order_worth_s=3600.0, by_place=True, surplus_yields=True)
    assert made.to_core().load_profile().eviction == expected


def test_every_knob_of_defragmentation_can_be_set_and_a_policy_switches_it_on() -> None:
    spec = {
        "every": "5m",
        "most": 0.1,
        "window": "2h",
        "perTurn": 2,
        "cooldown": "3h",
        "mostLost": "2m",
        "worth": "10m",
        "leastGain": 0.2,
        "acrossModels": True,
        "whileWaiting": True,
        "seed": 5,
    }
    made = _document("Cluster", {"policies": {"moves": "sampled_search"}, "defragment": spec})
    found = made.to_core().load_profile()
    expected = DefragmentKnobs(300.0, 0.1, 7200.0, 2, 10800.0, 120.0, 600.0, 0.2, True, True, 5)
    assert found.defragment == expected and found.moves is sampled_search.moves
    plain = _document("Cluster", {}).to_core().load_profile()
    assert plain.defragment == DefragmentKnobs() and plain.moves is nobody.moves
    own = {f"{name}_s" if name in TIMES else name for name in DefragmentSection.model_fields}
    assert own == {field.name for field in fields(DefragmentKnobs)}


@pytest.mark.parametrize(("knob", "value"), [("most", 0), ("most", 1.1), ("perTurn", 0), ("every", "-1s"), ("no", 1)])
def test_a_knob_of_defragmentation_out_of_range_is_refused_by_name(knob: str, value: object) -> None:
    with pytest.raises(SpecError, match=f"spec.defragment.{knob}"):
        _document("Cluster", {"defragment": {knob: value}})


def test_no_knob_is_forgotten_but_those_that_only_a_preset_sets() -> None:
    own = {f"{name}_s" if name in DURATIONS else name for name in EvictionSection.model_fields}
    assert own | {"passes"} == {field.name for field in fields(EvictionKnobs)}


def test_what_is_left_out_stays_the_presets() -> None:
    made = _document("Cluster", {"policies": {"preset": "kai"}, "eviction": {"saturation": 2}})
    found = made.to_core().load_profile().eviction
    assert (found.saturation, bool(found.passes)) == (2, True)


@pytest.mark.parametrize(
    ("knob", "value"),
    [("saturation", 0.5), ("priorityDoubles", -1), ("movesPerTurn", -1), ("exempt", "-1s"), ("no", 1)],
)
def test_a_knob_out_of_range_is_refused_by_name(knob: str, value: object) -> None:
    with pytest.raises(SpecError, match=rf"spec\.eviction\.{knob}"):
        _document("Cluster", {"eviction": {knob: value}})


def test_a_workload_names_its_delay() -> None:
    made = _document("Workload", {"entrypoint": "true", "preemption": {"delay": "10m"}})
    assert isinstance(made, WorkloadDocument)
    assert made.to_core("me").preemption_delay_s == 600.0


@pytest.mark.parametrize(("said", "meant"), [("90s", 90.0), ("never", -1.0)])
def test_a_workload_names_how_long_it_may_lack_a_part(said: str, meant: float) -> None:
    made = _document("Workload", {"entrypoint": "true", "preemption": {"staleGrace": said}})
    assert made.to_core("me").stale_grace_s == meant
    plain = _document("Workload", {"entrypoint": "true"})
    assert plain.to_core("me").stale_grace_s is None


def test_a_queue_names_weights_by_resource() -> None:
    made = _document("Queue", {"weights": {"gpu": 3, "CPU": 0}})
    assert isinstance(made, QueueDocument)
    assert made.to_core().weights == (("CPU", 0), ("GPU", 3))
    with pytest.raises(SpecError, match=r"spec\.weights"):
        _document("Queue", {"weights": {"gpu": 3, "GPU": 1}}).to_core()
