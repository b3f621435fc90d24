"""Carries out what `core.reconcile` says, by calls to the owners and runners. Decides nothing.

Calls are sent without waiting for each: every action is computed anew until its effect shows, so one that was lost
is sent again in a later turn.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

import ray

from rayorch.actors.allocator import GroupsOf
from rayorch.actors.cluster import RayCluster
from rayorch.actors.names import NAMESPACE, attempt_of_runner, find_or_none, logs_name, runner_name
from rayorch.actors.node_agent import start_agent
from rayorch.actors.runner import RunnerSettings, failed_start, start_runner
from rayorch.core import reconcile as act
from rayorch.core.capacity import InstancePhase, Provider
from rayorch.core.errors import ClusterError
from rayorch.core.events import AttemptEnded
from rayorch.core.requests import AttemptRef, ResizeRequest
from rayorch.core.runners import RunnerKey, RunnerPhase, RunnerView
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import Kind, NodeHealth, NodeId

log = logging.getLogger(__name__)

WATCH_S = 60.0
"""A death watch is a long poll on the runner; it is renewed after this time."""
NEVER = 2**62
"""A grant version that no runner reaches: the poll ends only by its time or by the runner's death."""
FIND_TIMEOUT_S = 10.0
UNREACHED_PAUSE_S = 1.0


AGENT_IDLE_S = 30.0
"""Where Ray's autoscaler takes idle nodes away, an agent leaves a node that has been idle for so long."""


def let_alone(snapshot: Snapshot) -> frozenset[NodeId]:
    """Nodes on which nothing of ours may run, because Ray calls a node busy as long as any actor is on it.

    A node that is leaving its group, and where Ray's autoscaler decides, one that has been idle for a while. A node
    that holds something of a gang is neither.
    """
    held = {member.node for allocation in snapshot.allocations for member in allocation.members}
    capacity = snapshot.capacity
    leaving = {
        instance.node
        for state in capacity.groups
        for instance in state.group.instances
        if instance.phase is InstancePhase.LEAVING and instance.node is not None
    }
    idle = {
        node.id
        for node in snapshot.nodes
        if capacity.provider is Provider.RAY
        and node.idle_since_s is not None
        and snapshot.now_s - node.idle_since_s >= AGENT_IDLE_S
    }
    return frozenset((leaving | idle) - held)


@dataclass(slots=True)
class _Calls:
    """What one turn asks of the owners for many attempts at once."""

    removals: list[GroupsOf] = field(default_factory=list)
    creates: list[GroupsOf] = field(default_factory=list)
    begun: list[AttemptRef] = field(default_factory=list)
    ended: list[AttemptEnded] = field(default_factory=list)

    def send(self, queues: Any, allocator: Any) -> None:
        """What frees room goes first."""
        if self.ended:
            queues.end_attempts.remote(tuple(self.ended))
        if self.removals:
            allocator.remove_many.remote(tuple(self.removals))
        if self.creates:
            allocator.create_many.remote(tuple(self.creates))
        if self.begun:
            queues.ready_many.remote(tuple(self.begun))


