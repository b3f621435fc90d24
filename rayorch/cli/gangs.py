"""A gang's shape in a few lines, for people."""

from __future__ import annotations

from rayorch.cli.output import Item


def gang_lines(data: Item) -> list[str]:
    """What of a workload's groups, segments and partners is worth saying; nothing for a plain gang."""
    workload = data["workload"]
    assert isinstance(workload, dict)
    return [*_groups(workload), *_segments(workload), *_joint(workload)]


def _groups(workload: Item) -> list[str]:
    found = []
    groups, roles = _items(workload, "groups"), _items(workload, "roles")
    for group in groups:
        inside = [str(role["name"]) for role in roles if role.get("group") == group["name"]]
        inside += [f"group {other['name']}" for other in groups if other.get("parent") == group["name"]]
        least = f"at least {group['minChildren']} of " if group.get("minChildren") else ""
        found.append(f"group {group['name']}: {least}{', '.join(inside)}{_levels(group.get('topology'))}")
    return found


def _levels(topology: object) -> str:
    if not isinstance(topology, dict):
        return ""
    parts = [f"in one {topology['require']}"] if topology.get("require") else []
    parts += [f"in one {topology['prefer']} if it can be"] if topology.get("prefer") else []
    parts += ["in equal parts"] if topology.get("balanced") else []
    return f" ({', '.join(parts)})" if parts else ""


def _segments(workload: Item) -> list[str]:
    found = []
    for role in _items(workload, "roles"):
        sizes = [
            f"{part['size']} in one {part['level']}{' with a channel' if part.get('channel') else ''}"
            for part in _items(role, "segments")
        ]
        if sizes:
            found.append(f"segments of {role['name']}: {', in these '.join(sizes)}")
    return found


def _joint(workload: Item) -> list[str]:
    joint = workload.get("joint")
    if not isinstance(joint, dict):
        return []
    return [f"starts with the other submissions of {joint['name']}, {joint['count']} at least"]


def _items(item: Item, name: str) -> list[Item]:
    found = item.get(name)
    return found if isinstance(found, list) else []
