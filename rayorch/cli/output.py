"""How results are printed: tables for people, plain columns in pipes, json, yaml, names or csv for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import IO


class Format(StrEnum):
    """`-o`."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    CSV = "csv"


Item = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Column:
    """A heading and how an item fills it; `right` for numbers."""

    heading: str
    value: Callable[[Item], object]
    right: bool = False


def say(message: str) -> None:
    """A word to people: on stderr, so that stdout holds data only."""
    sys.stderr.write(f"{message}\n")


def show(items: Sequence[Item], columns: Sequence[Column], form: Format, key: str = "id") -> None:
    """Print a list on stdout. `key` is what `-o name` prints of each."""
    match form:
        case Format.JSON:
            sys.stdout.write(json.dumps(list(items), indent=2) + "\n")
        case Format.YAML:
            sys.stdout.write(_yaml(list(items)))
        case Format.NAME:
            sys.stdout.writelines(f"{item[key]}\n" for item in items)
        case Format.CSV:
            _csv(items, columns)
        case Format.TABLE:
            _table(items, columns)


def show_one(item: Item, form: Format, text: Callable[[], str], key: str = "id") -> None:
    """Print one thing: `text()` for people."""
    match form:
        case Format.JSON:
            sys.stdout.write(json.dumps(item, indent=2) + "\n")
        case Format.YAML:
            sys.stdout.write(_yaml(item))
        case Format.NAME:
            sys.stdout.write(f"{item[key]}\n")
        case _:
            sys.stdout.write(text().rstrip("\n") + "\n")


def for_people(stream: IO[str]) -> bool:
    """Whether a person watches the stream."""
    return stream.isatty()


def _yaml(value: object) -> str:
    import yaml

    plain = json.loads(json.dumps(value))
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    return text


def _csv(items: Sequence[Item], columns: Sequence[Column]) -> None:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([column.heading.lower() for column in columns])
    writer.writerows([_cell(column.value(item)) for column in columns] for item in items)


def _table(items: Sequence[Item], columns: Sequence[Column]) -> None:
    rows = [[_cell(column.value(item)) for column in columns] for item in items]
    if for_people(sys.stdout):
        _rich_table(rows, columns)
    else:
        _plain_table(rows, columns)


def _cell(value: object) -> str:
    """One line of text; control characters of a name or a reason must not reach a terminal."""
    text = "" if value is None else str(value)
    return "".join(c if c.isprintable() else " " for c in text)


def _plain_table(rows: Sequence[Sequence[str]], columns: Sequence[Column]) -> None:
    """Aligned columns, two spaces apart, no box: `awk` and `cut -c` can take it."""
    headings = [column.heading for column in columns]
    widths = [max(len(row[n]) for row in [headings, *rows]) for n in range(len(columns))]
    for row in [headings, *rows]:
        cells = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


STATE_STYLES = {
    "RUNNING": "green",
    "SUCCEEDED": "green",
    "ok": "green",
    "PENDING": "yellow",
    "STOPPING": "yellow",
    "draining": "yellow",
    "drained": "green",
    "cordoned": "yellow",
    "FAILED": "red",
    "lost": "red",
    "CANCELLED": "dim",
}


def _rich_table(rows: Sequence[Sequence[str]], columns: Sequence[Column]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.heading, justify="right" if column.right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=STATE_STYLES.get(cell, "")) for cell in row))
    Console(no_color=bool(os.environ.get("NO_COLOR"))).print(table)


# ---------------------------------------------------------------- cells


def age(seconds: object) -> str:
    """A length of time in its two largest units: 41s, 4m12s, 3h05m, 9d2h; empty for None."""
    if not isinstance(seconds, int | float):
        return ""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600}h"


def amount(amounts: object, resource: str = "GPU") -> str:
    """One resource of a JSON amount."""
    value = amounts.get(resource, 0) if isinstance(amounts, Mapping) else 0
    return f"{value:g}" if isinstance(value, int | float) else ""
