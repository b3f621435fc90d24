"""Cells of queues (`core/cells.py`) in one turn: what is bound, what is owed, and what must be left for it.

An attempt lies *in cells* (`Workload.cell`) when it was started in them: on whole nodes or domains that are bound to
its queue by that, and to nobody else until the last of it has gone. All other work is *outside*: it runs wherever there
is room, in cells too, and goes when a claim within its queue's cells needs its place, as long as it can be stopped at
any time. Work that can't (not preemptible, or with a time in which it is left alone) is *fixed*: it never starts where
a cell is bound, nor on the witness, the domains that stand for the cells which are owed. So the witness stays whole
whatever starts, and each claim within its queue's cells finds one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rayorch.core.cell_witness import witness
from rayorch.core.cells import CellKind, CellsView, Rank, domains_of, the_model, touched
from rayorch.core.decisions import Wait, WaitReason
from rayorch.core.explain import UNBLOCKS
from rayorch.core.planning.claims import Claim, minimum_of, removable
from rayorch.core.planning.draft import Draft, Move
from rayorch.core.planning.evict import freed_by
from rayorch.core.planning.rights import settling
from rayorch.core.planning.seats import find
from rayorch.core.planning.victims import holder_of, moves_of
from rayorch.core.planning.waiting import Verdict
from rayorch.core.topology import Domain
from rayorch.core.types import UNIT, Member, NodeId, QueueId, State, Workload, WorkloadId, WorkloadSpec

MOST_TRIED = 64
"""How many domains of a kind are tried that others could not do without."""

Owner = tuple[QueueId, CellKind]
"""A queue and a kind of its cells."""


@dataclass(slots=True)
class CellBook:
    """All cells of one turn.

    `count`: how many cells each queue has; `bound`: the domains that hold work in its cells. `lent`: the moves that
    clear a node, of work that may go. `whole`: the domains of each kind that would be free once all of these had gone,
    and that are bound to nobody; `there`: how many the cluster has. `witness`: see the module. `keep`:
    where nothing fixed may start. `served`: of whom was looked at within its cells, why it waits, None: it starts.
    """

    count: Mapping[Owner, int]
    levels: tuple[str, ...]
    bound: dict[Owner, set[Domain]] = field(default_factory=dict)
    lent: dict[NodeId, list[Move]] = field(default_factory=dict)
    whole: dict[CellKind, dict[str, Domain]] = field(default_factory=dict)
    there: Mapping[CellKind, int] = field(default_factory=dict)
    witness: Mapping[CellKind, tuple[Domain, ...]] = field(default_factory=dict)
    keep: frozenset[NodeId] = frozenset()
    served: dict[WorkloadId, Verdict | None] = field(default_factory=dict)

    def owed(self, owner: Owner) -> int:
        """How many of its cells are not bound."""
        return max(0, self.count[owner] - len(self.bound.get(owner, ())))

    def bind(self, owner: Owner, domains: Iterable[Domain]) -> None:
        """Work of the queue starts in these; what stands for owed cells is found anew."""
        self.bound.setdefault(owner, set()).update(domains)
        self._settle()

    def _settle(self) -> None:
        taken = {node for bound in self.bound.values() for domain in bound for node in domain.nodes}
        self.whole = {
            kind: {name: d for name, d in domains.items() if taken.isdisjoint(d.nodes)}
            for kind, domains in self.whole.items()
        }
        whole = {kind: tuple(domains.values()) for kind, domains in self.whole.items()}
        self.witness = witness(self._owed_by_kind(), whole, self.levels, self._rank(whole))
        self.keep = frozenset(taken).union(*(d.nodes for one in self.witness.values() for d in one))

    def price(self, domain: Domain) -> float:
        """What the stops of all that is lent in the domain count for."""
        moves = {id(move): move for node in domain.nodes for move in self.lent.get(node, ()) if move.stops}
        return sum(move.price for move in moves.values())

    def candidates(self, owner: Owner, most: int, is_clear: Callable[[Domain], bool]) -> list[Domain]:
        """The domains that may be bound next, the cheapest to clear first, no more than are owed and than `most`.

        `is_clear`: whether nothing was promised or set aside there since the turn began.

        Any of them, and all together, leave others as many as before. Which domains stand for those is not asked, since
        that changes with what lies there.
        """
        kind = owner[1]
        able = self.whole.get(kind, {}).values()
        larger = _in_larger(domains.values() for domains in self.whole.values())
        ranked = sorted(able, key=lambda d: (self.price(d), not larger.isdisjoint(d.nodes), d.name))
        alone = all(other == kind for _, other in self.count)
        most = min(most, self.owed(owner))
        chosen: list[Domain] = []
        taken: set[NodeId] = set()
        for tried, domain in enumerate(domain for domain in ranked if is_clear(domain)):
            if len(chosen) >= most or tried >= MOST_TRIED + len(chosen):
                break
            if alone or self._leaves_others(owner, taken.union(domain.nodes), len(chosen) + 1):
                chosen.append(domain)
                taken.update(domain.nodes)
        return chosen

    def _leaves_others(self, owner: Owner, taken: set[NodeId], count: int) -> bool:
        """Whether as many of the other cells that are owed can be had once the queue takes these nodes."""
        whole = {
            kind: tuple(d for d in domains.values() if taken.isdisjoint(d.nodes))
            for kind, domains in self.whole.items()
        }
        found = witness(self._owed_by_kind(owner, count), whole, self.levels, self._rank(whole))
        return all(
            len(found[kind]) >= len(stands) - (count if kind == owner[1] else 0)
            for kind, stands in self.witness.items()
        )

    def _owed_by_kind(self, owner: Owner | None = None, taken: int = 0) -> dict[CellKind, int]:
        """How many cells of each kind are owed, after one queue has taken so many."""
        owed: dict[CellKind, int] = {}
        for queue, kind in self.count:
            owed[kind] = owed.get(kind, 0) + self.owed((queue, kind)) - (taken if (queue, kind) == owner else 0)
        return owed

    def _rank(self, whole: Mapping[CellKind, Collection[Domain]]) -> Rank:
        larger = _in_larger(whole.values())  # not what is lent: what is freed for somebody must not become the witness
        return lambda domain: (not larger.isdisjoint(domain.nodes),)

    def views(self) -> tuple[CellsView, ...]:
        """How all of them are; what lacks of a kind is shared out to the last queues by name."""
        left = {kind: len(found) for kind, found in self.witness.items()}
        found: list[CellsView] = []
        for queue, kind in sorted(self.count):
            owed = self.owed((queue, kind))
            have = min(owed, left.get(kind, 0))
            left[kind] = left.get(kind, 0) - have
            bound = len(self.bound.get((queue, kind), ()))
            there, count = self.there.get(kind, 0), self.count[queue, kind]
            found.append(CellsView(queue, kind.level, kind.model, count, bound, owed, owed - have, kind.gpus, there))
        return tuple(found)

    def owner_of(self, nodes: Collection[NodeId]) -> QueueId | None:
        """A queue whose cell lies, or is owed, on one of the nodes."""
        for (queue, _), bound in sorted(self.bound.items()):
            if touched(bound, nodes):
                return queue
        for kind, stands in sorted(self.witness.items()):
            if touched(stands, nodes):
                return next((queue for queue, other in sorted(self.count) if other == kind), None)
        return None


def _in_larger(whole: Iterable[Iterable[Domain]]) -> set[NodeId]:
    """The nodes of whole domains of several: a cell of one node leaves these whole, if it can."""
    return {node for found in whole for domain in found if len(domain.nodes) > 1 for node in domain.nodes}


# ---------------------------------------------------------------- at the beginning of a turn


def count_cells(draft: Draft) -> None:
    """Make the turn's book, where a queue has cells and the profile keeps them."""
    if not draft.memory.has_cells or draft.facts.profile.eviction.passes:
        return
    facts, topology = draft.facts, draft.facts.topology
    nodes = {id: facts.nodes[id] for id in topology.nodes}
    count: dict[Owner, int] = {}
    for spec in facts.snapshot.queues:
        for share in spec.cells:
            model = the_model(share.model, topology, nodes)
            kind = CellKind(share.level, share.model if model is None else model, share.gpus_each)
            count[spec.id, kind] = count.get((spec.id, kind), 0) + share.count
    book = CellBook(count, topology.levels)
    kinds = {kind: domains_of(kind, topology, nodes) for kind in {kind for _, kind in count}}
    fixed = _look_at_work(draft, book)
    room = draft.soon.room.copy()
    for node, moves in book.lent.items():
        for member in leaving_from(node, moves):
            room.give(node, member.bundle, member.devices)
    free = {id for id in nodes if id not in fixed and room.usable(id) and room.free(id) == nodes[id].total}
    book.whole = {kind: {d.name: d for d in all_of if free.issuperset(d.nodes)} for kind, all_of in kinds.items()}
    book.there = {kind: len(all_of) for kind, all_of in kinds.items()}
    book.bind(next(iter(count)), ())
    draft.cells = book


