"""The columns of each list, and how workloads are fetched page by page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rayorch.cli import devices
from rayorch.cli.calendar import progress_text
from rayorch.cli.output import Column, Item, age, amount

if TYPE_CHECKING:
    from rayorch.client.connection import Client
    from rayorch.client.transport import JsonObject

PAGE = 500
MAX_REASON = 160
"""Characters of a reason in a table."""


def fetch_workloads(client: Client, states: Sequence[str], queue: str | None, limit: int) -> list[JsonObject]:
    """The newest workloads, oldest of them first as in a queue."""
    found: list[JsonObject] = []
    cursor = ""
    while len(found) < limit:
        page = client.page_of_workloads(min(PAGE, limit - len(found)), cursor, states, queue)
        items = page["items"]
        assert isinstance(items, list)
        found += [item for item in items if isinstance(item, dict)]
        cursor = str(page["nextCursor"])
        if not cursor:
            break
    return found[::-1]


def workload_columns(client: Client) -> list[Column]:
    """Ages are against the server's clock where it tells it, else this machine's."""
    now_s = time.time()

    def since(name: str, until: str = "endedAt") -> object:
        def value(item: Item) -> object:
            start, end = item[name], item.get(until)
            if not isinstance(start, int | float):
                return "-"
            return age((end if isinstance(end, int | float) else now_s) - start)

        return value

    del client
    return [
        Column("ID", lambda w: w["id"]),
        Column("KIND", lambda w: w["kind"]),
        Column("QUEUE", lambda w: w["queue"]),
        Column("PRI", lambda w: w["priority"], right=True),
        Column("GANG", _gang),
        Column("STATE", lambda w: w["state"]),
        Column("AGE", since("submittedAt")),  # type: ignore[arg-type]
        Column("RUN", since("startedAt")),  # type: ignore[arg-type]
        Column("RESTARTS", _restarts, right=True),
        Column("NODES/REASON", _where),
    ]


def bypass_lines(client: Client) -> list[str]:
    """One line for each Ray job that did not come through the queues; none from a gateway that does not know any."""
    from rayorch.core.errors import RayorchError

    try:
        found = client.bypasses().get("items")
    except RayorchError as error:
        if error.code != "not_found":
            raise
        return []
    lines = []
    for job in found if isinstance(found, list) else ():
        assert isinstance(job, dict)
        gpus = amount(job["resources"])
        holding = f", {gpus} GPUs" if gpus != "0" else ""
        lines.append(f"past the queues: Ray job {job['id']} of {job['who']}{holding}: {_brief(job['entrypoint'])}")
    return lines


def _gang(workload: Item) -> str:
    """2x8: members and GPUs of each; 2-4x8 when it may grow; 100*2x8 for an array of 100 entries."""
    array = workload.get("array")
    if isinstance(array, dict):
        return f"{array['count']}*{_gang({**workload, 'array': None})}"
    roles = workload["roles"]
    assert isinstance(roles, list)
    role = next((r for r in roles if r["name"] != "driver"), roles[0])
    count = str(role["min"]) if role["min"] == role["max"] else f"{role['min']}-{role['max']}"
    return f"{count}x{amount(role['resources'])}"


def _restarts(workload: Item) -> int:
    attempt = workload["attempt"]
    return max(0, attempt - 1) if isinstance(attempt, int) else 0


def _where(workload: Item) -> str:
    if isinstance(workload.get("progress"), dict) and not workload["endedAt"]:
        return progress_text(workload).partition(": ")[2]
    if workload["state"] == "PENDING":
        waits = workload.get("waits")
        reasons = [str(w["reason"]) for w in waits if w["blocks"]] if isinstance(waits, list) else []
        place = f"#{workload['position']} " if workload.get("position") else ""
        return place + ", ".join(reasons) if reasons or place else _brief(workload["reason"])
    members = workload.get("members")
    if isinstance(members, list) and members:
        return host_list(sorted({str(m["node"]) for m in members}))
    return _brief(workload["reason"])


def _brief(reason: object) -> str:
    """A reason may hold a whole traceback; a row has room for its beginning (-o json has all of it)."""
    text = " ".join(str(reason).split())
    return text if len(text) <= MAX_REASON else f"{text[: MAX_REASON - 1]}…"


def host_list(names: Sequence[str]) -> str:
    """gpu-[01-04],head: runs of numbered names as Slurm writes them."""
    groups: dict[tuple[str, int], list[int]] = {}
    plain: list[str] = []
    for name in names:
        head = name.rstrip("0123456789")
        digits = name[len(head) :]
        if digits and len(digits) < 10:
            groups.setdefault((head, len(digits)), []).append(int(digits))
        else:
            plain.append(name)
    shown = []
    for (head, width), numbers in groups.items():
        ranges = _ranges(sorted(numbers), width)
        alone = len(numbers) == 1
        shown.append(f"{head}{ranges}" if alone else f"{head}[{ranges}]")
    return ",".join(sorted(shown) + plain)


def _ranges(numbers: Sequence[int], width: int) -> str:
    parts: list[str] = []
    start = last = numbers[0]
    for number in [*numbers[1:], None]:
        if number is not None and number == last + 1:
            last = number
            continue
        parts.append(f"{start:0{width}d}" if start == last else f"{start:0{width}d}-{last:0{width}d}")
        if number is not None:
            start = last = number
    return ",".join(parts)


def explain_heading(data: Item) -> str:
    """PENDING for 4m12s in research/nlp, position 3, expected in 8m, evaluated 0.8 s ago (cycle 91822)."""
    workload = data["workload"]
    assert isinstance(workload, dict)
    now_s = time.time()
    parts = [f"{workload['state']} for {age(now_s - workload['submittedAt'])} in {workload['queue']}"]
    if data["position"]:
        parts.append(f"position {data['position']}")
    expected = data["estimatedStartAt"]
    if isinstance(expected, int | float):
        parts.append(f"expected in {age(expected - now_s)}")
    evaluated = data["evaluatedAt"]
    assert isinstance(evaluated, int | float)
    return f"{', '.join(parts)}; evaluated {max(0.0, now_s - evaluated):.1f} s ago (cycle {data['cycle']})"


def isolation_lines(data: Item) -> list[str]:
    """What its parts of GPUs are shared without."""
    workload = data["workload"]
    found = workload.get("isolation") if isinstance(workload, dict) else None
    return [f"note: {text}" for text in found] if isinstance(found, list) else []


def waits(data: Item) -> list[Item]:
    """The reasons, numbered."""
    found = data["waits"]
    assert isinstance(found, list)
    return [{**wait, "number": n} for n, wait in enumerate(found, start=1)]


def change_lines(data: Item) -> list[str]:
    """What would let it start, one line each, the mildest first; nothing where that was not looked for."""
    found = data.get("changes")
    if not isinstance(found, list) or not data["waits"]:
        return []
    if not found:
        return ["No single change of the request would let it start now."]
    lines = ["It would start if you"]
    for change in found:
        assert isinstance(change, dict)
        lines.append(f"  {change['change']}: {change['detail']}{_cost(change['victims'])}{_by(change['start'])}")
    return lines


def _cost(victims: object) -> str:
    """; it would stop a (240 GPU-s lost), take 2 seats of b."""
    assert isinstance(victims, list)
    parts = [
        f"stop {v['workload']} ({v['costGpuS']:.0f} GPU-s lost)"
        if v["stopped"]
        else f"take {v['seats']} of {v['workload']}"
        for v in victims
    ]
    return f"; it would {', '.join(parts)}" if parts else ""


def _by(start: object) -> str:
    if not isinstance(start, dict):
        return ""
    late = start["lateAt"] - time.time()
    return f", at the latest in about {age(max(0.0, late))}"


def plan_lines(document: Item, answer: Item) -> list[str]:
    """What one submission would do, in words."""
    metadata = document.get("metadata")
    name = metadata.get("name", "") if isinstance(metadata, dict) else ""
    if answer["lot"] == "refused":
        return [f"{name} would be refused: {answer['field'] or 'request'}: {answer['message']}"]
    lines = [f"{name}: {answer['lot']}{_cost(answer['victims'])}"]
    seats, start, delayed = answer["seats"], answer["start"], answer["delayed"]
    assert isinstance(seats, list) and isinstance(delayed, list)
    if seats:
        lines.append("  on " + ", ".join(f"{seat['node']} ({seat['members']})" for seat in seats))
    if answer["position"]:
        lines.append(f"  as number {answer['position']} of those that wait")
    if isinstance(start, dict):
        lines.append(f"  expected in {age(max(0.0, start['likelyAt'] - time.time()))}{_by(start)}")
    if delayed:
        lines.append("  later than without it: " + ", ".join(str(id) for id in delayed))
    lines += [f"  {wait['reason']}: {wait['detail']}" for wait in waits(answer)]
    return lines


PLAN_COLUMNS = (
    Column("WORKLOAD", lambda a: a.get("workload", "")),
    Column("LOT", lambda a: a["lot"]),
    Column("REASON", lambda a: a.get("reason") or a.get("message") or "-"),
)

WAIT_COLUMNS = (
    Column("#", lambda w: w["number"], right=True),
    Column("BLOCKS", lambda w: "yes" if w["blocks"] else "no"),
    Column("REASON", lambda w: w["reason"]),
    Column("DETAIL", lambda w: w["detail"]),
    Column("UNBLOCKS WHEN", lambda w: w["unblocks"] or "-"),
)

QUEUE_COLUMNS = (
    Column("QUEUE", lambda q: q["name"]),
    Column("DESERVED", lambda q: amount(q["deserved"]), right=True),
    Column("USED", lambda q: amount(q["used"]), right=True),
    Column("BORROWED", lambda q: amount(q["borrowed"]), right=True),
    Column("LENT", lambda q: amount(q["lent"]), right=True),
    Column("RUNNING", lambda q: q["running"], right=True),
    Column("PENDING", lambda q: q["pending"], right=True),
    Column("OLDEST", lambda q: age(q["oldestPendingS"]) or "-"),
    Column("SHARE", lambda q: _share(q), right=True),
    Column("MODE", lambda q: q.get("mode", "open")),
    Column("BUDGET", lambda q: budget_text(q), right=True),
    Column("LATELY", lambda q: f"{q.get('latelyGpuHours', 0):.1f} GPU-h", right=True),
)


def budget_text(queue: Item) -> str:
    """ "12.5 of 100 GPU-hours": what is used of a queue's budget; "-" where it has none."""
    budget = queue.get("budget")
    if not isinstance(budget, dict):
        return "-"
    return f"{float(budget['usedGpuHours']):.1f} of {float(budget['gpuHours']):g} h"


