"""What a person reads of a gang's shape."""

from __future__ import annotations

import json

from rayorch.cli.gangs import gang_lines
from rayorch.core.types import (
    Allocation,
    Channel,
    GroupSpec,
    JointGang,
    Member,
    NodeId,
    Role,
    Segment,
    TopologyRequest,
    WorkloadId,
)
from rayorch.core.views import WorkloadRow
from rayorch.serve_apps.gateway.json_views import workload_json
from tests.scenes import gpus, pending

GROUPS = (
    GroupSpec("learner", topology=TopologyRequest("zone", "rack", balanced=True)),
    GroupSpec("any", min_children=1),
    GroupSpec("g0", "any"),
)
ROLES = (
    Role("learn", gpus(1), 8, 8, "learner", (Segment(8, "rack"), Segment(4, "node", channel=True))),
    Role("serve", gpus(1), 1, 1, "g0"),
)


def test_groups_segments_and_partners_are_said_in_words() -> None:
    gang = pending("w", roles=ROLES, groups=GROUPS, joint=JointGang("rl", 2))
    data = json.loads(json.dumps({"workload": workload_json(gang)}))
    assert gang_lines(data) == [
        "group learner: learn (in one zone, in one rack if it can be, in equal parts)",
        "group any: at least 1 of group g0",
        "group g0: serve",
        "segments of learn: 8 in one rack, in these 4 in one node with a channel",
        "starts with the other submissions of rl, 2 at least",
    ]
    assert gang_lines({"workload": workload_json(pending("plain"))}) == []


def test_each_member_shows_its_rank_place_and_channel() -> None:
    gang = pending("w", 2)
    members = (
        Member("worker", 0, NodeId("n2"), gpus(1), 0, 0, path="z1/r2"),
        Member("worker", 1, NodeId("n1"), gpus(1), 0, 1, path="z1/r1", channel=Channel("rack:z1/r1", 5)),
    )
    row = WorkloadRow(gang, held=Allocation(WorkloadId("w"), 1, members, 0.0, 30.0))
    shown = json.loads(json.dumps(workload_json(gang, row)))["members"]
    assert [(m["node"], m["rank"], m["path"], m["channel"]) for m in shown] == [
        ("n2", 1, "z1/r2", None),
        ("n1", 0, "z1/r1", 5),
    ]
