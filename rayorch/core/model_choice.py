"""The knobs of which GPU model a workload gets that names several, and of moving it to a better one later."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelKnobs:
    """What a profile says of workloads that name several models (`WorkloadSpec.accelerators`).

    The models are tried in their order; the first that has room is taken. `next_before_borrowing`: one that its queue
    would have to borrow for is taken only when none of the others fits without (Kueue's `whenCanBorrow:
    TryNextFlavor`). `evict_before_next`: others are evicted for a better model before the next is looked at
    (`whenCanPreempt: MayStopSearch`). `evict_before_borrowing`: of models that need one or the other, evict
    (`preference: PreemptionOverBorrowing`).
    `by_score`: of models that are equally good (`WorkloadSpec.any_model`) a single seat takes that of the node that
    the score puts first, not the one of which most is free.
    `upgrade`: running gangs are moved to a model that they would rather have when nobody waits for it. A gang is moved
    within `upgrade_after_checkpoint_s` after it has committed a checkpoint, `upgrade_cooldown_s` after its start, if
    `upgrade_gain` (the part of its remaining time that a better model saves) times what remains is more than the stop
    and the start cost.
    """

    next_before_borrowing: bool = False
    evict_before_next: bool = False
    evict_before_borrowing: bool = False
    by_score: bool = False
    upgrade: bool = False
    upgrade_gain: float = 0.25
    upgrade_cooldown_s: float = 3600.0
    upgrade_after_checkpoint_s: float = 60.0
