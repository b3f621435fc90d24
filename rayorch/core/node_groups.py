"""What is under way in each node group: orders, how long they take, who refused, and what is leaving.

Held by the inventory's owner beside `Inventory`. Nothing here is durable: after a restart the groups are observed
again, a count that is higher than the nodes that have come is taken for an order, and the times that nodes took are
learned from those that are there. Why it is made so is in docs/scaling.md.

One decision at a time for each group: while a growth or a shrink is open, `order` takes nothing new for the group
(but the cancellation of what has not come yet). A growth ends in one of these ways:

    its nodes have come                       the estimate learns, strikes are forgotten
    its deadline passes, or the rest FAILED   a strike: the group is left alone, twice as long each time, and what
                                              can't be cancelled (the minimum) is not waited for again
    the count is lowered                      the order is for the rest, or closed
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rayorch.core.capacity import (
    BackOff,
    Capacity,
    GroupName,
    GroupState,
    Instance,
    InstancePhase,
    NodeGroup,
    Order,
    Provider,
    order_deadline_s,
)
from rayorch.core.decisions import GroupChange
from rayorch.core.errors import StalePlanError
from rayorch.core.policy import Profile
from rayorch.core.provision_times import ProvisionTimes
from rayorch.core.types import NodeHealth, NodeId, NodeSpec

SHRINK_TIMEOUT_S = 120.0
"""A shrink whose count has not changed by then is given up: its nodes stay."""

GONE_TIMEOUT_S = 900.0
"""Nodes of a shrink that were not taken away by then no longer keep their group from other decisions."""

STAY_S = 300.0
"""What could not be taken away is not tried again before that."""


@dataclass(frozen=True, slots=True)
class GroupKnobs:
    """The profile's knobs for groups; see `Profile`."""

    provision_s: float = 300.0
    deadline_factor: float = 2.0
    backoff_s: float = 60.0
    backoff_max_s: float = 1800.0

    @staticmethod
    def of(profile: Profile) -> GroupKnobs:
        """Those of a profile."""
        return GroupKnobs(
            profile.provision_s, profile.provision_deadline_factor, profile.group_backoff_s, profile.group_backoff_max_s
        )


@dataclass(frozen=True, slots=True)
class _Growth:
    """An open order. `before`: instances that were there when it was given. `taken`: its count has been seen."""

    order: Order
    before: frozenset[str]
    taken: bool = False


@dataclass(frozen=True, slots=True)
class _Shrink:
    """A shrink that is under way. `taken_s`: when its count was first seen."""

    change: GroupChange
    since_s: float
    taken_s: float | None = None


