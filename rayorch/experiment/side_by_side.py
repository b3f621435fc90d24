"""`rayorch.simulate()`: a trace, a cluster and profiles in, a report out."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path, PurePath

from rayorch.core.errors import SpecError
from rayorch.core.policy import Profile
from rayorch.core.types import NodeSpec, QueueSpec
from rayorch.experiment.faults import check_acts
from rayorch.experiment.nodes import gpus_in, machines_of, supplies_of
from rayorch.experiment.options import check_jobs, check_values, loads_of, sizes_of
from rayorch.experiment.packs import packed_as
from rayorch.experiment.plays import Inputs, Play, Played, play, plays_of
from rayorch.experiment.profiles import profiles_of
from rayorch.experiment.progress import Watcher, watcher
from rayorch.experiment.serves import Served, served_of
from rayorch.experiment.store import Store, write_whole
from rayorch.experiment.variants import Resample, check_weeks, elastic_as, quotas_by_use, with_models_of
from rayorch.sim.generators import first_jobs
from rayorch.sim.models import SimModels
from rayorch.sim.readers import open_trace
from rayorch.sim.report.compare import Difference, Group, differences, groups
from rayorch.sim.report.document import document
from rayorch.sim.report.measures import HEADLINES
from rayorch.sim.report.summary import Summary
from rayorch.sim.report.text import notes
from rayorch.sim.trace.model import Trace


@dataclass(frozen=True, slots=True)
class Report:
    """What came out: every finished run, by load, then seed, then profile.

    `wanted`: how many runs there were to do. `unkept`: why the rest was not done where a file could not be written.
    """

    runs: tuple[Summary, ...]
    wanted: int
    unkept: SpecError | None = None

    @property
    def complete(self) -> bool:
        """Whether every run has finished."""
        return len(self.runs) == self.wanted

    @property
    def groups(self) -> tuple[Group, ...]:
        """The runs of each profile at each load; `group.of("jct_avg_s")` is a mean with its interval."""
        return groups(self.runs)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader has to know beside the figures."""
        missing = self.wanted - len(self.runs)
        return (*notes(self.runs), *([f"{missing} of {self.wanted} runs have not finished"] if missing else []))

    def differences(self, keys: Sequence[str] = HEADLINES) -> tuple[Difference, ...]:
        """Each profile against the first, paired by seed."""
        return differences(self.runs, keys)

    def rows(self) -> list[dict[str, object]]:
        """A flat row for each run, for `pandas.DataFrame(report.rows())`."""
        return [{"profile": r.profile, "load": r.load, "seed": r.seed, **r.figures} for r in self.runs]

    def to_dict(self) -> dict[str, object]:
        """As JSON has it."""
        from rayorch import __version__

        return {**document(self.runs, __version__), "wanted": self.wanted, "notes": list(self.notes)}

    def to_json(self) -> str:
        """The document of docs/simulate.md."""
        return json.dumps(self.to_dict(), indent=1)

    def to_html(self) -> str:
        """One page with plots that needs nothing else. SpecError where matplotlib is not installed."""
        from rayorch import __version__

        check_plots()
        from rayorch.sim.report.page import page

        return page(self.runs, __version__)

    def write_json(self, path: str | Path) -> None:
        """The document as a file."""
        write_whole(Path(path), self.to_json() + "\n")

    def write_html(self, path: str | Path) -> None:
        """The page as a file."""
        write_whole(Path(path), self.to_html(), "--html")

    def _repr_html_(self) -> str:
        """In a notebook: the page in a frame of its own, so that neither's style reaches the other."""
        import html

        return (
            f'<iframe srcdoc="{html.escape(self.to_html())}" style="width:100%;height:800px;border:0"'
            ' title="rayorch report"></iframe>'
        )


def check_plots() -> None:
    """SpecError where the plots' library is not installed: said before hours of runs, not after."""
    if find_spec("matplotlib") is None:
        raise SpecError("--html", "plots need matplotlib: pip install 'rayorch[report]'")


