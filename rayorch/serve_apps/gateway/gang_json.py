"""How the members of a gang belong together, as JSON."""

from __future__ import annotations

from rayorch.core.payload import Json
from rayorch.core.ranks import ranks
from rayorch.core.types import Member, Role, TopologyRequest, WorkloadSpec


def gang_json(spec: WorkloadSpec) -> dict[str, Json]:
    """Its levels, groups and joint gang, in the words of the Workload document."""
    return {
        "topology": _topology(spec.topology),
        "groups": [
            {
                "name": group.name,
                "parent": group.parent or None,
                "minChildren": group.min_children,
                "topology": _topology(group.topology),
            }
            for group in spec.groups
        ],
        "joint": {"name": spec.joint.name, "count": spec.joint.count} if spec.joint is not None else None,
    }


def role_json(role: Role) -> dict[str, Json]:
    """Which group a role lies in, and its segments from the outermost inwards."""
    return {
        "group": role.group or None,
        "segments": [{"size": s.size, "level": s.level, "channel": s.channel} for s in role.segments],
    }


def place_json(spec: WorkloadSpec, members: tuple[Member, ...]) -> list[dict[str, Json]]:
    """Of each member its rank, the domains of its node and its NVLink channel."""
    rank = ranks(spec, members)
    return [
        {
            "rank": rank[m.surplus, m.bundle_index],
            "path": m.path,
            "channel": m.channel.number if m.channel is not None else None,
        }
        for m in members
    ]


def _topology(topology: TopologyRequest) -> Json:
    return {"require": topology.required, "prefer": topology.preferred, "balanced": topology.balanced}
