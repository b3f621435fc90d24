"""`rayorch`: the commands. Each is a request or two to the gateway; what is heavy is imported inside them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from rayorch.cli import calendar, exits, kuberay, rows
from rayorch.cli.exits import guarded
from rayorch.cli.gangs import gang_lines
from rayorch.cli.output import Format, say, show, show_one
from rayorch.cli.queues import app as queue_commands
from rayorch.cli.replay import replay
from rayorch.cli.shadow import shadow
from rayorch.cli.simulate import simulate
from rayorch.cli.words import amount_of, gang_of, pair_of, workers_of

if TYPE_CHECKING:
    from rayorch.client.connection import Client
    from rayorch.client.handle import WorkloadHandle
    from rayorch.config import ClusterDocument

app = typer.Typer(
    name="rayorch",
    help="Queue, gangs, fair shares and preemption for training and serving on one Ray cluster.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # no boxes, and no rich for --help
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(kuberay.app, name="kuberay")
app.add_typer(queue_commands, name="queue")
app.add_typer(calendar.reservations, name="reservation")
app.add_typer(calendar.crons, name="cron")
app.command()(calendar.entries)
app.command()(replay)
app.command()(simulate)
app.command()(shadow)

Output = Annotated[Format, typer.Option("--output", "-o", help="table, json, yaml, name or csv.")]
Address = Annotated[
    str | None, typer.Option("--address", help="The gateway, else RAYORCH_ADDRESS, else the server of this machine.")
]
WorkloadArgument = Annotated[str, typer.Argument(help="A workload's id.", metavar="ID")]
NodeArgument = Annotated[str, typer.Argument(help="A node's name or id.", metavar="NODE")]
Timeout = Annotated[str | None, typer.Option("--timeout", help="Give up after this long, e.g. 90s, 30m (exit 101).")]


def _client(address: str | None) -> Client:
    from rayorch.client.address import resolve
    from rayorch.client.connection import Client
    from rayorch.client.transport import Http

    return Client(Http(resolve(address)))


def _seconds(text: str | None) -> float | None:
    from rayorch.config.text import typed_duration_s

    try:
        return None if text is None else typed_duration_s(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


# ---------------------------------------------------------------- daily


Queue = Annotated[str | None, typer.Option("--queue", "-q", help="The queue; else the address's, else default.")]
WorkersOption = Annotated[str | None, typer.Option("--workers", "-w", help="2, or 2:4 for a gang that may grow.")]
GangOption = Annotated[str | None, typer.Option("--gang", "-g", help="2x8: workers x GPUs; 2-4x8 may grow.")]
Identity = Annotated[str | None, typer.Option("--id", help="The same id again is the same workload.")]
Accelerators = Annotated[
    list[str] | None,
    typer.Option("--accelerator", help="H100, or H100,A100: the first that can be had; may be repeated."),
]
ResourcesOption = Annotated[
    list[str] | None, typer.Option("--resource", "-R", help="gpu-memory=20Gi, mig-1g.10gb=1 of each worker.")
]
Folder = Annotated[Path | None, typer.Option("--working-dir", help="A folder to upload and run in.")]


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@guarded
def submit(
    command: Annotated[list[str], typer.Argument(help="What to run, after --.", metavar="-- COMMAND...")],
    queue: Queue = None,
    gang: GangOption = None,
    workers: WorkersOption = None,
    gpus: Annotated[float, typer.Option("--gpus", help="GPUs of each worker.")] = 0,
    cpus: Annotated[float, typer.Option("--cpus", help="CPUs of each worker.")] = 1,
    resources: ResourcesOption = None,
    kind: Annotated[str, typer.Option("--kind", "-k", help="job, or train for a Ray Train script.")] = "job",
    name: Annotated[str | None, typer.Option("--name", "-n", help="A readable name.")] = None,
    identity: Identity = None,
    priority: Annotated[int, typer.Option("--priority", "-p", help="Larger goes first.")] = 0,
    preemptible: Annotated[bool, typer.Option(help="Whether it may be stopped for others.")] = True,
    grace: Annotated[str, typer.Option("--grace", help="Time for a checkpoint before it is stopped.")] = "30s",
    retries: Annotated[int, typer.Option("--retries", help="Failures of its own to retry.")] = 0,
    require: Annotated[str | None, typer.Option("--require", help="All members within one rack, zone ...")] = None,
    prefer: Annotated[str | None, typer.Option("--prefer", help="The same if it can be had.")] = None,
    accelerators: Accelerators = None,
    wall_limit: Annotated[str | None, typer.Option("--time", "-t", help="Stop it for good after this long.")] = None,
    expected: Annotated[str | None, typer.Option("--expected", help="How long it is thought to run.")] = None,
    begin: Annotated[str | None, typer.Option("--begin", help="Not before 2026-12-01T09:00:00+01:00.")] = None,
    after: Annotated[list[str] | None, typer.Option("--after", help="afterok:ID, singleton ...; repeatable.")] = None,
    array: Annotated[str | None, typer.Option("--array", "-a", help="100 entries, or 0-99%20: at most 20 run.")] = None,
    reservation: Annotated[str, typer.Option("--reservation", help="The reservation that it runs in.")] = "",
    working_dir: Folder = None,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", help="NAME=VALUE, may be repeated.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show its output and end as it ends.")] = False,
    output: Output = Format.TABLE,
    address: Address = None,
) -> None:
    """Enqueue a command."""
    if not command[0].strip():
        raise typer.BadParameter("the command is empty")
    if kind not in ("job", "train"):
        raise typer.BadParameter("--kind is job or train")
    members = workers_of(workers)
    if gang is not None:
        if workers is not None or gpus:
            raise typer.BadParameter("--gang says --workers and --gpus at once; give one or the other")
        members, gpus = gang_of(gang)
    with _client(address) as client:
        handle = client.submit(
            shlex.join(command),
            queue=queue,
            workers=members,
            gpus_per_worker=gpus,
            cpus_per_worker=cpus,
            resources_per_worker=dict(amount_of(text) for text in resources or ()),
            kind="train" if kind == "train" else "job",
            name=name,
            id=identity,
            priority=priority,
            preemptible=preemptible,
            grace=grace,
            retries=retries,
            require=require,
            prefer=prefer,
            accelerators=[model for text in accelerators or () for model in text.replace(" ", "").split(",")],
            wall_limit=_seconds(wall_limit),
            expected=_seconds(expected),
            begin=begin,
            after=after or (),
            array=int(array) if array is not None and array.isdigit() else array,
            reservation=reservation,
            working_dir=working_dir,
            env=dict(pair_of(text, "--env") for text in env or ()),
        )
        info = handle.info()
        if follow:
            say(f"{handle.id} is in queue {info['queue']}; Ctrl-C leaves it there (rayorch logs -f {handle.id})")
            _follow(handle, notes=True)
        show_one(info, output, lambda: handle.id)
        say(
            f"queued in {info['queue']}; why it waits: rayorch explain {handle.id}; output: rayorch logs -f {handle.id}"
        )


def _follow(handle: WorkloadHandle, notes: bool) -> NoReturn:
    """Show the output until the end and exit as the workload did."""
    for line in handle.logs(follow=True, notes=notes):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    handle.wait(60)
    raise typer.Exit(exits.of_workload(handle.info()))


@app.command()
@guarded
def ps(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also what has ended.")] = False,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="This queue and those below it.")] = None,
    state: Annotated[list[str] | None, typer.Option("--state", "-s", help="pending, running ...; repeatable.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, help="At most this many, the newest.")] = 200,
    output: Output = Format.TABLE,
    address: Address = None,
) -> None:
    """List workloads: where they run, or why they wait."""
    with _client(address) as client:
        states = state or ([] if everything else ["pending", "running", "stopping"])
        items = rows.fetch_workloads(client, states, queue, limit)
        show(items, rows.workload_columns(client), output)
        if output is Format.TABLE:
            for line in rows.bypass_lines(client):
                say(line)


@app.command()
@guarded
def explain(
    workload: WorkloadArgument,
    changes: Annotated[bool, typer.Option(help="Also look for changes that would let it start.")] = True,
    output: Output = Format.TABLE,
    address: Address = None,
) -> None:
    """Every reason why a workload is where it is, and what would change that."""
    with _client(address) as client:
        data = client.workload(workload).explain(changes).to_dict()
        if output in (Format.TABLE, Format.CSV):
            say(rows.explain_heading(data))
            if data.get("order"):
                say(f"order: {data['order']}")
            show(rows.waits(data), rows.WAIT_COLUMNS, output)
            if output is Format.TABLE:
                for line in (*rows.change_lines(data), *gang_lines(data), *rows.isolation_lines(data)):
                    say(line)
        else:
            show_one(data, output, lambda: "", key="kind")


@app.command()
@guarded
def plan(
    file: Annotated[str, typer.Option("--file", "-f", help="A YAML file of workloads, - for stdin.")],
    output: Output = Format.TABLE,
    address: Address = None,
) -> None:
    """What submitting these workloads would do, each by itself: seats, victims, waits. Nothing is submitted."""
    from rayorch.config import load_yaml
    from rayorch.core.errors import SpecError

    documents = [value for value in load_yaml(_read(file), file) if isinstance(value, dict)]
    wanted = [value for value in documents if value.get("kind") in ("Workload", "ServeApp")]
    if not wanted:
        raise SpecError("", f"{file} holds no Workload and no ServeApp")
    with _client(address) as client:
        found = [client.plan(document) for document in wanted]
    if output is Format.TABLE:
        for document, answer in zip(wanted, found, strict=True):
            for line in rows.plan_lines(document, answer):
                say(line)
    else:
        show(found, rows.PLAN_COLUMNS, output)
    if any(answer["lot"] == "refused" for answer in found):
        raise typer.Exit(exits.REJECTED)


@app.command()
@guarded
def logs(
    workload: WorkloadArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until it has ended, across attempts.")] = False,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="An earlier attempt.")] = None,
    address: Address = None,
) -> None:
    """What its driver printed."""
    with _client(address) as client:
        handle = client.workload(workload)
        if follow:
            _follow(handle, notes=sys.stdout.isatty())
        for line in handle.logs(attempt=attempt):
            sys.stdout.write(f"{line}\n")


@app.command()
@guarded
def wait(
    workloads: Annotated[list[str], typer.Argument(help="Ids of workloads.", metavar="ID...")],
    timeout: Timeout = None,
    running: Annotated[bool, typer.Option("--running", help="Only until it runs.")] = False,
    address: Address = None,
) -> None:
    """Wait until workloads have ended; the exit code is that of the last one that did not succeed."""
    import time

    limit_s = _seconds(timeout)
    deadline_s = None if limit_s is None else time.monotonic() + limit_s
    code = 0
    with _client(address) as client:
        for identity in workloads:
            handle = client.workload(identity)
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            state = handle.wait(left_s, until="running" if running else "ended")
            say(f"{identity} {state}")
            if not (running and state in ("RUNNING", "STOPPING")):
                code = exits.of_workload(handle.info()) or code
    raise typer.Exit(code)


@app.command()
@guarded
def cancel(
    workloads: Annotated[list[str], typer.Argument(help="Ids of workloads.", metavar="ID...")],
    reason: Annotated[str, typer.Option("--reason", "-m", help="Shown to whoever asks.")] = "cancelled by its owner",
    address: Address = None,
) -> None:
    """End workloads."""
    with _client(address) as client:
        for identity in workloads:
            was_alive = client.workload(identity).cancel(reason)
            say(f"{identity} {'is being cancelled' if was_alive else 'had ended already'}")


@app.command()
@guarded
def queues(output: Output = Format.TABLE, address: Address = None) -> None:
    """What each queue deserves, uses, borrows and lends."""
    with _client(address) as client:
        show(list(client.queues()), rows.QUEUE_COLUMNS, output, key="name")


@app.command()
@guarded
def nodes(output: Output = Format.TABLE, address: Address = None) -> None:
    """What each node has and how it is."""
    with _client(address) as client:
        show(list(client.nodes()), rows.NODE_COLUMNS, output, key="name")


@app.command()
@guarded
def devices(
    node: NodeArgument,
    clear: Annotated[
        int | None, typer.Option("--clear", min=0, help="Forget the XIDs of this GPU: somebody has dealt with it.")
    ] = None,
    output: Output = Format.TABLE,
    address: Address = None,
) -> None:
    """What was read last of each GPU of a node, and what is wrong with it."""
    from rayorch.cli import devices as view

    with _client(address) as client:
        if clear is not None:
            client.clear_device(node, clear)
            say(f"{node}: GPU {clear} is judged anew")
            return
        data = client.devices(node)
    if output in (Format.JSON, Format.YAML):
        show_one(data, output, lambda: "", key="node")
        return
    if output is Format.TABLE:
        say(view.heading(data))
    show(view.devices_of(data), view.DEVICE_COLUMNS, output, key="uuid")


@app.command()
@guarded
def capacity(output: Output = Format.TABLE, address: Address = None) -> None:
    """Where nodes come from: groups, what was asked for, and what is missing and why."""
    from rayorch.cli import capacity as view

    with _client(address) as client:
        data = client.capacity()
    if output in (Format.JSON, Format.YAML):
        show_one(data, output, lambda: "", key="kind")
        return
    groups, launches = view.groups_of(data), view.launches_of(data)
    if error := view.error_of(data):
        say(f"not known now: {error}")
    if data["provider"] == "none" and not launches:
        say("nobody provides nodes here: what exists is all there will be")
    if groups or not launches:
        show(groups, view.GROUP_COLUMNS, output, key="name")
    if launches and output is not Format.NAME:
        show(launches, view.LAUNCH_COLUMNS, output)
    for demand in view.unmet_of(data):
        say(f"no node type of Ray's autoscaler can take {demand}")


@app.command()
@guarded
def repartition(output: Output = Format.TABLE, address: Address = None) -> None:
    """Which idle MIG GPUs to cut anew for what waits, step by step; nothing does it but you."""
    from rayorch.cli import repartition as view

    with _client(address) as client:
        data = client.repartition()
    if output in (Format.JSON, Format.YAML):
        show_one(data, output, lambda: "", key="kind")
        return
    show(view.cuts_of(data), view.CUT_COLUMNS, output, key="name")
    if output is Format.TABLE:
        for line in view.words_of(data):
            say(line)


@app.command()
@guarded
def drain(
    node: NodeArgument,
    deadline: Annotated[str, typer.Option("--deadline", help="By when what is there must have left.")] = "10m",
    reason: Annotated[str, typer.Option("--reason", "-m", help="Shown to whoever asks.")] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Let it take work again.")] = False,
    cordon: Annotated[bool, typer.Option("--cordon", help="Only keep new work off; what is there may stay.")] = False,
    address: Address = None,
) -> None:
    """Make a node's workloads leave (they checkpoint first), or only keep new ones off."""
    if undo and cordon:
        raise typer.BadParameter("--undo and --cordon exclude each other")
    verb = "uncordon" if undo else "cordon" if cordon else "drain"
    with _client(address) as client:
        client.change_node(node, verb, reason, deadline if verb == "drain" else None)
    say(f"{node}: {verb}")


