"""Where a gang that finds no room could run: on what is free, on what is on its way, and on as few new nodes as can be.

What exists is used first, then what has been ordered, then what groups would add. With a required level all members
go to one domain of it: the one that needs least added. Accelerator models are tried in their order, each first
without adding anything, so that a gang keeps to what has been ordered for it. A gang of several kinds of pieces is
tried with each group that could take its largest ones whole, because what they leave decides about the smaller ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from rayorch.core.capacity import GroupName
from rayorch.core.decisions import Wait
from rayorch.core.planning.arrivals import idle_after_s
from rayorch.core.planning.claims import Claim, Shape
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.stock import Area, Cell, Leftover, LeftoverPool, Piece, Source, Trial, paths_of
from rayorch.core.room import Room
from rayorch.core.sharing import uses_devices
from rayorch.core.slot import Slot
from rayorch.core.topology import NODE_LEVEL
from rayorch.core.types import CPU, NodeId, Resources, WorkloadId

EVERYWHERE = ""

FIRST_GROUPS = 4
"""Most groups that are tried for the largest pieces of a gang of several kinds."""

Pieces = tuple[tuple[Piece, int], ...]


class Stock:
    """The books of stage 8. `needed`: existing nodes that a waiting gang counts on. `sources`: groups, by name.

    `refusals`: why nodes don't come for a shape, for gangs that groups may grow for and for others. `some_may_go`:
    there are idle nodes that could be given back, so that it matters who counts on them.
    """

    def __init__(self, draft: Draft, room: Room | None = None) -> None:
        """On what is free soon, or on other books of it."""
        self._room = room if room is not None else draft.soon.room
        self._pool = LeftoverPool()
        self._score, self._view = draft.facts.profile.score, draft.facts.placement
        self._cells: dict[tuple[tuple[tuple[str, str], ...], str, str, WorkloadId | None], Cell] = {}
        self._left: dict[Cell, dict[Leftover, list[NodeId]]] = {}
        self._pieces: dict[Resources, Piece] = {}
        self._shapes: dict[Shape, Pieces] = {}
        self._areas: dict[str, dict[str, Area]] = {}
        self._failed: dict[tuple[Shape, bool, bool], int] = {}
        self._keeps_grown = 0
        self._near = draft.facts.topology
        self.needed: set[NodeId] = set()
        self.refusals: dict[tuple[Shape, bool], tuple[Wait, ...]] = {}
        self.sources: dict[GroupName, Source] = {}
        now_s, profile = draft.facts.now_s, draft.facts.profile
        self.some_may_go = any(
            node.idle_since_s is not None and now_s - node.idle_since_s >= idle_after_s(standing, profile)
            for standing in draft.facts.standings.values()
            for node in standing.nodes
        )
        self._count_nodes(draft)
        self._add_sources(draft)
        for cell, left in self._left.items():
            cell.left = {leftover: tuple(nodes) for leftover, nodes in left.items()}
        self._owners = frozenset(draft.closed.values())
        self._held = {cell: owner for (_, _, _, owner), cell in self._cells.items() if owner is not None}

    def seat(self, claim: Claim, grow: bool, hopes: bool = False, existing: bool = True) -> Trial | None:
        """Seats for all members, None when there are none. What is found is only kept by `keep`.

        `grow`: groups may add nodes. `hopes`: also those that are busy or resting for a short time. `existing`: nodes
        that exist may be used.
        """
        shape = claim.shape
        key = (shape, grow, hopes)
        if self._failed.get(key) == (-1 if grow else self._keeps_grown) and claim.id not in self._owners:
            return None
        pieces = self._pieces_of(shape)
        if not pieces:
            return Trial()
        models = shape.accelerators or ("",)
        for growing in (False, True) if grow else (False,):
            for model in models:
                trial = self._within(claim, shape, pieces, model, _Way(growing, hopes, existing))
                if trial is not None:
                    return trial
        if existing:
            # Adding nodes only turns what could be added into what is there: who finds nothing now never will.
            self._failed[key] = -1 if grow else self._keeps_grown
        return None

    def keep(self, trial: Trial, claim: Claim, benefits: bool) -> None:
        """The gang counts on these seats: nobody else gets them. `benefits`: what is added is added for it as well."""
        for cell, left in trial.left.items():
            cell.put(left)
        for source, count in trial.new.items():
            source.room -= count
            source.hope -= count
            source.opened += count
        self._keeps_grown += bool(trial.new)
        added: dict[Source, set[NodeId]] = {}
        for cell, nodes in trial.nodes:
            if not cell.coming:
                self.needed.update(nodes)
                continue
            source = self.sources[GroupName(cell.name)]
            new = {node for node in nodes if self._is_new(source, node)} if benefits else set()
            if new:
                added.setdefault(source, set()).update(new)
        for source, nodes_added in added.items():
            source.shares[claim.id] = source.shares.get(claim.id, 0) + len(nodes_added)

    def count_on(self, trial: Trial) -> None:
        """The gang can't have all that it needs now, but soon may: what exists of it is not taken away meanwhile."""
        for cell, nodes in trial.nodes:
            if not cell.coming:
                self.needed.update(nodes)

    def short_of(self, claim: Claim) -> list[Piece]:
        """The pieces of which there are too few seats anywhere, those that may be added included; else all of them."""
        area = self._areas_of(EVERYWHERE)[EVERYWHERE]
        models = claim.shape.accelerators or ("",)
        way = _Way(True, False, True)
        pieces = self._pieces_of(claim.shape)
        short = [p for p in pieces if all(_least_added(area, p, model, claim.id, way) is None for model in models)]
        return [piece for piece, _ in short or pieces]

    def unneeded(self, source: Source) -> int:
        """How many of the nodes that are on their way to the group nobody counts on."""
        return sum(not self._is_new(source, node) for node in source.cell.left.get(source.blank, ()))

    def _is_new(self, source: Source, node: NodeId) -> bool:
        return int(node.rpartition("+")[2]) >= len(source.standing.arriving)

    # ------------------------------------------------------------ the books

    def _count_nodes(self, draft: Draft) -> None:
        """Every node that takes something new, in its cell. O(nodes), once a turn."""
        room, models, closed = self._room, draft.facts.topology.models, draft.closed
        for node in draft.facts.snapshot.nodes:
            if not room.usable(node.id):
                continue
            key = (node.topology, models.get(node.id, ""), "", closed.get(node.id))
            cell = self._cells.get(key)
            if cell is None:
                cell = self._cells[key] = Cell(str(len(self._cells)), node, key[1], False, self._score, self._view)
                self._left[cell] = {}
            self._left[cell].setdefault(self._pool.of(room.slot(node.id)), []).append(node.id)

    def _add_sources(self, draft: Draft) -> None:
        idle_s, room = draft.facts.profile.node_idle_s, self._room
        for name, standing in draft.facts.standings.items():
            state, blank = standing.state, standing.blank
            cell = Cell(name, blank, blank.model, True, self._score, self._view)
            self._cells[blank.topology, blank.model, name, None] = cell
            left = self._left[cell] = {}
            for node in standing.arriving:
                left.setdefault(self._pool.of(room.slot(node.id)), []).append(node.id)
            most = max(0, state.group.max_replicas - standing.replicas)
            free = state.order is None and state.shrinks_to is None and not standing.resting_s
            soon = standing.resting_s <= idle_s
            empty = self._pool.of(Slot.empty(blank))
            self.sources[name] = Source(standing, cell, empty, most if free else 0, most if soon else 0)

    def _areas_of(self, level: str) -> dict[str, Area]:
        """The domains of a level by name; one, with everything, for EVERYWHERE."""
        areas = self._areas.get(level)
        if areas is None:
            areas = self._areas[level] = {}
            for cell in self._cells.values():
                name = EVERYWHERE if level == EVERYWHERE else paths_of(cell.sample.topology).get(level)
                if name is None:
                    continue
                area = areas.setdefault(name, Area(name))
                owner = self._held.get(cell)
                if owner is not None:
                    area.held.setdefault(owner, []).append(cell)
                elif cell.coming:
                    area.coming.append(cell)
                    area.sources.append(self.sources[GroupName(cell.name)])
                else:
                    area.cells.append(cell)
        return areas

    def _pieces_of(self, shape: Shape) -> Pieces:
        """The shape's bundles, the largest first."""
        pieces = self._shapes.get(shape)
        if pieces is None:
            order = sorted(shape.bundles, key=lambda b: (-b[0].gpu_units, -b[0].units(CPU)))
            pieces = tuple((self._pieces.setdefault(bundle, Piece(bundle)), count) for bundle, count in order)
            self._shapes[shape] = pieces
        return pieces

    # ------------------------------------------------------------ trials

    def _within(self, claim: Claim, shape: Shape, pieces: Pieces, model: str, way: _Way) -> Trial | None:
        """The best seats with GPUs of one model."""
        level = shape.topology.required
        if level is None:
            return self._in_one(list(self._areas_of(EVERYWHERE).values()), claim, pieces, model, way)
        if level == NODE_LEVEL:
            return None if shape.near else self._on_one_node(claim, pieces, model, way)
        areas = self._areas_of(level)
        if shape.near:
            domains = {d.name for node in shape.near if (d := self._near.domain_of(level, node)) is not None}
            if len(domains) != 1:  # members in several domains have no neighbours, as in `seats.find`
                return None
            return self._in_one([areas[name] for name in domains if name in areas], claim, pieces, model, way)
        return self._in_one(list(areas.values()), claim, pieces, model, way)

    def _in_one(self, areas: Sequence[Area], claim: Claim, pieces: Pieces, model: str, way: _Way) -> Trial | None:
        """In the area where least must be added; of equal ones, where least is left over."""
        ranked = []
        for area in areas:
            bound = _least_added(area, pieces[0], model, claim.id, way)
            if bound is not None:
                ranked.append((*bound, area.name, area))
        best: Trial | None = None
        for units, preference, _, _, area in sorted(ranked, key=lambda r: r[:4]):
            if best is not None and (units, 0, preference) >= (best.cost[0], 0, best.cost[2]):
                break
            trial = _fit(area, claim.id, pieces, model, way)
            if trial is not None and (best is None or trial.cost < best.cost):
                best = trial
        return best

    def _on_one_node(self, claim: Claim, pieces: Pieces, model: str, way: _Way) -> Trial | None:
        """All members on one node: one that exists or is on its way, else a new one."""
        area = self._areas_of(EVERYWHERE)[EVERYWHERE]
        for cell in area.able(pieces[0][0], model, claim.id, way.existing):
            for _, _, leftover in cell.ranked(pieces[0][0]):
                if _takes_all(leftover, pieces):
                    trial = Trial()
                    _take_all(trial, cell, leftover, pieces)
                    return trial
        if not way.grow:
            return None
        able = [
            source
            for source in area.sources
            if source.could_add(way.hopes) and _suits(source, pieces[0][0], model) and _takes_all(source.blank, pieces)
        ]
        if not able:
            return None
        first, _ = pieces[0]
        source = min(able, key=lambda s: s.rank(first, 1, 0))
        trial = Trial()
        trial.add(source, 1, first, 0)
        _take_all(trial, source.cell, source.blank, pieces)
        return trial