def _look_at_work(draft: Draft, book: CellBook) -> set[NodeId]:
    """Enter what is bound and what may go; answers the nodes where something lies that may not."""
    fixed: set[NodeId] = set()
    domain_of = draft.facts.topology.domain_of
    for workload, _ in draft.facts.live():
        kept = draft.staying(workload.id)
        owner = holder_of(draft, workload.spec.queue) if workload.cell else None
        inside = [kind for queue, kind in book.count if queue == owner and kind.level == workload.cell]
        stays = minimum_of(workload.spec, kept) if inside else ()
        for domain in {domain_of(workload.cell, m.node) for m in stays}:
            if domain is not None and owner is not None:
                book.bound.setdefault((owner, _kind_of(draft, domain, inside)), set()).add(domain)
        fixed.update(m.node for m in stays)
        fixed.update(node for _, nodes in workload.cell_domains if stays for node in nodes)
        moves = [move for move in moves_of(draft, workload) if not (inside and move.stops)]
        if kept and not inside and not any(move.stops for move in moves):
            fixed.update(m.node for m in kept if m.surplus not in {n.surplus for v in moves for n in v.members})
        for move in moves:
            for node in dict.fromkeys(m.node for m in move.members):
                book.lent.setdefault(node, []).append(move)
    return fixed


