"""The actor that runs the loop: see, decide, commit, reconcile. It holds nothing that it can't fetch again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from rayorch.actors.bypasses import BypassWatch, ray_jobs_of
from rayorch.actors.cluster import RayCluster
from rayorch.actors.collecting import collect_seldom
from rayorch.actors.execution import Executor
from rayorch.actors.housekeeping import Housekeeper
from rayorch.actors.names import controller_name, owner_options
from rayorch.actors.runner import RunnerSettings
from rayorch.actors.views import Turn, explain_view, overview
from rayorch.core.cluster import Outcome
from rayorch.core.decisions import Plan, Reserve, Scale, Wait, WaitReason
from rayorch.core.errors import ClusterError
from rayorch.core.lookout import Lookout
from rayorch.core.planner import plan
from rayorch.core.planning.memory import Memory
from rayorch.core.planning.waiting import Overlaid
from rayorch.core.policy import Profile
from rayorch.core.reconcile import Action, BlockNodes, Known, MarkReleasing, Rebind
from rayorch.core.requests import ACCEPTED
from rayorch.core.runners import RunnerKey, RunnerPhase, RunnerView
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import State, WorkloadId, WorkloadSpec
from rayorch.core.views import ExplainView, Overview, PlanView
from rayorch.core.whatif import smallest_changes, would

if TYPE_CHECKING:
    from rayorch.adapters.kuberay import KubeRaySettings

log = logging.getLogger(__name__)

ERROR_PAUSE_S = 0.5
MIN_PAUSE_S = 0.005
"""Least time between two turns, so that a burst of pokes becomes one turn."""
LONG_TURN_S, MAX_PAUSE_S = 0.05, 0.5
"""A turn over thousands of workloads takes longer than this; then, where it did nothing, the pause is half as long as
the turn, up to MAX_PAUSE_S, so that a stream of submissions leaves the machine to those who accept them."""

SILENT = (MarkReleasing, Rebind, BlockNodes)
"""Actions that change an owner's facts without an event or a message to us."""


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """`profile`: the policies in force. `period_s`: longest time between two turns when nothing happens (leases and
    deadlines are looked at then). `runner`: what every runner is told. `kuberay`: the RayCluster whose RayJobs are
    named when they come past the queues, None where there is none."""

    profile: Profile
    runner: RunnerSettings
    instance: str = "main"
    period_s: float = 1.0
    kuberay: KubeRaySettings | None = None


@dataclass(frozen=True, slots=True)
class ControllerStatus:
    """`first_decision_s`: when this incarnation first committed something [s since the epoch], None before."""

    turns: int
    started_s: float
    first_turn_s: float | None
    first_decision_s: float | None
    last_took_s: float
    synced: bool
    last_error: str


