"""How changes of node groups are carried out, without Ray and Kubernetes: the order of steps, and every way to fail."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from rayorch.actors import node_groups
from rayorch.actors.group_facts import GroupWishes
from rayorch.actors.node_groups import GroupKeeper, GroupSettings
from rayorch.adapters.kuberay import ClusterState
from rayorch.core.capacity import GroupName, Instance, InstancePhase, NodeGroup, Provider
from rayorch.core.decisions import GroupChange
from rayorch.core.errors import AdmissionError, ClusterError, StalePlanError
from rayorch.core.inventory import Inventory
from rayorch.core.node_groups import GroupKnobs
from rayorch.core.types import NodeHealth, NodeId, NodeSpec, Resources, WorkloadId
from tests.build import node

H100 = GroupName("h100")
PATIENCE_S = 10.0


def _group(replicas: int, hosts: int = 1, **changes: Any) -> NodeGroup:
    """Instances p1, p2 … of replicas r1, r2 …, each a Ray node n1, n2 …"""
    instances = tuple(
        Instance(f"p{i}", f"r{(i - 1) // hosts + 1}", InstancePhase.RUNNING, 0.0)
        for i in range(1, replicas * hosts + 1)
    )
    shape = Resources.of({"GPU": 4})
    group = NodeGroup(H100, shape, replicas, 0, 4, hosts, instances=instances)
    return replace(group, **changes)


def _nodes(count: int) -> tuple[NodeSpec, ...]:
    return tuple(replace(node(f"n{i}"), group=H100, instance=f"p{i}") for i in range(1, count + 1))


class PlayedProvider:
    """Keeps the groups that it is given, changes counts as asked, and fails as told: `failures` (of patches) and
    `unreadable` (looks) come first."""

    def __init__(self, *groups: NodeGroup, log: list[str] | None = None) -> None:
        self.groups = {group.name: group for group in groups}
        self.failures: list[Exception] = []
        self.unreadable: list[Exception] = []
        self.lost_answers = 0
        self.in_tree = self.suspended = False
        self.log = [] if log is None else log
        self.on_change: Callable[[ClusterState | ClusterError], None] | None = None

    def observe(self) -> ClusterState:
        if self.unreadable:
            raise self.unreadable.pop(0)
        return ClusterState(tuple(self.groups.values()), self.in_tree, self.suspended, "uid", "1")

    def watch(self, on_change: Callable[[ClusterState | ClusterError], None], stop: threading.Event) -> None:
        on_change(self.observe())
        self.on_change = on_change
        stop.wait()

    def scale(self, change: GroupChange) -> None:
        if self.failures:
            self.log.append("no answer")
            raise self.failures.pop(0)
        group = self.groups[change.group]
        if group.replicas != change.from_replicas:
            raise StalePlanError(f"the count is {group.replicas}")
        kept = tuple(i for i in group.instances if i.name not in change.instances)
        self.groups[change.group] = replace(group, replicas=change.to_replicas, instances=kept)
        self.log.append(f"patch {change.from_replicas}->{change.to_replicas} {','.join(change.instances)}".strip())
        if self.lost_answers:
            self.lost_answers -= 1
            raise ClusterError("the connection broke")

    def tell(self) -> None:
        assert self.on_change is not None
        self.on_change(self.observe())


@dataclass
class PlayedDrains:
    """Lets every node go but those in `refuses`; those in `busy` are never idle."""

    log: list[str] = field(default_factory=list)
    busy: dict[NodeId, str] = field(default_factory=dict)
    refuses: dict[NodeId, str] = field(default_factory=dict)
    error: str = ""

    def busy_nodes(self, nodes: Iterable[NodeId]) -> dict[NodeId, str]:
        if self.error:
            raise ClusterError(self.error)
        return {n: why for n, why in self.busy.items() if n in set(nodes)}

    def drain_idle(self, node: NodeId, reason: str) -> str:
        self.log.append(f"drain {node}")
        return self.refuses.get(node, "")


class World:
    """A keeper with what it stands between."""

    def __init__(self, *groups: NodeGroup, nodes: int = 0, wishes: tuple[GroupWishes, ...] = ()) -> None:
        self.log: list[str] = []
        self.provider = PlayedProvider(*groups, log=self.log)
        self.drains = PlayedDrains(self.log)
        self.inventory = Inventory()
        self.inventory.observe(_nodes(nodes), 1.0)
        self.changes = 0
        settings = GroupSettings(None, GroupKnobs(), wishes, ("rack",))
        self.keeper = GroupKeeper(settings, self.inventory, self._changed, lambda: self.provider, self.drains)

    def _changed(self) -> None:
        self.changes += 1

    async def until(self, check: Callable[[], object], what: str) -> None:
        give_up_s = time.monotonic() + PATIENCE_S
        while not check():
            assert time.monotonic() < give_up_s, f"never came: {what}; {self.keeper.capacity()}, {self.log}"
            await asyncio.sleep(0.005)

    async def watched(self) -> None:
        self.keeper.start()
        await self.until(lambda: not self.keeper.capacity().error, "the first look")

    async def settled(self) -> None:
        await self.until(lambda: all(not lock.locked() for lock in self.keeper._locks.values()), "what is under way")

    async def do(self, *changes: GroupChange) -> tuple[str, ...]:
        refusals = self.keeper.change(changes)
        await asyncio.sleep(0)
        await self.settled()
        return refusals

    @property
    def state(self) -> Any:
        (state,) = self.keeper.capacity().groups
        return state

    def health(self) -> dict[str, NodeHealth]:
        return {id: seen.health for id, seen in self.inventory.nodes.items()}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_groups, "PATCH_PAUSE_S", 0.001)
    monkeypatch.setattr(node_groups, "DRAIN_WAIT_S", 0.05)
    monkeypatch.setattr(node_groups, "DRAIN_POLL_S", 0.005)
    monkeypatch.setattr(node_groups, "WATCH_RETRY_S", 0.01)


def _run(world: World, story: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def told() -> None:
        try:
            await world.watched()
            await story(world)
        finally:
            world.keeper.close()

    asyncio.run(told())


def _grow(to: int = 2, start: int = 0) -> GroupChange:
    return GroupChange(H100, start, to, "for w", (WorkloadId("w"),), time.time() + 60, time.time() + 120)


def _take(*numbers: int, replicas: int = 2) -> GroupChange:
    gone = tuple(f"p{n}" for n in numbers)
    nodes = tuple(NodeId(f"n{n}") for n in numbers)
    return GroupChange(H100, replicas, replicas - len(numbers), "idle", instances=gone, nodes=nodes)


# ---------------------------------------------------------------- growth


def test_a_growth_is_one_patch_and_stays_open_until_its_nodes_are_there() -> None:
    async def story(world: World) -> None:
        assert await world.do(_grow()) == ()
        assert world.log == ["patch 0->2"]
        assert world.state.order.to_replicas == 2
        assert world.keeper.change((_grow(),)) == ("group h100 has an open order",)

        world.provider.groups[H100] = _group(2)
        world.provider.tell()
        await world.until(lambda: len(world.state.group.instances) == 2, "the machines")
        assert {i.phase for i in world.state.group.instances} == {InstancePhase.PENDING}  # no Ray nodes yet
        world.inventory.observe(_nodes(2), 2.0)
        world.keeper.nodes_changed()
        assert world.state.order is None
        assert {i.node for i in world.state.group.instances} == {"n1", "n2"}

    _run(World(_group(0)), story)


def test_a_growth_that_is_refused_backs_the_group_off_with_the_reason() -> None:
    async def story(world: World) -> None:
        world.provider.failures = [AdmissionError("spec", "out of quota")]
        await world.do(_grow())
        assert world.log == ["no answer"]
        assert world.state.order is None
        assert "out of quota" in world.state.back_off.reason

    _run(World(_group(0)), story)


def test_a_growth_on_an_old_count_is_withdrawn_without_a_strike_and_the_count_is_read_anew() -> None:
    async def story(world: World) -> None:
        world.provider.groups[H100] = _group(0, max_replicas=9)
        world.provider.groups[H100] = replace(world.provider.groups[H100], replicas=1)  # by somebody else; no news yet
        await world.do(_grow())
        assert world.log == []
        assert world.state.back_off is None
        assert world.state.group.replicas == 1
        world.keeper.nodes_changed()
        assert world.state.order.beneficiaries == ()  # what the others asked for is awaited, not ours

    _run(World(_group(0)), story)


def test_a_growth_without_an_answer_is_tried_again_and_where_reads_fail_too_left_to_the_next_plan() -> None:
    async def story(world: World) -> None:
        world.provider.failures = [ClusterError("timeout")] * node_groups.PATCH_TRIES
        world.provider.unreadable = [ClusterError("timeout")]
        await world.do(_grow())
        assert world.log == ["no answer"] * node_groups.PATCH_TRIES
        assert (world.state.order, world.state.back_off) == (None, None)
        assert await world.do(_grow()) == ()
        assert world.log[-1] == "patch 0->2"

    _run(World(_group(0)), story)


def test_a_group_that_can_be_read_and_not_written_is_left_alone_for_a_while() -> None:
    async def story(world: World) -> None:
        world.provider.failures = [ClusterError("500: failed calling webhook")] * node_groups.PATCH_TRIES
        await world.do(_grow())
        assert world.state.order is None
        assert "webhook" in world.state.back_off.reason
        assert "is left alone" in world.keeper.change((_grow(),))[0]

    _run(World(_group(0)), story)


def test_a_count_that_can_not_be_read_once_does_not_make_the_groups_unknown_for_ever() -> None:
    async def story(world: World) -> None:
        world.provider.failures = [StalePlanError("changed by others")]
        world.provider.unreadable = [ClusterError("timeout")]
        await world.do(_grow())
        assert world.keeper.capacity().error == ""  # the watch has nothing new to say, and would never clear it
        assert await world.do(_grow()) == ()

    _run(World(_group(0)), story)


def test_a_count_that_can_be_read_does_not_hide_that_the_watch_is_broken() -> None:
    async def story(world: World) -> None:
        world.provider.failures = [StalePlanError("changed by others")]
        world.keeper.change((_grow(),))
        world.keeper._take(ClusterError("the watch broke"))
        await asyncio.sleep(0)
        await world.settled()
        assert world.keeper.capacity().error == "the watch broke"

    _run(World(_group(0)), story)


def test_a_growth_whose_answer_was_lost_counts_once() -> None:
    async def story(world: World) -> None:
        world.provider.lost_answers = 1
        await world.do(_grow())
        assert world.log == ["patch 0->2"]
        assert world.state.order.beneficiaries == ("w",)

    _run(World(_group(0)), story)


def test_an_unforeseen_error_of_the_provider_ends_in_a_refusal_not_in_an_open_order() -> None:
    async def story(world: World) -> None:
        world.provider.failures = [RuntimeError("a bug")]
        await world.do(_grow())
        assert world.state.order is None and "a bug" in world.state.back_off.reason

    _run(World(_group(0)), story)


# ---------------------------------------------------------------- shrink


def test_a_shrink_marks_then_drains_then_patches_and_takes_nothing_else() -> None:
    async def story(world: World) -> None:
        world.keeper.change((_take(2),))
        assert world.health() == {"n1": NodeHealth.OK, "n2": NodeHealth.CORDONED}  # before anything else happens
        assert world.log == []
        await asyncio.sleep(0)
        await world.settled()
        assert world.log == ["drain n2", "patch 2->1 p2"]
        world.inventory.observe(_nodes(1), 2.0)  # Ray has let it go
        world.provider.tell()
        await world.until(lambda: world.state.shrinks_to is None, "its end")
        assert [i.name for i in world.state.group.instances] == ["p1"]

    _run(World(_group(2), nodes=2), story)


def test_a_node_that_is_not_idle_in_rays_eyes_stays_and_the_others_go() -> None:
    async def story(world: World) -> None:
        world.drains.busy = {NodeId("n1"): "Busy workers on node."}
        await world.do(_take(1, 2))
        assert world.log == ["drain n2", "patch 2->1 p2"]
        assert world.health()["n1"] is NodeHealth.OK
        assert world.state.stays == ("p1",)

    _run(World(_group(2), nodes=2), story)


def test_a_node_that_was_taken_between_look_and_drain_stays() -> None:
    async def story(world: World) -> None:
        world.drains.refuses = {NodeId("n1"): "The node to be idle terminated is no longer idle."}
        await world.do(_take(1, 2))
        assert world.log == ["drain n1", "drain n2", "patch 2->1 p2"]
        assert world.health()["n1"] is NodeHealth.OK

    _run(World(_group(2), nodes=2), story)


def test_where_no_node_can_go_nothing_is_patched() -> None:
    async def story(world: World) -> None:
        world.drains.error = "the GCS does not answer"
        await world.do(_take(1, 2))
        assert world.log == []
        assert set(world.health().values()) == {NodeHealth.OK}
        assert (world.state.shrinks_to, world.state.stays) == (None, ("p1", "p2"))

    _run(World(_group(2), nodes=2), story)


def test_of_a_replica_with_a_busy_node_no_node_is_drained() -> None:
    async def story(world: World) -> None:
        world.drains.busy = {NodeId("n4"): "Busy workers on node."}
        change = replace(_take(1, 2, 3, 4), from_replicas=2, to_replicas=0)
        await world.do(change)
        assert world.log == ["drain n1", "drain n2", "patch 2->1 p1,p2"]
        assert [n for n, health in world.health().items() if health is NodeHealth.OK] == ["n3", "n4"]

    _run(World(_group(2, hosts=2), nodes=4), story)


def test_a_shrink_whose_count_has_changed_meanwhile_is_not_sent_and_its_nodes_stay() -> None:
    async def story(world: World) -> None:
        world.provider.groups[H100] = replace(_group(2), replicas=3)
        await world.do(_take(2))
        assert world.log == ["drain n2"]
        assert world.health()["n2"] is NodeHealth.OK
        assert (world.state.group.replicas, world.state.shrinks_to) == (3, None)

    _run(World(_group(2), nodes=2), story)


def test_a_shrink_that_is_refused_leaves_the_group_as_it_is() -> None:
    async def story(world: World) -> None:
        world.provider.failures = [AdmissionError("spec", "suspended")]
        await world.do(_take(2))
        assert world.log == ["drain n2", "no answer"]
        assert (world.state.shrinks_to, world.state.back_off) == (None, None)

    _run(World(_group(2), nodes=2), story)


def test_a_machine_that_is_cancelled_and_has_joined_meanwhile_is_drained_first() -> None:
    async def story(world: World) -> None:
        cancel = GroupChange(H100, 2, 1, "w was cancelled", instances=("p2",))
        world.keeper.change((cancel,))
        world.inventory.observe(_nodes(2), 2.0)
        world.keeper.nodes_changed()
        await asyncio.sleep(0)
        await world.settled()
        assert world.log == ["drain n2", "patch 2->1 p2"]

    _run(World(_group(2), nodes=1), story)


# ---------------------------------------------------------------- what is known


def test_nothing_is_changed_before_the_groups_are_known_and_the_door_knows_no_limit() -> None:
    async def story() -> None:
        world = World(_group(0))
        assert world.keeper.capacity().error and not world.keeper.capacity().decides
        assert world.keeper.shapes() is None
        (refusal,) = world.keeper.change((_grow(),))
        assert "have not been read yet" in refusal
        assert world.log == []
        world.keeper.close()

    asyncio.run(story())


def test_while_the_cluster_is_suspended_the_door_knows_no_limit() -> None:
    async def story(world: World) -> None:
        assert world.keeper.shapes() != ()
        world.provider.suspended = True
        world.provider.groups[H100] = _group(0, max_replicas=0)
        world.provider.tell()
        await world.until(lambda: world.keeper.shapes() is None, "the suspension")
        assert not world.keeper.capacity().error

    _run(World(_group(1)), story)


def test_an_error_keeps_what_was_known_and_stops_changes_until_the_groups_are_seen_again() -> None:
    async def story(world: World) -> None:
        assert world.provider.on_change is not None
        world.provider.on_change(ClusterError("API server gone"))
        await world.until(lambda: world.keeper.capacity().error, "the error")
        world.keeper.nodes_changed()  # a look at Ray does not make the groups known
        assert world.keeper.capacity().error == "API server gone"
        assert world.state.group.replicas == 2
        (refusal,) = world.keeper.change((_grow(3, 2),))
        assert "API server gone" in refusal
        world.provider.tell()
        await world.until(lambda: not world.keeper.capacity().error, "the next look")
        assert world.keeper.change((_grow(3, 2),)) == ()
        await world.settled()

    _run(World(_group(2), nodes=2), story)


def test_a_watch_that_can_not_begin_is_begun_again_and_says_why_meanwhile() -> None:
    async def story() -> None:
        world = World(_group(0))
        tries: list[int] = []

        def connect() -> PlayedProvider:
            tries.append(1)
            if len(tries) < 3:
                raise ClusterError("no kubeconfig")
            return world.provider

        world.keeper._connect = connect
        world.keeper.start()
        await world.until(lambda: "no kubeconfig" in world.keeper.capacity().error, "the reason")
        await world.until(lambda: not world.keeper.capacity().error, "the third try")
        assert len(tries) == 3
        world.keeper.close()

    asyncio.run(story())


def test_with_rays_autoscaler_in_charge_no_count_is_ours_to_change() -> None:
    async def story(world: World) -> None:
        world.provider.in_tree = True
        world.provider.tell()
        await world.until(lambda: world.keeper.capacity().provider is Provider.RAY, "the other provider")
        (refusal,) = world.keeper.change((_grow(),))
        assert "not ours" in refusal and world.log == []

    _run(World(_group(0)), story)


def test_the_documents_wishes_go_before_the_providers_and_levels_get_their_own_names() -> None:
    async def story(world: World) -> None:
        group = world.state.group
        assert (group.spares, group.idle_s, group.preference) == (1, 30.0, 4)
        assert group.label("rack") == "r7"
        (shape,) = world.keeper.shapes() or ()
        assert shape.max_count == 4 and shape.value("rack") == "r7"
        assert shape.value("ray.io/accelerator-type") == "H100"

    labels = (("rayorch.io/rack", "r7"),)
    group = _group(0, labels=labels, model="H100", spares=0, idle_s=30.0, preference=9)
    _run(World(group, wishes=(GroupWishes("h100", spares=1, preference=4),)), story)


def test_readers_are_told_of_each_change_and_of_nothing_else() -> None:
    async def story(world: World) -> None:
        before = world.changes
        world.keeper.nodes_changed()
        assert world.changes == before
        await world.do(_grow())
        assert world.changes > before

    _run(World(_group(0)), story)


def test_a_node_gets_what_its_group_says_of_all_its_nodes_and_its_own_word_goes_first() -> None:
    async def story(world: World) -> None:
        plain = replace(_nodes(1)[0], topology=())
        own = replace(plain, labels=(("zone", "a"),), topology=(("rack", "own"),))
        foreign = replace(plain, group="other")
        completed = world.keeper.completed((plain, own, foreign))
        assert [node.topology for node in completed] == [(("rack", "r7"),), (("rack", "own"),), ()]
        assert [dict(node.labels).get("zone") for node in completed] == ["z1", "a", None]
        assert [{d.model for d in node.devices} for node in completed] == [{"H100"}, {"H100"}, {""}]

    labels = (("rayorch.io/rack", "r7"), ("zone", "z1"))
    _run(World(_group(1, labels=labels, model="H100")), story)


def test_a_node_that_does_not_name_its_machine_is_found_by_the_machines_address() -> None:
    async def story(world: World) -> None:
        state = world.provider.observe()
        assert world.provider.on_change is not None
        world.provider.on_change(replace(state, addresses=(("p1", "10.0.0.7"), ("gone", "10.0.0.8"))))
        await asyncio.sleep(0.05)
        nodes = tuple(replace(node(f"n{i}"), name=f"10.0.0.{i}") for i in (7, 8, 9))
        assert [(n.group, n.instance) for n in world.keeper.completed(nodes)] == [("h100", "p1"), ("", ""), ("", "")]

    _run(World(_group(1)), story)


# ---------------------------------------------------------------- a restart in the middle


class StuckProvider(PlayedProvider):
    """Its patches don't come through until `goes_on`."""

    def __init__(self, *groups: NodeGroup, log: list[str]) -> None:
        super().__init__(*groups, log=log)
        self.asked, self.goes_on = threading.Event(), threading.Event()

    def scale(self, change: GroupChange) -> None:
        self.asked.set()
        assert self.goes_on.wait(PATIENCE_S)
        super().scale(change)


