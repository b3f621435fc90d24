"""`rayorch repartition`: which idle MIG GPUs to cut anew for what waits. It shows; an operator acts."""

from __future__ import annotations

from rayorch.cli.output import Column, Item


def cuts_of(data: Item) -> list[Item]:
    """The cuts of an answer."""
    found = data["cuts"]
    return [cut for cut in found if isinstance(cut, dict)] if isinstance(found, list) else []


def words_of(data: Item) -> list[str]:
    """The steps of each cut, and who is not served, line by line."""
    lines: list[str] = []
    for cut in cuts_of(data):
        steps = cut["steps"]
        lines.append(f"GPU {cut['gpu']} of {cut['name']}:")
        lines += [f"  {number}. {step}" for number, step in enumerate(steps if isinstance(steps, list) else [], 1)]
    unserved = data["unserved"]
    for entry in unserved if isinstance(unserved, list) else []:
        if isinstance(entry, dict):
            lines.append(f"{entry['workload']}: {entry['reason']}")
    return lines or ["nothing waits for MIG instances that idle GPUs could be cut into"]


def _list(value: object) -> str:
    return ",".join(str(v) for v in value) if isinstance(value, list) and value else "-"


def _after(cut: Item) -> str:
    found = cut["after"]
    instances = [i for i in found if isinstance(i, dict)] if isinstance(found, list) else []
    return _list([f"{i['profile']}@{i['start']}" for i in instances])


CUT_COLUMNS = (
    Column("NODE", lambda c: c["name"]),
    Column("GPU", lambda c: c["gpu"]),
    Column("MODEL", lambda c: c["model"]),
    Column("NOW", lambda c: _list(c["before"])),
    Column("THEN", _after),
    Column("FOR", lambda c: _list(c["serves"])),
)
