"""Stage 8. Scale: whole gangs to make room for, and the node groups' counts where these are ours to change.

A gang that waits for nothing but room is seated once more on what is free, on what is on its way and on what groups
could add; only if all of it finds a seat there, what is missing is added. One decision at a time for each group. What
nobody counts on goes again: nodes that have not come yet at once, idle ones after a delay. The rules and why they are
so are in docs/scaling.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rayorch.core.capacity import GroupName, Provider, order_deadline_s
from rayorch.core.decisions import GangDemand, GroupChange, Scale, Wait, WaitReason
from rayorch.core.explain import UNBLOCKS
from rayorch.core.planning.charges import charge_quota, fits_quota
from rayorch.core.planning.claims import Ask, Claim, Shape, next_start, staying
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.groups_there import holds_together
from rayorch.core.planning.provision import Stock
from rayorch.core.planning.release import release
from rayorch.core.planning.repair import lacking_part
from rayorch.core.planning.stock import Piece, Source, Trial
from rayorch.core.planning.waits import provisioning_wait
from rayorch.core.sharing import uses_devices
from rayorch.core.topology import NODE_LEVEL
from rayorch.core.types import MODEL_LABEL, Allocation, Member, NodeHealth, StopCause, Workload, charge_of

MAX_WAITING = 1000
"""Most waiting gangs that the scale policy is shown."""

NOBODY_LISTENS = Scale((), (), "nobody could add a node")

MAX_NAMED = 4
"""How many gangs or groups a reason names."""


def scale(draft: Draft) -> Scale:
    """The one demand for capacity: gangs that hold seats, gangs in order that wait for nothing but nodes, changes."""
    if draft.facts.snapshot.capacity.fixed:
        return NOBODY_LISTENS
    held = _all_held(draft)
    asking = _asking(draft)
    if draft.facts.snapshot.capacity.provider is Provider.RAY and draft.facts.standings:
        asking = _satisfiable(draft, asking)
    shapes: dict[Shape, GangDemand] = {}
    demands = [_demand(draft, claim, shapes) for claim in asking]
    wanted = draft.facts.profile.scale(tuple(demands))
    reason = f"{len(wanted)} of {len(demands)} gangs that find no room"
    capacity = draft.facts.snapshot.capacity
    changes: tuple[GroupChange, ...] = ()
    if capacity.provider is Provider.OURS and capacity.error:
        _say_unknown(draft, capacity.error)
    elif capacity.decides and draft.facts.snapshot.synced and capacity.groups:
        changes = _changes(draft, asking, wanted)
    return Scale(tuple(demand for demand in held if demand.bundles), wanted, reason, changes)


# ---------------------------------------------------------------- the demand


def _asking(draft: Draft) -> list[Claim]:
    """The claims that wait for nothing but nodes, in order and within quota together."""
    quota, walk = draft.soon.quota.copy(), draft.walk
    found: list[Claim] = []
    for claim, rest in walk.lacking() if walk is not None else ():
        if len(found) >= MAX_WAITING:
            break
        if claim.place not in draft.expected:
            claim = draft.narrowed(claim)
            if not fits_quota(claim, quota):
                rest.dropped = rest.claim is None  # those behind it ask for as much
                continue
            charge_quota(claim, quota.that_counts(claim.resources), quota)
        found.append(claim)
    if walk is not None:
        walk.keep_all()
    return found


def _satisfiable(draft: Draft, asking: list[Claim]) -> list[Claim]:
    """Those for whom Ray's autoscaler could add nodes, all of them together.

    It takes the demand as one: while a single piece of it can't be had, it adds no node for anybody.
    """
    stock = Stock(draft)
    found: list[Claim] = []
    for claim in asking:
        if claim.place not in draft.expected:
            trial = stock.seat(claim, grow=True, hopes=True)
            if trial is None:
                _add_waits(draft, claim, _refusals(draft, stock, claim, grow=True))
                continue
            stock.keep(trial, claim, True)
        found.append(claim)
    return found


def _demand(draft: Draft, claim: Claim, known: dict[Shape, GangDemand]) -> GangDemand:
    """What the claim asks for; but for the id the same for all of a shape."""
    shape = claim.shape
    alike = known.get(shape)
    if alike is None:
        bundles = tuple(draft.prices.of(bundle) for bundle, count in shape.bundles for _ in range(count))
        alike = known[shape] = GangDemand(claim.id, bundles, shape.topology, _selector(draft, shape))
    return GangDemand(claim.id, alike.bundles, alike.topology, alike.selector)


def _all_held(draft: Draft) -> tuple[GangDemand, ...]:
    """Of every live attempt that holds seats; each is made once for as long as neither it nor its nodes change."""
    facts, known = draft.facts, draft.memory.demands
    for id in facts.live_ids:
        if id not in known:
            workload, allocation = facts.workloads[id], facts.held[id]
            known[id] = _held(draft, workload, allocation)
    return tuple(known[id] for id in facts.live_ids)


def _held(draft: Draft, workload: Workload, allocation: Allocation) -> GangDemand:
    """What a gang holds, with the labels of the nodes that it is on, so that it is asked for where it is."""
    members, spec = staying(allocation), workload.spec
    selector: list[tuple[str, str]] = []
    if spec.accelerators:
        models = {draft.facts.topology.models.get(m.node, "") for m in members if uses_devices(m.bundle)}
        if len(models) == 1 and "" not in models:
            selector.append((MODEL_LABEL, models.pop()))
    level = spec.topology.required
    if level is not None:
        nodes = draft.facts.nodes
        values = {nodes[m.node].domain(level) if m.node in nodes else None for m in members}
        value = values.pop() if len(values) == 1 else None
        if value is not None:
            selector.append((level, value))
    return GangDemand(workload.id, tuple(m.bundle for m in members), spec.topology, tuple(sorted(selector)))


def _selector(draft: Draft, shape: Shape) -> tuple[tuple[str, str], ...]:
    """Labels for those who can only ask for labels: the first model that some group adds, and the domain where only
    one would do."""
    capacity = draft.facts.snapshot.capacity
    added = {state.group.model for state in capacity.groups}
    model = next((m for m in shape.accelerators if m in added), next(iter(shape.accelerators), ""))
    selector = [(MODEL_LABEL, model)] if model else []
    level = shape.topology.required
    if level is not None:
        able = [
            state.group
            for state in capacity.groups
            if not model or state.group.model == model
            if any(uses_devices(bundle) and bundle.fits_in(state.group.total) for bundle, _ in shape.bundles)
        ]
        values = {group.label(level) for group in able}
        value = values.pop() if len(values) == 1 else None
        if value is not None:
            selector.append((level, value))
    return tuple(sorted(selector))


# ---------------------------------------------------------------- the groups


def _changes(draft: Draft, asking: list[Claim], wanted: tuple[GangDemand, ...]) -> tuple[GroupChange, ...]:
    """What to change in which group: seat those who wait, grow for them, and give back what nobody counts on."""
    stock = Stock(draft)
    asked_for = {demand.workload for demand in wanted}
    placeless: list[Claim] = []
    for claim in asking:
        if claim.place in draft.expected:
            stock.needed.update(member.node for member in draft.expected[claim.place])
        elif not _provide(draft, stock, claim, claim.id in asked_for):
            placeless.append(claim)
    for claim in (*draft.gated, *_coming_back(draft)):
        _provided(draft, stock, lacking_part(draft, claim) if claim.id in draft.kept_seats else claim)
    growths = {name: change for name, source in stock.sources.items() if (change := _growth(draft, source)) is not None}
    shrinks = release(draft, stock, frozenset(growths), asking, placeless)
    return tuple(change for _, change in sorted({**shrinks, **growths}.items()))


def _provided(draft: Draft, stock: Stock, claim: Claim) -> None:
    """If it finds a place on what there is and is on its way, that is not given back."""
    trial = stock.seat(claim, grow=False)
    if trial is not None:
        stock.keep(trial, claim, benefits=False)
        awaited = _awaited(draft, trial)
        _add_waits(draft, claim, (provisioning_wait(draft, awaited)[0],) if awaited else ())


def _coming_back(draft: Draft) -> list[Claim]:
    """Gangs that are being stopped, or lose nodes soon, and will wait again: what they need next is not given back."""
    facts = draft.facts
    draining = {node.id for node in facts.snapshot.nodes if node.health is NodeHealth.DRAINING}
    found: list[Claim] = []
    for workload, _ in facts.live():
        stop = draft.stops.get(workload.id)
        order = stop.order if stop is not None else workload.stop
        if workload.cancel_requested or (order is not None and order.cause is StopCause.CANCELLED):
            continue
        if order is not None:
            found.append(next_start(workload))
        elif draining:
            kept = draft.staying(workload.id)
            losing = tuple(member for member in kept if member.node in draining)
            found += [_replacement(workload, kept, losing)] if losing else []
    return found


def _replacement(workload: Workload, kept: tuple[Member, ...], losing: tuple[Member, ...]) -> Claim:
    """Other seats for the members that lose theirs; what the gang holds elsewhere is its own when it starts again."""
    topology = workload.spec.topology
    stay = tuple(sorted({member.node for member in kept if member not in losing}))
    counts = Counter(member.bundle for member in losing)
    shape = Shape(
        bundles=tuple(sorted(counts.items(), key=repr)),
        topology=topology,
        packed=False,
        near=stay if topology.required is not None else (),
        accelerators=workload.spec.accelerators,
    )
    asks = tuple(Ask(m.role, m.index, m.bundle, m.surplus, m.bundle_index, m.countables) for m in losing)
    return Claim(workload, workload.attempt + 1, asks, shape, charge_of(losing), grows=True)


def _provide(draft: Draft, stock: Stock, claim: Claim, grow: bool) -> bool:
    """Seat one gang whole, or say what its groups can't give; answers whether it has a place."""
    trial = stock.seat(claim, grow)
    if trial is not None and not any(cell.coming for cell, _ in trial.nodes):
        # It would fit on what exists, but it was not started there: roles of different sizes may not find each other.
        trial = stock.seat(claim, grow, existing=False)
    elif trial is not None and not holds_together(draft, claim.shape, trial):
        trial = stock.seat(claim, grow, existing=False)  # as much room as it needs, but not in one place
    if trial is not None and not holds_together(draft, claim.shape, trial):
        trial = None
    if trial is None:
        known = stock.refusals.get((claim.shape, grow))
        if known is None:  # those of equal shape fail for the same reasons
            known = stock.refusals[claim.shape, grow] = _refusals(draft, stock, claim, grow)
            hopeful = stock.seat(claim, grow=True, hopes=True) if stock.some_may_go else None
            if hopeful is not None:
                stock.count_on(hopeful)
        _add_waits(draft, claim, known)
        return False
    stock.keep(trial, claim, benefits=grow)
    wait, expected_s = provisioning_wait(draft, _awaited(draft, trial))
    _add_waits(draft, claim, (wait,), expected_s)
    return True


