"""Stage 8's private books: what is free, what is on its way, what could be added, and where whole gangs fit in it.

Nodes that are alike (in one place, of one model, with the same amounts free) are counted, not looked at one by one, so
that a gang is seated in the time that its kinds of pieces take and not in that of all nodes. A gang is tried on top of
the books and kept only when it is whole; nothing is undone.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rayorch.core.planning.arrivals import Standing, nth
from rayorch.core.policy import NodeView, PlacementView, ScorePolicy, SortKey
from rayorch.core.sharing import device_need, uses_devices
from rayorch.core.slot import Slot
from rayorch.core.types import GPU, UNIT, NodeId, NodeSpec, Resources, WorkloadId

ENDLESS = 1_000_000
"""How many empty bundles a node takes."""


class Piece:
    """A bundle, known by identity: equal bundles are one piece, so that looking it up costs no hashing of amounts."""

    __slots__ = ("bundle", "gpu_units")

    def __init__(self, bundle: Resources) -> None:
        self.bundle = bundle
        self.gpu_units = bundle.gpu_units


class Leftover:
    """What is free on a node; nodes with the same amounts free share one, so each question is answered once."""

    __slots__ = ("_after", "_pool", "_seats", "slot")

    def __init__(self, slot: Slot, pool: LeftoverPool) -> None:
        self.slot = slot
        self._pool = pool
        self._seats: dict[Piece, int] = {}
        self._after: dict[tuple[Piece, int], Leftover] = {}

    def seats(self, piece: Piece) -> int:
        """How many such pieces the node takes."""
        count = self._seats.get(piece)
        if count is None:
            count = self._seats[piece] = _count(self.slot, piece.bundle)
        return count

    def after(self, piece: Piece, count: int) -> Leftover:
        """What is free once it has taken `count` of them, which it has seats for."""
        key = (piece, count)
        left = self._after.get(key)
        if left is None:
            left = self._after[key] = self._pool.of(_charged(self.slot, piece.bundle, count))
        return left


class LeftoverPool:
    """All leftovers, each once."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Leftover] = {}

    def of(self, slot: Slot) -> Leftover:
        """The one with these amounts."""
        key = (tuple(slot.amounts.items()), slot.left, slot.layout.kind)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Leftover(slot, self)
        return found