class NodeGroups:
    """See the module's docstring. `version` grows with every change of what `capacity` says."""

    def __init__(self, provider: Provider = Provider.NONE, knobs: GroupKnobs | None = None, version: int = 0) -> None:
        self._knobs = knobs or GroupKnobs()
        self._version = version
        self._capacity = Capacity(provider)
        self._groups: dict[GroupName, NodeGroup] = {}
        self._growths: dict[GroupName, _Growth] = {}
        self._shrinks: dict[GroupName, _Shrink] = {}
        self._back_offs: dict[GroupName, BackOff] = {}
        self._given_up: dict[GroupName, int] = {}
        self._times = ProvisionTimes(self._knobs.provision_s)
        self._first_seen: dict[tuple[GroupName, str], float] = {}
        self._stays: dict[tuple[GroupName, str], float] = {}

    @property
    def version(self) -> int:
        """Grows with every change."""
        return self._version

    def capacity(self) -> Capacity:
        """What is known, for the planner."""
        return self._capacity

    @property
    def leaving(self) -> Mapping[NodeId, str]:
        """Nodes that are being taken away, by us or by their provider, and why: nothing new may go there."""
        found: dict[NodeId, str] = {}
        for name, group in sorted(self._groups.items()):
            shrink = self._shrinks.get(name)
            named = frozenset(shrink.change.instances) if shrink is not None else frozenset()
            for node in shrink.change.nodes if shrink is not None else ():
                found[node] = shrink.change.reason if shrink is not None else ""
            for instance in group.instances:
                if instance.node is not None and (instance.name in named or instance.phase is InstancePhase.LEAVING):
                    ours = shrink.change.reason if shrink is not None and instance.name in named else ""
                    found[instance.node] = ours or instance.reason or f"group {name} is taking it away"
        return found

    def shrink(self, group: GroupName) -> GroupChange | None:
        """What is left of the group's open shrink after some of its nodes stay; None: nothing is to be taken away."""
        shrink = self._shrinks.get(group)
        return shrink.change if shrink is not None else None

    # ------------------------------------------------------------ facts

    def observe(
        self,
        groups: tuple[NodeGroup, ...],
        now_s: float,
        *,
        provider: Provider | None = None,
        nodes: Iterable[NodeSpec] | None = None,
        drained: frozenset[NodeId] = frozenset(),
    ) -> None:
        """All groups as their provider shows them now; closes what has come, failed or is over its time.

        `provider`: who changes the counts, if that has changed. `nodes`: the Ray nodes that exist, where the caller
        knows them: an instance has become one when they say so, and a node that its provider doesn't list as an
        instance counts as one. `drained`: nodes that Ray itself drains; their machines end soon, and the count is then
        made up for by others.
        """
        joined = _by_group(nodes) if nodes is not None else None
        if now_s < self._capacity.observed_s:
            self._set_back(self._capacity.observed_s - now_s)
        self._groups = {
            group.name: group if joined is None else self._with_nodes(group, joined.get(group.name, {}), now_s)
            for group in groups
        }
        if drained:
            self._groups = {name: _ending(group, drained) for name, group in self._groups.items()}
        self._forget(now_s)
        if (provider or self._capacity.provider) is Provider.RAY:  # orders and refusals are the autoscaler's own affair
            for layer in (self._growths, self._shrinks, self._back_offs, self._given_up):
                layer.clear()
            for name in sorted(self._groups):
                self._times.see(self._groups[name])
            self._show(Provider.RAY, now_s, "")
            return
        for name in sorted(self._groups):
            self._times.see(self._groups[name])
            self._settle_shrink(self._groups[name], now_s)
            self._settle_growth(self._groups[name], now_s)
            self._await_less(self._groups[name])
            self._adopt(self._groups[name], now_s)
        self._show(provider or self._capacity.provider, now_s, "")

    def unknown(self, error: str, now_s: float) -> None:
        """The groups could not be read: what was known stays, and nothing may be decided on it."""
        self._show(self._capacity.provider, self._capacity.observed_s, error or f"unknown since {now_s:.0f}")

    def order(self, change: GroupChange, now_s: float) -> None:
        """Open a growth or a shrink, before it is sent to the provider.

        StalePlanError when the group is not as it was when this was decided: another count, something under way,
        an instance that has become a node meanwhile.
        """
        group = self._fresh(change)
        if change.to_replicas > change.from_replicas:
            self._may_grow(group, change, now_s)
            order = Order(
                change.group,
                change.from_replicas,
                change.to_replicas,
                now_s,
                change.expected_s,
                change.deadline_s,
                change.beneficiaries,
                change.reason,
                change.shares,
            )
            self._growths[change.group] = _Growth(order, frozenset(i.name for i in group.instances))
        else:
            self._may_shrink(group, change, now_s)
            self._shrinks[change.group] = _Shrink(change, now_s)
        self._show(self._capacity.provider, self._capacity.observed_s, "")

    def refused(self, group: GroupName, reason: str, now_s: float) -> None:
        """The provider refused what was ordered: a growth is struck, what was to be taken away stays."""
        if group in self._shrinks:
            self._keep(group, self._shrinks.pop(group).change.instances, now_s)
        elif group in self._growths:
            self._strike(group, reason, now_s)
        self._show(self._capacity.provider, self._capacity.observed_s, self._capacity.error)

    def withdraw(self, group: GroupName) -> None:
        """A growth never reached its provider (the count had changed, or nothing answers): closed without a strike."""
        self._growths.pop(group, None)
        self._show(self._capacity.provider, self._capacity.observed_s, self._capacity.error)

    def stay(self, nodes: Iterable[NodeId], reason: str, now_s: float) -> None:
        """These nodes are not taken away after all (Ray refused the drain), nor are those that go only with them."""
        kept = frozenset(nodes)
        for name, shrink in sorted(self._shrinks.items()):
            instances = self._groups[name].instances if name in self._groups else ()
            change = shrink.change
            replicas = {i.replica for i in instances if i.node in kept and i.name in change.instances}
            staying = {i.name for i in instances if i.replica in replicas}
            rest = tuple(i for i in change.instances if i not in staying)
            if len(rest) == len(change.instances):
                continue
            gone = {i.node for i in instances if i.name in rest}
            self._keep(name, staying, now_s)
            if not rest:
                del self._shrinks[name]
                continue
            to_replicas = change.to_replicas + len(replicas)
            left = replace(
                change,
                to_replicas=to_replicas,
                instances=rest,
                nodes=tuple(n for n in change.nodes if n in gone),
                reason=f"{change.reason}; {len(staying)} stay: {reason}",
            )
            self._shrinks[name] = replace(shrink, change=left)
        self._show(self._capacity.provider, self._capacity.observed_s, self._capacity.error)

    # ------------------------------------------------------------ what an order needs

    def _fresh(self, change: GroupChange) -> NodeGroup:
        group = self._groups.get(change.group)
        if not self._capacity.decides or group is None:
            why = self._capacity.error or "there is no such group, or its count is not ours to change"
            raise StalePlanError(f"group {change.group} takes no change: {why}")
        if group.replicas != change.from_replicas:
            raise StalePlanError(f"group {change.group} has {group.replicas} replicas, not {change.from_replicas}")
        if change.group in self._shrinks:
            raise StalePlanError(f"group {change.group} is shrinking already")
        if change.to_replicas == change.from_replicas:
            raise StalePlanError(f"group {change.group} has {change.to_replicas} replicas already")
        return group

    def _may_grow(self, group: NodeGroup, change: GroupChange, now_s: float) -> None:
        back_off = self._back_offs.get(group.name)
        if group.name in self._growths:
            raise StalePlanError(f"group {group.name} has an open order")
        if back_off is not None and back_off.until_s > now_s:
            raise StalePlanError(f"group {group.name} is left alone: {back_off.reason}")
        if change.to_replicas > group.max_replicas:
            raise StalePlanError(f"group {group.name} may have {group.max_replicas} replicas at most")

    def _may_shrink(self, group: NodeGroup, change: GroupChange, now_s: float) -> None:
        if change.to_replicas < group.min_replicas:
            raise StalePlanError(f"group {group.name} keeps {group.min_replicas} replicas at least")
        if change.nodes and group.name in self._growths:
            raise StalePlanError(f"group {group.name} has an open order")
        known = {i.name: i for i in group.instances}
        for name in change.instances:
            instance = known.get(name)
            if instance is None or instance.phase is InstancePhase.LEAVING:
                raise StalePlanError(f"{name} of group {group.name} is gone")
            if instance.phase is InstancePhase.RUNNING and instance.node not in change.nodes:
                raise StalePlanError(f"{name} of group {group.name} has become a node")
            if self._stays.get((group.name, name), 0.0) > now_s:
                raise StalePlanError(f"{name} of group {group.name} could not be taken away a moment ago")

    # ------------------------------------------------------------ what becomes of it

    def _settle_shrink(self, group: NodeGroup, now_s: float) -> None:
        shrink = self._shrinks.get(group.name)
        if shrink is None:
            return
        if group.replicas > shrink.change.to_replicas:
            if shrink.taken_s is not None:  # raised again by others: the rest of the count is theirs
                del self._shrinks[group.name]
            elif now_s - shrink.since_s > SHRINK_TIMEOUT_S:
                self._keep(group.name, shrink.change.instances, now_s)
                del self._shrinks[group.name]
            return
        taken_s = shrink.taken_s if shrink.taken_s is not None else now_s
        self._shrinks[group.name] = replace(shrink, taken_s=taken_s)
        named = set(shrink.change.instances)
        there = any(i.name in named for i in group.instances)
        if not there or now_s - taken_s > GONE_TIMEOUT_S:
            del self._shrinks[group.name]

    def _settle_growth(self, group: NodeGroup, now_s: float) -> None:
        growth = self._growths.get(group.name)
        if growth is None:
            return
        order = growth.order
        if group.replicas >= order.to_replicas:
            growth = replace(growth, taken=True)
        elif growth.taken:  # part of it was cancelled, by us or by others
            order = replace(order, to_replicas=group.replicas)
            growth = replace(growth, order=order)
        self._growths[group.name] = growth
        if order.to_replicas <= order.from_replicas:
            del self._growths[group.name]
            return
        running = [i for i in group.instances if i.phase is InstancePhase.RUNNING]
        fresh = [i for i in running if i.name not in growth.before]
        wanted = (order.to_replicas - order.from_replicas) * group.hosts
        if growth.taken and (len(running) >= order.to_replicas * group.hosts or len(fresh) >= wanted):
            del self._growths[group.name]
            self._back_offs.pop(group.name, None)
            return
        failed = [i for i in group.instances if i.phase is InstancePhase.FAILED and i.name not in growth.before]
        if failed and len(fresh) + len(failed) >= wanted:  # the operator may replace it: those that come are waited for
            self._strike(group.name, f"{failed[0].name} failed: {failed[0].reason or 'no reason given'}", now_s)
            self._given_up[group.name] = _not_cancellable(group)
        elif now_s >= order.deadline_s:
            waited_s = now_s - order.ordered_s
            self._times.learn(group.name, f"order at {order.ordered_s}", waited_s)
            why = next((i.reason for i in group.instances if i.phase is InstancePhase.PENDING and i.reason), "")
            came = f"{len(fresh)} of {wanted} nodes came in {waited_s:.0f} s"
            self._strike(group.name, f"{came}: {why}" if why else came, now_s)
            self._given_up[group.name] = _not_cancellable(group)

    def _await_less(self, group: NodeGroup) -> None:
        """What was given up and has come, or is not asked for any more, is given up no longer."""
        running = sum(i.phase is InstancePhase.RUNNING for i in group.instances)
        left = min(self._given_up.pop(group.name, 0), group.replicas * group.hosts - running)
        if left > 0:
            self._given_up[group.name] = left

    def _adopt(self, group: NodeGroup, now_s: float) -> None:
        """Nodes that the count promises and that are not there are on their way, whoever asked for them.

        But for those that were given up: a machine of the minimum that never comes up would keep an order open, or the
        group resting, for ever, and the group could not grow.
        """
        back_off = self._back_offs.get(group.name)
        busy = group.name in self._growths or group.name in self._shrinks
        if busy or (back_off is not None and back_off.until_s > now_s):
            return
        running = [i for i in group.instances if i.phase is InstancePhase.RUNNING]
        if len(running) + self._given_up.get(group.name, 0) >= group.replicas * group.hosts:
            return
        pending = [i.created_s for i in group.instances if i.phase is InstancePhase.PENDING]
        since_s = min((s for s in pending if s <= now_s), default=now_s)
        provision_s = self._times.of(group.name)
        order = Order(
            group=group.name,
            from_replicas=len(running) // group.hosts,
            to_replicas=group.replicas,
            ordered_s=since_s,
            expected_s=since_s + provision_s,
            # What was asked for while nobody looked gets its whole time from now.
            deadline_s=order_deadline_s(now_s, provision_s, self._knobs.deadline_factor),
            beneficiaries=(),
            reason="its count promises nodes that have not come yet",
        )
        self._growths[group.name] = _Growth(order, frozenset(i.name for i in running), taken=True)

    def _strike(self, group: GroupName, reason: str, now_s: float) -> None:
        self._growths.pop(group, None)
        before = self._back_offs.get(group)
        strikes = before.strikes + 1 if before is not None else 1
        rest_s = min(self._knobs.backoff_max_s, self._knobs.backoff_s * 2.0 ** min(strikes - 1, 30))
        self._back_offs[group] = BackOff(now_s + rest_s, reason, strikes)

    def _keep(self, group: GroupName, instances: Iterable[str], now_s: float) -> None:
        for name in instances:
            self._stays[group, name] = now_s + STAY_S

    def _set_back(self, by_s: float) -> None:
        """The clock was set back: no order stays open, and no group rests, for so much longer."""
        for name, growth in self._growths.items():
            order = growth.order
            moved = replace(
                order,
                ordered_s=order.ordered_s - by_s,
                expected_s=order.expected_s - by_s,
                deadline_s=order.deadline_s - by_s,
            )
            self._growths[name] = replace(growth, order=moved)
        for name, back_off in self._back_offs.items():
            self._back_offs[name] = replace(back_off, until_s=back_off.until_s - by_s)
        for name, shrink in self._shrinks.items():
            taken_s = None if shrink.taken_s is None else shrink.taken_s - by_s
            self._shrinks[name] = replace(shrink, since_s=shrink.since_s - by_s, taken_s=taken_s)
        self._stays = {key: until_s - by_s for key, until_s in self._stays.items()}

    def _forget(self, now_s: float) -> None:
        """Drop what belongs to groups that are gone, and what is over."""
        for layer in (self._growths, self._shrinks, self._back_offs, self._given_up):
            for name in [n for n in layer if n not in self._groups]:
                del layer[name]
        known = {(name, i.name) for name, group in self._groups.items() for i in group.instances}
        self._times.keep(self._groups)
        self._first_seen = {key: s for key, s in self._first_seen.items() if key in known}
        self._stays = {key: s for key, s in self._stays.items() if key in known and s > now_s}

    # ------------------------------------------------------------ what is shown

    def _with_nodes(self, group: NodeGroup, nodes: Mapping[str, NodeId], now_s: float) -> NodeGroup:
        """The group's instances, joined with the Ray nodes that they have become."""
        listed = [self._with_node(group.name, i, nodes.get(i.name), now_s) for i in group.instances]
        known = {i.name for i in group.instances}
        for name in sorted(set(nodes) - known):  # a provider that doesn't show its machines
            seen_s = self._first_seen.setdefault((group.name, name), now_s)
            growth = self._growths.get(group.name)
            created_s = min(seen_s, growth.order.ordered_s) if growth is not None else seen_s
            listed.append(Instance(name, name, InstancePhase.RUNNING, created_s, seen_s, nodes[name]))
        return replace(group, instances=tuple(sorted(listed, key=lambda i: i.name)))

    def _with_node(self, group: GroupName, instance: Instance, node: NodeId | None, now_s: float) -> Instance:
        if node is not None:
            seen_s = self._first_seen.setdefault((group, instance.name), now_s)
            ready_s = instance.ready_s if instance.ready_s is not None else seen_s
            leaving = instance.phase is InstancePhase.LEAVING
            phase = InstancePhase.LEAVING if leaving else InstancePhase.RUNNING
            return replace(instance, phase=phase, node=node, ready_s=ready_s)
        if instance.phase is InstancePhase.RUNNING:
            return replace(instance, phase=InstancePhase.PENDING, node=None, reason="it has not joined Ray")
        return instance

    def _show(self, provider: Provider, observed_s: float, error: str) -> None:
        states = tuple(self._state(name) for name in sorted(self._groups))
        shown = Capacity(provider, states, observed_s, error)
        if replace(shown, observed_s=self._capacity.observed_s) != self._capacity:
            self._version += 1
        self._capacity = shown

    def _state(self, name: GroupName) -> GroupState:
        group, growth, shrink = self._groups[name], self._growths.get(name), self._shrinks.get(name)
        if shrink is not None:
            named = set(shrink.change.instances)
            instances = tuple(
                replace(i, phase=InstancePhase.LEAVING) if i.name in named else i for i in group.instances
            )
            group = replace(group, instances=instances)
        return GroupState(
            group=group,
            order=growth.order if growth is not None else None,
            back_off=self._back_offs.get(name),
            provision_s=self._times.of(name),
            shrinks_to=shrink.change.to_replicas if shrink is not None else None,
            stays=tuple(sorted(instance for owner, instance in self._stays if owner == name)),
            given_up=self._given_up.get(name, 0),
        )