def test_a_shrink_that_died_between_drain_and_patch_is_forgotten_and_decided_again() -> None:
    async def story(world: World) -> None:
        stuck = StuckProvider(_group(2), log=world.log)
        world.keeper._connect = lambda: stuck
        world.keeper.change((_take(2),))
        assert await asyncio.to_thread(stuck.asked.wait, PATIENCE_S)
        world.keeper.close()  # the process dies here: Ray has let n2 go, the count is still 2
        assert world.log == ["drain n2"]

        again = World(_group(2), nodes=1)  # what the next one finds
        try:
            await again.watched()
            assert again.state.shrinks_to is None and again.health() == {"n1": NodeHealth.OK}
            assert [i.phase for i in again.state.group.instances] == [InstancePhase.RUNNING, InstancePhase.PENDING]
            assert again.log == []  # nothing is done that was not decided
            await again.do(replace(_take(2), nodes=()))  # nobody needs the machine: it is cancelled
            assert again.log == ["patch 2->1 p2"]
        finally:
            again.keeper.close()
            stuck.goes_on.set()

    _run(World(_group(2), nodes=2), story)


def test_a_growth_that_died_after_its_patch_is_still_awaited() -> None:
    async def story() -> None:
        world = World(replace(_group(0), replicas=2))  # the count is there, the machines are not
        try:
            await world.watched()
            assert (world.state.order.to_replicas, world.state.order.beneficiaries) == (2, ())
            (refusal,) = world.keeper.change((_grow(4, 2),))
            assert "open order" in refusal and world.log == []
        finally:
            world.keeper.close()

    asyncio.run(story())