def _count(slot: Slot, bundle: Resources) -> int:
    limit = ENDLESS
    plain = device_need(bundle).plain
    for name, n in bundle.items if plain else ():
        if name != GPU:
            limit = min(limit, max(0, slot.amounts.get(name, 0)) // n)
    whole, fraction = divmod(bundle.gpu_units, UNIT)
    if plain and not fraction:
        return min(limit, slot.devices.count(UNIT) // whole) if whole else limit
    if plain and not whole:
        return min(limit, sum(max(0, units) // fraction for units in slot.devices))
    count = 0
    while count < limit and slot.fits(bundle):
        slot, count = _charged(slot, bundle, 1), count + 1
    return count


def _charged(slot: Slot, bundle: Resources, count: int) -> Slot:
    if bundle.gpu_units % UNIT == 0 and device_need(bundle).plain:
        return slot.minus(bundle.times(count), slot.choose(bundle.times(count)))
    for _ in range(count):
        slot = slot.minus(bundle, slot.choose(bundle))
    return slot


class Cell:
    """Nodes in one place and of one model, by what is free on them. `coming`: they are not there yet.

    `held_for`: the head of a queue that they are held for. `sample`: any of them, for scores.
    """

    __slots__ = ("_ranked", "_score", "_seats", "_view", "coming", "held_for", "left", "model", "name", "sample")

    def __init__(
        self, name: str, sample: NodeSpec, model: str, coming: bool, score: ScorePolicy, view: PlacementView
    ) -> None:
        self.name = name
        self.sample = sample
        self.model = model
        self.coming = coming
        self.left: dict[Leftover, tuple[NodeId, ...]] = {}
        self._score = score
        self._view = view
        self._seats: dict[Piece, int] = {}
        self._ranked: dict[Piece, list[tuple[SortKey, int, Leftover]]] = {}

    def put(self, left: dict[Leftover, tuple[NodeId, ...]]) -> None:
        """Other amounts are free now."""
        self.left = left
        self._seats.clear()
        self._ranked.clear()

    def seats(self, piece: Piece) -> int:
        """How many such pieces its nodes take."""
        count = self._seats.get(piece)
        if count is None:
            count = sum(leftover.seats(piece) * len(nodes) for leftover, nodes in self.left.items())
            self._seats[piece] = count
        return count

    def ranked(self, piece: Piece) -> list[tuple[SortKey, int, Leftover]]:
        """What takes the piece, the best first."""
        found = self._ranked.get(piece)
        if found is None:
            found = self._ranked[piece] = self.rank(piece, self.left)
        return found

    def rank(self, piece: Piece, left: Iterable[Leftover]) -> list[tuple[SortKey, int, Leftover]]:
        """Of these leftovers those that take the piece, the best first."""
        able = [leftover for leftover in left if leftover.seats(piece)]
        return sorted(
            (self._score(piece.bundle, NodeView(self.sample, o.slot, self.model), self._view), i, o)
            for i, o in enumerate(able)
        )


class Source:
    """A group that could add nodes. `room`: how many replicas now; `hope`: how many once what is under way is over.

    `shares`: the gangs that count on nodes that it adds, and on how many.
    """

    __slots__ = ("blank", "cell", "hope", "opened", "room", "shares", "standing", "units")

    def __init__(self, standing: Standing, cell: Cell, blank: Leftover, room: int, hope: int) -> None:
        self.standing = standing
        self.cell = cell
        self.blank = blank
        self.room = room
        self.hope = hope
        self.opened = 0
        self.units = standing.blank.total.gpu_units
        self.shares: dict[WorkloadId, int] = {}

    @property
    def hosts(self) -> int:
        """Nodes of one replica."""
        return self.standing.state.group.hosts

    def could_add(self, hopes: bool) -> int:
        """How many more replicas it may add."""
        return self.hope if hopes else self.room

    def rank(self, piece: Piece, replicas: int, seats: int) -> SortKey:
        """Which group is grown first: for work without GPUs one without; then preference, least waste, fewest nodes."""
        wasted = replicas * self.hosts * self.units - seats * piece.gpu_units
        misfit = int(not uses_devices(piece.bundle) and self.units > 0)
        group = self.standing.state.group
        return (misfit, group.preference, wasted, replicas * self.hosts, group.name)


@dataclass(eq=False, slots=True)
class Area:
    """Where all members of a gang may be: everywhere, or one domain. `held`: the cells that are one head's only."""

    name: str
    cells: list[Cell] = field(default_factory=list)
    coming: list[Cell] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    held: dict[WorkloadId, list[Cell]] = field(default_factory=dict)
    _live: dict[tuple[Piece, str], list[Cell]] = field(default_factory=dict)

    def able(self, piece: Piece, model: str, claim: WorkloadId, existing: bool) -> list[Cell]:
        """The cells that take the piece. What exists only becomes less, so what is full is not looked at again."""
        fresh = [cell for cell in self.coming if cell.left and _right(cell, piece, model) and cell.seats(piece)]
        if not existing:
            return fresh
        key = (piece, model)
        live = [cell for cell in self._live.get(key, self.cells) if _right(cell, piece, model) and cell.seats(piece)]
        self._live[key] = live
        own = [cell for cell in self.held.get(claim, ()) if _right(cell, piece, model) and cell.seats(piece)]
        return [*own, *live, *fresh]


def _right(cell: Cell, piece: Piece, model: str) -> bool:
    return not model or not uses_devices(piece.bundle) or cell.model == model


@dataclass(eq=False, slots=True)
class Trial:
    """Seats for one gang, on top of the books. `nodes`: those that it uses; `new`: replicas that it needs added."""

    left: dict[Cell, dict[Leftover, tuple[NodeId, ...]]] = field(default_factory=dict)
    nodes: list[tuple[Cell, tuple[NodeId, ...]]] = field(default_factory=list)
    new: dict[Source, int] = field(default_factory=dict)

    @property
    def cost(self) -> tuple[int, int, int]:
        """GPUs that are added, nodes that are added, and the worst preference among their groups."""
        units = sum(source.units * source.hosts * count for source, count in self.new.items())
        nodes = sum(source.hosts * count for source, count in self.new.items())
        return units, nodes, max((source.standing.state.group.preference for source in self.new), default=0)

    def take(self, cell: Cell, leftover: Leftover, piece: Piece, count: int) -> int:
        """Seat up to `count` pieces on the cell's nodes with this leftover, node by node. Answers how many."""
        left = self.left.get(cell)
        if left is None:
            left = self.left[cell] = dict(cell.left)
        nodes, per = left.pop(leftover), leftover.seats(piece)
        full = min(len(nodes), count // per)
        rest = count - full * per if full < len(nodes) else 0
        used = full + (1 if rest else 0)
        if full:
            after = leftover.after(piece, per)
            left[after] = nodes[:full] + left.get(after, ())
        if rest:
            after = leftover.after(piece, rest)
            left[after] = nodes[full:used] + left.get(after, ())
        if used < len(nodes):
            left[leftover] = nodes[used:] + left.get(leftover, ())
        self.nodes.append((cell, nodes[:used]))
        return full * per + rest

    def fill(self, cells: Sequence[Cell], piece: Piece, count: int) -> int:
        """Seat up to `count` pieces, on what exists first, on the node of least score. Answers how many are left."""
        heap = []
        for i, cell in enumerate(cells):
            left = self.left.get(cell)
            ranked = cell.ranked(piece) if left is None else cell.rank(piece, left)
            if ranked:
                heap.append((cell.coming, ranked[0][0], i, 0, ranked, cell))
        heapq.heapify(heap)
        while count and heap:
            coming, _, i, position, ranked, cell = heapq.heappop(heap)
            count -= self.take(cell, ranked[position][2], piece, count)
            position += 1
            if position < len(ranked):
                heapq.heappush(heap, (coming, ranked[position][0], i, position, ranked, cell))
        return count

    def grow(self, sources: Sequence[Source], piece: Piece, count: int, hopes: bool) -> int:
        """Seat up to `count` pieces on nodes that groups add: by one group that can add enough, else by several."""
        while count:
            able = []
            for source in sources:
                room = source.could_add(hopes) - self.new.get(source, 0)
                per = source.blank.seats(piece) * source.hosts
                if room > 0 and per:
                    needed = -(-count // per)
                    replicas = min(room, needed)
                    able.append(
                        (needed > room, source.rank(piece, replicas, min(count, replicas * per)), replicas, source)
                    )
            if not able:
                return count
            _, _, replicas, source = min(able, key=lambda option: option[:2])
            count -= self.add(source, replicas, piece, count)
        return 0

    def add(self, source: Source, replicas: int, piece: Piece, count: int) -> int:
        """Add replicas to a group and seat up to `count` pieces there. Answers how many."""
        cell, group = source.cell, source.standing.state.group
        left = self.left.setdefault(cell, dict(cell.left))
        already = len(source.standing.arriving) + (source.opened + self.new.get(source, 0)) * group.hosts
        fresh = tuple(nth(group.name, already + i) for i in range(replicas * group.hosts))
        self.new[source] = self.new.get(source, 0) + replicas
        left[source.blank] = fresh + left.get(source.blank, ())
        return self.take(cell, source.blank, piece, count)


def paths_of(topology: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    """The domain of each level that a node with this path is in, by the names that `Topology` gives them."""
    found: dict[str, str] = {}
    path = ""
    for level, value in topology:
        path = f"{path}/{value}" if path else value
        found[level] = path
    return found