def _not_cancellable(group: NodeGroup) -> int:
    """How many of the nodes that the group asks for and has not got its minimum keeps asked for."""
    running = sum(i.phase is InstancePhase.RUNNING for i in group.instances)
    above = max(0, group.replicas - group.min_replicas)
    return max(0, (group.replicas - above) * group.hosts - running)


def _ending(group: NodeGroup, drained: frozenset[NodeId]) -> NodeGroup:
    """The group with those machines leaving whose nodes are drained, also where their provider does not show it yet."""
    ending = {
        i.name for i in group.instances if i.node is not None and i.node in drained and i.phase is InstancePhase.RUNNING
    }
    if not ending:
        return group
    reason = "Ray drains its node"
    return replace(
        group,
        instances=tuple(
            replace(i, phase=InstancePhase.LEAVING, reason=i.reason or reason) if i.name in ending else i
            for i in group.instances
        ),
    )


def _by_group(nodes: Iterable[NodeSpec]) -> dict[str, dict[str, NodeId]]:
    """The live nodes of each group by their machine's name."""
    found: dict[str, dict[str, NodeId]] = {}
    for node in nodes:
        if node.group and node.instance and node.health is not NodeHealth.LOST:
            found.setdefault(node.group, {})[node.instance] = node.id
    return found
