"""Stage 6: a cheaper set of victims than the first that was found, if there is one among those that matter.

What-ifs cost milliseconds on a large cluster; whether some numbers of free GPUs take some pieces costs microseconds.
So sets are gone through on numbers alone: of each victim the ways in which it could make room, cheapest first, never
dearer than the best so far. Only a set whose numbers suffice is tried for real, on the nodes that matter alone. The
victims that are looked at are few: those on nodes where least has to be paid for the claim. With up to `POOL` victims
in all that is every set there is; otherwise it is a search with a bound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from rayorch.core.planning.claims import Shape
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.takings import Move
from rayorch.core.types import NodeId, WorkloadId

POOL = 10
"""How many victims are looked at together."""

STEPS = 6_000
"""How many sets are gone through on numbers."""

SPARE_LOTS = 4
"""How many more places than there are pieces are looked at."""

TRIES = 24
"""How many of them are tried for real."""

MOST_SEATS = 3
"""Of so many surplus seats of a victim every choice is a way; of more only the first so many."""

Try = Callable[[list[Move]], tuple[NodeId, ...] | None]
"""The claim's seats after these moves, or None."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way in which a victim makes room: GPU units by node (its place in the board), and what it counts for."""

    moves: tuple[Move, ...]
    frees: tuple[tuple[int, int], ...]
    price: float

    @property
    def id(self) -> WorkloadId:
        """Whose way it is."""
        return self.moves[0].victim.id


@dataclass(slots=True)
class Board:
    """What numbers say. `free`: units by place; `domains`: of each place, the ones to which the claim must keep.

    `pieces`: units of each seat, the largest first.
    """

    pieces: tuple[int, ...]
    free: list[int]
    domains: list[str]
    places: dict[NodeId, int] = field(default_factory=dict)

    def suffices(self, free: Sequence[int]) -> bool:
        """Whether the pieces fit: by numbers of GPUs only, and greedily, so that it may be wrong either way."""
        for domain in dict.fromkeys(self.domains):
            left = [n for n, own in zip(free, self.domains, strict=True) if own == domain]
            if all(_put(left, piece) for piece in self.pieces):
                return True
        return False


def _put(left: list[int], piece: int) -> bool:
    best = min((n for n in left if n >= piece), default=None)
    if best is None:
        return False
    left[left.index(best)] = best - piece
    return True


@dataclass(frozen=True, slots=True)
class Survey:
    """What is worth looking at: the nodes that matter, and of each victim there the ways to make room."""

    board: Board
    options: tuple[tuple[Way, ...], ...]

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """The nodes, in the order of their places."""
        return tuple(self.board.places)


def survey(draft: Draft, shape: Shape, model: str, moves: Sequence[Move], bound: float) -> Survey | None:
    """Victims that count for less than `bound`; None where numbers of GPUs say nothing about the claim."""
    pieces = tuple(
        sorted((b.gpu_units for b, count in shape.bundles for _ in range(count) if b.gpu_units), reverse=True)
    )
    if not pieces:
        return None
    victims = _pool(draft, shape, pieces, model, moves, bound)
    board = _board(draft, shape, model, pieces, victims)
    options = sorted((_ways(board, of_one) for of_one in victims), key=lambda ways: (ways[0].price, ways[0].id))
    return Survey(board, tuple(options))


def cheapest(found: Survey, bound: float, trial: Try) -> tuple[tuple[Move, ...], tuple[NodeId, ...]] | None:
    """A set of moves that counts for less than `bound` and makes room, and the claim's seats; None: none was found."""
    return _Bargain(found.board, found.options, bound, trial).run()


@dataclass(slots=True)
class _Bargain:
    board: Board
    options: tuple[tuple[Way, ...], ...]
    bound: float
    trial: Try
    steps: int = STEPS
    tries: int = TRIES
    found: tuple[tuple[Move, ...], tuple[NodeId, ...]] | None = None

    def run(self) -> tuple[tuple[Move, ...], tuple[NodeId, ...]] | None:
        self._go(0, list(self.board.free), (), 0.0)
        return self.found

    def _go(self, position: int, free: list[int], chosen: tuple[Move, ...], price: float) -> None:
        if price >= self.bound or self.steps <= 0 or self.tries <= 0:
            return
        self.steps -= 1
        if chosen and self.board.suffices(free):
            self.tries -= 1
            nodes = self.trial(list(chosen))
            if nodes is not None:
                self.bound, self.found = price, (chosen, nodes)
                return
        if position == len(self.options):
            return
        for way in self.options[position]:
            after = list(free)
            for place, units in way.frees:
                after[place] += units
            self._go(position + 1, after, (*chosen, *way.moves), price + way.price)
        self._go(position + 1, free, chosen, price)


# ---------------------------------------------------------------- who is looked at


def _pool(
    draft: Draft, shape: Shape, pieces: tuple[int, ...], model: str, moves: Sequence[Move], bound: float
) -> list[list[Move]]:
    """The moves of the victims that matter, by victim: all of them, or those on the nodes that cost least."""
    by_victim: dict[WorkloadId, list[Move]] = {}
    for move in moves:
        if move.price < bound:
            by_victim.setdefault(move.victim.spec.id, []).append(move)
    if len(by_victim) <= POOL:
        return [sorted(by_victim[id], key=attrgetter("rank")) for id in sorted(by_victim)]
    chosen: dict[WorkloadId, None] = {}
    for lots in _cheapest_lots(draft, shape, pieces, model, by_victim):
        for _, _, _, victims in lots:
            chosen.update(dict.fromkeys(victims))
        if len(chosen) >= POOL:
            break
    return [sorted(by_victim[id], key=attrgetter("rank")) for id in sorted(chosen)]