def _read(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"can't read {file}: {error}") from error


def _check_profiles(clusters: list[ClusterDocument]) -> None:
    """SpecError for a preset or policy that rayorch doesn't have. One's own may be importable on the head only."""
    from dataclasses import replace

    from rayorch.config import load_profile

    for document in clusters:
        settings = document.to_core().profile
        named = {slot: path for slot, path in settings.policies.items() if ":" not in path}
        load_profile(replace(settings, policies=named))


@app.command()
@guarded
def apply(
    file: Annotated[str, typer.Option("--file", "-f", help="A YAML file of documents, - for stdin.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check the documents.")] = False,
    output: Output = Format.TABLE,
    address: Address = None,
) -> None:
    """Set queues and submit workloads from YAML; applying again changes nothing."""
    from rayorch.config import ClusterDocument, load_documents, load_yaml
    from rayorch.core.errors import SpecError

    text = _read(file)
    documents = load_documents(text, file)
    if not documents:
        raise SpecError("", f"{file} holds no document")
    if dry_run:
        _check_profiles([document for document in documents if isinstance(document, ClusterDocument)])
        say("1 document is good" if len(documents) == 1 else f"{len(documents)} documents are good")
        return
    values = [value for value in load_yaml(text, file) if isinstance(value, dict) and value["kind"] != "Cluster"]
    if len(values) < len(documents):
        say("Cluster documents are read when rayorch starts (rayorch up -f); left out")
    if not values:
        raise SpecError("", f"{file} holds nothing to apply")
    with _client(address) as client:
        results = client.apply(values, Path.cwd() if file == "-" else Path(file).parent)
    show(results, rows.APPLY_COLUMNS, output)
    if not all(result["accepted"] for result in results):
        raise typer.Exit(exits.REJECTED)