class _Way:
    """How a trial may be made: see `Stock.seat`."""

    __slots__ = ("existing", "grow", "hopes")

    def __init__(self, grow: bool, hopes: bool, existing: bool) -> None:
        self.grow = grow
        self.hopes = hopes
        self.existing = existing


def _suits(source: Source, piece: Piece, model: str) -> bool:
    return not model or not uses_devices(piece.bundle) or source.cell.model == model


def _takes_all(leftover: Leftover, pieces: Pieces) -> bool:
    for piece, count in pieces:
        if leftover.seats(piece) < count:
            return False
        leftover = leftover.after(piece, count)
    return True


def _take_all(trial: Trial, cell: Cell, leftover: Leftover, pieces: Pieces) -> None:
    for piece, count in pieces:
        trial.take(cell, leftover, piece, count)
        leftover = leftover.after(piece, count)


def _least_added(
    area: Area, first: tuple[Piece, int], model: str, claim: WorkloadId, way: _Way
) -> tuple[int, int, int] | None:
    """GPU units that must be added here at least, the best preference, and the seats that are free; None: no way."""
    piece, count = first
    free = sum(cell.seats(piece) for cell in area.able(piece, model, claim, way.existing))
    if free >= count:
        return 0, 0, free
    if not way.grow:
        return None
    seats, preference = 0, 0
    for source in area.sources:
        room = source.could_add(way.hopes)
        if room and _suits(source, piece, model) and (per := source.blank.seats(piece)):
            own = source.standing.state.group.preference
            preference = min(preference, own) if seats else own
            seats += room * source.hosts * per
    missing = count - free
    return (missing * piece.gpu_units, preference, free) if seats >= missing else None


