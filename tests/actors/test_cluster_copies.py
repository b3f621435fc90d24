"""The controller's copies of the owners' facts, without Ray: what is asked for, and what is passed on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rayorch.actors import cluster
from rayorch.actors.cluster import RayCluster
from rayorch.actors.inventory import Sight
from rayorch.core.allocations import AllocationChanges
from rayorch.core.capacity import Capacity, GroupName, GroupState, NodeGroup, Provider
from rayorch.core.cluster import Outcome
from rayorch.core.decisions import GangDemand, GroupChange, Scale
from rayorch.core.errors import ClusterError
from rayorch.core.events import NodeCordoned
from rayorch.core.history import HistoryChanges, Sample, ServiceClass
from rayorch.core.inventory import InventoryChanges
from rayorch.core.queues import QueueChanges
from rayorch.core.types import Allocation, NodeHealth, NodeId, Resources, TopologyRequest, WorkloadId
from rayorch.policies.default import DEFAULT
from tests.build import node, seat


class Owners:
    """All three in one: each method answers what it is set to, and what was asked is written down."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.queues = QueueChanges(7, True, (), (), (), renewals=40)
        self.inventory = InventoryChanges(1, True, (node("n1"),), ())
        closed = replace(node("n1"), health=NodeHealth.CORDONED)
        self.cordoned = InventoryChanges(3, False, (closed,), ())
        serving = Allocation(WorkloadId("app"), 1, (seat("n1", surplus=1),), 0.0, 30.0, "", (1,))
        self.booked = (AllocationChanges(1, True, (serving,), ()), True)
        self.capacity: tuple[int, Capacity | None] = (0, None)
        self.refusals: tuple[str, ...] = ()
        self.fails = False
        self.selectors: list[dict[str, str]] = []

    def sight(self, nodes: InventoryChanges) -> Sight:
        return Sight(nodes, *self.capacity)

    def __getattr__(self, method: str) -> Any:
        return _Method(self, method)

    def args_of(self, method: str) -> list[Any]:
        return [argument for name, argument in self.asked if name == method]


class _Method:
    def __init__(self, owners: Owners, name: str) -> None:
        self._owners, self._name = owners, name

    def remote(self, *args: Any) -> Any:
        self._owners.asked.append((self._name, args[0] if args else None))
        if self._name == "set_gang_demand":
            self._owners.selectors = args[1]
        return self._name


@pytest.fixture
def owners(monkeypatch: pytest.MonkeyPatch) -> Owners:
    made = Owners()

    def answers(calls: list[Any]) -> list[Any]:
        if len(calls) == 3:
            return [made.queues, made.sight(made.inventory), made.booked]
        if len(calls) == 2:
            if made.fails:
                raise ClusterError("an owner does not answer")
            told = made.args_of("set_cordons")[-1]
            return [
                None,
                made.sight(made.cordoned if told else InventoryChanges(made.inventory.version, False, (), ())),
            ]
        return [made.refusals]

    monkeypatch.setattr(cluster, "_answers", answers)
    return made


@pytest.fixture
def copies(owners: Owners) -> RayCluster:
    made = RayCluster("main", DEFAULT)
    made._queues = made._inventory = made._allocator = owners
    made.snapshot()
    return made


def test_not_a_plan_is_made_without_a_cordon_that_was_accepted(owners: Owners, copies: RayCluster) -> None:
    cordon = NodeCordoned(NodeId("n1"), "fan", None, 1.0)
    owners.queues = QueueChanges(8, False, (), (), (cordon,))
    owners.inventory = InventoryChanges(2, False, (), ())
    (seen,) = copies.snapshot().nodes
    assert (seen.health, owners.args_of("set_cordons")[1:]) == (NodeHealth.CORDONED, [(cordon,)])
    copies.snapshot()
    assert len(owners.args_of("set_cordons")) == 2


def test_an_inventory_that_still_has_an_old_cordon_is_told_that_there_is_none(
    owners: Owners, copies: RayCluster
) -> None:
    """It was lifted while nobody passed on what is in force."""
    assert owners.args_of("set_cordons") == [()]


def test_what_was_taken_before_a_call_failed_is_not_taken_again(owners: Owners, copies: RayCluster) -> None:
    cordon = NodeCordoned(NodeId("n1"), "fan", None, 1.0)
    first, second = Sample(10.0, 10.0), Sample(20.0, 20.0)
    known = HistoryChanges(classes=(ServiceClass("train", 1.0, (first,)),))
    owners.queues = QueueChanges(8, False, (), (), (), history=known)
    copies.snapshot()
    further = HistoryChanges(further=(ServiceClass("train", 2.0, (second,)),))
    owners.queues = QueueChanges(9, False, (), (), (cordon,), forgotten=(WorkloadId("old"),), history=further)
    owners.inventory = InventoryChanges(1_000, True, (node("n1"),), ())
    told = len(owners.args_of("set_served"))
    owners.fails = True
    with pytest.raises(ClusterError):
        copies.snapshot()
    owners.fails = False
    owners.queues = QueueChanges(9, False, (), (), (cordon,), renewals=40)
    owners.inventory = InventoryChanges(1_000, False, (), ())
    (seen,) = copies.snapshot().nodes
    assert owners.args_of("changes_since")[-2:] == [(9, 0), 1]
    assert owners.args_of("set_cordons")[-2:] == [(cordon,), (cordon,)] and seen.health is NodeHealth.CORDONED
    assert len(owners.args_of("set_served")) == told + 1  # the new inventory did not know it yet
    assert copies.history.classes["train"].samples == (first, second)


