"""`rayorch capacity`: where nodes come from, what has been asked for, and why what is missing is missing."""

from __future__ import annotations

import time
from collections.abc import Callable

from rayorch.cli.output import Column, Item, age, amount


def error_of(capacity: Item) -> str:
    """Why the groups are not known now, empty while they are."""
    return str(capacity["error"])


def groups_of(capacity: Item) -> list[Item]:
    """Its node groups."""
    found = capacity["groups"]
    return [group for group in found if isinstance(group, dict)] if isinstance(found, list) else []


def launches_of(capacity: Item) -> list[Item]:
    """What Ray's autoscaler has asked for."""
    autoscaler = capacity["autoscaler"]
    found = autoscaler["launches"] if isinstance(autoscaler, dict) else []
    return [launch for launch in found if isinstance(launch, dict)] if isinstance(found, list) else []


def unmet_of(capacity: Item) -> list[str]:
    """Demands that no node type of Ray's autoscaler can take."""
    autoscaler = capacity["autoscaler"]
    found = autoscaler["unmet"] if isinstance(autoscaler, dict) else []
    return [str(demand) for demand in found] if isinstance(found, list) else []


def _phase(name: str) -> Callable[[Item], object]:
    def count(group: Item) -> object:
        nodes = group["nodes"]
        return (nodes.get(name) or "") if isinstance(nodes, dict) else ""

    return count


def _order(group: Item) -> str:
    order, shrinks_to = group["order"], group["shrinksTo"]
    if isinstance(order, dict):
        left_s = float(order["expectedAt"]) - time.time()
        due = f"in {age(left_s)}" if left_s >= 0 else f"{age(-left_s)} late"
        return f"{order['from']}→{order['to']} {due}"
    return "" if shrinks_to is None else f"→{shrinks_to}"


def _why(group: Item) -> str:
    """Whom the order is for, why the group is left alone, and what its machines wait for."""
    parts: list[str] = []
    order, back_off, machines = group["order"], group["backOff"], group["machines"]
    if isinstance(order, dict) and isinstance(order["beneficiaries"], list) and order["beneficiaries"]:
        parts.append(f"for {', '.join(map(str, order['beneficiaries']))}")
    if isinstance(back_off, dict) and (left_s := float(back_off["until"]) - time.time()) > 0:
        parts.append(f"left alone for {age(left_s)}: {back_off['reason']}")
    if isinstance(machines, list):
        waiting = [m for m in machines if isinstance(m, dict) and m["phase"] != "leaving" and m["reason"]]
        parts += dict.fromkeys(str(machine["reason"]) for machine in waiting)
    return "; ".join(parts)


GROUP_COLUMNS = (
    Column("GROUP", lambda g: g["name"]),
    Column("MODEL", lambda g: g["model"] or "-"),
    Column("SPOT", lambda g: "spot" if g["spot"] else ""),
    Column("GPUS", lambda g: amount(g["node"]), right=True),
    Column("HOSTS", lambda g: g["hosts"], right=True),
    Column("REPLICAS", lambda g: g["replicas"], right=True),
    Column("MIN-MAX", lambda g: f"{g['min']}-{g['max']}", right=True),
    Column("RUNNING", _phase("running"), right=True),
    Column("PENDING", _phase("pending"), right=True),
    Column("LEAVING", _phase("leaving"), right=True),
    Column("FAILED", _phase("failed"), right=True),
    Column("ORDER", _order),
    Column("WHY", _why),
)

LAUNCH_COLUMNS = (
    Column("AUTOSCALER", lambda n: n["group"]),
    Column("NODES", lambda n: n["count"], right=True),
    Column("STATE", lambda n: n["state"]),
    Column("REASON", lambda n: " ".join(filter(None, (str(n["machine"]), str(n["reason"]))))),
)