def _fit(area: Area, claim: WorkloadId, pieces: Pieces, model: str, way: _Way) -> Trial | None:
    """All pieces within the area, or None."""
    if len(pieces) == 1 or not way.grow:
        return _fit_with(area, claim, pieces, model, way, None)
    piece, count = pieces[0]
    able = [s for s in area.sources if s.could_add(way.hopes) and _suits(s, piece, model) and s.blank.seats(piece)]
    firsts: list[Source | None] = [None]
    if len(able) > 1:
        firsts = [*sorted(able, key=lambda s: s.rank(piece, *_whole(s, piece, count)))[:FIRST_GROUPS]]
    trials = [_fit_with(area, claim, pieces, model, way, first) for first in firsts]
    found = [trial for trial in trials if trial is not None]
    return min(found, key=lambda t: (t.cost[2], *t.cost)) if found else None  # of equal ones the first


def _whole(source: Source, piece: Piece, count: int) -> tuple[int, int]:
    per = source.blank.seats(piece) * source.hosts
    return -(-count // per), count


def _fit_with(
    area: Area, claim: WorkloadId, pieces: Pieces, model: str, way: _Way, first: Source | None
) -> Trial | None:
    """All pieces within the area; the largest ones that need new nodes by one group first, if one is given."""
    trial = Trial()
    for position, (piece, count) in enumerate(pieces):
        left = trial.fill(_cells(area, trial, piece, model, claim, way), piece, count)
        if left and way.grow:
            sources = [source for source in area.sources if _suits(source, piece, model)]
            if position == 0 and first is not None:
                sources = [first]
            left = trial.grow(sources, piece, left, way.hopes)
            if left and position == 0 and first is not None:
                others = [s for s in area.sources if s is not first and _suits(s, piece, model)]
                left = trial.grow(others, piece, left, way.hopes)
        if left:
            return None
    return trial


def _cells(area: Area, trial: Trial, piece: Piece, model: str, claim: WorkloadId, way: _Way) -> list[Cell]:
    """The cells that take the piece, those that the trial itself has made room in included."""
    cells = area.able(piece, model, claim, way.existing)
    added = [s.cell for s in trial.new if _suits(s, piece, model) and s.cell not in cells and s in area.sources]
    return [*cells, *added]
