"""`rayorch entries`, `rayorch reservation`, `rayorch cron`: arrays entry by entry, room in advance, schedules."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from rayorch.cli.exits import guarded
from rayorch.cli.output import Column, Format, Item, age, amount, say, show

if TYPE_CHECKING:
    from rayorch.client.connection import Client

reservations = typer.Typer(help="Room that is held in advance.", no_args_is_help=True, rich_markup_mode=None)
crons = typer.Typer(help="What is submitted by a schedule.", no_args_is_help=True, rich_markup_mode=None)

Address = Annotated[str | None, typer.Option("--address", help="The gateway, else RAYORCH_ADDRESS.")]
Output = Annotated[Format, typer.Option("--output", "-o", help="table, json, yaml, name or csv.")]


def _client(address: str | None) -> Client:
    from rayorch.client.address import resolve
    from rayorch.client.connection import Client
    from rayorch.client.transport import Http

    return Client(Http(resolve(address)))


@guarded
def entries(
    array: Annotated[str, typer.Argument(help="An array's id.", metavar="ID")],
    first: Annotated[int, typer.Option("--first", min=0, help="From this index on.")] = 0,
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, help="At most this many.")] = 100,
    output: Output = Format.TABLE,
    address: Address = None,
) -> None:
    """Entries of an array, also those that are no workloads of their own now."""
    with _client(address) as client:
        items = client.entries(array, first, limit)
        if output is Format.TABLE:
            say(progress_text(client.workload(array).info()))
    show(items, ENTRY_COLUMNS, output)


@reservations.command("list")
@guarded
def list_reservations(output: Output = Format.TABLE, address: Address = None) -> None:
    """Every reservation with what it holds now; set them with `rayorch apply`."""
    with _client(address) as client:
        show(client.reservations(), RESERVATION_COLUMNS, output, key="name")


@reservations.command("delete")
@guarded
def delete_reservation(
    name: Annotated[str, typer.Argument(help="Its name.", metavar="NAME")], address: Address = None
) -> None:
    """Hold it no longer; what runs in it goes on."""
    with _client(address) as client:
        client.delete_reservation(name)
    say(f"reservation {name} is held no longer")


@crons.command("list")
@guarded
def list_crons(output: Output = Format.TABLE, address: Address = None) -> None:
    """Every cron with what has come of it; set them with `rayorch apply`."""
    with _client(address) as client:
        show(client.crons(), CRON_COLUMNS, output, key="name")


@crons.command("delete")
@guarded
def delete_cron(
    name: Annotated[str, typer.Argument(help="Its name.", metavar="NAME")], address: Address = None
) -> None:
    """Submit no more of it; what was submitted goes on."""
    with _client(address) as client:
        client.delete_cron(name)
    say(f"cron {name} submits no more")


def progress_text(workload: Item) -> str:
    """sweep: of 100 entries 20 run, 61 wait, 18 succeeded, 1 failed."""
    progress = workload["progress"]
    if not isinstance(progress, dict):
        return f"{workload['id']} is no array"
    total = sum(int(count) for count in progress.values())
    words = {
        "running": "run",
        "waiting": "wait",
        "succeeded": "succeeded",
        "failed": "failed",
        "cancelled": "cancelled",
    }
    parts = [f"{progress[name]} {word}" for name, word in words.items() if progress[name]]
    return f"{workload['id']}: of {total} entries {', '.join(parts)}"


def _moment(name: str) -> Callable[[Item], str]:
    def shown(item: Item) -> str:
        moment = item[name]
        if not isinstance(moment, int | float):
            return "-"
        left_s = moment - time.time()
        return f"in {age(left_s)}" if left_s >= 0 else f"{age(-left_s)} ago"

    return shown


ENTRY_COLUMNS = (
    Column("ID", lambda e: e["id"]),
    Column("STATE", lambda e: e["state"]),
    Column("ATTEMPT", lambda e: e["attempt"], right=True),
    Column("EXIT", lambda e: "-" if e["exitCode"] is None else e["exitCode"], right=True),
)

RESERVATION_COLUMNS = (
    Column("RESERVATION", lambda r: r["name"]),
    Column("QUEUE", lambda r: r["queue"]),
    Column("STATE", lambda r: f"{r['state']}, standing" if r["standing"] else r["state"]),
    Column("STARTS", _moment("startsAt")),
    Column("ENDS", _moment("endsAt")),
    Column("BUNDLES", lambda r: f"{r['count']}x{amount(r['resources'])}"),
    Column("IN USE", lambda r: r["inUse"], right=True),
    Column("SET ASIDE", lambda r: r["setAside"], right=True),
    Column("MISSING", lambda r: r["missing"], right=True),
)

CRON_COLUMNS = (
    Column("CRON", lambda c: c["name"]),
    Column("QUEUE", lambda c: c["queue"]),
    Column("SCHEDULE", lambda c: f"{c['schedule']} {c['timeZone']}"),
    Column("NEXT", lambda c: "suspended" if c["suspended"] else _moment("nextAt")(c)),
    Column("LAST", lambda c: c["lastWorkload"] or "-"),
    Column("SUBMITTED", lambda c: c["submitted"], right=True),
    Column("NOT", lambda c: int(str(c["skipped"])) + int(str(c["missedCount"])) + int(str(c["refused"])), right=True),
    Column("NOTE", lambda c: c["note"]),
)