def test_what_an_operator_should_know_is_passed_on() -> None:
    async def story(world: World) -> None:
        assert world.keeper.notes() == ()
        state = world.provider.observe()
        assert world.provider.on_change is not None
        world.provider.on_change(replace(state, pods_error="403: no right", notes=("group l4 does not say its CPU",)))
        await world.until(world.keeper.notes, "the notes")
        assert world.keeper.notes() == (
            "group l4 does not say its CPU",
            "machines that are on their way can't be seen: 403: no right",
        )

    _run(World(_group(1)), story)


@pytest.mark.parametrize(
    ("left_s", "phase"),
    [
        (25.0, InstancePhase.LEAVING),
        (-5.0, InstancePhase.LEAVING),  # any moment now
        (3600.0, InstancePhase.RUNNING),  # a person drains it, and nobody makes up for it
        (None, InstancePhase.RUNNING),
    ],
)
def test_a_machine_whose_node_is_taken_back_is_made_up_for_by_another_one_under_the_same_count(
    left_s: float | None, phase: InstancePhase
) -> None:
    async def story(world: World) -> None:
        by_s = None if left_s is None else time.time() + left_s
        drained = replace(_nodes(1)[0], health=NodeHealth.DRAINING, drain_deadline_s=by_s)
        world.inventory.observe(world.keeper.completed((drained,)), 2.0)
        world.keeper.nodes_changed()
        assert [i.phase for i in world.state.group.instances] == [phase]
        assert (world.state.order is not None) == (phase is InstancePhase.LEAVING)

    _run(World(_group(1), nodes=1), story)


def test_declared_groups_have_as_many_replicas_as_nodes_and_are_rays_to_change() -> None:
    async def story() -> None:
        inventory = Inventory()
        declared = NodeGroup(H100, Resources.of({"GPU": 4}), 0, 0, 4)
        keeper = GroupKeeper(GroupSettings(None, declared=(declared,)), inventory, lambda: None)
        keeper.start()
        try:
            inventory.observe(keeper.completed(_nodes(2)), 1.0)
            keeper.nodes_changed()
            (state,) = keeper.capacity().groups
            assert (keeper.capacity().provider, state.group.replicas) == (Provider.RAY, 2)
            assert (state.order, state.back_off) == (None, None)
            inventory.observe((), 2.0)
            keeper.nodes_changed()
            assert keeper.capacity().groups[0].group.replicas == 0
        finally:
            keeper.close()

    asyncio.run(story())
