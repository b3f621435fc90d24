"""The inventory's part that looks after node groups: it watches who provides nodes and carries out changes of counts.

All rules are in `core.node_groups`. A growth is one patch. A shrink first asks Ray to drain its nodes as idle, and only
what Ray has let go is taken from the count. What was under way when this process died is not carried on: the counts and
nodes are seen as they are, and the planner decides again. docs/scaling.md has the whole story.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, TypeVar

from rayorch.actors.group_facts import GroupWishes, as_wished, completed, ends_soon, shape_labels
from rayorch.adapters import ray_drain
from rayorch.adapters.ray_autoscaler import read_autoscaler
from rayorch.core.admission import NodeShape
from rayorch.core.capacity import Capacity, NodeGroup, Provider
from rayorch.core.decisions import GroupChange
from rayorch.core.errors import AdmissionError, ClusterError, RayorchError, StalePlanError
from rayorch.core.inventory import Inventory
from rayorch.core.node_groups import GroupKnobs, NodeGroups
from rayorch.core.types import NodeHealth, NodeId, NodeSpec
from rayorch.core.views import AutoscalerView

if TYPE_CHECKING:
    from rayorch.adapters.kuberay import ClusterState, KubeRaySettings

log = logging.getLogger(__name__)

T = TypeVar("T")

WATCH_RETRY_S = 5.0
"""A watch that ended (its client could not be made, or gave up) is begun again after this time."""
PATCH_TRIES, PATCH_PAUSE_S = 3, 2.0
"""A patch that got no answer is sent again, after pauses that double. It tests the old count, so it counts once."""
DRAIN_WAIT_S, DRAIN_POLL_S, DRAIN_POLL_MAX_S = 15.0, 0.2, 2.0
"""How long nodes may take to become idle in Ray's eyes: their agents have to end first. Each look asks Ray for all of
its nodes, so the pauses between two double."""
ACTING_THREADS = 8
"""Groups that can be changed at the same time. Threads of their own: a hanging API server must not stop the looks at
Ray's nodes."""
AUTOSCALER_PERIOD_S = 5.0
"""Time between two looks at what Ray's autoscaler reports."""


class GroupProvider(Protocol):
    """Who provides nodes, as we talk to it; `adapters.kuberay.KubeRayClient` is one. Used by several threads."""

    def observe(self) -> ClusterState:
        """All groups as they are now. ClusterError: unknown."""
        ...

    def watch(self, on_change: Callable[[ClusterState | ClusterError], None], stop: threading.Event) -> None:
        """Tell of every change until `stop`. Blocks."""
        ...

    def scale(self, change: GroupChange) -> None:
        """Change one count. StalePlanError, AdmissionError (refused), ClusterError (not known whether it was)."""
        ...


class Drains(Protocol):
    """How nodes are left; `adapters.ray_drain` is one."""

    def busy_nodes(self, nodes: Iterable[NodeId]) -> dict[NodeId, str]:
        """Those that are not idle, and why."""
        ...

    def drain_idle(self, node: NodeId, reason: str) -> str:
        """Why the node can't be let go, empty when it was."""
        ...


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """`kuberay`: the RayCluster whose groups these are; None: Ray's autoscaler looks after nodes, elsewhere.

    `levels`: topology levels, whose labels groups may carry with our prefix. `declared`: with `kuberay` None, the
    autoscaler's node types as far as the Cluster document names them; Ray shows none.
    """

    kuberay: KubeRaySettings | None
    knobs: GroupKnobs = field(default_factory=GroupKnobs)
    wishes: tuple[GroupWishes, ...] = ()
    levels: tuple[str, ...] = ()
    declared: tuple[NodeGroup, ...] = ()