def _share(queue: Item) -> str:
    deserved, used = float(amount(queue["deserved"])), float(amount(queue["used"]))
    return f"{used / deserved:.2f}" if deserved else "-"


def _idle(node: Item) -> str:
    total, used, foreign = (float(amount(node[name])) for name in ("total", "used", "foreign"))
    return f"{max(0.0, total - used - foreign):g}"


def _topology(node: Item) -> str:
    levels = node["topology"]
    return "/".join(str(v) for v in levels.values()) if isinstance(levels, dict) else ""


def _model(node: Item) -> str:
    devices = node["devices"]
    models = [str(device["model"]) for device in devices if device["model"]] if isinstance(devices, list) else []
    name = "+".join(dict.fromkeys(models)) or "-"
    total = node["total"]
    cut = (
        [f"{n:g} x {key[4:]}" for key, n in total.items() if key.startswith("mig-")] if isinstance(total, dict) else []
    )
    return f"{name} ({', '.join(cut)})" if cut else name


NODE_COLUMNS = (
    Column("NODE", lambda n: n["name"]),
    Column("MODEL", _model),
    Column("GPUS", lambda n: amount(n["total"]), right=True),
    Column("IDLE", _idle, right=True),
    Column("FOREIGN", lambda n: amount(n["foreign"]), right=True),
    Column("STATE", lambda n: "drained" if n.get("drained") else n["health"]),
    Column("TOPOLOGY", _topology),
    Column("REASON", devices.node_trouble),
)

APPLY_COLUMNS = (
    Column("KIND", lambda r: r["kind"]),
    Column("ID", lambda r: r["id"]),
    Column("RESULT", lambda r: "applied" if r["accepted"] else f"refused: {r['field']}: {r['detail']}"),
)
