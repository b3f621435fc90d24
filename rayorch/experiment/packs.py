"""Jobs that share GPUs, from words such as "pairs.csv,gains=1.3": how fast each is beside another, and who may share.

The file is a table of throughputs alone and in pairs, in the form in which Gavel's were published (JSON), or a CSV with
the columns `kind,beside,rate`: how fast a kind is beside another on one GPU, of what it is alone. A job's kind is its
name.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from rayorch.core.errors import SpecError
from rayorch.core.types import NodeSpec
from rayorch.experiment.nodes import Machines
from rayorch.experiment.words import bounded, pairs_of
from rayorch.sim.models import Colocation, SimModels
from rayorch.sim.models.colocation import may_pack, packed, shares
from rayorch.sim.readers.gavel import REFERENCE, read_throughputs
from rayorch.sim.readers.rows import first_lines, lines_of
from rayorch.sim.trace.model import Trace

FIELD = "--colocation"
GAINS = 1.3
"""What two that may share a GPU do together, of what one alone does on it, where nothing is said."""
SLOWEST = 0.5
"""And how fast each of them is at least."""
KEYS = ("parts", "gains", "slowest", "gpu", "unknown", "exact")
COLUMNS = ("kind", "beside", "rate")


class Parts(StrEnum):
    """What part of a GPU a job of one GPU asks for."""

    PAIRS = "pairs"  # so much that those fit together which gain by it
    HALF = "half"  # half of one, whatever it is
    AS_ASKED = "asked"  # what the trace says


@dataclass(frozen=True, slots=True)
class Packing:
    """How a trace is packed. `exact`: nodes name their GPUs, so that the profile chooses which one a part goes to."""

    colocation: Colocation
    parts: Parts = Parts.PAIRS
    gains: float = GAINS
    slowest: float = SLOWEST
    exact: bool = True

    def offered(self, trace: Trace) -> Trace:
        """The trace with the parts that its jobs ask for. SpecError where that changes nothing and should."""
        kinds = self.colocation.kinds
        able = [job for job in trace.jobs if may_pack(job)]
        if self.parts is Parts.AS_ASKED:
            return trace
        if not able:
            raise SpecError(FIELD, f"no job of {trace.name} is one member with one GPU, so none can share one")
        if self.parts is Parts.HALF:
            return packed(trace, dict.fromkeys({job.name for job in able}, 0.5))
        known = set(kinds)
        if not any(job.name in known for job in able):
            names = ", ".join(repr(name) for name in sorted({job.name for job in able})[:3])
            measured = ", ".join(kinds[:3])
            raise SpecError(
                FIELD, f"no job of {trace.name} has a measured kind ({measured}, …) as its name, got {names}"
            )
        return packed(trace, shares(self.colocation, self.gains, self.slowest))

    def nodes(self, machines: Machines) -> Machines:
        """The machines as packing needs them."""
        if not self.exact:
            return machines

        def named(node: NodeSpec) -> NodeSpec:
            return replace(node, exact=True)

        pools = tuple(replace(pool, node=named(pool.node)) for pool in machines.pools)
        return replace(machines, nodes=tuple(named(node) for node in machines.nodes), pools=pools)


def packed_as(
    text: str | None, trace: Trace, machines: Machines, models: SimModels
) -> tuple[Trace, Machines, SimModels]:
    """All three as the words say; None: as they are."""
    if text is None:
        return trace, machines, models
    packing = packing_of(text)
    return packing.offered(trace), packing.nodes(machines), replace(models, colocation=packing.colocation)


def packing_of(text: str) -> Packing:
    """FILE[,KEY=VALUE…] of `KEYS`; SpecError for anything that can't be."""
    path, *rest = text.split(",")
    given = pairs_of(rest, KEYS, FIELD, " after the file")
    if not path.strip():
        raise SpecError(FIELD, f"must be FILE[,KEY=VALUE…], got {text!r}")

    def figure(key: str, default: float, least: float, most: float) -> float:
        return bounded(given.get(key, str(default)), least, most, FIELD, key, text)

    try:
        parts = Parts(given.get("parts", Parts.PAIRS))
    except ValueError:
        raise SpecError(FIELD, f"parts must be one of {', '.join(Parts)}, got {text!r}") from None
    if parts is not Parts.PAIRS and (useless := [key for key in ("gains", "slowest") if key in given]):
        raise SpecError(FIELD, f"{useless[0]} is of parts=pairs only, got {text!r}")
    if given.get("exact", "yes") not in ("yes", "no"):
        raise SpecError(FIELD, f"exact must be yes or no, got {text!r}")
    colocation = _read(Path(path.strip()), given.get("gpu"))
    return Packing(
        replace(colocation, unknown=figure("unknown", colocation.unknown, 0.01, 1.0)),
        parts,
        figure("gains", GAINS, 0.0, 2.0),
        figure("slowest", SLOWEST, 0.0, 1.0),
        given.get("exact", "yes") == "yes",
    )


def _read(path: Path, gpu: str | None) -> Colocation:
    """The pairs in a file; by what it begins with it is JSON or a table."""
    try:
        lines = first_lines(path, 1)
        if lines and lines[0].lstrip().startswith("{"):
            table = read_throughputs(path)
            model = gpu or REFERENCE
            if model not in table.packed:
                raise SpecError(FIELD, f"gpu must be one of {', '.join(sorted(table.packed))}, got {model!r}")
            found = Colocation.measured(table.alone[model], table.packed[model])
        elif gpu is not None:
            raise SpecError(FIELD, f"gpu is of tables with several models, and {path} is none")
        else:
            found = Colocation(_rows(path))
    except SpecError as error:
        raise error if error.field == FIELD else SpecError(FIELD, f"{error.field}: {error.message}") from error
    if not found.pairs:
        raise SpecError(FIELD, f"{path} holds no pair of jobs on one GPU")
    return found


def _rows(path: Path) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    rows = csv.reader(text for _, text in lines_of(path))
    try:
        header = [cell.strip().lstrip("\ufeff") for cell in next(rows, [])]
        if header != list(COLUMNS):
            got = ",".join(header)[:60]
            raise SpecError(str(path), f"must begin with {','.join(COLUMNS)}, or be JSON, got {got!r}")
        for row in rows:
            if row:
                _add(found, [cell.strip() for cell in row], f"{path}, line {rows.line_num}")
    except csv.Error as error:
        raise SpecError(f"{path}, line {rows.line_num}", f"is not a row: {error}") from error
    return found


def _add(found: dict[tuple[str, str], float], row: list[str], where: str) -> None:
    if len(row) != len(COLUMNS) or not all(row):
        raise SpecError(where, f"must be {', '.join(COLUMNS)}, got {','.join(row)[:60]!r}")
    if (row[0], row[1]) in found:
        raise SpecError(where, f"{row[0]} beside {row[1]} is given twice")
    found[row[0], row[1]] = bounded(row[2], 0.0, 2.0, where, "rate", row[2])
