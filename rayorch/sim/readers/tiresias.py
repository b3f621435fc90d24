"""The job tables of Tiresias' simulator (Gu, NSDI'19), and its history of service times."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rayorch.sim.readers.rows import Refused, Table, TraceBuilder, lines_of, members_of, number, whole
from rayorch.sim.trace.model import BadRow, Trace, TraceJob

COLUMNS = ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration", "interval")


def read(path: str | Path, per_node: int = 0) -> Trace:
    """job_id, num_gpu, submit_time [s], iterations (the declared steps), model_name, duration [s], interval.

    `per_node`: see `rows.members_of`.
    """
    builder = TraceBuilder("tiresias", path)

    def job(line: int, row: Mapping[str, str]) -> None:
        members, each = members_of(whole(row["num_gpu"], "num_gpu", least=1), per_node)
        builder.add(
            TraceJob(
                row["job_id"],
                number(row["submit_time"], "submit_time"),
                number(row["duration"], "duration"),
                builder.ask(members, each),
                name=builder.text(row["model_name"]),
                steps=whole(row["iterations"], "iterations", least=1, most=10**12),
                line=line,
            )
        )

    builder.each(Table(path, COLUMNS, builder), job)
    return builder.build(f"columns {', '.join(COLUMNS)}")


def read_service_times(path: str | Path) -> tuple[tuple[float, ...], tuple[BadRow, ...]]:
    """(service times, refused rows) of a history such as `yarn-gput1000.csv`: one a line [GPU-s], after a header."""
    found: list[float] = []
    refused: list[BadRow] = []
    for line, text in lines_of(path):
        if not text.strip() or (line == 1 and not text.strip()[0].isdigit()):
            continue
        try:
            found.append(number(text, "a service time"))
        except Refused as error:
            refused.append(BadRow(line, str(error)))
    return tuple(found), tuple(refused)