def _kind_of(draft: Draft, domain: Domain, kinds: Sequence[CellKind]) -> CellKind:
    """Which of a queue's kinds a domain counts for in which its work lies. It stays bound whatever has become of it:
    as the queue owner counts it, who knows nothing of models and sizes.
    """
    models, nodes = draft.facts.topology.models, draft.facts.nodes
    alike = [kind for kind in kinds if all(models.get(node, "") == kind.model for node in domain.nodes)]
    units = sum(nodes[node].total.gpu_units for node in domain.nodes)
    fitting = [kind for kind in alike if kind.gpus * UNIT in (0, units)]
    return next(iter((*fitting, *alike, *kinds)))


def leaving_from(node: NodeId, moves: Sequence[Move]) -> list[Member]:
    """The members that leave a node with these moves, each once."""
    return [member for _, members, _ in freed_by(moves) for member in members if member.node == node]


def is_fixed(draft: Draft, spec: WorkloadSpec) -> bool:
    """Whether an attempt that starts now could not be stopped at any time."""
    if not spec.preemptible or not draft.facts.profile.preemption:
        return True
    now_s = draft.facts.now_s
    return bool(settling(draft, Workload(spec, State.RUNNING, now_s, started_s=now_s)))


def stays_put(draft: Draft, workload: Workload) -> bool:
    """Whether cells keep it from being moved: it lies in one, or might be about to start on one and be fixed there."""
    return draft.cells is not None and (bool(workload.cell) or is_fixed(draft, workload.spec))


def keeping(draft: Draft, claim: Claim) -> frozenset[NodeId]:
    """Where the claim may not start for the sake of cells: nowhere, if it can be stopped for them."""
    if draft.cells is None:
        return frozenset()
    if claim.grows and _may_go_again(draft, claim):
        return frozenset()
    if claim.grows and claim.workload.cell:
        return draft.cells.keep - _own_cells(draft, draft.cells, claim.workload)
    if not any(is_fixed(draft, part.workload.spec) for part in claim.parts or (claim,)):
        return frozenset()
    return draft.cells.keep


def _may_go_again(draft: Draft, claim: Claim) -> bool:
    """Whether what a running attempt grows by could be taken back at any time, though the rest of it can't be."""
    spec = claim.workload.spec
    if not spec.preemptible or not draft.facts.profile.preemption:
        return False
    more = tuple(ask.on(NodeId(""), ()) for ask in claim.asks)
    numbers = {member.surplus for member in more}
    left = removable(spec, (*draft.staying(spec.id), *draft.added.get(spec.id, ()), *more))
    return numbers <= {member.surplus for member in left}


def _own_cells(draft: Draft, book: CellBook, workload: Workload) -> set[NodeId]:
    """The nodes of the cells that an attempt's minimum lies in: they are its queue's for as long as it runs."""
    stays = {member.node for member in minimum_of(workload.spec, draft.staying(workload.id))}
    owner = holder_of(draft, workload.spec.queue)
    bound = [
        d
        for (queue, kind), all_of in book.bound.items()
        if (queue, kind.level) == (owner, workload.cell)
        for d in all_of
    ]
    return {node for domain in touched(bound, stays) for node in domain.nodes}


def cell_wait(draft: Draft, claim: Claim) -> tuple[Wait, ...]:
    """That it would start if it did not have to leave room for cells, if so."""
    if not draft.keeping or draft.cells is None:
        return ()
    kept, draft.keeping = draft.keeping, frozenset()
    nodes = find(claim.shape, draft.open_search())
    draft.keeping = kept
    if nodes is None:
        return ()
    detail = f"it would break a cell owed to queue {draft.cells.owner_of(nodes)}, and can't be stopped at any time"
    return (Wait(WaitReason.CELL_OWED, detail, unblocks=UNBLOCKS[WaitReason.CELL_OWED]),)
