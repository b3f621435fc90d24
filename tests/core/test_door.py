"""What the door remembers of a shape changes no answer: all checks of all specs, whatever came before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.door import OWN
from rayorch.core.errors import AdmissionError, RayorchError, SpecError
from rayorch.core.queues import QueueTree
from rayorch.core.timing import After, Dependency
from rayorch.core.types import QueueId, QueueSpec, Resources, WorkloadId, WorkloadSpec
from tests.build import workload

BASE = workload("w", 2, 4, queue="a")


def _tree(*passed: WorkloadSpec) -> QueueTree:
    tree = QueueTree()
    for spec in (QueueSpec(QueueId("a"), hard_cap=Resources.of({"GPU": 64})), QueueSpec(QueueId("b"))):
        for event in tree.set_queue(spec, 0.0):
            tree.apply(event)
    for spec in passed:
        for event in tree.submit(spec, 1.0):
            tree.apply(event)
    return tree


def _answer(tree: QueueTree, spec: WorkloadSpec) -> object:
    try:
        return tree.submit(spec, 2.0)
    except RayorchError as error:
        return type(error), error.args


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"id": ""},
        {"id": "a/b"},
        {"id": "w"},
        {"id": 3},
        {"name": "x\0"},
        {"owner": None},
        {"priority": True},
        {"priority": 1.0},
        {"priority": 2_000_000},
        {"expected_s": -1.0},
        {"expected_s": float("nan")},
        {"total_steps": 0},
        {"total_steps": 1.5},
        {"max_retries": True},
        {"max_retries": -1},
        {"grace_s": True},
        {"queue": "none"},
        {"resizable": 1},
        {"roles": ()},
        {"roles": (replace(BASE.roles[0], min_count=2.0),)},
        {"roles": (replace(BASE.roles[0], min_count=100, max_count=100),)},
        {"wall_limit_s": 0.0},
        {"after": (Dependency(After.OK, WorkloadId("nobody")),)},
        {"deadline_s": 1.0},
        {"reservation": "none"},
    ],
)
def test_a_spec_of_a_known_shape_is_answered_as_by_a_door_that_knows_nothing(fields: dict[str, object]) -> None:
    spec = replace(BASE, **{"id": WorkloadId("x"), **fields})  # type: ignore[arg-type]
    assert _answer(_tree(BASE), spec) == _answer(_tree(replace(BASE, roles=(*BASE.roles,))), spec)


def test_what_passed_is_checked_anew_where_the_queues_or_the_nodes_are_other_ones() -> None:
    tree = _tree(BASE)
    big = replace(BASE, id=WorkloadId("x"))
    assert tree.submit(big, 2.0)
    for event in tree.set_queue(QueueSpec(QueueId("a"), hard_cap=Resources.of({"GPU": 1})), 2.0):
        tree.apply(event)
    with pytest.raises(AdmissionError, match="queue"):
        tree.submit(big, 3.0)


def test_each_field_is_its_own_or_of_the_shape() -> None:
    assert WorkloadSpec.__slots__ and set(WorkloadSpec.__slots__) >= OWN
    for name in sorted(set(WorkloadSpec.__slots__) - OWN):
        with pytest.raises((SpecError, AdmissionError)):
            _tree(BASE).submit(replace(BASE, id=WorkloadId("x"), **{name: object()}), 2.0)  # type: ignore[arg-type]