class ControllerShell:
    """The loop, and the views of its last turn."""

    async def __init__(self, settings: ControllerSettings) -> None:  # type: ignore[misc]  # Ray awaits it
        self._settings = settings
        collect_seldom()
        self._loop = asyncio.get_running_loop()
        self._cluster = RayCluster(settings.instance, settings.profile)
        self._memory = Memory()
        self._executor = Executor(settings.runner, self._cluster, self._loop, self._runner_seen)
        packages = Path(settings.runner.packages) if settings.runner.packages else None
        self._housekeeper = Housekeeper(settings.instance, packages)
        self._bypasses = BypassWatch(ray_jobs_of(settings.kuberay) if settings.kuberay else None)
        self._runners: dict[RunnerKey, RunnerView] = {}
        self._ended: set[RunnerKey] = set()
        self._runner_news: deque[RunnerKey] = deque()
        self._lookout = Lookout()
        self._poked = asyncio.Event()
        self._turn: Turn | None = None
        self._started_s = time.time()
        self._first_turn_s: float | None = None
        self._first_decision_s: float | None = None
        self._worked = False
        self._last_error = "starting"
        self._asking = asyncio.Semaphore(1)  # questions that plan anew; the loop goes on beside one of them
        self._work = asyncio.create_task(self._run())

    # ------------------------------------------------------------ the loop

    async def _run(self) -> None:
        connected = False
        while True:
            if not connected:
                connected = await self._connected()
                if not connected:
                    await asyncio.sleep(ERROR_PAUSE_S)
                    continue
            self._poked.clear()
            try:
                again = await asyncio.to_thread(self._one_turn)
                self._last_error = ""
            except ClusterError as error:
                again = connected = False  # an owner that was created anew has to be found anew
                self._note_error(str(error))
                await asyncio.sleep(ERROR_PAUSE_S)
            except Exception as error:
                again = False
                self._note_error(f"{type(error).__name__}: {error}")
                log.exception("a turn of the loop failed")
                await asyncio.sleep(ERROR_PAUSE_S)
            if again:
                self._poked.set()
            await asyncio.sleep(MIN_PAUSE_S if self._worked else _pause_s(self._turn))
            try:
                await asyncio.wait_for(self._poked.wait(), self._settings.period_s)
            except TimeoutError:
                continue

    async def _connected(self) -> bool:
        try:
            await asyncio.to_thread(self._cluster.connect)
            for view in await asyncio.to_thread(self._executor.find_runners):
                self._take_runner(view)
        except (ClusterError, ray.exceptions.RayError) as error:
            self._note_error(str(error))
            return False
        return True

    def _note_error(self, text: str) -> None:
        if text != self._last_error:
            log.warning("turn failed: %s", text)
        self._last_error = text

    def _one_turn(self) -> bool:
        """See, reconcile, decide, commit, reconcile. True when something was done whose effect nobody will tell us of.

        Of most effects their owner tells: the queue owner of each event, the allocator of groups made and removed,
        the runners of themselves. A turn taken before that would see nothing new and be in the way.
        """
        began_s = time.monotonic()
        snapshot = self._cluster.snapshot()
        actions = self._reconcile(snapshot)  # the others work on it while we decide; what has ended frees its quota
        decided = plan(snapshot, self._settings.profile, self._memory)
        outcomes = self._cluster.commit(decided)
        acted = [o for o in outcomes if o.committed and not isinstance(o.decision, Scale | Reserve)]
        if acted or self._poked.is_set():  # what has happened meanwhile need not wait until we have decided once more
            actions += self._reconcile(self._cluster.snapshot())
        self._executor.keep_agents(snapshot)
        self._housekeeper.tick(self._cluster)
        self._bypasses.tick()
        for outcome in outcomes:
            if not isinstance(outcome.decision, Scale | Reserve):
                log.info("%s: %s %s", "committed" if outcome.committed else "refused", outcome.decision, outcome.reason)
        ended_s = time.time()
        self._first_turn_s = self._first_turn_s or ended_s
        if acted:
            self._first_decision_s = self._first_decision_s or ended_s
        number = self._turn.number + 1 if self._turn else 1
        shown = _with_stale(decided, outcomes)
        self._turn = Turn(number, snapshot, shown, outcomes, ended_s, time.monotonic() - began_s)
        self._worked = bool(acted or actions)
        self._forget_ended_runners()
        return any(isinstance(action, SILENT) for action in actions)

    def _reconcile(self, snapshot: Snapshot) -> tuple[Action, ...]:
        """Ask for what is to be done for the attempts, as `reconcile` says, at the price of what has changed."""
        if not snapshot.synced:
            return ()
        news, nodes = self._cluster.take_news()
        while self._runner_news:
            news.add(self._runner_news.popleft())
        cluster, profile = self._cluster, self._settings.profile
        runners = dict(self._runners)
        known = Known(cluster.workloads, cluster.allocations, runners, cluster.nodes, snapshot.now_s, profile)
        actions = self._lookout.look(known, news, nodes)
        self._executor.carry_out(actions)
        return actions

    def _forget_ended_runners(self) -> None:
        """An attempt that is over needs its runner's answer no more."""
        for key in tuple(self._ended):
            view = self._runners.get(key)
            workload = self._cluster.workloads.get(key[0])
            over = workload is None or workload.attempt != key[1] or workload.state is State.PENDING
            if view is None or view.phase.alive:
                self._ended.discard(key)
            elif over:
                self._ended.discard(key)
                self._executor.dispose(key)
                self._runners.pop(key, None)

    # ------------------------------------------------------------ what others tell it

    @ray.method
    async def poke(self) -> None:
        """Something changed: take a turn now."""
        self._poked.set()

    @ray.method
    async def runner_changed(self, view: RunnerView) -> None:
        """A runner says how it is."""
        self._take_runner(view)

    def _runner_seen(self, view: RunnerView) -> None:
        """The same, from any thread."""
        self._loop.call_soon_threadsafe(self._take_runner, view)

    def _take_runner(self, view: RunnerView) -> None:
        known = self._runners.get((view.workload, view.attempt))
        if known is not None and _is_old(view, known):
            return
        self._runners[view.workload, view.attempt] = view
        if not view.phase.alive:
            self._ended.add((view.workload, view.attempt))
        self._runner_news.append((view.workload, view.attempt))
        self._poked.set()

    # ------------------------------------------------------------ what it shows

    @ray.method
    async def explain(self, workload: WorkloadId, changes: bool = False) -> ExplainView | None:
        """Why a workload is where it is, by the last turn; None when it is not among those that have not ended.

        With `changes`, also what would let it start: some tens of what-ifs, each a turn of the planner.
        """
        turn = self._turn
        if turn is None:
            return None
        view = explain_view(workload, turn, self._settings.profile)
        if view is None or not changes:
            return view
        async with self._asking:
            found = await asyncio.to_thread(
                smallest_changes, turn.snapshot, self._settings.profile, turn.plan, workload
            )
        return replace(view, changes=found)

    @ray.method
    async def would(self, spec: WorkloadSpec) -> PlanView | None:
        """What submitting this workload would do, by the facts of the last turn; None before the first one."""
        turn = self._turn
        if turn is None:
            return None
        async with self._asking:
            found = await asyncio.to_thread(would, turn.snapshot, self._settings.profile, spec)
        return PlanView(ACCEPTED, found, turn.number, turn.ended_s)

    @ray.method
    async def overview(self) -> Overview:
        """Queues, nodes and workloads by the last turn."""
        view = overview(self._settings.instance, self._turn, self._last_error)
        warnings = (*view.warnings, *self._cluster.capacity_notes)
        return replace(view, autoscaler=self._cluster.autoscaler, bypasses=self._bypasses.seen, warnings=warnings)

    @ray.method
    async def last_turn(self) -> Turn | None:
        """Snapshot, plan and outcomes of the last turn, to save and replay."""
        return self._turn

    @ray.method
    async def status(self) -> ControllerStatus:
        """How the loop is doing."""
        return ControllerStatus(
            turns=self._turn.number if self._turn else 0,
            started_s=self._started_s,
            first_turn_s=self._first_turn_s,
            first_decision_s=self._first_decision_s,
            last_took_s=self._turn.took_s if self._turn else 0.0,
            synced=self._turn is not None and self._turn.snapshot.synced,
            last_error=self._last_error,
        )

    @ray.method
    async def ping(self) -> int:
        """Turns taken, as a sign of life."""
        return self._turn.number if self._turn else 0


