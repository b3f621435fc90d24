"""`rayorch queue`: one queue with all its limits; hold, drain, open and delete it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from rayorch.cli.exits import guarded
from rayorch.cli.output import Format, Item, age, say, show_one
from rayorch.cli.rows import budget_text

if TYPE_CHECKING:
    from rayorch.client.connection import Client

app = typer.Typer(help="One queue: its limits, its mode, its end.", no_args_is_help=True, rich_markup_mode=None)

QueueArgument = Annotated[str, typer.Argument(help="A queue's path.", metavar="QUEUE")]
Address = Annotated[str | None, typer.Option("--address", help="The gateway, else RAYORCH_ADDRESS.")]
Output = Annotated[Format, typer.Option("--output", "-o", help="table, json, yaml, name or csv.")]
Drain = Annotated[bool, typer.Option("--drain", help="Also one in use: it goes with its last work.")]


@app.command()
@guarded
def show(queue: QueueArgument, output: Output = Format.TABLE, address: Address = None) -> None:
    """All limits of a queue, what it holds, and what is used of its budget."""
    from rayorch.core.errors import SpecError

    with _client(address) as client:
        found = next((row for row in client.queues() if row["name"] == queue), None)
    if found is None:
        raise SpecError("queue", f"queue {queue!r} does not exist")
    lines = lines_of(found, time.time())
    show_one(found, output, lambda: "\n".join(f"{name + ':':24}{value}" for name, value in lines), key="name")


@app.command()
@guarded
def hold(queue: QueueArgument, address: Address = None) -> None:
    """Start nothing of it, and of the queues below it; what runs goes on."""
    _set(queue, "hold", address)


@app.command()
@guarded
def drain(queue: QueueArgument, address: Address = None) -> None:
    """Start nothing of it, and stop what runs: it is requeued and waits."""
    _set(queue, "drain", address)


@app.command("open")
@guarded
def open_(queue: QueueArgument, address: Address = None) -> None:
    """Let its work start again."""
    _set(queue, "open", address)


@app.command()
@guarded
def delete(queue: QueueArgument, drain: Drain = False, address: Address = None) -> None:
    """Remove a queue."""
    with _client(address) as client:
        client.delete_queue(queue, drain)
    say(f"{queue} is {'being ' if drain else ''}deleted")


def _client(address: str | None) -> Client:
    from rayorch.client.address import resolve
    from rayorch.client.connection import Client
    from rayorch.client.transport import Http

    return Client(Http(resolve(address)))


def _set(queue: str, mode: str, address: str | None) -> None:
    with _client(address) as client:
        client.set_queue_mode(queue, mode)
    say(f"{queue}: {mode}")


def lines_of(queue: Item, now_s: float) -> Iterator[tuple[str, str]]:
    """(what, how much) of one queue; limits that it does not set are left out."""
    yield "queue", str(queue["name"])
    yield "mode", str(queue["mode"])
    for name, label in (
        ("deserved", "deserved"), ("guaranteed", "guaranteed, never lent"), ("borrowLimit", "may borrow"),
        ("lendLimit", "may lend"), ("hardCap", "at most"), ("used", "used"), ("borrowed", "borrowed"), ("lent", "lent"),
    ):  # fmt: skip
        if queue[name]:
            yield label, _amounts(queue[name])
    yield "weight", f"{queue['weight']}, surplus priority {queue['surplusPriority']}"
    users = queue["perUser"]
    if isinstance(users, dict) and any(users.values()):
        said = [_amounts(users["resources"])] if users["resources"] else []
        counts = (("maxRunning", "running"), ("maxPending", "waiting"))
        said += [f"{users[key]} {word}" for key, word in counts if users[key] is not None]
        yield "each user", ", ".join(said)
    cells = queue.get("cells")
    for cell in cells if isinstance(cells, list) else ():
        yield "cells", cells_text(cell)
    yield "workloads", f"{queue['running']} running, {queue['pending']} waiting"
    budget = queue["budget"]
    if isinstance(budget, dict):
        yield "budget", budget_text(queue) + "".join(_burn(budget, now_s))


def cells_text(cell: Item) -> str:
    """ "2 of level rack (H100): 1 bound, 1 owed"; and how many of these can't be had now."""
    size = f"{cell['gpusEach']} GPUs each" if cell.get("gpusEach") else ""
    words = ", ".join(str(word) for word in (cell["model"], size) if word)
    model = f" ({words})" if words else ""
    said = f"{cell['count']} of level {cell['level']}{model}"
    if cell["bound"] is None:
        return f"{said}, which no plan keeps"
    lacking = f", {cell['lacking']} of them can't be had now" if cell["lacking"] else ""
    there = cell.get("there")
    if lacking and isinstance(there, int) and isinstance(cell["count"], int) and there < cell["count"]:
        lacking += f": the cluster has {there or 'none'} of that kind"
    return f"{said}: {cell['bound']} bound, {cell['owed']} owed{lacking}"


def _burn(budget: Item, now_s: float) -> Iterator[str]:
    if budget["burn"] is not None:
        yield f", burns at {float(str(budget['burn'])):.2f} of an even rate"
    if budget["spentAt"] is not None:
        yield f", spent in {age(max(0.0, float(str(budget['spentAt'])) - now_s))}"
    if budget["again"] is not None:
        yield f", anew in {age(max(0.0, float(str(budget['again'])) - now_s))}"


def _amounts(value: object) -> str:
    return ", ".join(f"{number:g} {name}" for name, number in value.items()) if isinstance(value, dict) else "-"
