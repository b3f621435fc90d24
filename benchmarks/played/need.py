"""How many nodes a plan's gangs need, by plain counting on explicit nodes: nothing here is the planner's own."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from benchmarks.harness import say
from benchmarks.played.room import Room
from rayorch.core.capacity import GroupName, NodeGroup
from rayorch.core.decisions import Plan, Reserve, Resize, Scale, Start, WaitReason
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import CPU, UNIT, Role, WorkloadSpec

AWAITED = re.compile(r"(\d+) of group (\S+?),")


@dataclass
class Plain:
    """One explicit node: what is free on it, in whole GPUs and CPUs, and for which head of a queue it is held.

    `tier`: 0 there, 1 on its way, 2 added by the count.
    """

    group: str
    rack: str
    model: str
    gpu: int
    cpu: int
    tier: int
    held_for: str = ""


def plain_room(room: Room, snapshot: Snapshot, made: Plan) -> list[Plain]:
    """Every node that is there and what the plan leaves free on it, then those that are on their way."""
    free = {node.id: (node.total.gpu_units // UNIT, node.total.units(CPU) // UNIT) for node in snapshot.nodes}
    members = [m for allocation in snapshot.allocations for m in allocation.members]
    for decision in made.decisions:
        members += decision.members if isinstance(decision, Start) else ()
        members += decision.add if isinstance(decision, Resize) else ()
    for member in members:
        gpu, cpu = free[member.node]
        free[member.node] = (gpu - member.bundle.gpu_units // UNIT, cpu - member.bundle.units(CPU) // UNIT)
    heads = [d for d in made.decisions if isinstance(d, Reserve) and not d.from_release]
    held = {member.node: head.workload for head in heads for member in head.members}
    found = [
        Plain(node.group, node.topology[0][1], node.model, *free[node.id], 0, held.get(node.id, ""))
        for node in snapshot.nodes
    ]
    for name, group in sorted(room.groups.items()):
        there = sum(node.group == name for node in snapshot.nodes)
        found += plain_nodes(group, group.replicas * group.hosts - there, 1)
    return found


def plain_nodes(group: NodeGroup, count: int, tier: int) -> list[Plain]:
    """New nodes of a group."""
    gpu, cpu = group.total.gpu_units // UNIT, group.total.units(CPU) // UNIT
    rack = group.label("rack") or ""
    return [Plain(group.name, rack, group.model, gpu, cpu, tier) for _ in range(max(0, count))]


def seat_plainly(spec: WorkloadSpec, nodes: list[Plain], awaited: dict[str, int]) -> bool:
    """Seat a gang whole on these nodes, models in their order, in the fullest rack that takes it; else take nothing.

    `awaited`: on how many of the nodes of each group that are on their way it may sit.
    """
    for model in spec.accelerators or ("",):
        for allowed in _racks(spec, nodes):
            taken: list[tuple[Plain, int, int]] = []
            if all(_seat_role(role, model, allowed, taken, awaited) for role in spec.roles):
                return True
            for node, gpu, cpu in taken:
                node.gpu += gpu
                node.cpu += cpu
    return False


def _racks(spec: WorkloadSpec, nodes: list[Plain]) -> list[list[Plain]]:
    """Where all members may be, the place with least free first: everywhere, or each rack."""
    if not spec.topology.required:
        return [nodes]
    racks: dict[str, list[Plain]] = {}
    for node in nodes:
        racks.setdefault(node.rack, []).append(node)
    return sorted(racks.values(), key=lambda rack: (sum(node.gpu for node in rack), rack[0].rack))


def _seat_role(
    role: Role, model: str, nodes: list[Plain], taken: list[tuple[Plain, int, int]], awaited: dict[str, int]
) -> bool:
    gpu, cpu = role.bundle.gpu_units // UNIT, role.bundle.units(CPU) // UNIT
    left = role.min_count
    able = [n for n in nodes if n.gpu >= gpu and n.cpu >= cpu and (not gpu or not model or n.model == model)]
    able.sort(key=lambda n: ((1, 0, 2)[n.tier], n.gpu, n.cpu))  # what it was promised, what is there, what is added
    on_its_way = dict(awaited)
    for node in able:
        fits = min(left, node.cpu // cpu if cpu else left, node.gpu // gpu if gpu else left)
        if node.tier == 1:
            fits = fits if on_its_way.get(node.group, 0) > 0 else 0
            on_its_way[node.group] = on_its_way.get(node.group, 0) - 1
        if fits:
            node.gpu -= fits * gpu
            node.cpu -= fits * cpu
            taken.append((node, fits * gpu, fits * cpu))
            left -= fits
        if not left:
            return True
    return False


def need_plainly(
    spec: WorkloadSpec, nodes: list[Plain], groups: dict[GroupName, NodeGroup], awaited: dict[str, int]
) -> list[Plain] | None:
    """The nodes that must be added for a gang: for its first model that can be had, in the rack where fewest are.

    `groups`: those that may grow; their counts are raised by what is chosen. `awaited`: see `seat_plainly`. None: it
    can't be completed.
    """
    nodes = _may_use(nodes, awaited)
    workers = spec.roles[0]
    gpu, cpu = workers.bundle.gpu_units // UNIT, workers.bundle.units(CPU) // UNIT
    for model in spec.accelerators or ("",):
        options = []
        for rack in sorted({g.label("rack") or "" for g in groups.values()}) if spec.topology.required else [""]:
            allowed = [n for n in nodes if (not rack or n.rack == rack) and n.model == (model or n.model)]
            free = sum(min(n.gpu // gpu, n.cpu // cpu) for n in allowed if n.gpu >= gpu and n.cpu >= cpu)
            able = [
                g for g in groups.values() if (not rack or g.label("rack") == rack) and g.model == (model or g.model)
            ]
            picks = _pick_plainly(able, workers.min_count - free, gpu, cpu)
            if picks:
                added = sum(g.total.gpu_units * g.hosts * count for g, count in picks)
                options.append((added, max(g.preference for g, _ in picks), free, rack, picks))
        if options:
            new: list[Plain] = []
            for group, count in min(options, key=lambda option: option[:4])[-1]:
                groups[group.name] = replace(groups[group.name], replicas=groups[group.name].replicas + count)
                new += plain_nodes(group, count * group.hosts, 2)
            return new
    return None


def _may_use(nodes: list[Plain], awaited: dict[str, int]) -> list[Plain]:
    """Without the nodes on their way that are promised to others."""
    left = dict(awaited)
    found = []
    for node in nodes:
        if node.tier == 1:
            left[node.group] = left.get(node.group, 0) - 1
            if left[node.group] < 0:
                continue
        found.append(node)
    return found


def _pick_plainly(groups: list[NodeGroup], missing: int, gpu: int, cpu: int) -> list[tuple[NodeGroup, int]]:
    """How many replicas of which groups take the missing workers: one group that can, else several; empty: none can."""
    picks: list[tuple[NodeGroup, int]] = []
    while missing > 0:
        options = []
        for group in groups:
            whole, cores = group.total.gpu_units // UNIT, group.total.units(CPU) // UNIT
            per = min(whole // gpu, cores // cpu) * group.hosts
            room = group.max_replicas - group.replicas
            if per and room > 0 and all(group is not picked for picked, _ in picks):
                count = min(room, -(-missing // per))
                seats = min(missing, count * per)
                waste = count * group.hosts * whole - seats * gpu
                options.append(
                    (seats < missing, group.preference, waste, count * group.hosts, group.name, count, seats, group)
                )
        if not options:
            return []
        *_, count, seats, group = min(options, key=lambda option: option[:5])
        picks.append((group, count))
        missing -= seats
    return picks


def beyond_need(room: Room, snapshot: Snapshot, made: Plan) -> tuple[int, int]:
    """Nodes that the plan asks for beyond what plain counting adds for the same gangs in the same order; and how many
    of these gangs plain counting can't complete; what is asked for those is left out.

    What is on its way is each gang's as far as the plan has promised it (the waits say how many of which group).
    """
    decision = next(d for d in made.decisions if isinstance(d, Scale))
    growths = [c for c in decision.changes if c.to_replicas > c.from_replicas]
    if not growths:
        return 0, 0
    promised = {
        id: {group: int(count) for count, group in AWAITED.findall(wait.detail)}
        for id, waits in made.waits.items()
        for wait in waits
        if wait.reason is WaitReason.PROVISIONING
    }
    groups = {
        s.group.name: s.group
        for s in snapshot.capacity.groups
        if s.order is None and s.shrinks_to is None and not s.back_off
    }
    nodes, needed, lost, judged = plain_room(room, snapshot, made), 0, 0, 0
    unjudged = 0
    passed: set[str] = set()
    for demand in decision.wanted:
        passed.add(demand.workload)  # what is held for a head is closed to those behind it
        if demand.workload not in promised:
            continue
        judged += 1
        spec, awaited = room.workloads[demand.workload].spec, promised[demand.workload]
        ours = [n for n in nodes if n.held_for == spec.id or n.held_for not in passed]
        if seat_plainly(spec, ours, awaited):
            continue
        new = need_plainly(spec, ours, groups, awaited) or []
        if seat_plainly(spec, [*ours, *new], awaited):
            nodes += new
            needed += len(new)
        else:
            lost += 1
            unjudged += sum(awaited.get(change.group, 0) for change in growths)
    asked = sum((c.to_replicas - c.from_replicas) * room.groups[c.group].hosts for c in growths) - unjudged
    if asked > needed:
        say(f"{room.now_s:.0f} s: {asked} nodes are asked for, {needed} needed for {judged} gangs ({lost} unjudged)")
    return max(0, asked - needed), lost
