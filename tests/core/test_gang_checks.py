"""The door: gangs whose shape can't be right, or that no domain of this cluster could ever hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rayorch.core.admission import NodeShape, check_workload
from rayorch.core.errors import AdmissionError, SpecError
from rayorch.core.queues import QueueTree
from rayorch.core.types import GroupSpec, JointGang, Kind, Role, Segment, TopologyRequest, WorkloadSpec
from tests.build import apply, queue
from tests.scenes import gpus, spec

A = Role("a", gpus(1), 8, 16, "g")
GOOD = spec("w", roles=(A,), groups=(GroupSpec("g"),))


def segmented(*segments: Any, least: int = 8, most: int = 16) -> tuple[Role, ...]:
    return (Role("a", gpus(1), least, most, "g", segments),)


def nested(*parents: tuple[str, str]) -> tuple[GroupSpec, ...]:
    return (GroupSpec("g"), *(GroupSpec(name, parent) for name, parent in parents))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"groups": [GroupSpec("g")]}, "groups"),
        ({"groups": ("g",)}, "groups[0]"),
        ({"groups": (GroupSpec(""),)}, "groups[0].name"),
        ({"groups": (GroupSpec(5),)}, "groups[0].name"),  # type: ignore[arg-type]
        ({"groups": (GroupSpec("g", "h"),)}, "groups[0].parent"),
        ({"groups": (GroupSpec("g"), GroupSpec("g"))}, "groups[1].name"),
        ({"groups": nested(("h", ""))}, "groups[1].name"),
        ({"groups": (GroupSpec("g", "h"), GroupSpec("h", "g"))}, "groups[0].parent"),
        ({"groups": (GroupSpec("g", "g"),)}, "groups[0].parent"),
        ({"groups": (GroupSpec("g", min_children=2),)}, "groups[0].min_children"),
        ({"groups": (GroupSpec("g", min_children=0),)}, "groups[0].min_children"),
        ({"groups": (GroupSpec("g", min_children=True),)}, "groups[0].min_children"),
        ({"groups": (GroupSpec("g", topology=None),)}, "groups[0].topology"),  # type: ignore[arg-type]
        ({"topology": TopologyRequest("rack", balanced=1)}, "topology.balanced"),  # type: ignore[arg-type]
        ({"roles": (replace(A, group="x"),)}, "roles.a.group"),
        ({"roles": (replace(A, group=5),)}, "roles.a.group"),
        ({"roles": segmented(Segment(3, "rack"))}, "roles.a.segments[0].size"),
        ({"roles": segmented(Segment(8, "rack"), most=12)}, "roles.a.segments[0].size"),
        ({"roles": segmented(Segment(0, "rack"))}, "roles.a.segments[0].size"),
        ({"roles": segmented(Segment(2.0, "rack"))}, "roles.a.segments[0].size"),  # type: ignore[arg-type]
        ({"roles": segmented(Segment(2, ""))}, "roles.a.segments[0].level"),
        ({"roles": segmented(Segment(2, "rack", 1))}, "roles.a.segments[0].channel"),  # type: ignore[arg-type]
        ({"roles": segmented(Segment(8, "zone"), Segment(3, "rack"))}, "roles.a.segments[1].size"),
        ({"roles": segmented(Segment(8, "rack"), Segment(4, "rack"))}, "roles.a.segments"),
        ({"roles": segmented(Segment(8, "zone", True), Segment(4, "rack", True))}, "roles.a.segments"),
        ({"roles": segmented(*(Segment(1, f"l{n}") for n in range(4)))}, "roles.a.segments"),
        ({"roles": segmented("rack")}, "roles.a.segments[0]"),
        ({"joint": "x"}, "joint"),
        ({"joint": JointGang("", 2)}, "joint.name"),
        ({"joint": JointGang("x", 1)}, "joint.count"),
        ({"joint": JointGang("x", 2.0)}, "joint.count"),  # type: ignore[arg-type]
        ({"kind": Kind.SERVE}, "groups"),
        ({"kind": Kind.SERVE, "groups": (), "roles": (replace(A, group=""),), "joint": JointGang("x", 2)}, "joint"),
    ],
)
def test_a_gang_that_can_not_be_right_is_refused_with_its_field(changes: dict[str, Any], field: str) -> None:
    check_workload(GOOD)
    with pytest.raises(SpecError) as refused:
        check_workload(replace(GOOD, **changes))
    assert refused.value.field == field


def test_a_gang_that_could_start_with_nobody_is_refused() -> None:
    groups = (GroupSpec("any", min_children=1), GroupSpec("g", "any"), GroupSpec("h", "any"))
    roles = (Role("a", gpus(1), 2, 2, "g"), Role("b", gpus(1), 0, 2, "h"))
    with pytest.raises(SpecError, match="without any member"):
        check_workload(replace(GOOD, roles=roles, groups=groups))


RACKS = tuple(NodeShape(gpus(4), count, (("rack", rack),)) for rack, count in (("r0", 2), ("r1", 1)))


def refused(made: WorkloadSpec) -> str | None:
    tree = QueueTree()
    apply(tree, tree.set_queue(queue("q"), 0.0))
    tree.set_capacity(RACKS)
    try:
        tree.submit(made, 0.0)
    except AdmissionError as error:
        return error.field
    return None


def test_what_no_domain_could_ever_hold_is_refused_with_the_group_or_segment() -> None:
    def group(level: str, members: int) -> WorkloadSpec:
        roles = (Role("a", gpus(1), members, members, "h"), Role("b", gpus(1), 1, 1))
        return spec("w", roles=roles, groups=(GroupSpec("g", topology=TopologyRequest(level)), GroupSpec("h", "g")))

    assert [refused(group("rack", 8)), refused(group("rack", 9)), refused(group("row", 1))] == [
        None,
        "groups[0].topology.required",
        "groups[0].topology.required",
    ]
    sizes = [spec("w", roles=(Role("a", gpus(1), 12, 12, segments=(Segment(n, "rack"),)),)) for n in (4, 12)]
    assert [refused(made) for made in sizes] == [None, "roles.a.segments[0].level"]


def test_a_group_that_the_gang_can_start_without_may_be_too_large() -> None:
    groups = (GroupSpec("any", min_children=1), GroupSpec("g", "any"), GroupSpec("h", "any"))
    roles = (Role("a", gpus(1), 2, 2, "g"), Role("b", gpus(1), 100, 100, "h"))
    assert refused(spec("w", roles=roles, groups=groups)) is None
    assert refused(spec("w", roles=roles, groups=tuple(replace(g, min_children=None) for g in groups))) == "roles"