def simulate(
    trace: str | Path | Trace,
    cluster: str | Path | Sequence[NodeSpec] | None = None,
    profiles: Sequence[str | Profile] | str | Profile = ("default",),
    *,
    seeds: Sequence[int] = (0,),
    loads: Sequence[float | str] | float | str = (),
    jobs: int | None = None,
    elastic: str | None = None,
    colocation: str | None = None,
    queues: Sequence[QueueSpec] = (),
    quota_by_use: bool = False,
    models: SimModels | None = None,
    until_s: float | None = None,
    resample: Resample | str = Resample.NONE,
    racks: int | None = None,
    provision: bool = False,
    min_nodes: int = 0,
    serve: Sequence[str | Served] | str = (),
    trace_format: str | None = None,
    trace_options: Mapping[str, object] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    per_job: bool = False,
    fragmentation: bool = True,
    parallel: int = 0,
    progress: bool | None = None,
    partial: bool = False,
) -> Report:
    """Replay a trace under each profile, with each seed, at each load, and report all of it side by side.

    `trace`: a file of a known form, or a Trace; `trace_format`, `trace_options`: for its reader. `cluster`:
    "64x8:H100", a YAML file with a Cluster document, nodes, or None for the machines of the trace.
    `profiles`: presets by name, YAML files, "module:NAME", or Profile values.
    `loads`: offered loads that arrivals are compressed to; none: as they are. `jobs`: only the first so many.
    `elastic`: "0.5:2", jobs run with half to twice the members that they ask for (`models.scaling`: how fast).
    `colocation`: "pairs.csv,gains=1.3", jobs of one GPU share one, and how fast they then are (`experiment.packs`).
    `queues`: instead of the trace's or the cluster file's; `quota_by_use`: quotas in proportion to what each asks for.
    `resample`: "blocks", "weeks" or "fitted", by which each seed plays another trace like this one.
    `until_s`: end of the simulated time. `provision`: the cluster's nodes are ordered when they are needed, come after
    what `models.provisioning` says, and are given back when they are idle; `min_nodes` of each kind stay.
    `serve`: applications that serve beside the jobs ("chat,peak=12,replicas=1-16").
    `out`: a folder in which every finished run is kept; `resume`: take from there what is finished already.
    `per_job`: keep what became of each job there too. `fragmentation`: measure it over time.
    `parallel`: so many runs at once on Ray; 0: in this process.
    `progress`: False for none. `partial`: an interrupt, or a file in `out` that can't be written, ends the experiment
    and not the program: what has finished is returned.

    Raises SpecError for bad input (its field is the command line's option), ClusterError when Ray fails.
    """
    check_values(seeds, until_s, jobs)
    loaded = trace if isinstance(trace, Trace) else _read(trace, trace_format, trace_options or {})
    if not loaded.jobs:
        raise SpecError("TRACE", f"{loaded.name} has no jobs ({len(loaded.refused)} rows could not be used)")
    check_jobs(loaded)
    loaded, title = _first(loaded, jobs)
    if elastic is not None:
        loaded = elastic_as(loaded, *sizes_of(elastic))
    machines = machines_of(str(cluster) if isinstance(cluster, Path) else cluster, loaded, racks)
    named = with_models_of(loaded, machines.nodes)
    loaded, machines, models = packed_as(colocation, named, machines, models or SimModels())
    if min_nodes and not provision:
        raise SpecError("--min-nodes", "needs --provision: all nodes are there all the time")
    how = _resample(resample)
    if how is Resample.WEEKS:
        check_weeks(loaded)
    groups = supplies_of(machines, min_nodes) if provision else ()
    check_acts(models.failures, machines.nodes)
    found_queues = tuple(queues) or machines.queues or loaded.queues
    if quota_by_use:
        found_queues = quotas_by_use(loaded, gpus_in(machines.nodes))
    inputs = Inputs(
        *(loaded, title, machines.nodes, machines.words, found_queues, models, until_s, how, per_job, fragmentation),
        groups,
        _served([serve] if isinstance(serve, str) else serve, loaded),
    )
    chosen = profiles_of([profiles] if isinstance(profiles, str | Profile) else profiles)
    if not seeds:
        raise SpecError("--seeds", "must name at least one")
    plays = plays_of(inputs, chosen, loads_of(loads), tuple(dict.fromkeys(seeds)))
    if per_job and out is None:
        raise SpecError("--per-job", "needs a folder (--out)")
    if parallel < 0:
        raise SpecError("--parallel", f"must not be negative, got {parallel}")
    store = Store.at(Path(out)) if out is not None else None
    watching = watcher(len(plays), len(loaded.jobs), progress)
    found, unkept = _all(inputs, plays, store, resume, parallel, watching, partial)
    report = Report(tuple(found[one.key] for one in plays if one.key in found), len(plays), unkept)
    try:
        _keep(report, store)
    except SpecError as error:
        if not partial:
            raise
        return replace(report, unkept=unkept or error)
    return report


