"""When the plan could be another one although nothing happens: time-driven rules, and when they next have a say.

A live controller has a turn every moment. Here time jumps, so whoever adds a rule that depends on the time says here
when it must be asked again.
"""

from __future__ import annotations

import heapq

from rayorch.core.decisions import Plan, Reserve, Resize, Start, Stop
from rayorch.core.moves import moves_somebody
from rayorch.core.ordering import Basis, OrderView, basis_of, rank_changes_s
from rayorch.core.planning.takings import OWED_S
from rayorch.core.quota_tree import QuotaTree
from rayorch.core.types import State, StopCause, Workload, WorkloadId
from rayorch.sim.trace.cluster import TraceCluster
from rayorch.sim.trace.events import JUST_AFTER_S, NOBODY, Moment, Moments

LOOK_S = 60.0
"""How soon work that waits is looked at anew under an order that depends on the time and does not say when."""
LONGEST_LOOK_S = 3600.0
"""Each look that changes nothing doubles the pause up to this; one that does begins with `LOOK_S` again."""
LOOKS_IN_VAIN = 16
"""Once nothing runs and so many looks in a row have changed nothing, what waits never starts."""


class Wakes:
    """Puts the moments at which the plan must be asked into the heap, each once."""

    def __init__(self, cluster: TraceCluster, moments: Moments) -> None:
        self._cluster = cluster
        self._moments = moments
        self._profile = cluster.profile
        self._at: set[float] = set()
        self._ranks: list[tuple[float, WorkloadId]] = []  # a heap: whose rank changes by itself, and when
        self._look_s = -LOOK_S
        self._pause_s = LOOK_S
        self._vain = 0
        self._by_time = basis_of(cluster.profile.order) is Basis.TURN
        self._queues = QuotaTree(cluster.tree.queues.values())

    @property
    def awaited(self) -> bool:
        """Whether somebody waits for a moment to come; of looks at work that waits, not for ever."""
        return bool(self._at) and (self._vain < LOOKS_IN_VAIN or self._at != {self._look_s})

    def woken(self, at_s: float) -> None:
        """One of the moments has come: that of `at_s`."""
        now_s = self._cluster.now_s
        self._at.discard(at_s)
        while self._ranks and self._ranks[0][0] <= now_s:
            self._rank(heapq.heappop(self._ranks)[1])

    def at(self, at_s: float) -> None:
        """The plan must be asked then."""
        if at_s > self._cluster.now_s and at_s not in self._at:
            self._at.add(at_s)
            self._moments.put(at_s, Moment.WAKE, NOBODY, 0)

    def now(self) -> None:
        """The plan must be asked once more in this moment."""
        self._moments.put(self._cluster.now_s, Moment.WAKE, NOBODY, 0)

    # ------------------------------------------------------------ what has happened

    def started(self, workload: Workload) -> None:
        """Until it has run for a while nobody may evict it; later its rank may fall, and it may grow."""
        if workload.spec.resizable:
            self.at(self._cluster.now_s + self._profile.grow_cooldown_s)
        if self._profile.packing.unpack:
            self.now()  # who shares a GPU with it is noted
            self.at(self._cluster.now_s + self._profile.packing.cooldown_s)
        if not self._profile.preemption or workload.started_s is None:
            return
        if moves_somebody(self._profile.moves):
            self.at(workload.started_s + self._profile.defragment.cooldown_s)
        if self._profile.eviction.by_order:
            self._rank(workload.spec.id)
        spec = workload.spec
        queue = self._queues.min_runtime(spec.queue)
        queue_s = queue.min_runtime_s if queue is not None else 0.0
        for length_s in (spec.min_runtime_s, self._profile.eviction.exempt_s, queue_s):
            if length_s > 0:
                self.at(workload.started_s + length_s)

    def resized(self, workload: Workload) -> None:
        """What it gave back is free in this moment; later it may grow again."""
        self.now()
        self.at(self._cluster.now_s + self._profile.grow_cooldown_s)
        if workload.release_for is not None and workload.release_by_s is not None:
            self.at(workload.release_by_s + OWED_S + JUST_AFTER_S)

    def _rank(self, id: WorkloadId) -> None:
        """Ask again when its rank changes, if it runs and the order knows when that will be."""
        cluster, profile = self._cluster, self._profile
        workload = cluster.tree.workloads.get(id)
        if workload is None or workload.state is not State.RUNNING:
            return
        view = OrderView(cluster.now_s, profile.ordering, history=cluster.history)
        at_s = rank_changes_s(profile.order, workload, view)
        if at_s is not None and at_s > cluster.now_s:
            heapq.heappush(self._ranks, (at_s, id))
            self.at(at_s)

    def draining(self, leave_by_s: float) -> None:
        """What runs on such nodes is told to stop its grace, and the lease's margin, before they go (`heal`)."""
        workloads = self._cluster.tree.workloads
        live = [workloads[id] for id in sorted(self._cluster.tree.placements)]
        for grace_s in sorted({workload.spec.grace_s for workload in live}):
            self.at(leave_by_s - grace_s - self._cluster.planned.lease_margin_s)

    def requeued(self, workload: Workload) -> None:
        """It waits before its next attempt, and what was freed is another's for a while."""
        self.at(workload.not_before_s)
        now_s = self._cluster.now_s
        if workload.yielded_to is not None:
            self.at(now_s + OWED_S + JUST_AFTER_S)
        if workload.former:
            self.at(now_s + self._profile.repair_hold_s)
        if workload.last_cause is StopCause.MOVED and moves_somebody(self._profile.moves):
            self.at(now_s + self._profile.defragment.every_s)
            self.at(now_s + self._profile.defragment.window_s)
        if workload.spec.preemption_delay_s:
            self.at(now_s + workload.spec.preemption_delay_s)

    def after(self, plan: Plan) -> None:
        """The plan itself may say when something is expected."""
        for decision in plan.decisions:
            if isinstance(decision, Reserve) and decision.at_s is not None:
                self.at(decision.at_s)
        if any(isinstance(decision, Start | Stop | Resize) for decision in plan.decisions):
            self._pause_s, self._vain = LOOK_S, 0
        if self._by_time and plan.waits and self._look_s <= self._cluster.now_s:
            # One look ahead at a time, or every event between two looks would begin a series of its own.
            self._look_s = self._cluster.now_s + self._pause_s
            self._vain += 1
            self._pause_s = min(2.0 * self._pause_s, LONGEST_LOOK_S)
            self.at(self._look_s)
