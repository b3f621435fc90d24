"""The grants of all applications, inside Serve's controller process.

Serve's control loop reads this table and never waits for it. Threads keep it fresh: one per application follows the
attempt's runner (long poll for the grant; demand, seats in use and obeyed grants in the other direction), and one
observes which placement groups live.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import ray
from ray._raylet import PlacementGroupID
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

from rayorch.adapters.ray_serve.seats import (
    Group,
    Replicas,
    free_seats,
    group_of_row,
    is_within,
    named_uses,
    seats_by_node,
    target_replicas,
    used_by_node,
)
from rayorch.core.grants import Grant, Seat
from rayorch.core.reports import AttemptReport, DemandReported, GrantApplied, SeatInUse, SeatsInUse, WorkersStarted

POLL_IDLE_S = 1.0
"""How long one long poll waits; also the time between two reports of demand."""
POLL_BUSY_S = 0.1
"""The same while seats are being left, so that a freed one is reported at once."""
CALL_TIMEOUT_S = 5.0
"""How long the runner may take to answer beyond the wait that was asked for."""
RETRY_S = 0.5
OBSERVE_IDLE_S = 1.0
OBSERVE_BUSY_S = 0.05
DELETE_TIMEOUT_S = 30.0
DELETE_ATTEMPTS = 10

log = logging.getLogger("ray.serve")  # Serve's own log file is where people look for a replica's story


class ReplicaCounter(Protocol):
    """What the table asks of the scheduler: the replicas of a deployment that are not stopping."""

    def count_replicas(self, app: str, deployment: str) -> Replicas:
        """By their place within or outside the grant."""

    def count_running(self, app: str, deployment: str) -> int:
        """Those that answer requests."""


@dataclass(slots=True)
class _App:
    """One application under one attempt's runner. Guarded by the table's lock, `obeyed` and `reported…`
    belong to its own thread."""

    name: str
    runner: str
    namespace: str
    lease_s: float
    contact_s: float  # monotonic time of the runner's last answer
    roles: dict[str, str] = field(default_factory=dict)  # deployment → role
    grant: Grant | None = None
    accepted_s: float = 0.0
    groups: dict[str, Group] = field(default_factory=dict)
    placed_s: dict[str, float] = field(default_factory=dict)  # group → when we made it
    demand: dict[str, tuple[int, int, float]] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    over: str = ""
    obeyed: Grant | None = None
    reported_seats: tuple[SeatInUse, ...] | None = None
    reported_demand_s: float = float("-inf")
    reported_running: int = 0

    def seats(self, deployment: str) -> tuple[Seat, ...]:
        role = self.roles.get(deployment)
        return tuple(s for s in self.grant.seats if s.role == role) if self.grant is not None else ()

    def groups_of(self, deployment: str) -> tuple[Group, ...]:
        return tuple(g for g in self.groups.values() if g.deployment == deployment)

    def is_settled(self) -> bool:
        return all(is_within(used_by_node(self.groups_of(d)), self.seats(d)) for d in self.roles)


class GrantTable:
    """See the module. One per process: `TABLE`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._apps: dict[str, _App] = {}
        self._wake = threading.Event()
        self._observer: threading.Thread | None = None
        self._observed_s = 0.0
        self.scheduler: ReplicaCounter | None = None

    # ------------------------------------------------------------ called by Serve's control loop; never waits

    def watch(self, app: str, deployment: str, role: str, runner: str, namespace: str, lease_s: float) -> None:
        """Follow the runner's grants for this application; a repeated call with the same runner adds the role only."""
        with self._lock:
            known = self._apps.get(app)
            if known is not None and known.runner == runner and not known.over:
                known.roles[deployment] = role
                return
            fresh = _App(app, runner, namespace, lease_s, contact_s=time.monotonic(), roles={deployment: role})
            if known is not None:
                known.over = f"replaced by {runner}"
                fresh.groups, fresh.placed_s = known.groups, known.placed_s
            self._apps[app] = fresh
            if self._observer is None:
                self._observer = threading.Thread(target=self._observe_loop, name="rayorch-groups", daemon=True)
                self._observer.start()
        threading.Thread(target=self._follow, args=(fresh,), name=f"rayorch-grant-{app}", daemon=True).start()
        self._wake.set()

    def forget(self, app: str) -> None:
        """The application was deleted from Serve: stop following its grants."""
        with self._lock:
            known = self._apps.pop(app, None)
            if known is not None:
                known.over = known.over or "deleted"

    def free_seats(self, app: str, deployment: str) -> tuple[Seat, ...]:
        """Seats that a new replica may take now; none without a valid grant. With none, a fresh look follows."""
        with self._lock:
            known = self._apps.get(app)
            free: tuple[Seat, ...] = ()
            if known is not None and not known.over and known.grant is not None and known.grant.stop is None:
                groups = known.groups_of(deployment)
                free = free_seats(known.seats(deployment), used_by_node(groups), named_uses(groups))
        if not free:
            self._wake.set()
        return free

    def granted_by_node(self, app: str, deployment: str) -> Counter[str] | None:
        """Seats of the deployment by node, None while no grant is known."""
        with self._lock:
            known = self._apps.get(app)
            return None if known is None or known.grant is None else seats_by_node(known.seats(deployment))

    def note_placed(self, app: str, group_id: str, name: str, deployment: str, seats: tuple[Seat, ...]) -> None:
        """A group was made on these seats and uses them from now on."""
        with self._lock:
            known = self._apps.get(app)
            if known is not None:
                nodes, devices = tuple(s.node_id for s in seats), tuple(s.devices for s in seats)
                known.groups[group_id] = Group(group_id, name, deployment, nodes, False, devices)
                known.placed_s[group_id] = time.monotonic()

    def nodes_of(self, app: str, group_name: str) -> tuple[str, ...]:
        """Where the group of that name is or was asked to be; empty when there is none."""
        with self._lock:
            known = self._apps.get(app)
            groups = known.groups.values() if known is not None else ()
            return next((g.nodes for g in groups if g.name == group_name), ())

    def note_demand(self, app: str, deployment: str, ongoing: int, queued: int, per_replica: float) -> None:
        """Requests being answered and waiting, and how many one replica should have at once."""
        with self._lock:
            known = self._apps.get(app)
            if known is not None:
                known.demand[deployment] = (ongoing, queued, per_replica)

    def target(self, app: str, deployment: str, gang_size: int) -> int | None:
        """How many replicas the deployment should have; None while no grant is known."""
        running = self.scheduler.count_running(app, deployment) if self.scheduler else 0
        with self._lock:
            known = self._apps.get(app)
            if known is None or known.grant is None:
                return None
            granted = len(known.seats(deployment))
            known.running[deployment] = running
        if gang_size > 1:
            return max(1, granted // gang_size) * gang_size
        now = self.scheduler.count_replicas(app, deployment) if self.scheduler else Replicas(granted, 0, 0)
        return target_replicas(granted, now)

    # ------------------------------------------------------------ the thread of one application

    def _follow(self, app: _App) -> None:
        log.info("rayorch: application %s follows runner %s", app.name, app.runner)
        handle: Any = None
        while not app.over:
            try:
                handle = handle or ray.get_actor(app.runner, namespace=app.namespace)
                self._exchange(app, handle)
            except Exception as error:  # noqa: BLE001 - whatever goes wrong, the lease decides when to give up
                silent_s = time.monotonic() - app.contact_s
                # The handle is kept: a runner is never restarted, and to look it up again would block without bound
                # while Ray's control store can't be reached.
                log.warning("rayorch: runner %s is silent for %.1f s: %r", app.runner, silent_s, error)
                if silent_s > app.lease_s:
                    self._end(app, f"no answer from its runner for {silent_s:.1f} s")
                time.sleep(RETRY_S)

    def _exchange(self, app: _App, handle: Any) -> None:
        """One long poll for the grant, then what there is to report."""
        with self._lock:
            version = app.grant.version if app.grant is not None else -1
            busy = app.obeyed != app.grant
        started_s = time.monotonic()
        wait_s = POLL_BUSY_S if busy else POLL_IDLE_S
        grant = ray.get(handle.grant.remote(version, wait_s), timeout=wait_s + CALL_TIMEOUT_S)
        self._accept(app, grant)
        if app.over:
            return
        for report in self._reports(app):
            if not ray.get(handle.report.remote(report), timeout=CALL_TIMEOUT_S):
                self._end(app, "its runner says that the attempt is over")
                return
            self._note_reported(app, report)
        if time.monotonic() - started_s < POLL_BUSY_S / 2 and grant.version == version:
            time.sleep(POLL_BUSY_S)  # a runner that does not wait must not make us spin

    def _accept(self, app: _App, grant: Grant) -> None:
        if grant.lapsed:
            self._end(app, "its lease has lapsed")
            return
        with self._lock:
            app.contact_s, app.lease_s = time.monotonic(), grant.lease_s
            if grant == app.grant:
                return  # a runner that was restarted counts from one again, so the number alone says nothing
            app.grant, app.accepted_s = grant, time.monotonic()
        self._wake.set()
        nodes = sorted(seats_by_node(grant.seats).items())
        log.info("rayorch: application %s has grant %d: %s", app.name, grant.version, nodes)

    def _reports(self, app: _App) -> list[AttemptReport]:
        now_s = time.time()
        out: list[AttemptReport] = []
        with self._lock:
            if time.monotonic() - app.reported_demand_s >= POLL_IDLE_S * 0.9:
                for deployment, (ongoing, queued, per_replica) in sorted(app.demand.items()):
                    role = app.roles.get(deployment, deployment)
                    out.append(DemandReported(ongoing, queued, now_s, role, per_replica))
            if app.grant is None or self._observed_s <= app.accepted_s:
                self._wake.set()
                return out
            seats = _seats_in_use(app)
            running = sum(app.running.values()) if all(app.running.get(d) for d in app.roles) else 0
            version, settled = app.grant.version, app.is_settled()
        if seats != app.reported_seats:
            out.append(SeatsInUse(seats, now_s))
        if running and running != app.reported_running:
            out.append(WorkersStarted(running, now_s))
        if app.obeyed != app.grant:
            if settled:
                out.append(GrantApplied(version, now_s))
            else:
                self._wake.set()
        return out

    def _note_reported(self, app: _App, report: AttemptReport) -> None:
        match report:
            case DemandReported():
                app.reported_demand_s = time.monotonic()
            case WorkersStarted():
                app.reported_running = report.count
            case SeatsInUse():
                app.reported_seats = report.seats
            case GrantApplied():
                app.obeyed = app.grant
                log.info("rayorch: application %s obeys grant %d", app.name, report.version)
            case _:
                raise AssertionError(report)

    def _end(self, app: _App, why: str) -> None:
        """The attempt is over: nothing new is placed, and the application leaves Serve."""
        with self._lock:
            if app.over:
                return
            app.over = why
        log.warning("rayorch: application %s ends: %s", app.name, why)
        from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

        for _ in range(DELETE_ATTEMPTS):
            with self._lock:
                if self._apps.get(app.name) is not app:
                    return  # deleted already, or the name belongs to a newer attempt
            try:
                controller: Any = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
                ray.get(controller.delete_apps.remote([app.name]), timeout=DELETE_TIMEOUT_S)
                return
            except Exception as error:  # noqa: BLE001 - the next attempt is as good as any handling
                log.warning("rayorch: could not delete application %s: %r", app.name, error)
                time.sleep(RETRY_S)

    # ------------------------------------------------------------ the thread that observes groups

    def _observe_loop(self) -> None:
        while True:
            self._wake.wait(OBSERVE_IDLE_S)
            self._wake.clear()
            try:
                self._observe()
            except Exception as error:  # noqa: BLE001 - Ray's GCS may be away; the next look is a second off
                log.warning("rayorch: could not read the placement groups: %r", error)
            time.sleep(OBSERVE_BUSY_S)

    def _observe(self) -> None:
        if not self._apps:
            return
        started_s = time.monotonic()
        rows = list(placement_group_table().values())
        stuck: list[str] = []
        with self._lock:
            for app in self._apps.values():
                seen = [group for row in rows if (group := group_of_row(row, app.name)) is not None]
                stuck += self._adopt(app, seen, started_s)
            self._observed_s = started_s
        for group_id in stuck:
            # It waits for a node that the grant no longer has, perhaps a lost one; nothing runs in it.
            log.warning("rayorch: removing group %s, which waits outside the grant", group_id)
            remove_placement_group(PlacementGroup(PlacementGroupID(bytes.fromhex(group_id))))

    def _adopt(self, app: _App, seen: list[Group], looked_s: float) -> list[str]:
        """Take over what was seen at `looked_s`; returns the groups that wait on seats which are no longer granted."""
        fresh = {}
        for group in seen:
            known = app.groups.get(group.group_id)
            if not all(group.nodes) and known is not None:
                group = replace(group, nodes=known.nodes)
            fresh[group.group_id] = group
        for group_id, group in app.groups.items():
            if group_id not in fresh and app.placed_s.get(group_id, float("-inf")) >= looked_s:
                fresh[group_id] = group  # made after the look
        app.groups = fresh
        app.placed_s = {g: s for g, s in app.placed_s.items() if g in fresh}
        if app.grant is None or app.over:
            return []
        stuck = []
        for deployment in app.roles:
            granted = seats_by_node(app.seats(deployment))
            for group in app.groups_of(deployment):
                if not group.created and all(group.nodes) and not any(granted[node] for node in group.nodes):
                    stuck.append(group.group_id)
        return stuck


def _seats_in_use(app: _App) -> tuple[SeatInUse, ...]:
    return tuple(
        SeatInUse(
            app.roles.get(g.deployment, g.deployment), node, g.group_id, g.name, devices=devices, exact=bool(devices)
        )
        for g in sorted(app.groups.values(), key=lambda g: (g.deployment, g.group_id))
        for node, devices in g.uses
        if node
    )


TABLE = GrantTable()
"""The table of this process; only Serve's controller fills it."""
