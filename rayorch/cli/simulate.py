"""`rayorch simulate`: replay a trace under profiles. Needs no gateway; Ray only with `--parallel`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rayorch.cli import exits
from rayorch.cli.exits import guarded_as
from rayorch.cli.interrupts import loading
from rayorch.cli.output import Column, Format, Item, say, show

if TYPE_CHECKING:
    from rayorch.core.types import QueueSpec
    from rayorch.experiment.side_by_side import Report

TraceFile = Annotated[str, typer.Argument(help="A trace's file; docs/traces.md lists the forms.", metavar="TRACE")]
ClusterSpec = Annotated[
    str | None,
    typer.Option("--cluster", "-c", help="64x8:H100, a YAML file with a Cluster document; else the trace's machines."),
]
Profiles = Annotated[
    list[str] | None,
    typer.Option("--profile", "-p", help="A preset, a YAML file or module:NAME; repeat it to compare. Else default."),
]
Loads = Annotated[
    list[str] | None,
    typer.Option("--load", help="Compress arrivals to this offered load: 0.8 or 0.5,0.8,1.0. Else as in the trace."),
]
Seeds = Annotated[str, typer.Option("--seeds", "-s", help="0-4 or 0,2,5.")]
Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="Only the trace's first so many.")]
Out = Annotated[Path | None, typer.Option("--out", help="A folder for runs and reports.")]
Resume = Annotated[bool, typer.Option("--resume", help="Take from --out what has finished already.")]
Page = Annotated[Path | None, typer.Option("--html", help="Write a page with plots here.")]
Measures = Annotated[
    list[str] | None, typer.Option("--measure", "-m", help="Of the table's figures, by key; or all. Repeatable.")
]
TraceFormat = Annotated[str | None, typer.Option("--trace-format", help="The trace's form, where it doesn't show.")]
TraceOptions = Annotated[
    list[str] | None, typer.Option("--trace-option", help="KEY=VALUE for the trace's reader; repeatable.")
]
Racks = Annotated[int | None, typer.Option("--racks", min=1, help="Racks of a short --cluster.")]
QueueFile = Annotated[Path | None, typer.Option("--queues", help="A YAML file of Queue documents.")]
Quotas = Annotated[bool, typer.Option("--quota-by-use", help="Quotas in proportion to what queues' jobs ask for.")]
ResampleOption = Annotated[
    str, typer.Option("--resample", help="blocks, weeks or fitted: each seed plays another trace like this one.")
]
Until = Annotated[str | None, typer.Option("--until", help="End of the simulated time, e.g. 30d.")]
Spread = Annotated[float, typer.Option("--runtime-spread", help="Run times differ from the trace: log-deviation.")]
ToldOption = Annotated[bool, typer.Option("--told/--no-told", help="Whether policies are told run times.")]
Misstate = Annotated[
    str | None,
    typer.Option(
        "--misstate",
        help="FACTOR[:NOISE] of told run times; provision=FACTOR[:NOISE] of nodes' delays; or both: 2,provision=3.",
    ),
]
Restart = Annotated[str | None, typer.Option("--restart", help="What each new attempt takes, e.g. 30s.")]
Checkpoints = Annotated[str | None, typer.Option("--checkpoint-every", help="Work between checkpoints, e.g. 30m.")]
NodeMtbf = Annotated[str | None, typer.Option("--node-mtbf", help="Each node fails once in so long, e.g. 60d.")]
NodeRepair = Annotated[str, typer.Option("--node-repair", help="How long it is away (median).")]
Faults = Annotated[
    list[str] | None,
    typer.Option("--fault", help="KIND=TIME[,repair=4h,…]: node, device, link, slow or spot; repeatable."),
]
Provision = Annotated[
    str | None, typer.Option("--provision", help="Nodes are ordered when needed and take so long (median), e.g. 3m.")
]
Refused = Annotated[float, typer.Option("--provision-refused", help="Part of the orders that is never filled.")]
MinNodes = Annotated[int, typer.Option("--min-nodes", min=0, help="So many of each kind are never given back.")]
Serve = Annotated[
    list[str] | None,
    typer.Option("--serve", help="NAME,peak=REQUESTS[,replicas=1-16,…]: an application beside the jobs; repeatable."),
]
Elastic = Annotated[
    str | None, typer.Option("--elastic", help="0.5:2: jobs run with half to twice the members that they ask for.")
]
Colocation = Annotated[
    str | None,
    typer.Option("--colocation", help="FILE[,gains=1.3,…]: jobs of one GPU share one, as fast as measured pairs say."),
]
Serial = Annotated[float, typer.Option("--serial", help="Part of a step that more members don't shorten.")]
PerJob = Annotated[bool, typer.Option("--per-job", help="Keep what became of each job in --out.")]
Fragmentation = Annotated[
    bool, typer.Option("--fragmentation/--no-fragmentation", help="Whether fragmentation is measured over time.")
]
Parallel = Annotated[int, typer.Option("--parallel", min=0, help="So many runs at once on Ray.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
FormatOption = Annotated[
    Format, typer.Option("--output", "-o", "--format", help="table, json, yaml, csv, or name (of the profiles).")
]


@guarded_as("interrupted")
def simulate(
    trace: TraceFile,
    cluster: ClusterSpec = None,
    profile: Profiles = None,
    seeds: Seeds = "0",
    load: Loads = None,
    jobs: Jobs = None,
    out: Out = None,
    resume: Resume = False,
    html: Page = None,
    measure: Measures = None,
    trace_format: TraceFormat = None,
    trace_option: TraceOptions = None,
    racks: Racks = None,
    queues: QueueFile = None,
    quota_by_use: Quotas = False,
    resample: ResampleOption = "none",
    until: Until = None,
    runtime_spread: Spread = 0.0,
    told: ToldOption = True,
    misstate: Misstate = None,
    restart: Restart = None,
    checkpoint_every: Checkpoints = None,
    node_mtbf: NodeMtbf = None,
    node_repair: NodeRepair = "4h",
    fault: Faults = None,
    elastic: Elastic = None,
    colocation: Colocation = None,
    serial: Serial = 0.05,
    provision: Provision = None,
    provision_refused: Refused = 0.0,
    min_nodes: MinNodes = 0,
    serve: Serve = None,
    per_job: PerJob = False,
    fragmentation: Fragmentation = True,
    parallel: Parallel = 0,
    quiet: Quiet = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Replay a trace under profiles on a simulated cluster and compare what comes out."""
    with loading("interrupted: nothing has been played"):
        from rayorch.experiment import options
        from rayorch.experiment.side_by_side import simulate as play

    _check_files(html, out, resume)
    keys = _keys(measure)
    world = partial(options.models_of, runtime_spread, told, misstate, restart, checkpoint_every, serial=serial)
    world = partial(world, node_mtbf=node_mtbf, node_repair=node_repair, faults=fault or ())
    report = play(
        trace,
        cluster,
        profile or ("default",),
        seeds=options.numbers_of(seeds, "--seeds"),
        loads=load or (),
        jobs=jobs,
        elastic=elastic,
        colocation=colocation,
        provision=provision is not None,
        min_nodes=min_nodes,
        serve=serve or (),
        queues=() if queues is None else _queues(queues),
        quota_by_use=quota_by_use,
        models=world(provision=provision, refused=provision_refused),
        until_s=None if until is None else options.seconds(until, "--until"),
        resample=resample,
        racks=racks,
        trace_format=trace_format,
        trace_options=options.reader_options(trace_option or ()),
        out=out,
        resume=resume,
        per_job=per_job,
        fragmentation=fragmentation,
        parallel=parallel,
        progress=False if quiet else None,
        partial=True,
    )
    _end(report, keys, output, html, out, quiet)


