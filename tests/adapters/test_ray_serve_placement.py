"""The table of grants and the scheduler inside Serve's controller, without a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from ray.serve._private.common import CreatePlacementGroupRequest, DeploymentID, ReplicaID
from ray.serve._private.deployment_scheduler import ReplicaSchedulingRequest, ReplicaSchedulingRequestStatus

from rayorch.adapters.ray_serve import scheduler as scheduler_module
from rayorch.adapters.ray_serve.scheduler import GrantScheduler
from rayorch.adapters.ray_serve.seats import HELD_LABEL, NODE_ID_LABEL, Group
from rayorch.adapters.ray_serve.table import GrantTable, _App
from rayorch.core.grants import Grant, Seat
from rayorch.core.reports import DemandReported, GrantApplied, SeatInUse, SeatsInUse, WorkersStarted
from rayorch.core.types import Resources, StopCause, StopOrder, WorkloadId

MODEL = DeploymentID(name="Model", app_name="chat")
HELD = [{HELD_LABEL: "by-grant"}]


def grant(*nodes: str, version: int = 1, **changes: Any) -> Grant:
    bundle = Resources.of({"GPU": 1})
    seats = tuple(Seat("replica", i, node, "", 0, bundle, surplus=i) for i, node in enumerate(nodes))
    return Grant(WorkloadId("chat"), 1, version, seats, **changes)


def watched(table: GrantTable, given: Grant | None) -> _App:
    """The table with one application, as its threads would have filled it."""
    app = _App("chat", "runner", "rayorch", 10.0, time.monotonic(), {"Model": "replica"}, grant=given)
    table._apps["chat"] = app
    return app


def group(group_id: str, node: str, created: bool = True) -> Group:
    return Group(group_id, f"SERVE_REPLICA::chat#Model#{group_id}", "Model", (node,), created)


class Nodes:
    """Three nodes, as Serve's cache of them."""

    def get_active_node_ids(self) -> set[str]:
        return {"a", "b", "c"}

    def get_node_labels(self, node_id: str) -> dict[str, str]:
        return {}


class MadeGroup:
    """What Ray returns for a group."""

    def __init__(self, number: int) -> None:
        self.id = self
        self._number = number

    def hex(self) -> str:
        return f"{self._number:02x}"


class Asked(list[dict[str, Any]]):
    """Takes the place of Ray's function that makes a group, and keeps what was asked."""

    def __call__(self, bundles: Any, **options: Any) -> MadeGroup:
        self.append({"bundles": bundles, **options})
        return MadeGroup(len(self))


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> GrantTable:
    made = GrantTable()
    monkeypatch.setattr(scheduler_module, "TABLE", made)
    return made


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    made = Asked()
    monkeypatch.setattr(scheduler_module, "placement_group", made)
    return made


@pytest.fixture
def scheduler(table: GrantTable, asked: Asked) -> Iterator[GrantScheduler]:
    made = GrantScheduler(Nodes(), "head", lambda request: f"ungranted {request.name}")  # type: ignore[arg-type, return-value]
    made._deployments[MODEL] = _info()
    yield made


def _info() -> Any:
    class Info:
        label_selector = None
        bundle_label_selector = HELD
        app_name = "chat"

        def is_non_strict_pack_pg(self) -> bool:
            return False

    return Info()


def request_for(replica: ReplicaID, selector: Any = HELD, bundles: int = 1) -> CreatePlacementGroupRequest:
    return CreatePlacementGroupRequest([{"GPU": 1.0}] * bundles, "PACK", None, replica.to_full_id_str(), None, selector)


def replica(name: str) -> ReplicaID:
    return ReplicaID(name, deployment_id=MODEL)


# ---------------------------------------------------------------- where


def test_a_replica_goes_to_the_first_free_seat_under_serves_own_name(
    scheduler: GrantScheduler, table: GrantTable, asked: Asked
) -> None:
    watched(table, grant("b", "a"))
    for name in ("x", "y"):
        scheduler._create_group(request_for(replica(name)))
    assert [(made["name"], made["bundle_label_selector"]) for made in asked] == [
        ("SERVE_REPLICA::chat#Model#x", [{NODE_ID_LABEL: "b"}]),
        ("SERVE_REPLICA::chat#Model#y", [{NODE_ID_LABEL: "a"}]),
    ]
    assert all(made["lifetime"] == "detached" for made in asked)


