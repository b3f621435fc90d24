"""Stage 7, where a profile says so: two that share a GPU and hinder each other are taken apart (Gandiva, Xiao 2018).

*Watched* are attempts of one seat on one GPU or a part of one: whenever others have come beside one, or gone, or begun
to work, that is noted (`Watch`), and its pace is counted anew from then on by its own reports (`core.pace`). A pair of
which both are known to go so fast of what they go alone, measured or learned of their kinds, is judged:

- While nobody waits for room and a GPU is idle, one of them goes there, which gains what both lack.
- Else, where both together do less than `least_together` of what one does alone, one of them is stopped and asks for a
  whole GPU from then on, so that this befalls nobody twice.

Each only where the gain, for as long as the one that is done first will still take, is worth more than what the stop
loses; where nobody knows how long that is, for as long as it has run. Of both the one goes that loses less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rayorch.core.attempts import on_whole_gpus
from rayorch.core.decisions import Reserve, Stop, Watch
from rayorch.core.forecast import Forecast
from rayorch.core.pace import Beside, Pace, kind_of, rate
from rayorch.core.planning.cells import keeping, stays_put
from rayorch.core.planning.charges import fits_quota, refund_quota
from rayorch.core.planning.claims import Claim, next_start
from rayorch.core.planning.draft import Books, Draft
from rayorch.core.planning.rights import comes_back, settling
from rayorch.core.planning.waits import hopeless
from rayorch.core.service import run_s
from rayorch.core.sharing import device_shares, is_share
from rayorch.core.types import (
    UNIT,
    Allocation,
    Kind,
    Member,
    MemberPhase,
    NodeId,
    State,
    StopCause,
    StopOrder,
    Workload,
    WorkloadId,
)

Device = tuple[NodeId, int]


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two that share a GPU, and how fast each is, of what it is alone. `measured`: of these two, not of their kinds."""

    two: tuple[Workload, Workload]
    rates: tuple[float, float]
    measured: bool

    @property
    def together(self) -> float:
        """What both do, of what one alone does."""
        return sum(self.rates)

    def words(self, going: Workload) -> str:
        """What is known of them, for a reason."""
        other = self.two[1] if self.two[0] is going else self.two[0]
        mine, its = self.rates if self.two[0] is going else self.rates[::-1]
        source = "by their reports" if self.measured else "as others of their kinds did"
        return f"beside {other.id} it goes at {mine:.2f} of its own pace and {other.id} at {its:.2f}, {source}"


def unpack(draft: Draft) -> None:
    """Note who shares GPUs with whom, and take apart what goes badly together."""
    facts, knobs = draft.facts, draft.facts.profile.packing
    if not knobs.unpack or not facts.snapshot.synced or not facts.sharing:
        return
    on = _sharers(draft)
    for id in facts.sharing:
        _watch(draft, on, facts.workloads[id], facts.held[id])
    pairs = sorted(_pairs(draft, on), key=lambda pair: (pair.together, pair.two[0].id))
    idle = _with_idle_gpus(draft) if pairs and not draft.unplaced else ()
    left = knobs.per_turn
    for pair in pairs:
        if left and _take_apart(draft, pair, idle):
            left -= 1


# ---------------------------------------------------------------- who is watched


def is_watched(workload: Workload, allocation: Allocation) -> bool:
    """Whether its pace can be told from its reports: work of one seat with at most one GPU."""
    members = allocation.members
    return (
        len(members) == 1
        and 0 < members[0].bundle.gpu_units <= UNIT
        and workload.spec.kind in (Kind.TRAIN, Kind.JOB)
        and len(members[0].devices) == 1
    )


def _sharers(draft: Draft) -> dict[Device, list[WorkloadId]]:
    """Who has a part of each GPU, in order."""
    on: dict[Device, list[WorkloadId]] = {}
    for id in draft.facts.sharing:
        for member in draft.facts.held[id].members:
            for device in _parts(member):
                on.setdefault(device, []).append(id)
    return on


def _parts(member: Member) -> list[Device]:
    return [(member.node, device) for device, units in device_shares(member.bundle, member.devices) if units < UNIT]