def _pause_s(turn: Turn | None) -> float:
    """How long to leave the others alone after a turn."""
    took_s = turn.took_s if turn is not None else 0.0
    return MIN_PAUSE_S if took_s < LONG_TURN_S else min(took_s / 2, MAX_PAUSE_S)


def _is_old(view: RunnerView, known: RunnerView) -> bool:
    """Whether a view says less than what is known: views come on several ways, and one may overtake another."""
    if known.phase is RunnerPhase.ENDED and view.phase is not RunnerPhase.ENDED:
        return True  # a death that we cause or notice after the goodbye is no news either
    if known.phase is RunnerPhase.GONE and view.phase.alive:
        return True
    if view.phase is RunnerPhase.STARTING and view.grant is None:
        return True
    if view.grant is None or known.grant is None:
        return False
    return view.revision < known.revision


def _with_stale(decided: Plan, outcomes: tuple[Outcome, ...]) -> Plan:
    """The plan with a reason for each workload whose start was refused at the commit."""
    more: dict[WorkloadId, tuple[Wait, ...]] = {}
    for outcome in outcomes:
        if not outcome.committed and hasattr(outcome.decision, "workload"):
            stale = Wait(WaitReason.STALE, f"decided, but refused: {outcome.reason}", unblocks="it is planned again")
            more[outcome.decision.workload] = (*more.get(outcome.decision.workload, ()), stale)
    return replace(decided, waits=Overlaid(decided.waits, more)) if more else decided


Controller = ray.remote(ControllerShell)


def start_controller(settings: ControllerSettings, **options: Any) -> Any:
    """The instance's controller, created if it does not run; `options` (where it must run) go to Ray."""
    return Controller.options(**owner_options(controller_name(settings.instance)), **options).remote(settings)