class Executor:
    """Used by the controller's thread; `seen` takes runner views from any thread."""

    def __init__(
        self,
        settings: RunnerSettings,
        cluster: RayCluster,
        loop: asyncio.AbstractEventLoop,
        seen: Callable[[RunnerView], None],
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._loop = loop
        self._seen = seen
        self._handles: dict[RunnerKey, Any] = {}
        self._agents: dict[NodeId, Any] = {}
        self._watches: dict[RunnerKey, asyncio.Task[None]] = {}

    def carry_out(self, actions: tuple[act.Action, ...]) -> None:
        """Send each action to whom it concerns, those of one kind in one call.

        What can't be done for one workload holds up no other.
        """
        calls = _Calls()
        for action in actions:
            log.info("%s", action)
            try:
                self._one(action, calls)
            except ClusterError as error:
                log.warning("not carried out, computed anew in the next turn: %s: %s", action, error)
            except Exception:  # a defect in one must not take the others with it
                log.exception("not carried out, computed anew in the next turn: %s", action)
        calls.send(self._cluster.queues, self._cluster.allocator)

    def _one(self, action: act.Action, calls: _Calls) -> None:
        queues, allocator = self._cluster.queues, self._cluster.allocator
        match action:
            case act.CreateGroups():
                calls.creates.append(GroupsOf(action.workload, action.attempt, action.surpluses))
            case act.RemoveGroups():
                calls.removals.append(GroupsOf(action.workload, action.attempt, action.surpluses))
            case act.DropReservation():
                held = self._cluster.allocations.get((action.workload, action.attempt))
                numbers = tuple(sorted({m.surplus for m in held.members})) if held else ()
                calls.removals.append(GroupsOf(action.workload, action.attempt, numbers))
            case act.MarkReleasing():
                allocator.release.remote(GroupsOf(action.workload, action.attempt, action.surpluses))
            case act.Rebind():
                allocator.rebind.remote((action.workload, action.attempt, action.in_use))
            case act.Reseat():
                queues.commit_resize.remote(ResizeRequest(action.resize, action.members))
            case act.StartRunner():
                self._start(action)
            case act.UpdateRunner():
                self._update(action)
            case act.KillRunner():
                self._kill((action.workload, action.attempt), action.reason)
            case act.MarkReady():
                calls.begun.append(AttemptRef(action.workload, action.attempt))
            case act.EndAttempt():
                self._sweep(AttemptRef(action.event.workload, action.event.attempt))
                self._finish_log(AttemptRef(action.event.workload, action.event.attempt))
                calls.ended.append(action.event)
            case act.BlockNodes():
                self._cluster.inventory.block.remote((action.nodes, action.until_s, action.reason))
            case _:
                assert_never(action)

    # ------------------------------------------------------------ agents

    def keep_agents(self, snapshot: Snapshot) -> None:
        """One agent on each node that is there, but for those that it would keep from being given back."""
        there = {node.id for node in snapshot.nodes if node.health is not NodeHealth.LOST} - let_alone(snapshot)
        for node in there - self._agents.keys():
            self._agents[node] = start_agent(self._settings.instance, node)
        for node in self._agents.keys() - there:  # pinned to a node that is gone, it would wait there for ever
            ray.kill(self._agents.pop(node))

    def _sweep(self, attempt: AttemptRef) -> None:
        """End what an attempt that is over has left behind on its nodes."""
        workload = self._cluster.workloads.get(attempt.workload)
        if workload is None or workload.attempt != attempt.attempt or workload.spec.kind is Kind.GANG:
            return
        for node in {member.node for member in workload.placement} & self._agents.keys():
            self._agents[node].end_leftovers.remote(attempt)

    def _finish_log(self, attempt: AttemptRef) -> None:
        """Nothing follows in the attempt's log, also when its runner could not say so."""
        store = find_or_none(logs_name(self._settings.instance))
        if store is not None:
            store.finish.remote(attempt.workload, attempt.attempt)

    # ------------------------------------------------------------ runners

    def _start(self, action: act.StartRunner) -> None:
        key = (action.workload, action.attempt)
        try:
            handle = start_runner(self._settings, self._cluster.workloads[action.workload], action.grant)
        except (ClusterError, ray.exceptions.RayError):
            raise  # it is not the workload's fault: the turn is tried again
        except Exception as error:
            # What Ray refuses now it would refuse in each turn, and then nobody else's work would be started either.
            log.exception("the runner of %s can't be started", key)
            message = f"could not be started: {error}"
            self._seen(RunnerView(*key, RunnerPhase.ENDED, exit_code=1, message=message, ended_s=time.time()))
            return
        self._handles[key] = handle
        self._seen(RunnerView(*key, RunnerPhase.STARTING))
        self._watch(key, handle)

    def _update(self, action: act.UpdateRunner) -> None:
        handle = self._handle((action.workload, action.attempt))
        if handle is not None:
            handle.update.remote(action.grant)

    def _kill(self, key: RunnerKey, reason: str) -> None:
        """End a runner; its child processes die with it."""
        handle = self._handle(key)
        if handle is None:
            self._seen(RunnerView(*key, RunnerPhase.GONE, message=reason, ended_s=time.time()))
            return
        log.info("ending runner %s: %s", key, reason)
        ray.kill(handle)

    def _handle(self, key: RunnerKey) -> Any:
        if key not in self._handles:
            handle = find_or_none(runner_name(self._settings.instance, *key))
            if handle is None:
                return None
            self._handles[key] = handle
        return self._handles[key]

    def dispose(self, key: RunnerKey) -> None:
        """Let go of the runner of an attempt that is over."""
        handle = self._handles.pop(key, None)
        if handle is not None:
            ray.kill(handle)

    def find_runners(self) -> tuple[RunnerView, ...]:
        """Every runner of this instance that exists, as it answers: what a controller begins with.

        One that does not answer in time counts as starting until it does: its actor may wait for a process, or its
        node can't be reached now. Its lease says when to give it up.
        """
        named = ray.util.list_named_actors(all_namespaces=True)
        names = [row["name"] for row in named if row["namespace"] == NAMESPACE]
        calls: dict[RunnerKey, Any] = {}
        for name in sorted(names):
            key = attempt_of_runner(self._settings.instance, name)
            handle = find_or_none(name) if key is not None else None
            if key is None or handle is None:
                continue
            self._handles[key] = handle
            calls[key] = handle.status.remote()
            self._watch(key, handle)
        if calls:
            ray.wait(list(calls.values()), num_returns=len(calls), timeout=FIND_TIMEOUT_S)
        return tuple(self._found(key, call) for key, call in calls.items())

    def _found(self, key: RunnerKey, call: Any) -> RunnerView:
        try:
            view: RunnerView = ray.get(call, timeout=0)
        except (ray.exceptions.GetTimeoutError, ray.exceptions.ActorUnavailableError):
            return RunnerView(*key, RunnerPhase.STARTING)
        except ray.exceptions.RayError as error:
            return self._view_of_death(key, error)
        return view

    def _watch(self, key: RunnerKey, handle: Any) -> None:
        """Notice a runner's death when it happens."""

        def begin() -> None:
            if key in self._watches:
                return
            task = self._watches[key] = self._loop.create_task(self._until_gone(key, handle))
            task.add_done_callback(lambda _: self._watches.pop(key, None))

        self._loop.call_soon_threadsafe(begin)

    async def _until_gone(self, key: RunnerKey, handle: Any) -> None:
        """Ask how it is, then wait for its death; again and again, so that a lost message of it is made up for."""
        while True:
            try:
                self._seen(await handle.status.remote())
                await handle.grant.remote(NEVER, WATCH_S)
            except ray.exceptions.ActorUnavailableError as error:
                # Not dead, only out of reach: it may work on, and its lease decides.
                log.info("runner %s can't be reached: %s", key, error)
                await asyncio.sleep(UNREACHED_PAUSE_S)
            except ray.exceptions.RayError as error:  # dead, or its environment could not be made
                self._seen(self._view_of_death(key, error))
                return

    @staticmethod
    def _view_of_death(key: RunnerKey, error: Exception) -> RunnerView:
        """The runner died: of a fault of the work's own, or we don't know of what."""
        view = failed_start(*key, error) or RunnerView(*key, RunnerPhase.GONE, message=str(error))
        return replace(view, ended_s=time.time())