def _awaited(draft: Draft, trial: Trial) -> dict[GroupName, tuple[int, float]]:
    counts: Counter[GroupName] = Counter()
    for name in {(cell.name, node) for cell, nodes in trial.nodes if cell.coming for node in nodes}:
        counts[GroupName(name[0])] += 1
    return {group: (counts[group], draft.facts.standings[group].expected_s) for group in sorted(counts)}


def _growth(draft: Draft, source: Source) -> GroupChange | None:
    """One order for all gangs that need the group's nodes, or for its minimum."""
    group, now_s = source.standing.state.group, draft.facts.now_s
    to_replicas, reason = group.replicas + source.opened, ""
    if source.opened:
        reason = f"{source.opened * group.hosts} nodes for {_names(source.shares)}"
    elif source.room and group.replicas < group.min_replicas <= group.max_replicas:
        to_replicas, reason = group.min_replicas, f"its minimum is {group.min_replicas}"
    if to_replicas == group.replicas:
        return None
    provision_s = source.standing.state.provision_s
    return GroupChange(
        group=group.name,
        from_replicas=group.replicas,
        to_replicas=max(to_replicas, min(group.min_replicas, group.max_replicas)),
        reason=reason,
        beneficiaries=tuple(source.shares),
        expected_s=now_s + provision_s,
        deadline_s=order_deadline_s(now_s, provision_s, draft.facts.profile.provision_deadline_factor),
        shares=tuple(source.shares.items()),
    )