class _Patch(StrEnum):
    """What became of a patch."""

    TAKEN = "taken"
    STALE = "stale"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class GroupKeeper:
    """Belongs to the inventory's event loop. `changed` is called whenever what it shows has changed."""

    def __init__(
        self,
        settings: GroupSettings,
        inventory: Inventory,
        changed: Callable[[], None],
        connect: Callable[[], GroupProvider] | None = None,
        drains: Drains = ray_drain,
    ) -> None:
        self._settings = settings
        self._inventory = inventory
        self._changed = changed
        self._drains = drains
        kuberay = settings.kuberay
        if connect is None and kuberay is not None:
            connect = functools.partial(_kuberay, kuberay)
        self._connect = connect
        provider = Provider.RAY if connect is None else Provider.OURS
        self._groups = NodeGroups(provider, settings.knobs, version=int(time.time() * 1000))
        if connect is not None:
            self._groups.unknown("the node groups have not been read yet", time.time())
        self._seen: ClusterState | None = None
        self._error = ""
        self._drained: frozenset[NodeId] = frozenset()  # by Ray itself; an operator's drain leaves the machine there
        self._shown_version = -1
        self._locks: dict[str, asyncio.Lock] = {}
        self._work: set[asyncio.Task[None]] = set()
        self._acting: GroupProvider | None = None
        self._threads = ThreadPoolExecutor(ACTING_THREADS, thread_name_prefix="groups")
        self._stop = threading.Event()
        self.autoscaler: AutoscalerView | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._loop = asyncio.get_running_loop()
        self._spawn(self._watch_autoscaler())
        if self._connect is not None:
            threading.Thread(target=self._watch_forever, name="node-groups", daemon=True).start()

    def close(self) -> None:
        """Stop watching, and leave what is under way to the next incarnation."""
        self._stop.set()
        for task in tuple(self._work):
            task.cancel()
        self._threads.shutdown(wait=False)

    # ------------------------------------------------------------ what is known

    @property
    def version(self) -> int:
        """Grows with every change of `capacity`."""
        return self._groups.version

    def capacity(self) -> Capacity:
        """Where nodes come from."""
        return self._groups.capacity()

    def notes(self) -> tuple[str, ...]:
        """What an operator should know of the groups, in sentences."""
        if self._seen is None:
            return ()
        why = self._seen.pods_error
        return (*self._seen.notes, *((f"machines that are on their way can't be seen: {why}",) if why else ()))

    def shapes(self) -> tuple[NodeShape, ...] | None:
        """What nodes the groups can have at most. None, unknown: they have never been read, or the cluster is
        suspended, which has none then; but nobody is refused at the door for that.
        """
        if self._connect is None:
            return ()
        if self._seen is None or self._seen.suspended:
            return None
        return tuple(
            NodeShape(group.total, group.max_replicas * group.hosts, shape_labels(group))
            for group in (state.group for state in self.capacity().groups)
        )

    def completed(self, nodes: tuple[NodeSpec, ...]) -> tuple[NodeSpec, ...]:
        """The nodes as Ray lists them, with what their group says of all of its nodes and Ray doesn't (a zone).

        A node that does not name its machine is found by the address of the machine's pod.
        """
        now_s = time.time()
        self._drained = frozenset(node.id for node in nodes if ends_soon(node, now_s))
        if self._seen is None:
            return nodes
        groups = {state.group.name: state.group for state in self.capacity().groups}
        machines = {i.name: name for name, group in groups.items() for i in group.instances}
        by_address = {address: name for name, address in self._seen.addresses if name in machines}
        return tuple(completed(node, groups, machines, by_address, self._settings.levels) for node in nodes)

    def nodes_changed(self) -> None:
        """Ray's nodes have been looked at again: instances may have become nodes, and time has passed."""
        if self._connect is None:
            self._observe_declared()
        elif self._seen is not None and not self._error:
            self._observe(self._seen)
        self._show()

    def _observe_declared(self) -> None:
        """The declared groups with as many replicas as they have nodes: more is not known."""
        nodes = self._inventory.nodes.values()
        counts = Counter(node.group for node in nodes if node.health is not NodeHealth.LOST)
        groups = tuple(replace(group, replicas=counts[group.name]) for group in self._settings.declared)
        self._groups.observe(groups, time.time(), provider=Provider.RAY, nodes=nodes, drained=self._drained)

    def _watch_forever(self) -> None:
        assert self._connect is not None
        while not self._stop.is_set():
            try:
                self._connect().watch(self._report, self._stop)
            except RayorchError as error:
                log.warning("node groups are not watched, again in %.0f s: %s", WATCH_RETRY_S, error)
                self._report(ClusterError(str(error)))
            except Exception as error:
                log.exception("the watch of node groups failed, again in %.0f s", WATCH_RETRY_S)
                self._report(ClusterError(f"{type(error).__name__}: {error}"))
            self._stop.wait(WATCH_RETRY_S)

    def _report(self, state: ClusterState | ClusterError) -> None:
        """From the watching thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._take, state)

    def _take(self, state: ClusterState | ClusterError) -> None:
        if isinstance(state, ClusterError):
            if str(state) != self._error:
                log.warning("node groups are unknown: %s", state)
            self._error = str(state) or type(state).__name__
            self._groups.unknown(self._error, time.time())
        else:
            self._seen, self._error = state, ""
            self._observe(state)
        self._show()

    def _observe(self, state: ClusterState) -> None:
        wishes = {wish.name: wish for wish in self._settings.wishes}
        groups = tuple(as_wished(group, wishes.get(group.name), self._settings.levels) for group in state.groups)
        provider = Provider.RAY if state.in_tree else Provider.OURS
        nodes = self._inventory.nodes.values()
        self._groups.observe(groups, time.time(), provider=provider, nodes=nodes, drained=self._drained)

    def _show(self) -> None:
        """Pass on what is leaving, and tell of changes."""
        self._inventory.set_leaving(self._groups.leaving)
        if self._groups.version != self._shown_version:
            self._shown_version = self._groups.version
            self._changed()

    async def _watch_autoscaler(self) -> None:
        while True:
            if self.capacity().provider is Provider.RAY:
                try:
                    self.autoscaler = await self._call(read_autoscaler, time.time())
                except Exception as error:
                    before = self.autoscaler or AutoscalerView(0.0)
                    known = isinstance(error, ClusterError)
                    why = str(error) if known else f"{type(error).__name__}: {error}"
                    if why != before.error:  # once, not in each round
                        log.warning("Ray's autoscaler is unknown: %s", why, exc_info=not known)
                    self.autoscaler = replace(before, error=why)
            await asyncio.sleep(AUTOSCALER_PERIOD_S)

    # ------------------------------------------------------------ changing it

    def change(self, changes: tuple[GroupChange, ...]) -> tuple[str, ...]:
        """Begin to carry out what is not stale. Answers with why the others are refused."""
        refusals: list[str] = []
        for change in changes:
            try:
                self._groups.order(change, time.time())
            except StalePlanError as error:
                refusals.append(str(error))
                continue
            log.info("group %s: %d -> %d: %s", change.group, change.from_replicas, change.to_replicas, change.reason)
            self._spawn(self._carry_out(change))
        self._show()
        return tuple(refusals)

    async def _call(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a blocking call beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _carry_out(self, change: GroupChange) -> None:
        async with self._locks.setdefault(change.group, asyncio.Lock()):
            try:
                if change.to_replicas > change.from_replicas:
                    await self._grow(change)
                else:
                    await self._shrink(change)
            except Exception as error:
                log.exception("group %s was not changed", change.group)
                self._groups.refused(change.group, f"{type(error).__name__}: {error}", time.time())
        self._show()

    async def _grow(self, change: GroupChange) -> None:
        outcome, reason = await self._patch(change)
        match outcome:
            case _Patch.TAKEN:
                return
            case _Patch.REFUSED:
                self._groups.refused(change.group, reason, time.time())
            case _Patch.UNKNOWN if await self._count(change) == change.from_replicas:
                # Whoever can be read and not written (a webhook that is down) gives nothing now: others are tried.
                self._groups.refused(change.group, reason, time.time())
            case _Patch.STALE | _Patch.UNKNOWN:  # if it was taken after all, the count will say so
                self._groups.withdraw(change.group)
        log.warning("group %s does not grow: %s (%s)", change.group, reason, outcome)

    async def _shrink(self, change: GroupChange) -> None:
        """Drain, then patch what Ray has let go. Drained nodes of a patch that failed come back as new Ray nodes."""
        kept = await self._drain(change)
        if kept:
            node, why = next(iter(sorted(kept.items())))
            log.info("group %s keeps %d nodes: %s: %s", change.group, len(kept), node, why)
            self._groups.stay(kept, why, time.time())
            self._show()
        left = self._groups.shrink(change.group)
        if left is None:
            return
        outcome, reason = await self._patch(left)
        if outcome is not _Patch.TAKEN:
            log.warning("group %s does not shrink: %s (%s)", change.group, reason, outcome)
            self._groups.refused(change.group, reason, time.time())

    async def _drain(self, change: GroupChange) -> dict[NodeId, str]:
        """Let Ray drain the nodes of a shrink. Answers with those that it won't, and why."""
        nodes = self._nodes_of(change)
        if not nodes:
            return {}
        give_up_s, pause_s = time.monotonic() + DRAIN_WAIT_S, DRAIN_POLL_S
        try:
            kept = await self._call(self._drains.busy_nodes, nodes)
            while kept and time.monotonic() < give_up_s:
                await asyncio.sleep(pause_s)
                pause_s = min(2.0 * pause_s, DRAIN_POLL_MAX_S)
                kept = await self._call(self._drains.busy_nodes, nodes)
        except ClusterError as error:
            return dict.fromkeys(nodes, str(error))
        # A replica goes as a whole: where one node is busy, the others are not drained, for that can't be undone.
        whole = set(kept) | self._together(change, kept)
        for node in sorted(nodes - whole):
            try:
                why = await self._call(self._drains.drain_idle, node, change.reason)
            except ClusterError as error:
                why = str(error)
            if why:
                kept[node] = why
        return kept

    def _nodes_of(self, change: GroupChange) -> set[NodeId]:
        """The live nodes that a shrink takes, those included that joined since it was decided."""
        named = set(change.instances)
        return {
            node.id
            for node in self._inventory.nodes.values()
            if node.health is not NodeHealth.LOST
            and (node.id in change.nodes or (node.group == change.group and node.instance in named))
        }

    def _together(self, change: GroupChange, kept: Iterable[NodeId]) -> set[NodeId]:
        """The nodes that can only go together with one of these."""
        busy = set(kept)
        instances = [
            instance
            for state in self.capacity().groups
            if state.group.name == change.group
            for instance in state.group.instances
        ]
        replicas = {instance.replica for instance in instances if instance.node in busy}
        return {i.node for i in instances if i.replica in replicas and i.node is not None}

    async def _patch(self, change: GroupChange) -> tuple[_Patch, str]:
        reason = ""
        for attempt in range(PATCH_TRIES):
            if attempt:
                await asyncio.sleep(PATCH_PAUSE_S * 2 ** (attempt - 1))
            try:
                await self._call(self._scale, change)
            except StalePlanError as error:
                count = await self._count(change)
                if attempt and count == change.to_replicas:
                    return _Patch.TAKEN, ""  # by a try whose answer was lost
                return _Patch.STALE, str(error)
            except AdmissionError as error:
                return _Patch.REFUSED, str(error)
            except ClusterError as error:
                reason = str(error)
                log.warning("patch %d of group %s got no answer: %s", attempt + 1, change.group, error)
            else:
                return _Patch.TAKEN, ""
        return _Patch.UNKNOWN, reason

    def _scale(self, change: GroupChange) -> None:
        self._provider().scale(change)

    async def _count(self, change: GroupChange) -> int | None:
        """The group's count as it is now, None when that can't be read or there is no such group.

        What the watch says of the whole is not overruled: it tells changes only, so it would not say it again.
        """
        try:
            state = await self._call(lambda: self._provider().observe())
        except RayorchError as error:
            log.warning("the count of group %s could not be read: %s", change.group, error)
            return None
        if not self._error:
            self._take(state)
        return next((group.replicas for group in state.groups if group.name == change.group), None)

    def _provider(self) -> GroupProvider:
        """The client that acts; the watch has its own. SpecError or ClusterError when it can't be made."""
        assert self._connect is not None
        if self._acting is None:
            self._acting = self._connect()
        return self._acting


def _kuberay(settings: KubeRaySettings) -> GroupProvider:
    from rayorch.adapters.kuberay import KubeRayClient  # only where there is a RayCluster

    return KubeRayClient(settings)
