"""A whole instance of rayorch on an emulated cluster, for tests that break parts of it and look what becomes of it."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rayorch.config import load_profile
from rayorch.core.adoption import WorldGroup
from rayorch.core.events import AttemptEnded, Event, Started
from rayorch.core.payload import Payload
from rayorch.core.policy import Profile
from rayorch.core.requests import AttemptRef, CancelRequest, EventsRequest
from rayorch.core.snapshot import Snapshot, Versions
from rayorch.core.types import (
    Kind,
    NodeHealth,
    NodeId,
    QueueId,
    Resources,
    Role,
    State,
    Workload,
    WorkloadId,
    WorkloadSpec,
)
from rayorch.sim.checkers import check_live

log = logging.getLogger(__name__)

PATIENCE_S = 120.0
"""How long anything may take before a test gives up: a guard against a hang, no bound on speed."""
POLL_S = 0.1
RENEW_S = 1.0
JOBS = Path(__file__).parent / "actors" / "jobs"
LEASE_S, MARGIN_S = 12.0, 1.0


def short_profile(lease_s: float = LEASE_S) -> Profile:
    """The default policies with leases that a test can wait for, yet longer than an owner's restart."""
    return replace(load_profile(), lease_s=lease_s, lease_margin_s=MARGIN_S, retry_backoff_s=0.5)