def _end(
    report: Report, keys: tuple[str, ...], output: Format, html: Path | None, out: Path | None, quiet: bool
) -> None:
    """Show the report and write the page; say how to go on where it is not complete."""
    if quiet and not report.complete and report.unkept is None:
        say(f"interrupted after {len(report.runs)} of {report.wanted} runs")
    if report.runs or output is Format.JSON:
        _tell(report, keys, output)
    if report.unkept is not None:
        say(f"rayorch: {report.unkept}")  # before the page, which may not be written either
    if html is not None and report.runs:
        report.write_html(html)
        say(f"the page with plots: {html}")
    if not report.complete and out is not None and report.runs:
        say("go on with --resume")
    if report.unkept is not None:
        raise typer.Exit(exits.REJECTED)
    if not report.complete:
        raise typer.Exit(exits.INTERRUPTED)


def _check_files(html: Path | None, out: Path | None, resume: bool) -> None:
    """Said before hours of runs, not after."""
    from rayorch.core.errors import SpecError
    from rayorch.experiment.side_by_side import check_plots

    if resume and out is None:
        raise SpecError("--resume", "needs the folder of the runs (--out)")
    if html is not None:
        check_plots()
        if not html.absolute().parent.is_dir():
            raise SpecError("--html", f"there is no folder {html.absolute().parent}")


