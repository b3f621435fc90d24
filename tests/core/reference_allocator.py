"""The allocator's books once more, with lists and loops only: every question is answered from the list of all seats.

Whole GPUs take free devices, the lowest first; a part of one takes the device that it leaves with least. Nothing is
remembered but who sits where.
"""

from __future__ import annotations

from dataclasses import dataclass, field

UNIT = 10_000
Key = tuple[str, int]
"""(workload, attempt)."""


@dataclass
class Seat:
    """One seat. `surplus` names the group that it is in."""

    node: str
    gpu: int
    cpu: int
    surplus: int
    devices: tuple[int, ...] = ()
    releasing: bool = False


@dataclass
class ReferenceAllocator:
    """`gpus`, `cpus`: what each node has (devices, units of CPU)."""

    gpus: dict[str, int]
    cpus: dict[str, int]
    seats: dict[Key, list[Seat]] = field(default_factory=dict)

    # ------------------------------------------------------------ what is free

    def device(self, node: str, index: int, seats: list[Seat]) -> int:
        """What is free of a device beside these seats."""
        free = UNIT
        for seat in seats:
            if seat.node == node and index in seat.devices:
                whole, part = divmod(seat.gpu, UNIT)
                free -= part if part and index == seat.devices[-1] and whole < len(seat.devices) else UNIT
        return free

    def all_seats(self) -> list[Seat]:
        return [seat for seats in self.seats.values() for seat in seats]

    def choose(self, seat: Seat, others: list[Seat]) -> tuple[int, ...] | None:
        """The devices that it gets, None where it does not fit."""
        if seat.node not in self.gpus:
            return None
        if sum(s.cpu for s in others if s.node == seat.node) + seat.cpu > self.cpus[seat.node]:
            return None
        free = {index: self.device(seat.node, index, others) for index in range(self.gpus[seat.node])}
        whole, part = divmod(seat.gpu, UNIT)
        chosen = [index for index in sorted(free) if free[index] == UNIT][:whole]
        if len(chosen) < whole:
            return None
        if part:
            fitting = [index for index in free if index not in chosen and free[index] >= part]
            if not fitting:
                return None
            chosen.append(min(fitting, key=lambda index: (free[index], index)))
        return tuple(chosen)

    # ------------------------------------------------------------ commands; False: refused

    def reserve(self, key: Key, asked: list[Seat]) -> bool:
        """All of the seats or none; a workload holds seats of one attempt only."""
        if key in self.seats:
            return _same(self.seats[key], asked)
        if any(workload == key[0] for workload, _ in self.seats) or not asked:
            return False
        return self._add(key, asked)

    def grow(self, key: Key, asked: list[Seat]) -> bool:
        """Further seats of a held attempt, each a group of its own."""
        if key not in self.seats:
            return False
        for seat in asked:
            for known in self.seats[key]:
                if known.surplus == seat.surplus and (known.releasing or not _same([known], [seat])):
                    return False
        known_numbers = [known.surplus for known in self.seats[key]]
        new = [seat for seat in asked if seat.surplus not in known_numbers]
        return not new or self._add(key, new)

    def release(self, key: Key, numbers: list[int]) -> None:
        for seat in self.seats.get(key, []):
            seat.releasing = seat.releasing or seat.surplus in numbers

    def removed(self, key: Key, number: int) -> None:
        left = [seat for seat in self.seats.get(key, []) if seat.surplus != number]
        self.seats[key] = left
        if not left:
            del self.seats[key]

    def _add(self, key: Key, asked: list[Seat]) -> bool:
        others, placed = self.all_seats(), []
        for seat in asked:
            devices = self.choose(seat, [*others, *placed])
            if devices is None:
                return False
            placed.append(Seat(seat.node, seat.gpu, seat.cpu, seat.surplus, devices))
        self.seats[key] = [*self.seats.get(key, []), *placed]
        return True


def _same(some: list[Seat], others: list[Seat]) -> bool:
    return [(s.surplus, s.node, s.gpu, s.cpu) for s in some] == [(s.surplus, s.node, s.gpu, s.cpu) for s in others]