# ---------------------------------------------------------------- the server


@app.command()
@guarded
def up(
    emulate: Annotated[str | None, typer.Option("--emulate", help="4x8: a local cluster, emulated.")] = None,
    racks: Annotated[int | None, typer.Option("--racks", min=1, help="Racks of an emulated cluster; else 2.")] = None,
    accelerators: Annotated[str | None, typer.Option(help="H100:2,A100:2: models of the emulated nodes.")] = None,
    exact_devices: Annotated[bool, typer.Option("--exact-devices", help="Emulated nodes name their GPUs.")] = False,
    ray_address: Annotated[str | None, typer.Option("--ray", help="The Ray cluster; else the local one.")] = None,
    file: Annotated[list[Path] | None, typer.Option("--file", "-f", help="YAML: Cluster and Queue documents.")] = None,
    gateway: Annotated[str | None, typer.Option("--gateway", help="uvicorn, or serve (inside Ray Serve).")] = None,
    host: Annotated[str | None, typer.Option("--host", help="Where to listen; beyond loopback needs a token.")] = None,
    port: Annotated[int | None, typer.Option("--port", help="The gateway's port; else a free one.")] = None,
    instance: Annotated[str, typer.Option("--instance", help="A name for this server.")] = "main",
    timeout: Annotated[str, typer.Option("--timeout", help="How long the start may take.")] = "3m",
    output: Output = Format.TABLE,
) -> None:
    """Start rayorch on this machine: on the running Ray cluster, or on an emulated one."""
    from rayorch.cli.server import running_lines, start

    arguments = ["--exact-devices"] if exact_devices else []
    if emulate is not None and racks is None:
        racks = 1 if emulate.startswith("1x") else 2
    options = {"--emulate": emulate, "--racks": racks, "--address": ray_address, "--gateway": gateway}
    for option, value in {**options, "--accelerators": accelerators, "--host": host, "--port": port}.items():
        if value is not None:
            arguments += [option, str(value)]
    arguments += [word for path in file or () for word in ("--file", str(path))]
    state = start(instance, arguments, _seconds(timeout) or 0.0)
    show_one(state, output, lambda: str(state["gateway_url"]), key="gateway_url")
    say("\n".join(running_lines(instance, state["pid"])))


@app.command()
@guarded
def down(
    instance: Annotated[str, typer.Option("--instance", help="The server's name.")] = "main",
    timeout: Annotated[str, typer.Option("--timeout", help="How long the end may take.")] = "1m",
) -> None:
    """Stop the rayorch server that `up` started on this machine."""
    from rayorch.cli.server import stop

    say(stop(instance, _seconds(timeout) or 0.0))


@app.command()
@guarded
def version(output: Output = Format.TABLE, address: Address = None) -> None:
    """Versions of this command and of the gateway, if one answers."""
    from rayorch import __version__
    from rayorch.core.errors import ClusterError

    found: dict[str, Any] = {"client": __version__, "server": None}
    try:
        with _client(address) as client:
            found["server"] = client.version()
    except ClusterError as error:
        say(f"rayorch: {error}")
    server = found["server"]
    text = f"rayorch {__version__}" + (f"\nserver {server['rayorch']} on Ray {server['ray']}" if server else "")
    show_one(found, output, lambda: text, key="client")


def main() -> None:
    """The entry point of the `rayorch` command."""
    app()


if __name__ == "__main__":
    main()