def _keys(wanted: list[str] | None) -> tuple[str, ...]:
    """The measures of the table."""
    from rayorch.core.errors import SpecError
    from rayorch.sim.report.measures import BY_KEY, HEADLINES

    if not wanted:
        return HEADLINES
    if wanted == ["all"]:
        return tuple(BY_KEY)
    for key in wanted:
        if key not in BY_KEY:
            raise SpecError("--measure", f"{key!r} is none of {', '.join(BY_KEY)}")
    return tuple(wanted)


def _queues(path: Path) -> tuple[QueueSpec, ...]:
    from rayorch.core.errors import SpecError
    from rayorch.experiment.documents import documents_in, queues_in

    found = queues_in(documents_in(path, "--queues"))
    if not found:
        raise SpecError("--queues", f"{path} holds no Queue document")
    return found


def _tell(report: Report, keys: tuple[str, ...], output: Format) -> None:
    """The report on stdout; what is to be said about it on stderr."""
    if output is Format.JSON:
        sys.stdout.write(report.to_json() + "\n")
        return
    bare = output is not Format.TABLE
    show(_group_rows(report, keys, bare), _columns(report, keys, bare), output, key="profile")
    if output is Format.TABLE:
        for line in (*_against(report, keys), *(f"note: {note}" for note in report.notes)):
            say(line)


def _against(report: Report, keys: tuple[str, ...]) -> list[str]:
    """A line for each profile and load: what is better and worse than under the first profile, and what is neither."""
    from rayorch.sim.report.compare import Verdict
    from rayorch.sim.report.text import change, load_name

    lines: dict[str, dict[str, list[str]]] = {}
    for found in report.differences(keys):
        if found.verdict is not Verdict.UNKNOWN:
            at = "" if found.load is None else f" at load {load_name(found.load)}"
            line = lines.setdefault(f"{found.profile} against {found.baseline}{at}", {})
            size = "" if found.verdict is Verdict.SAME else f" {change(found)}"
            line.setdefault(found.verdict.value, []).append(f"{found.key}{size}")
    order = [Verdict.BETTER, Verdict.WORSE, Verdict.SAME]
    return [
        f"{name}: " + "; ".join(f"{word.value}: {', '.join(by[word])}" for word in order if word in by)
        for name, by in lines.items()
    ]


def _group_rows(report: Report, keys: tuple[str, ...], bare: bool) -> list[Item]:
    """A row for each profile at each load. `bare`: numbers for programs, without units and intervals."""
    from rayorch.sim.report.text import largest_of, load_name, with_interval

    rows: list[Item] = []
    largest = {key: largest_of(group.of(key) for group in report.groups) for key in keys}
    for group in report.groups:
        row: dict[str, object] = {
            "profile": group.profile,
            "load": group.load if bare else load_name(group.load),
            "seeds": len(group.runs),
        }
        for key in keys:
            value = group.of(key)
            if bare:
                row[key] = None if value is None else value.mean
            else:
                row[key] = with_interval(key, value, largest[key])
        rows.append(row)
    return rows


def _columns(report: Report, keys: tuple[str, ...], bare: bool) -> tuple[Column, ...]:
    from rayorch.sim.report.measures import BY_KEY

    def column(heading: str, key: str, right: bool = True) -> Column:
        return Column(heading, lambda item: item[key], right)

    loads = {group.load for group in report.groups}
    return (
        column("PROFILE", "profile", right=False),
        *((column("LOAD", "load"),) if loads != {None} else ()),
        column("SEEDS", "seeds"),
        *(column(key if bare else BY_KEY[key].label.upper(), key) for key in keys),
    )
