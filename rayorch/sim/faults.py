"""What can go wrong, and when: at one call, at random ones by seed, or between turns.

A fault at a call hits the message (lost, late, twice) or a process (killed just before the call took effect, or
just after). Which calls there are depends on the run, so faults name them by number.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from rayorch.core.types import NodeId, WorkloadId


class Actor(StrEnum):
    """Who calls and is called. Clients, runners, Ray itself and who provides nodes are not killed at calls."""

    QUEUES = "queues"
    INVENTORY = "inventory"
    ALLOCATOR = "allocator"
    CONTROLLER = "controller"
    RUNNER = "runner"
    CLIENT = "client"
    RAY = "ray"
    PROVIDER = "provider"


class Died(Exception):
    """An actor was killed while it was doing something."""

    def __init__(self, actor: Actor) -> None:
        super().__init__(actor.value)
        self.actor = actor


OWNERS = (Actor.QUEUES, Actor.INVENTORY, Actor.ALLOCATOR, Actor.CONTROLLER)


@dataclass(frozen=True, slots=True)
class CallSite:
    """One call: its number in this run, who calls whom, and what for."""

    number: int
    caller: Actor
    callee: Actor
    label: str
    now_s: float


@dataclass(frozen=True, slots=True)
class Kill:
    """Processes end, the call's effect not yet (`after` false) or already there; they start again at their next use."""

    actors: tuple[Actor, ...]
    after: bool


@dataclass(frozen=True, slots=True)
class LoseRequest:
    """The callee never hears of it; the caller gets no answer."""


@dataclass(frozen=True, slots=True)
class LoseReply:
    """It takes effect; the caller gets no answer."""


@dataclass(frozen=True, slots=True)
class Twice:
    """It takes effect twice, as after a retry whose first try had come through."""


@dataclass(frozen=True, slots=True)
class Late:
    """The caller gives up waiting, and the message takes effect later."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Again:
    """It takes effect, and a copy of it arrives much later, after whatever came in between."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Tear:
    """The queue owner dies while it writes what the call makes it write; so much of that (0 to 1) reaches the disk."""

    share: float


@dataclass(frozen=True, slots=True)
class Cancel:
    """Before the call a user cancels a workload."""

    workload: WorkloadId


@dataclass(frozen=True, slots=True)
class LoseNode:
    """Before the call a node dies."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class LoseRunner:
    """Before the call the process of a workload's runner dies; what it started lives on."""

    workload: WorkloadId


Fault = Kill | LoseRequest | LoseReply | Twice | Late | Again | Tear | Cancel | LoseNode | LoseRunner


class Faults(Protocol):
    """Decides about each call."""

    def at(self, site: CallSite) -> Fault | None:
        """What goes wrong at this call; None: nothing."""
        ...


class NoFaults:
    """All goes well."""

    def at(self, site: CallSite) -> Fault | None:
        """Nothing goes wrong."""
        return None


class FaultsAt:
    """These faults at the calls of these numbers."""

    def __init__(self, faults: Sequence[tuple[int, Fault]]) -> None:
        self._faults = dict(faults)

    def at(self, site: CallSite) -> Fault | None:
        """The fault of this number, if any."""
        return self._faults.get(site.number)


class RandomFaults:
    """A fault of any message or owner at a share of all calls, until `until_s`; the same seed gives the same faults."""

    def __init__(self, seed: int, share: float, until_s: float) -> None:
        self._rng = random.Random(seed)
        self._share = share
        self._until_s = until_s

    def at(self, site: CallSite) -> Fault | None:
        """Perhaps a fault; Ray itself loses no calls, but who called it may die."""
        if site.now_s >= self._until_s or self._rng.random() >= self._share:
            return None
        kill = Kill((self._rng.choice(OWNERS),), self._rng.random() < 0.5)
        if site.callee is Actor.RAY:
            return kill
        others: list[Fault] = [LoseRequest(), LoseReply(), Twice(), Late(self._rng.choice((0.5, 3.0, 12.0)))]
        return self._rng.choice([kill, kill, *others])


class SeededFaults:
    """As RandomFaults, with all that a network and a disk can do; every choice comes from the generator that is given.

    `share`: of the calls, at which something goes wrong, until `until_s`.
    """

    def __init__(self, rng: random.Random, share: float, until_s: float) -> None:
        self._rng = rng
        self._share = share
        self._until_s = until_s

    def at(self, site: CallSite) -> Fault | None:
        """Perhaps a fault; Ray itself loses no calls, but who called it may die."""
        if self._share == 0 or site.now_s >= self._until_s or self._rng.random() >= self._share:
            return None
        rng = self._rng
        kind = rng.randrange(10)
        if kind < 2 or site.callee is Actor.RAY:
            return Kill((rng.choice(OWNERS),), rng.random() < 0.5)
        if kind < 4 and site.callee is Actor.QUEUES:
            return Tear(rng.choice((0.0, rng.random(), 1.0)))
        if kind < 6:
            return LoseRequest() if rng.random() < 0.5 else LoseReply()
        if kind < 8:
            return Late(rng.choice((0.5, 1.5, 4.0, 12.0, 30.0)))
        return Twice() if rng.random() < 0.4 else Again(rng.choice((1.0, 3.0, 12.0, 40.0)))
