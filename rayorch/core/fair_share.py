"""Who is entitled to how much: each queue's fair share of what the cluster has, after KAI's division of resources.

On every level of the tree, per resource: each queue gets what it asks for up to what it deserves. What is left goes to
those that ask for more, the larger `surplus_priority` first; among equals by `weight`, in rounds (who is satisfied with
less leaves the rest to the others), in whole pieces of `PIECE`, and what rounding leaves goes piece by piece to those
whose remainder is largest. A queue's fair share is what its children divide. It never exceeds the queue's hard cap.

Managed are GPUs and every resource that some queue deserves or caps; of these a queue deserves nothing that it does not
name. What exceeds the cluster counts as all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rayorch.core.types import GPU, MAX_UNITS, UNIT, QueueId, QueueSpec, Resources

PIECE: Mapping[str, int] = {GPU: UNIT}
"""What a resource is divided in where not all can have what they ask for; other resources to the stored unit."""

UNLIMITED = MAX_UNITS // 64
"""Stored units from which on a queue deserves all there is: more than any cluster has, and can still be added up."""

ROUNDS = 1000
"""A bound that is never reached: each round satisfies a queue or is the last."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One queue of a level, for one resource. `wanted`: what it asks for, at most its cap."""

    id: QueueId
    deserved: int
    wanted: int
    weight: int
    priority: int


def managed(queues: Iterable[QueueSpec]) -> tuple[str, ...]:
    """The resources that are divided, by name."""
    names = {GPU}
    for spec in queues:
        names |= {name for name, _ in spec.deserved}
        names |= {name for name, _ in spec.hard_cap or ()}
    return tuple(sorted(names))


def fair_shares(
    queues: Iterable[QueueSpec], cluster: Resources, asked: Mapping[QueueId, Resources]
) -> dict[QueueId, dict[str, int]]:
    """Each queue's fair share by resource, in stored units. `asked`: what each subtree holds and waits for."""
    specs = sorted(queues, key=lambda spec: spec.id)
    children: dict[QueueId | None, list[QueueSpec]] = {}
    for spec in specs:
        children.setdefault(spec.parent, []).append(spec)
    shares: dict[QueueId, dict[str, int]] = {spec.id: {} for spec in specs}
    for name in managed(specs):
        levels: list[tuple[QueueId | None, int]] = [(None, cluster.units(name))]
        while levels:
            parent, amount = levels.pop()
            parts = [_part(spec, name, amount, asked) for spec in children.get(parent, ())]
            for id, share in _divide(parts, amount, PIECE.get(name, 1)).items():
                shares[id][name] = share
                levels.append((id, share))
    return shares


def _part(spec: QueueSpec, name: str, amount: int, asked: Mapping[QueueId, Resources]) -> _Part:
    wanted = asked.get(spec.id, Resources()).units(name)
    cap = spec.hard_cap.units(name) if spec.hard_cap is not None else 0
    if cap:
        wanted = min(wanted, cap)
    return _Part(spec.id, min(spec.deserved.units(name), amount), wanted, _weight(spec, name), spec.surplus_priority)


def _weight(spec: QueueSpec, name: str) -> int:
    return next((weight for resource, weight in spec.weights if resource == name), spec.weight)


def _divide(parts: list[_Part], amount: int, piece: int) -> dict[QueueId, int]:
    """The parts' shares of the amount: first what is deserved, then of the surplus."""
    shares = {part.id: min(part.deserved, part.wanted) for part in parts}
    left = amount - sum(shares.values())
    for priority in sorted({part.priority for part in parts}, reverse=True):
        if left > 0:
            equals = [part for part in parts if part.priority == priority and part.weight > 0]
            left = _divide_surplus(equals, shares, left, piece)
    return shares


def _divide_surplus(parts: list[_Part], shares: dict[QueueId, int], amount: int, piece: int) -> int:
    """Divide by weight among queues of one priority, adding to the shares; answers what nobody wanted."""
    rests: dict[QueueId, int] = {}
    for _ in range(ROUNDS):
        hungry = [part for part in parts if part.wanted > shares[part.id]]
        weights = sum(part.weight for part in hungry)
        if not hungry or amount <= 0:
            break
        whole, again = amount, False
        for part in hungry:
            exact, open_units = whole * part.weight, part.wanted - shares[part.id]
            if open_units * weights <= exact:
                given = open_units
                again |= open_units * weights < exact
                rests.pop(part.id, None)
            else:
                given = exact // weights // piece * piece
                rest = exact - given * weights
                if rest:
                    rests[part.id] = rest * 1_000_000 // weights
            shares[part.id] += given
            amount -= given
        if not again:
            break
    for id in sorted(rests, key=lambda id: (-rests[id], id)):
        given = min(piece, amount)
        shares[id] += given
        amount -= given
    return amount