def _watch(draft: Draft, on: Mapping[Device, list[WorkloadId]], workload: Workload, allocation: Allocation) -> None:
    """Note who is beside it now, where that is news."""
    if workload.state is not State.RUNNING or not is_watched(workload, allocation):
        return
    workloads, (member,) = draft.facts.workloads, allocation.members
    others = sorted({id for device in _parts(member) for id in on[device]} - {workload.id})
    beside: Beside = tuple((id, workloads[id].attempt) for id in others)
    ready = all(workloads[id].ready_s is not None for id in (workload.id, *others))
    model = draft.facts.topology.models.get(member.node, "")
    known = workload.pace
    if known is None and not ready:
        return
    if known is None or (known.beside, known.ready, known.model) != (beside, ready, model):
        draft.watches.append(Watch(workload.id, workload.attempt, beside, ready, model))


# ---------------------------------------------------------------- who goes badly together


def _pairs(draft: Draft, on: Mapping[Device, list[WorkloadId]]) -> list[_Pair]:
    """All of which it is known how fast both are."""
    found = []
    for ids in on.values():
        if len(ids) != 2:
            continue
        one, other = (draft.facts.workloads[id] for id in ids)
        first, second = _rate(draft, one, other), _rate(draft, other, one)
        if first is not None and second is not None:
            found.append(_Pair((one, other), (first[0], second[0]), first[1] and second[1]))
    return found


def _rate(draft: Draft, one: Workload, other: Workload) -> tuple[float, bool] | None:
    pace = one.pace
    if not _is_of(pace, other) or pace is None or one.state is not State.RUNNING:
        return None
    kind, beside = (kind_of(w.spec.owner, w.spec.name) for w in (one, other))
    return rate(pace, kind, beside, draft.facts.snapshot.history.paces, draft.facts.profile.packing.measure_s)


def _is_of(pace: Pace | None, other: Workload) -> bool:
    return pace is not None and pace.ready and pace.beside == ((other.id, other.attempt),)


def _with_idle_gpus(draft: Draft) -> tuple[NodeId, ...]:
    """Nodes with a GPU that nobody uses, in order. They are looked for once a turn: there may be many pairs."""
    room, nodes = draft.now.room, sorted(draft.facts.topology.nodes)
    return tuple(node for node in nodes if any(free >= UNIT for free in room.slot(node).devices))


def _take_apart(draft: Draft, pair: _Pair, idle: Sequence[NodeId]) -> bool:
    """Move one of them to a GPU that is idle (`idle`: on which nodes), or stop one, which then asks for a whole GPU."""
    facts, knobs = draft.facts, draft.facts.profile.packing
    costs = {w.id: _lost_s(draft, w) for w in pair.two}
    lasts_s = min(_remaining_s(draft, w) for w in pair.two)
    going = sorted(pair.two, key=lambda w: (costs[w.id], -(w.started_s or 0.0), w.id))
    going = [w for w in going if _may_go(draft, w)]
    for workload in going:
        gain_s = (2.0 - pair.together) * lasts_s
        rested = facts.now_s - (workload.started_s or 0.0) >= knobs.cooldown_s
        if rested and gain_s > knobs.worth * costs[workload.id] and _move(draft, pair, workload, gain_s, idle):
            return True
    for workload in going:
        gain_s = (knobs.least_together - pair.together) * lasts_s
        if gain_s > knobs.worth * costs[workload.id] and workload.asked is None and _could_be_whole(draft, workload):
            reason = (
                f"unpacked: {pair.words(workload)}, together {pair.together:.2f} of what one does alone;"
                " it asks for a whole GPU from now on"
            )
            _stop(draft, workload, StopOrder(StopCause.UNPACKED, reason, facts.now_s, _by_s(draft, workload)))
            return True
    return False


def _lost_s(draft: Draft, workload: Workload) -> float:
    """What its stop loses, in seconds of its GPU part."""
    allocation = draft.facts.held[workload.id]
    cost_gpu_s = draft.facts.profile.victims(workload, allocation, draft.facts.now_s)
    return cost_gpu_s / (allocation.members[0].bundle.gpu_units / UNIT)