def test_a_new_inventory_is_told_again_what_serve_holds(owners: Owners, copies: RayCluster) -> None:
    served = {NodeId("n1"): Resources.of({"GPU": 1})}
    owners.inventory = InventoryChanges(2, False, (), ())
    copies.snapshot()
    assert owners.args_of("set_served") == [served]
    owners.inventory = InventoryChanges(1_000, True, (node("n1"),), ())
    copies.snapshot()
    assert owners.args_of("set_served") == [served, served]


def test_a_new_allocator_that_knows_nothing_yet_does_not_make_serves_use_foreign(
    owners: Owners, copies: RayCluster
) -> None:
    owners.booked = (AllocationChanges(2, True, (), ()), False)
    copies.snapshot()
    assert len(owners.args_of("set_served")) == 1


def test_renewals_that_are_known_are_not_asked_for_again(owners: Owners, copies: RayCluster) -> None:
    copies.snapshot()
    assert owners.args_of("changes_since")[0] == (0, 0)
    assert owners.args_of("changes_since")[2] == (7, 40)


def test_the_demand_for_capacity_is_repeated_in_case_its_keeper_was_restarted(
    owners: Owners, copies: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies._coordinator = owners
    monkeypatch.setattr(copies, "_demand_taken", lambda call: True)
    for _ in range(2):
        copies._demand(Scale((), (), "nothing"))
    assert len(owners.args_of("set_gang_demand")) == 1
    monkeypatch.setattr(cluster, "DEMAND_PERIOD_S", -1.0)
    copies._demand(Scale((), (), "nothing"))
    assert len(owners.args_of("set_gang_demand")) == 2


def test_what_the_queue_owner_forgets_is_handed_on_once(owners: Owners, copies: RayCluster) -> None:
    owners.queues = QueueChanges(9, False, (), (), (), forgotten=(WorkloadId("old"),))
    copies.snapshot()
    assert (copies.take_forgotten(), copies.take_forgotten()) == (("old",), ())


def test_the_capacity_is_kept_until_the_inventory_has_another(owners: Owners, copies: RayCluster) -> None:
    assert copies.snapshot().capacity == Capacity()
    known = Capacity(Provider.OURS, (), 5.0)
    owners.capacity = (41, known)
    assert copies.snapshot().capacity == known
    owners.capacity = (41, None)  # nothing new
    assert copies.snapshot().capacity == known
    assert owners.args_of("sight_since")[-1][1] == 41
    owners.capacity = (0, None)  # an inventory that nobody provides nodes to
    assert copies.snapshot().capacity == Capacity()


def test_a_demand_names_the_labels_that_its_nodes_must_have(
    owners: Owners, copies: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies._coordinator = owners
    monkeypatch.setattr(copies, "_demand_taken", lambda call: True)
    gpu = Resources.of({"GPU": 8})
    selector = (("rack", "r7"), ("ray.io/accelerator-type", "H100"))
    wanted = GangDemand(WorkloadId("w"), (gpu, gpu), TopologyRequest(), selector)
    held = GangDemand(WorkloadId("h"), (gpu,), TopologyRequest())

    assert copies._scale(Scale((held,), (wanted,), "two")) == Outcome(Scale((held,), (wanted,), "two"), True)

    h100 = {"rack": "r7", "ray.io/accelerator-type": "H100"}
    assert owners.args_of("set_gang_demand") == [[{"GPU": 8.0}] * 3]
    assert owners.selectors == [{}, h100, h100]


@pytest.mark.parametrize(
    ("known", "asked"),
    [
        ((("rayorch.io/rack", "r7"), ("ray.io/accelerator-type", "H100")),
         {"rayorch.io/rack": "r7", "ray.io/accelerator-type": "H100"}),
        ((("rack", "r7"), ("ray.io/accelerator-type", "A100")), {"rack": "r7"}),  # nobody has that model by label
        ((("pool", "x"),), {}),
        ((), {}),
    ],
)  # fmt: skip
def test_an_autoscaler_is_asked_only_for_labels_that_it_knows(
    owners: Owners, copies: RayCluster, known: tuple[tuple[str, str], ...], asked: dict[str, str]
) -> None:
    copies._coordinator = owners
    group = NodeGroup(GroupName("g"), Resources.of({"GPU": 8}), 0, 0, 4, autoscaler_labels=known)
    copies.capacity = Capacity(Provider.RAY, (GroupState(group),))
    selector = (("rack", "r7"), ("ray.io/accelerator-type", "H100"))
    wanted = GangDemand(WorkloadId("w"), (Resources.of({"GPU": 8}),), TopologyRequest(), selector)
    copies._demand(Scale((), (wanted,), "one"))
    assert owners.selectors == [asked]


def test_a_change_that_the_groups_do_not_take_is_refused_with_their_reason(
    owners: Owners, copies: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies._coordinator = owners
    monkeypatch.setattr(copies, "_demand_taken", lambda call: True)
    change = GroupChange(GroupName("h100"), 0, 2, "for w")
    scale = Scale((), (), "", (change,))
    assert copies._scale(scale) == Outcome(scale, True)
    assert owners.args_of("change_groups") == [(change,)]
    owners.refusals = ("group h100 has an open order",)
    assert copies._scale(scale) == Outcome(scale, False, "group h100 has an open order")