def test_all_bundles_of_a_replica_go_to_the_seats_node_and_keep_the_users_labels(
    scheduler: GrantScheduler, table: GrantTable, asked: Asked
) -> None:
    watched(table, grant("b"))
    scheduler._create_group(request_for(replica("x"), [{**HELD[0], "rack": "r1"}] * 2, bundles=2))
    assert asked[0]["bundle_label_selector"] == [{"rack": "r1", NODE_ID_LABEL: "b"}] * 2


def test_what_is_not_granted_by_us_is_placed_as_serve_does(scheduler: GrantScheduler, asked: Asked) -> None:
    made: Any = scheduler._create_group(request_for(replica("x"), None))
    assert made == "ungranted SERVE_REPLICA::chat#Model#x"
    assert not asked


def test_without_a_free_seat_a_replica_stays_pending_and_is_tried_again(
    scheduler: GrantScheduler, table: GrantTable, asked: Asked
) -> None:
    started: list[Any] = []

    class Actor:
        def options(self, **options: Any) -> Actor:
            started.append(options["scheduling_strategy"])
            return self

        def remote(self) -> str:
            return "handle"

    wanted = ReplicaSchedulingRequest(
        replica_id=replica("x"),
        actor_def=Actor(),  # type: ignore[arg-type]
        actor_resources={},
        actor_options={"name": replica("x").to_full_id_str()},
        actor_init_args=(),
        on_scheduled=lambda handle, placement_group: None,
        placement_group_bundles=[{"GPU": 1.0}],
        placement_group_bundle_label_selector=HELD,
    )
    watched(table, grant())
    scheduler.schedule({MODEL: [wanted]}, {})
    assert [wanted.status] == [ReplicaSchedulingRequestStatus.IN_PROGRESS]
    assert not asked
    watched(table, grant("a", version=2))
    scheduler.schedule({}, {})
    assert [wanted.status] == [ReplicaSchedulingRequestStatus.SUCCEEDED]
    assert len(asked) == len(started) == 1
    assert table.nodes_of("chat", replica("x").to_full_id_str()) == ("a",)


@pytest.mark.parametrize(
    "given",
    [
        None,
        grant("a", stop=StopOrder(StopCause.PREEMPTED, "", 0.0, 1.0)),
    ],
)
def test_no_seat_is_free_without_a_valid_grant(table: GrantTable, given: Grant | None) -> None:
    watched(table, given)
    assert table.free_seats("chat", "Model") == ()
    assert table.free_seats("unknown", "Model") == ()


def test_an_attempt_that_is_over_gets_no_seat(table: GrantTable) -> None:
    watched(table, grant("a")).over = "lapsed"
    assert table.free_seats("chat", "Model") == ()


# ---------------------------------------------------------------- which one leaves


def test_replicas_outside_the_grant_leave_first(scheduler: GrantScheduler, table: GrantTable) -> None:
    watched(table, grant("b"))
    for name, node in (("x", "a"), ("y", "b"), ("z", "c")):
        scheduler._running_replicas[MODEL][replica(name)] = node
    assert scheduler._get_replicas_to_stop(MODEL, 2) == {replica("x"), replica("z")}
    assert len(scheduler._get_replicas_to_stop(MODEL, 3)) == 3
    counted = scheduler.count_replicas("chat", "Model")
    assert (counted.running, counted.starting, counted.outside) == (1, 0, 2)


def test_of_two_on_one_node_the_newer_leaves(scheduler: GrantScheduler, table: GrantTable) -> None:
    watched(table, grant("a"))
    for name in ("old", "new"):
        scheduler._running_replicas[MODEL][replica(name)] = "a"
    assert scheduler._get_replicas_to_stop(MODEL, 1) == {replica("new")}


def test_within_the_grant_serve_chooses(scheduler: GrantScheduler, table: GrantTable) -> None:
    watched(table, grant("a", "b"))
    scheduler._running_replicas[MODEL][replica("x")] = "a"
    scheduler._pending_replicas[MODEL][replica("y")] = None  # type: ignore[assignment]
    assert scheduler._get_replicas_to_stop(MODEL, 1) == {replica("y")}


def exact_grant(*devices: tuple[int, ...]) -> Grant:
    """Seats on one node whose GPUs are chosen."""
    whole = grant(*("a" for _ in devices))
    return replace(whole, seats=tuple(replace(s, devices=d) for s, d in zip(whole.seats, devices, strict=True)))


