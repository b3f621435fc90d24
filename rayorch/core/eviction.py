"""Who may be stopped, shrunk or moved for whom: the knobs of stage 6."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Action(StrEnum):
    """What a pass over all that waits does; names as in KAI."""

    ALLOCATE = "allocate"  # start or promise what fits
    CONSOLIDATE = "consolidation"  # move others so that it fits; nobody loses its place
    RECLAIM = "reclaim"  # from queues that hold more than they are entitled to
    PREEMPT = "preempt"  # from less important work of the same queue
    RETIRE = "stalegangeviction"  # end gangs that have been below their minimum for too long


@dataclass(frozen=True, slots=True)
class EvictionKnobs:
    """What a profile tells stage 6. docs/preemption.md says what each means in use.

    `passes`: do these actions in turn, each for all that waits, under the rules of fair shares (KAI). Empty: each
    workload in its turn by the mildest means, under the rules of deserved shares.
    `exempt_s`: how long every attempt runs before it may be stopped. `priority_doubles`: for every so many points of
    priority a lost GPU-second counts twice as much, 0: it counts the same at any priority.
    `lazy`: nobody is evicted for quota alone: a claim that has room but no quota waits.
    `consolidate`: move gangs so that a waiting one fits, when its start is worth more than the moves cost:
    `start_worth_s` times its GPUs. `whole_node_worth_s`: the same for a node that is emptied while nobody waits, per
    GPU of it, 0: none is. Moved are gangs whose checkpoint is at most `move_after_checkpoint_s` old and that have run
    for `move_cooldown_s`; at most `moves_per_turn`.
    `saturation`: a queue that would hold more than its fair share reclaims only from siblings whose use of theirs is
    larger by this factor, at least 1.
    `consolidation_victims`: how many running workloads a consolidation may look at; 0 switches it off, -1: any number.
    `by_order`: whoever waits takes the room of running work of the same queue that the profile's order ranks behind it
    (`core.ordering.ranks`), those that rank last first. `order_worth_s`: only where the work that is lost by that, in
    GPU-seconds, is at most so many seconds times the GPUs that it asks for; 0: whatever is lost.
    `by_place`: a claim within its queue's share that nothing else makes room for takes any work of queues that hold
    more than theirs, where least is lost, down to their shares.
    `surplus_yields`: a claim takes surplus seats of training of its own queue, or of what another one borrowed, also
    where their work is as important as it; whole attempts only where that is less.
    `stale_grace_s`: how long a gang may be below its minimum before it is ended; negative: for ever.
    """

    passes: tuple[Action, ...] = ()
    exempt_s: float = 0.0
    priority_doubles: float = 100.0
    lazy: bool = False
    consolidate: bool = True
    start_worth_s: float = 600.0
    whole_node_worth_s: float = 0.0
    move_after_checkpoint_s: float = 60.0
    move_cooldown_s: float = 600.0
    moves_per_turn: int = 8
    saturation: float = 1.0
    consolidation_victims: int = 16
    stale_grace_s: float = 60.0
    by_order: bool = False
    order_worth_s: float = 0.0
    by_place: bool = False
    surplus_yields: bool = False


@dataclass(frozen=True, slots=True)
class PackingKnobs:
    """Whether two that share a GPU are watched, and what becomes of those that go badly together.

    `unpack`: they are taken apart when they do less together than `least_together` times what one of them does alone,
    or, while a GPU is idle, less than both would do alone, each time where that is worth more than what a stop loses.
    `measure_s`: so long both were seen beside each other before that is told by their own reports. `per_turn`: so
    many are taken apart at once. `cooldown_s`: how long an attempt has run before it goes to an idle GPU.
    `worth`: how many times what a stop loses must be gained.
    """

    unpack: bool = False
    least_together: float = 1.0
    measure_s: float = 120.0
    per_turn: int = 4
    cooldown_s: float = 600.0
    worth: float = 1.0


@dataclass(frozen=True, slots=True)
class DefragmentKnobs:
    """How much may be moved by a profile's `moves` policy so that less of what is free is stranded.

    `every_s`: least time between two turns in which something is moved. `most`: at most this part of all running
    workloads, but one, is moved within `window_s`. `per_turn`: and at most so many at once. `cooldown_s`: how long an
    attempt has run, and how long ago it was moved for whatever reason, before it is moved. `most_lost_s`: only work
    that loses at most that, per GPU, a restart included. `worth_s`: what a GPU of fragmentation less is worth, in
    GPU-seconds. `least_gain`: by how many GPUs a step must lower it. `across_models`: work that names no model of GPU
    may go to another one. `while_waiting`: also while somebody waits for room. `seed`: of what a policy draws.
    """

    every_s: float = 60.0
    most: float = 0.02
    window_s: float = 3600.0
    per_turn: int = 4
    cooldown_s: float = 1800.0
    most_lost_s: float = 90.0
    worth_s: float = 3600.0
    least_gain: float = 0.05
    across_models: bool = False
    while_waiting: bool = False
    seed: int = 0
