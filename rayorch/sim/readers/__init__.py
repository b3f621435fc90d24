"""Readers of traces: one module a form, each with `read(path, **options)`, and `open_trace`, which knows them all.

docs/traces.md has the columns, units and gaps of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rayorch.core.errors import SpecError
from rayorch.sim.readers import acme, alibaba, gavel, helios, journal, openb, pai, philly, pollux, sacct, swf, tiresias
from rayorch.sim.readers.rows import first_lines
from rayorch.sim.trace.model import Trace

Reader = Callable[..., Trace]


@dataclass(frozen=True, slots=True)
class Form:
    """One form of trace. `columns`: what its header has; `separator`: between them. Forms without a header have none
    and are recognised by `looks` at the first lines."""

    name: str
    read: Reader
    about: str
    columns: tuple[str, ...] = ()
    separator: str = ","
    looks: Callable[[list[str]], bool] | None = None

    def fits(self, lines: list[str]) -> bool:
        """Whether a file that begins with these lines is of this form."""
        if self.looks is not None:
            return self.looks(lines)
        header = {cell.strip().lstrip("\ufeff") for cell in lines[0].split(self.separator)} if lines else set()
        return header.issuperset(self.columns)


def _looks_like_json(lines: list[str]) -> bool:
    return bool(lines) and lines[0].lstrip("\ufeff \t").startswith("[")


def _mostly(rows: list[list[str]], fits: Callable[[list[str]], bool]) -> bool:
    """Whether at least half of the rows are so: one that is wrong does not make another form of it."""
    return bool(rows) and 2 * sum(map(fits, rows)) >= len(rows)


def _looks_like_swf(lines: list[str]) -> bool:
    rows = [line.split() for line in lines if line.strip() and not line.lstrip().startswith(";")]
    commented = bool(lines) and lines[0].lstrip().startswith(";")
    return commented if not rows else _mostly(rows, lambda row: len(row) == swf.FIELDS)


def _looks_like_gavel(lines: list[str]) -> bool:
    rows = [line.split("\t") for line in lines if line.strip()]
    return _mostly(rows, lambda row: len(row) in (len(gavel.NEW), len(gavel.OLD)))


def _looks_like_pai(lines: list[str]) -> bool:
    rows = [line.split(",") for line in lines if line.strip()]
    if rows and tuple(rows[0]) == pai.TASK_COLUMNS:
        return True
    return _mostly(rows, lambda row: len(row) == len(pai.TASK_COLUMNS) and _is_number(row[2]) and _is_number(row[4]))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


FORMS = (
    Form("philly", philly.read, "Microsoft Philly as a table", philly.COLUMNS),
    Form("philly-json", philly.read_json, "Microsoft Philly's cluster_job_log", looks=_looks_like_json),
    Form("openb", openb.read, "Alibaba openb 2023, a pod list", openb.COLUMNS),
    Form("pai", pai.read, "Alibaba PAI 2020, pai_task_table", looks=_looks_like_pai),
    Form("pai-simulator", pai.read_simulated, "Alibaba PAI 2020, its simulator's table", pai.SIMULATED_COLUMNS),
    Form("dlrm", alibaba.read_dlrm, "Alibaba 2025, disaggregated DLRM", alibaba.DLRM_COLUMNS),
    Form("spot-gpu", alibaba.read_spot, "Alibaba 2026, jobs on spot GPUs", alibaba.SPOT_COLUMNS),
    Form("helios", helios.read, "SenseTime Helios, cluster_log", helios.COLUMNS),
    Form("acme", acme.read, "Shanghai AI Lab Acme, trace_seren or trace_kalos", acme.COLUMNS),
    Form("pollux", pollux.read, "Pollux or Sia workload", pollux.COLUMNS),
    Form("tiresias", tiresias.read, "Tiresias job table", tiresias.COLUMNS),
    Form("gavel", gavel.read, "Gavel trace (10 or 7 columns)", looks=_looks_like_gavel),
    Form("swf", swf.read, "Standard Workload Format", looks=_looks_like_swf),
    Form("sacct", sacct.read, "Slurm sacct --parsable2", sacct.COLUMNS, sacct.SEPARATOR),
    Form("journal", journal.read, "our own journal, what happened live"),
)
"""Where several would fit, the first does."""

_BY_NAME = {form.name: form for form in FORMS}


def recognise(path: str | Path) -> Form:
    """The form of a file by how it begins. SpecError, with the forms that there are, where it is none of them."""
    path = Path(path)
    if not path.is_file():
        raise SpecError(str(path), "is not a file")
    if journal.is_journal(path):
        return _BY_NAME["journal"]
    lines = first_lines(path)
    for form in FORMS:
        if form.name != "journal" and form.fits(lines):
            return form
    begins = repr(lines[0][:80]) if lines else "nothing"
    known = "; ".join(f"{form.name}: {form.about}" for form in FORMS)
    raise SpecError(str(path), f"is no trace that is known, it begins with {begins}; there are {known}")


def open_trace(path: str | Path, format: str | None = None, **options: object) -> Trace:
    """The trace in a file, packed by gzip or not. `format`: the form's name where it is not to be recognised.

    `options` are those of its reader. SpecError for an unknown form or option, and for a file that is of another form.
    """
    if format is not None and format not in _BY_NAME:
        raise SpecError("format", f"must be one of {', '.join(_BY_NAME)}, got {format!r}")
    form = _BY_NAME[format] if format is not None else recognise(path)
    known = form.read.__code__.co_varnames[1 : form.read.__code__.co_argcount]
    for name in options:
        if name not in known:
            raise SpecError(name, f"is no option of {form.name}; there are {', '.join(known) or 'none'}")
        _check_option(name, options[name], form.read.__annotations__[name])
    return form.read(path, **options)


def _check_option(name: str, value: object, kind: str) -> None:
    """`kind`: the annotation in the reader's signature. A value may be anything: options come from a command line."""
    if value is None and "None" in kind:
        return
    if kind == "int":
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise SpecError(name, f"must be a whole number from 0, got {value!r}")
    elif kind == "bool":
        if not isinstance(value, bool):
            raise SpecError(name, f"must be true or false, got {value!r}")
    elif value is None or isinstance(value, int | float):
        raise SpecError(name, f"must be {'a file' if 'Path' in kind else 'a word'}, got {value!r}")