def test_a_replicas_group_names_the_gpus_of_its_seat(
    scheduler: GrantScheduler, table: GrantTable, asked: Asked
) -> None:
    app = watched(table, exact_grant((3,), (0, 2)))
    scheduler._create_group(request_for(replica("x")))
    scheduler._create_group(request_for(replica("y"), [*HELD, *HELD], bundles=2))
    assert [made["bundles"] for made in asked] == [
        [{"GPU": 1.0, "gpu3": 1.0}],
        [{"GPU": 1.0, "gpu0": 1.0}, {"GPU": 1.0, "gpu2": 1.0}],
    ]
    assert table.free_seats("chat", "Model") == ()
    # The first one leaves: its seat is free, not the one that comes first on the node.
    app.groups = {id: group for id, group in app.groups.items() if group.devices == ((0, 2),)}
    assert [seat.devices for seat in table.free_seats("chat", "Model")] == [(3,)]


# ---------------------------------------------------------------- what is seen and said


def test_a_group_that_is_gone_frees_its_seat_and_one_just_made_keeps_it(table: GrantTable) -> None:
    app = watched(table, grant("a", "b"))
    table.note_placed("chat", "01", "SERVE_REPLICA::chat#Model#01", "Model", grant("a").seats)
    table._adopt(app, [], looked_s=app.placed_s["01"] - 1)
    assert [seat.node_id for seat in table.free_seats("chat", "Model")] == ["b"]
    table._adopt(app, [], looked_s=app.placed_s["01"] + 1)
    assert [seat.node_id for seat in table.free_seats("chat", "Model")] == ["a", "b"]


def test_a_pending_group_keeps_the_place_that_it_was_asked_for(table: GrantTable) -> None:
    app = watched(table, grant("a", "b"))
    table.note_placed("chat", "01", "SERVE_REPLICA::chat#Model#01", "Model", grant("b").seats)
    table._adopt(app, [group("01", "", created=False)], looked_s=time.monotonic())
    assert [seat.node_id for seat in table.free_seats("chat", "Model")] == ["a"]


def test_a_group_that_waits_outside_the_grant_is_given_up_and_one_that_works_is_not(table: GrantTable) -> None:
    app = watched(table, grant("a"))
    seen = [group("01", "b", created=False), group("02", "c"), group("03", "a", created=False)]
    assert table._adopt(app, seen, looked_s=0.0) == ["01"]


def said(table: GrantTable, app: _App) -> list[Any]:
    reports = table._reports(app)
    for report in reports:
        table._note_reported(app, report)
    return reports


def test_a_grant_is_obeyed_once_nothing_is_outside_it(table: GrantTable) -> None:
    app = watched(table, grant("a", version=4))
    table._adopt(app, [group("01", "a"), group("02", "b")], looked_s=0.0)
    table._observed_s = time.monotonic()
    (busy,) = said(table, app)
    assert isinstance(busy, SeatsInUse) and len(busy.seats) == 2
    table._adopt(app, [group("01", "a")], looked_s=0.0)
    left, obeyed = said(table, app)
    assert left.seats == (SeatInUse("replica", "a", "01", "SERVE_REPLICA::chat#Model#01"),)
    assert isinstance(obeyed, GrantApplied) and obeyed.version == 4
    assert said(table, app) == []


def test_nothing_is_said_of_seats_before_they_were_looked_at_under_the_new_grant(table: GrantTable) -> None:
    app = watched(table, grant("a"))
    app.accepted_s = table._observed_s = 5.0
    assert said(table, app) == []


def test_demand_is_said_once_a_second(table: GrantTable) -> None:
    app = watched(table, None)
    table.note_demand("chat", "Model", 3, 1, 2.0)
    (demand,) = said(table, app)
    assert isinstance(demand, DemandReported)
    assert (demand.ongoing, demand.queued, demand.role, demand.target_per_replica) == (3, 1, "replica", 2.0)
    assert said(table, app) == []


def test_the_target_follows_the_grant_and_the_running_ones_are_told(
    scheduler: GrantScheduler, table: GrantTable
) -> None:
    app = watched(table, grant("a", "b"))
    table._observed_s = time.monotonic()
    said(table, app)
    scheduler._running_replicas[MODEL][replica("x")] = "a"
    assert table.target("chat", "Model", gang_size=1) == 2
    assert [report.count for report in said(table, app) if isinstance(report, WorkersStarted)] == [1]
    assert table.target("unknown", "Model", gang_size=1) is None


def test_gangs_of_replicas_count_in_whole_gangs(table: GrantTable) -> None:
    watched(table, grant("a", "b", "c"))
    assert table.target("chat", "Model", gang_size=2) == 2
    watched(table, grant())
    assert table.target("chat", "Model", gang_size=2) == 2


def test_a_restarted_runner_that_counts_anew_is_believed(table: GrantTable) -> None:
    app = watched(table, grant("a", version=7))
    table._accept(app, grant("a", "b", version=1))
    assert app.grant == grant("a", "b", version=1)