_Lot = tuple[float, NodeId, int, tuple[WorkloadId, ...]]
"""What one more piece on a node counts for beyond those before it: (price, node, its number, whose moves make room)."""


_Entry = tuple[float, WorkloadId, int, float]
"""What a victim frees on a node: (price of each GPU unit, whose, GPU units, price)."""


def _cheapest_lots(
    draft: Draft, shape: Shape, pieces: tuple[int, ...], model: str, by_victim: Mapping[WorkloadId, list[Move]]
) -> Iterator[list[_Lot]]:
    """For each domain that the claim could keep to, enough lots for all pieces and some more; the cheapest first."""
    topology, level, count = draft.facts.topology, shape.topology.required, len(pieces)
    everywhere: list[_Lot] = []
    by_domain: dict[str, list[_Lot]] = {} if level is not None else {"": everywhere}
    for node, on_node in _lots(draft, pieces[0], count, model, by_victim):
        if level is None:
            everywhere += on_node
        elif (domain := topology.domain_of(level, node)) is not None:
            by_domain.setdefault(domain.name, []).extend(on_node)
    ranked = []
    for name, lots in sorted(by_domain.items()):
        lots.sort()
        if len(lots) >= count or level is None:
            ranked.append((sum(price for price, _, _, _ in lots[:count]), name))
    for _, name in sorted(ranked):
        yield by_domain[name][: count + SPARE_LOTS]


def _lots(
    draft: Draft, piece: int, most: int, model: str, by_victim: Mapping[WorkloadId, list[Move]]
) -> Iterator[tuple[NodeId, list[_Lot]]]:
    """On each node, piece by piece: the victims with the least price for a GPU there go first."""
    room, models = draft.soon.room, draft.facts.topology.models
    slots, takers, closed = room.slots, room.takers, draft.closed
    at: defaultdict[NodeId, list[_Entry]] = defaultdict(list)
    for id, own in by_victim.items():
        for move in own:
            price = move.price
            for node, freed in move.gpu_units_by_node:
                at[node].append((price / freed, id, freed, price))
    for node, entries in at.items():
        if node not in takers or node in closed or (model and models.get(node) != model):
            continue
        if len(entries) > 1:
            entries.sort()
        lots = _lots_on(node, max(0, slots[node].gpu_units), entries, piece, most)
        if lots:
            yield node, lots


def _lots_on(node: NodeId, free: int, entries: list[_Entry], piece: int, most: int) -> list[_Lot]:
    lots: list[_Lot] = []
    price, position, count, needed = 0.0, 0, len(entries), 0
    ids: tuple[WorkloadId, ...] = ()
    for nth in range(1, most + 1):
        before, needed = price, needed + piece
        while free < needed and position < count:
            _, id, freed, each = entries[position]
            position += 1
            free, price = free + freed, price + each
            ids = (*ids, id)
        if free < needed:
            break
        lots.append((price - before, node, nth, ids))
    return lots


def _board(draft: Draft, shape: Shape, model: str, pieces: tuple[int, ...], victims: list[list[Move]]) -> Board:
    """The nodes that matter: where a victim is, and those with most free, as many as there are pieces and some more."""
    room, topology = draft.soon.room, draft.facts.topology
    touched = {member.node for own in victims for move in own for member in move.members}
    others = [node for node in topology.of_model(model, topology.nodes) if node not in touched]
    roomy = sorted(
        (node for node in others if room.gpu_units(node) >= pieces[-1]), key=lambda n: (-room.gpu_units(n), n)
    )
    level = shape.topology.required
    board = Board(pieces, [], [])
    for node in (*sorted(touched), *roomy[: 2 * len(pieces)]):
        if not room.usable(node) or node in draft.closed or (model and topology.models.get(node) != model):
            continue
        domain = topology.domain_of(level, node) if level is not None else None
        if level is not None and domain is None:
            continue
        board.places[node] = len(board.free)
        board.free.append(room.gpu_units(node))
        board.domains.append(domain.name if domain is not None else "")
    return board


def _ways(board: Board, moves: list[Move]) -> tuple[Way, ...]:
    """All ways of one victim, the cheapest first."""
    shrinks = [move for move in moves if not move.stops][:MOST_SEATS]
    choices: Iterator[tuple[Move, ...]] = (
        tuple(move for i, move in enumerate(shrinks) if picked >> i & 1) for picked in range(1, 2 ** len(shrinks))
    )
    stops = ((move,) for move in moves if move.stops)
    found = [_way(board, chosen) for chosen in (*choices, *stops)]
    return tuple(sorted(found, key=lambda way: (way.price, len(way.moves), way.frees)))


def _way(board: Board, moves: tuple[Move, ...]) -> Way:
    frees: dict[int, int] = {}
    for move in moves:
        for member in move.members:
            place = board.places.get(member.node)
            if place is not None:
                frees[place] = frees.get(place, 0) + member.bundle.gpu_units
    return Way(moves, tuple(sorted(frees.items())), sum(move.price for move in moves))