def _names(ids: Iterable[str]) -> str:
    names = list(ids)
    shown = ", ".join(names[:MAX_NAMED])
    return shown if len(names) <= MAX_NAMED else f"{shown} and {len(names) - MAX_NAMED} more"


# ---------------------------------------------------------------- why nodes don't come


def _add_waits(draft: Draft, claim: Claim, waits: tuple[Wait, ...], expected_s: float | None = None) -> None:
    if claim.grows or claim.id not in draft.waits:
        return
    draft.waits.add(claim.id, waits)
    if expected_s is not None:
        draft.estimates.setdefault(claim.id, expected_s)


def _say_unknown(draft: Draft, error: str) -> None:
    wait = Wait(
        WaitReason.CAPACITY_UNKNOWN,
        f"who provides nodes could not be read: {error}",
        unblocks=UNBLOCKS[WaitReason.CAPACITY_UNKNOWN],
    )
    if draft.walk is not None:
        draft.walk.add_to_lacking(wait)


def _refusals(draft: Draft, stock: Stock, claim: Claim, grow: bool) -> tuple[Wait, ...]:
    """What the groups that could take the pieces that find no seat say: resting, busy, or at their maximum."""
    level = claim.shape.topology.required
    short = stock.short_of(claim)
    models = claim.shape.accelerators
    able = [s for s in stock.sources.values() if any(_could_take(s, piece, models, level) for piece in short)]
    if not able:
        return ()
    if not grow:
        detail = "nodes are asked for in order, and enough gangs go first"
        return (Wait(WaitReason.CAPACITY_BUSY, detail, unblocks=UNBLOCKS[WaitReason.CAPACITY_BUSY]),)
    resting = [s for s in able if s.standing.resting_s]
    busy = [s for s in able if not s.standing.resting_s and not s.room and s.hope]
    limited = [s for s in able if s not in resting and s not in busy]
    waits = []
    if resting:
        waits.append(_refused(resting))
    if busy:
        waits.append(_busy(draft, busy))
    if limited:
        waits.append(_limited(limited, claim, short))
    return tuple(waits)