def eventually(what: str, check: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """What `check` answers as soon as that is true; AssertionError when that takes longer than `patience_s`."""
    deadline_s = time.monotonic() + patience_s
    while not (value := check()):
        assert time.monotonic() < deadline_s, f"never came: {what}"
        time.sleep(POLL_S)
    return value


def gang_spec(name: str, gpus: int, kind: Kind = Kind.GANG, **changes: Any) -> WorkloadSpec:
    """A gang of `gpus` members with a GPU each."""
    role = Role("worker", Resources.of({"GPU": 1}), gpus, gpus)
    return WorkloadSpec(WorkloadId(name), name, kind, QueueId("default"), (role,), **changes)


def job_spec(name: str, command: str, gpus: int = 1, **changes: Any) -> WorkloadSpec:
    """A command with a gang."""
    return gang_spec(name, gpus, Kind.JOB, payload=Payload(entrypoint=command).to_text(), **changes)


class ProgressFile:
    """What `jobs/progress.py` has written, and the command that writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def command(self, last: int = 1_000_000, period_s: float = 0.1) -> str:
        """Count up to `last`."""
        return f"{sys.executable} {JOBS / 'progress.py'} {self.path} {last} {period_s}"

    def lines(self) -> list[tuple[int, int, int]]:
        """(attempt, step, pid) in the order of writing."""
        if not self.path.exists():
            return []
        rows = [line.split() for line in self.path.read_text().splitlines()]
        return [(int(row[0]), int(row[1]), int(row[2])) for row in rows]

    @property
    def step(self) -> int:
        """The last step; 0 before the first."""
        return max((line[1] for line in self.lines()), default=0)

    def attempts(self) -> tuple[int, ...]:
        """The attempts that wrote, in the order of their first step; each step may be there only once."""
        lines = self.lines()
        order = [attempt for attempt, *_ in lines]
        assert order == sorted(order), f"two attempts ran at the same time: {lines}"
        assert [step for _, step, _ in lines] == list(range(1, len(lines) + 1)), "a step is missing or was done twice"
        return tuple(dict.fromkeys(order))

    def goes_on(self, beyond: int | None = None) -> bool:
        """Wait until it has come further than it is (or than `beyond`)."""
        now = self.step if beyond is None else beyond
        return bool(eventually("more progress", lambda: self.step > now))


@dataclass
class Instance:
    """Handles of the owners, and what a test does with them. The process is connected to the cluster."""

    name: str = "main"

    def __post_init__(self) -> None:
        self.find_owners()
        self._kept: dict[WorkloadId, int] = {}
        self.refused: list[AttemptRef] = []
        self._over = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="renewals", daemon=True)
        self._heart.start()

    def find_owners(self) -> None:
        """Look the owners up by name."""
        from rayorch.actors.names import allocator_name, controller_name, find, inventory_name, queues_name

        names = (queues_name, inventory_name, allocator_name, controller_name)
        self.queues, self.inventory, self.allocator, self.controller = (find(name(self.name)) for name in names)

    def close(self) -> None:
        """Stop renewing."""
        self._over.set()
        self._heart.join()

    # ------------------------------------------------------------ asking

    @staticmethod
    def ask(call: Any) -> Any:
        """The answer of an owner, also of one that is being restarted."""
        import ray

        return ray.get(call, timeout=PATIENCE_S)

    def actor(self, name: str) -> Any:
        """A named actor of rayorch."""
        from rayorch.actors.names import find

        return find(name)

    def submit(self, *specs: WorkloadSpec) -> None:
        """Submit; all must be accepted."""
        for result in self.ask(self.queues.submit_many.remote(specs)):
            assert result.reply.accepted, result

    def cancel(self, name: str) -> None:
        """Cancel; must be accepted."""
        reply = self.ask(self.queues.cancel.remote(CancelRequest(WorkloadId(name), "the test is done with it")))
        assert reply.accepted, reply

    def workload(self, name: str) -> Workload:
        """One workload as the queue owner has it."""
        workload = self.ask(self.queues.workload.remote(WorkloadId(name)))
        assert isinstance(workload, Workload), f"{name} is lost"
        return workload

    def until(self, name: str, what: str, check: Callable[[Workload], object], patience_s: float = PATIENCE_S) -> Any:
        """The workload once `check` is true of it."""

        def look() -> Workload | None:
            workload = self.workload(name)
            return workload if check(workload) else None

        try:
            return eventually(f"{name} {what}", look, patience_s)
        except AssertionError as error:
            view = self.ask(self.controller.explain.remote(WorkloadId(name)))
            raise AssertionError(f"{error}\n{self.workload(name)}\n{view}\n{self.facts()}") from error

    def ready(self, name: str, attempt: int = 1) -> Workload:
        """Wait until that attempt (or a later one) has its seats and works."""
        workload: Workload = self.until(
            name, f"ready in attempt {attempt}", lambda w: w.ready_s is not None and w.attempt >= attempt
        )
        return workload

    def ended(self, name: str) -> Workload:
        """Wait for its end."""
        workload: Workload = self.until(name, "ended", lambda w: w.state.terminal)
        return workload

    def waits(self, name: str) -> set[str]:
        """The reasons why it waits, by the controller's last turn."""
        view = self.ask(self.controller.explain.remote(WorkloadId(name)))
        return set() if view is None else {wait.reason.value for wait in view.waits}

    def history(self, name: str) -> tuple[Event, ...]:
        """All that happened to a workload."""
        page = self.ask(self.queues.events_since.remote(EventsRequest(0, 1000, WorkloadId(name))))
        return tuple(recorded.event for recorded in page.events)

    def endings(self, name: str) -> list[AttemptEnded]:
        """How its attempts ended."""
        return [event for event in self.history(name) if isinstance(event, AttemptEnded)]

    def starts(self, name: str) -> list[Started]:
        """How its attempts began."""
        return [event for event in self.history(name) if isinstance(event, Started)]

    # ------------------------------------------------------------ a notebook's heartbeats

    def keep(self, name: str) -> Workload:
        """Wait for a leased gang and renew its lease from now on, as a notebook does."""
        workload = self.ready(name)
        self._kept[workload.spec.id] = workload.attempt
        return workload

    def let_go(self, name: str) -> None:
        """Stop renewing and cancel."""
        self._kept.pop(WorkloadId(name), None)
        self.cancel(name)
        self.ended(name)

    def _beat(self) -> None:
        import ray

        while not self._over.wait(RENEW_S):
            for name, attempt in tuple(self._kept.items()):
                ref = AttemptRef(name, attempt)
                try:
                    if not ray.get(self.queues.renew.remote(ref), timeout=PATIENCE_S):
                        self.refused.append(ref)
                        self._kept.pop(name, None)
                except ray.exceptions.RayError as error:
                    log.warning("%s not renewed: %s", name, error)

    # ------------------------------------------------------------ killing

    def kill(self, handle: Any, by: str = "signal") -> None:
        """End an actor's process, by SIGKILL or as `ray.kill(no_restart=False)`, and wait until it answers anew."""
        import ray

        before = actor_pid(handle)
        if by == "signal":
            os.kill(before, signal.SIGKILL)
        else:
            ray.kill(handle, no_restart=False)
        eventually("a new process of the actor", lambda: actor_pid(handle) not in (0, before))
        self.ask(handle.ping.remote())

    # ------------------------------------------------------------ invariants

    def groups(self) -> tuple[WorldGroup, ...]:
        """The placement groups of this instance, as Ray lists them."""
        from rayorch.adapters.ray_groups import group_rows, row_bundles

        return tuple(
            WorldGroup(
                name=row["name"],
                group_id=row["placement_group_id"],
                bundles=tuple((NodeId(node), bundle) for node, bundle in row_bundles(row)),
                created=row["state"] == "CREATED",
            )
            for row in group_rows(f"rayorch/{self.name}/")
        )

    def facts(self) -> Snapshot:
        """What the owners know now. Read one after the other: they may be a moment apart."""
        queues, nodes, (held, synced) = self.ask(
            [self.queues.changes_since.remote(0), self.inventory.changes_since.remote(0),
             self.allocator.changes_since.remote(0)]
        )  # fmt: skip
        return Snapshot(
            versions=Versions(queues.version, nodes.version, held.version),
            now_s=time.time(),
            queues=queues.queues,
            workloads=tuple(w for w in queues.workloads if not w.state.terminal),
            nodes=nodes.nodes,
            allocations=held.allocations,
            synced=synced,
        )

    def wrong(self) -> list[str]:
        """What violates an invariant now, the books differing from the world included."""
        from rayorch.adapters.ray_nodes import used_by_node

        snapshot, groups = self.facts(), self.groups()
        found = [str(violation) for violation in check_live(snapshot, groups, self.name)]
        if not snapshot.synced:
            found.append("the allocator has not synced")
        booked = {m.group_id for a in snapshot.allocations for m in a.members}
        if booked != {g.group_id for g in groups if g.created} or any(not g.created for g in groups):
            found.append(f"books {sorted(booked)} and groups {groups} differ")
        live = {w.id: w.attempt for w in snapshot.workloads if w.state in (State.RUNNING, State.STOPPING)}
        if live != {a.workload: a.attempt for a in snapshot.allocations}:
            found.append(f"attempts {live} and allocations {snapshot.allocations} differ")
        lost = {node.id for node in snapshot.nodes if node.health is NodeHealth.LOST}
        for node, used in used_by_node().items():
            held = sum(b.gpu_units for g in groups for n, b in g.bundles if n == node)
            foreign = sum(n.foreign.gpu_units for n in snapshot.nodes if n.id == node)
            if node not in lost and used.gpu_units != held + foreign:
                found.append(f"{used.gpu_units} GPU units used on {node}, {held} held and {foreign} foreign")
        return found

    def assert_whole(self) -> None:
        """The invariants hold, no GPU is leaked; what is only under way has its time to settle."""
        found: list[str] = []

        def look() -> bool:
            found[:] = self.wrong()
            return not found

        try:
            eventually("a state without violations", look, patience_s=60.0)
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *found])) from error
        assert not self.refused, f"leases were refused: {self.refused}"

    def node_of(self, name: str) -> NodeId:
        """Where the first member of its running attempt is."""
        return self.workload(name).placement[0].node


def actor_pid(handle: Any) -> int:
    """The process of an actor as Ray lists it; 0 while it has none."""
    import ray

    row: Mapping[str, Any] = ray._private.state.actors(handle._actor_id.hex())
    return int(row["Pid"]) if row.get("State") == "ALIVE" else 0


def pid_lives(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
