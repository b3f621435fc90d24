"""Whom stage 4 turns away at the door: the first of a line for whom nothing can be done, told by what is known already.

Most claims that wait find what those before them found in this turn: no room for their shape, too little quota, nobody
to evict. All of that is numbers and sets by then, so such a claim is never made. The answer is the one that the long
way (`planner._serve`) would give, and where that is not certain, the long way is gone.
"""

from __future__ import annotations

from dataclasses import dataclass

from rayorch.core.planning.claims import Gang, Shape, start_claim
from rayorch.core.planning.consolidate import could_move
from rayorch.core.planning.draft import ClaimKind, Draft
from rayorch.core.planning.place import HELD, NOW, SOON, hold, is_small
from rayorch.core.planning.queue_gates import queue_gate
from rayorch.core.planning.victims import nobody
from rayorch.core.planning.waiting import Verdict
from rayorch.core.planning.waits import hopeless, reasons
from rayorch.core.planning.walk import Walk
from rayorch.core.quota import Limited
from rayorch.core.types import QueueId, Resources, Workload


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a gang asks for, as far as it decides here. `plain`: one way to seat it, on one kind of its parts."""

    shape: Shape
    resources: Resources
    limited: Limited
    gpu_units: int
    now: tuple[str, Shape]
    soon: tuple[str, Shape]
    held: tuple[str, Shape]
    small: bool
    plain: bool


class Doorkeeper:
    """One turn's. Called with the first of a line and what it asks for; True: the line is closed."""

    def __init__(self, draft: Draft, walk: Walk) -> None:
        self._draft = draft
        self._walk = walk
        self._open: dict[QueueId, bool] = {}
        self._asked: dict[int, _Asked] = {}
        facts, knobs = draft.facts, draft.facts.profile.models
        by_model = knobs.next_before_borrowing or knobs.evict_before_next or knobs.evict_before_borrowing
        self._away = bool(facts.arriving or facts.orders or by_model or draft.cells is not None)

    def __call__(self, workload: Workload, gang: Gang) -> bool:
        draft, spec = self._draft, workload.spec
        queue, asked = spec.queue, self._asked.get(id(gang)) or self._ask(gang)
        known_queue = self._open.get(queue)
        if not (self._is_plain(queue) if known_queue is None else known_queue) or draft.unrepaired:
            return False
        if self._away or not asked.plain or spec.any_model or spec.preemption_delay_s or spec.reservation:
            return False
        kind = (asked.shape, queue, asked.resources, "")
        verdict = draft.verdicts.get(kind)
        capped, _, fits_soon = draft.soon.quota.standing(queue, asked.limited)
        if verdict is None:
            verdict = self._judged(workload, gang, asked, kind, fits_soon)
            if verdict is None:
                return False
        if not capped and not hopeless(draft, asked.shape):
            draft.waiting[queue] = max(spec.priority, draft.waiting.get(queue, spec.priority))
        others = self._walk.close(verdict)
        if verdict.lacks_room:
            draft.unplaced.append((asked.shape, spec.id, others))
            if not asked.small and queue not in draft.heads and asked.held not in draft.no_room:
                hold(draft, start_claim(workload, gang))
        return True

    def _judged(
        self, workload: Workload, gang: Gang, asked: _Asked, kind: ClaimKind, fits_soon: bool
    ) -> Verdict | None:
        """The verdict over a kind of claim that was not looked at yet; None: it has to be."""
        draft, queue, priority = self._draft, kind[1], workload.spec.priority
        parted = draft.soon is not draft.now
        fits = fits_soon and (not parted or draft.now.quota.standing(queue, asked.limited)[2])
        if fits and asked.now not in draft.no_room:
            return None
        if fits_soon and ((parted and asked.soon not in draft.no_room) or could_move(draft, asked.gpu_units)):
            return None
        silent = draft.budget <= 0 or draft.waiting.get(queue, priority) > priority
        if not silent and not nobody(draft, queue, priority, asked.resources):
            return None
        verdict = draft.verdicts[kind] = Verdict(lambda: reasons(draft, start_claim(workload, gang)), fits)
        return verdict

    def _is_plain(self, queue: QueueId) -> bool:
        """Whether the queue is open, and neither strict nor limits users, countables or models of GPUs."""
        draft = self._draft
        now, soon = draft.now.quota, draft.soon.quota
        limits = now.limits_more(queue) or soon.limits_more(queue) or soon.limits_models(queue)
        self._open[queue] = not (limits or draft.facts.strict(queue) or queue_gate(draft, queue, True))
        return self._open[queue]

    def _ask(self, gang: Gang) -> _Asked:
        shape, resources = gang.shape, gang.resources
        self._asked[id(gang)] = asked = _Asked(
            shape,
            resources,
            self._draft.soon.quota.limited(resources),
            shape.gpu_units,
            (NOW, shape),
            (SOON, shape),
            (HELD, shape),
            is_small(gang),
            not gang.others,
        )
        return asked