def _read(path: str | Path, format: str | None, options: Mapping[str, object]) -> Trace:
    """The trace in a file; errors in what was said of it bear the name of the command line's option."""
    try:
        return open_trace(path, format, **options)
    except SpecError as error:
        if error.field == "format":
            raise SpecError("--trace-format", error.message) from error
        if error.field in options:
            raise SpecError("--trace-option", f"{error.field} {error.message}") from error
        raise


def _first(trace: Trace, jobs: int | None) -> tuple[Trace, str]:
    """The trace's first so many jobs (None: all), and what it is called in reports."""
    title = PurePath(trace.source).name or trace.name
    if jobs is None:
        return trace, title
    if jobs < 1:
        raise SpecError("--jobs", f"must be at least 1, got {jobs}")
    return first_jobs(trace, jobs), f"{title}, first {min(jobs, len(trace.jobs))} jobs"


def _served(given: Sequence[str | Served], trace: Trace) -> tuple[Served, ...]:
    found = served_of([one for one in given if isinstance(one, str)])
    found = (*found, *(one for one in given if not isinstance(one, str)))
    ids = {job.id for job in trace.jobs} if found else set()
    if taken := next((one.service.id for one in found if one.service.id in ids), None):
        raise SpecError("--serve", f"{taken} is the id of a job of the trace")
    return found


def _resample(how: Resample | str) -> Resample:
    try:
        return Resample(how)
    except ValueError:
        raise SpecError("--resample", f"must be one of {', '.join(Resample)}, got {how!r}") from None


def _all(
    inputs: Inputs,
    plays: Sequence[Play],
    store: Store | None,
    resume: bool,
    parallel: int,
    watching: Watcher,
    partial: bool,
) -> tuple[dict[str, Summary], SpecError | None]:
    """The finished runs by key, and why one could not be kept, after which no more are played.

    That and an interrupt are raised, unless what is finished is wanted.
    """
    found: dict[str, Summary] = {}
    unkept = None
    with watching:
        try:
            todo = list(plays)
            if store is not None and resume:
                todo = _take_up(inputs, store, plays, found, watching)
            for one, played in _played(inputs, todo, parallel, watching):
                found[one.key] = played.summary
                unkept = None if store is None else _unkept(store, one, played)
                if unkept is not None and not partial:
                    raise unkept
                watching.done(one, played.summary, False)
                if unkept is not None:
                    break
        except KeyboardInterrupt:
            if not partial:
                raise
            watching.word(f"interrupted after {len(found)} of {len(plays)} runs")
    return found, unkept


def _unkept(store: Store, one: Play, played: Played) -> SpecError | None:
    """Keep a finished run; why that can't be done."""
    try:
        store.write(one.name, one.key, played.summary)
        if played.per_job is not None:
            store.write_per_job(one.name, one.key, played.per_job)
    except SpecError as error:
        return error
    return None


def _take_up(
    inputs: Inputs, store: Store, plays: Sequence[Play], found: dict[str, Summary], watching: Watcher
) -> list[Play]:
    """Fill in what is finished already, with all that is wanted of it; returns the rest."""
    todo = []
    for one in plays:
        run, word = store.read(one.name, one.key)
        if word:
            watching.word(word)
        if run is None or (inputs.per_job and not store.has_per_job(one.name, one.key)):
            todo.append(one)
        else:
            found[one.key] = run
            watching.done(one, run, True)
    return todo


def _played(inputs: Inputs, plays: Sequence[Play], parallel: int, watching: Watcher) -> Iterator[tuple[Play, Played]]:
    if parallel > 0 and plays:
        from rayorch.experiment.parallel import played_by_ray

        yield from played_by_ray(inputs, plays, parallel)
        return
    for one in plays:
        watching.began(one)
        yield one, play(inputs, one, functools.partial(watching.came, one))


def _keep(report: Report, store: Store | None) -> None:
    """The report beside its runs, where they are kept."""
    if store is None or not report.runs:
        return
    report.write_json(store.folder / "report.json")