def _remaining_s(draft: Draft, workload: Workload) -> float:
    """What the forecast says; where it knows nothing, as long as it has run so far."""
    found = Forecast(draft.facts.snapshot.history, draft.facts.now_s, draft.memory.seen).remaining(workload)
    return found[0] if found is not None else run_s(workload, draft.facts.now_s)


def _may_go(draft: Draft, workload: Workload) -> bool:
    """Whether it is one that may be stopped and comes back."""
    id, spec, allocation = workload.id, workload.spec, draft.facts.held[workload.id]
    if not is_watched(workload, allocation) or not spec.preemptible or spec.reservation or spec.joint is not None:
        return False
    if id in draft.protected or id in draft.stops or id in draft.removals or id in draft.added:
        return False
    if settling(draft, workload) or stays_put(draft, workload) or not comes_back(draft, workload):
        return False
    (member,) = allocation.members
    return member.phase is MemberPhase.READY and is_share(member.bundle) and len(next_start(workload).asks) == 1


def _could_be_whole(draft: Draft, workload: Workload) -> bool:
    """Whether a whole GPU exists for it, and is within its quota."""
    claim = next_start(replace(workload, spec=on_whole_gpus(workload.spec)))
    quota = draft.soon.quota.copy()
    refund_quota(workload, draft.facts.held[workload.id].members, True, quota)
    return fits_quota(claim, quota) and not hopeless(draft, claim.shape)


# ---------------------------------------------------------------- the orders


def _move(draft: Draft, pair: _Pair, workload: Workload, gain_s: float, idle: Sequence[NodeId]) -> bool:
    """Give it a GPU on one of these nodes; False: there is none."""
    if not idle:
        return False
    claim = draft.prices.of_claim(next_start(workload))
    node = _idle_gpu(draft, claim, workload, idle)
    if node is None:
        return False
    (ask,) = claim.asks
    reason = f"moved to a GPU of its own: {pair.words(workload)}; worth {gain_s:.0f} seconds of a GPU"
    seats = ((ask.role, ask.index, str(node)),)
    order = StopOrder(StopCause.MOVED, reason, draft.facts.now_s, _by_s(draft, workload), workload.id, seats)
    _stop(draft, workload, order)
    members = draft.charge(claim, (node,), draft.soon)
    draft.moved.append(Reserve(workload.id, members, True, f"its seats when it has been {reason}"))
    return True


def _idle_gpu(draft: Draft, claim: Claim, workload: Workload, idle: Sequence[NodeId]) -> NodeId | None:
    """The first of these nodes, its own before others, on which its part would lie on an idle GPU of the same model."""
    facts, (member,) = draft.facts, draft.facts.held[workload.id].members
    after = Books(draft.soon.room.copy(), draft.soon.quota)
    after.room.give(member.node, member.bundle, member.devices)
    models = facts.topology.models
    shut = frozenset(draft.closed) | keeping(draft, claim)
    for node in sorted(idle, key=lambda node: node != member.node):
        same = models.get(node, "") == models.get(member.node, "")
        if same and node not in shut and _lands_alone(draft, claim, node, after):
            return node
    return None


def _lands_alone(draft: Draft, claim: Claim, node: NodeId, after: Books) -> bool:
    """Whether the GPU that it would get there is idle: now, and when it has left its own. `after`: that."""
    bundle, slot, now = claim.asks[0].bundle, after.room.slot(node), draft.now.room.slot(node)
    if not after.room.fits(node, bundle) or not draft.now.room.fits(node, bundle):
        return False
    devices = draft.wished(claim, bundle, node, after) or slot.choose(bundle)
    places = [slot.layout.places[device] for device in devices]
    return all(free.devices[place] >= UNIT for free in (slot, now) for place in places)


def _stop(draft: Draft, workload: Workload, order: StopOrder) -> None:
    cost_gpu_s = draft.facts.profile.victims(workload, draft.facts.held[workload.id], draft.facts.now_s)
    draft.stop(Stop(workload.id, workload.attempt, order, cost_gpu_s))


def _by_s(draft: Draft, workload: Workload) -> float:
    return draft.facts.now_s + workload.spec.grace_s