def _could_take(source: Source, piece: Piece, accelerators: tuple[str, ...], level: str | None) -> bool:
    if uses_devices(piece.bundle) and accelerators and source.cell.model not in accelerators:
        return False
    if level is not None and source.standing.blank.domain(level) is None and level != NODE_LEVEL:
        return False
    return source.blank.seats(piece) > 0


def _refused(resting: list[Source]) -> Wait:
    first = min(resting, key=lambda s: (s.standing.resting_s, s.standing.name))
    details = []
    for source in sorted(resting, key=lambda s: s.standing.name)[:MAX_NAMED]:
        back_off = source.standing.state.back_off
        why = back_off.reason if back_off is not None else ""
        details.append(f"group {source.standing.name} is asked again in {source.standing.resting_s:.0f} s: {why}")
    return Wait(
        WaitReason.CAPACITY_REFUSED,
        "; ".join(details),
        need=first.standing.resting_s,
        unit="s",
        unblocks=UNBLOCKS[WaitReason.CAPACITY_REFUSED],
    )


def _busy(draft: Draft, busy: list[Source]) -> Wait:
    first = min(busy, key=lambda s: (s.standing.expected_s, s.standing.name))
    left_s = max(0.0, first.standing.expected_s - draft.facts.now_s)
    names = _names(sorted(source.standing.name for source in busy))
    return Wait(
        WaitReason.CAPACITY_BUSY,
        f"a change of group {names} is under way, and there is one at a time; the first is expected in {left_s:.0f} s",
        need=left_s,
        unit="s",
        unblocks=UNBLOCKS[WaitReason.CAPACITY_BUSY],
    )


def _limited(limited: list[Source], claim: Claim, short: list[Piece]) -> Wait:
    """The groups may add too few nodes for the whole gang."""
    details = []
    for source in sorted(limited, key=lambda s: s.standing.name)[:MAX_NAMED]:
        count, most = source.standing.replicas + source.opened, source.standing.state.group.max_replicas
        details.append(f"group {source.standing.name} has {count} of {most} replicas")
    return Wait(
        WaitReason.CAPACITY_LIMIT,
        "; ".join(details),
        need=len(claim.asks),
        have=sum(s.room * s.hosts * max(s.blank.seats(piece) for piece in short) for s in limited),
        unit="seats",
        unblocks=UNBLOCKS[WaitReason.CAPACITY_LIMIT],
    )
