"""The client: submit work, lease gangs, look at queues and nodes, over HTTP."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, cast

from rayorch.client.address import Target
from rayorch.client.errors import NotFoundError
from rayorch.client.function import FUNCTION_FILE, pickling
from rayorch.client.gang import GangLease
from rayorch.client.handle import WorkloadHandle
from rayorch.client.notebook import table
from rayorch.client.package import package
from rayorch.client.tables import Rows
from rayorch.client.transport import Http, JsonObject, path_part, raise_for
from rayorch.core.errors import SpecError

DEFAULT_QUEUE = "default"
UPLOAD_TIMEOUT_S = 600.0

Command = str | Sequence[str]
Workers = int | tuple[int, int]


class Client:
    """One gateway. Close it, or use it in a `with` block, when many are made."""

    def __init__(self, http: Http) -> None:
        self._http = http

    @property
    def address(self) -> str:
        """The gateway's base URL."""
        return self._http.target.url

    def close(self) -> None:
        """Let go of the connections; workloads go on."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------ submit

    def submit(
        self,
        work: Command | Callable[..., Any],
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        queue: str | None = None,
        name: str | None = None,
        id: str | None = None,
        kind: Literal["job", "train"] = "job",
        workers: Workers | None = None,
        gpus_per_worker: float = 0,
        cpus_per_worker: float = 1,
        resources_per_worker: Mapping[str, float | str] | None = None,
        driver_resources: Mapping[str, float] | None = None,
        priority: int = 0,
        preemptible: bool = True,
        grace: float | str = 30.0,
        min_runtime: float | str = 0.0,
        retries: int = 0,
        resizable: bool = True,
        require: str | None = None,
        prefer: str | None = None,
        accelerators: str | Sequence[str] = (),
        wall_limit: float | str | None = None,
        expected: float | str | None = None,
        begin: float | str | None = None,
        after: str | Sequence[str] = (),
        array: int | str | None = None,
        reservation: str = "",
        working_dir: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> WorkloadHandle:
        """Enqueue a command, or a function with its arguments, and return its handle.

        `workers`: 2, or (2, 4) for a gang that may grow and shrink. `accelerators`: models that will do, the preferred
        one first ("H100", or ["H100", "A100"]); all its GPUs are of one. `resources_per_worker`: further ones, parts of
        GPUs among them ({"gpu-memory": "20Gi"}, {"mig-1g.10gb": 1}). `wall_limit`: it is stopped for good after
        that long. `begin`: not before that time (epoch seconds, or 2026-12-01T09:00:00+01:00). `after`: what must have
        happened to others ("afterok:prep", "singleton"). `array`: 100 entries, or "0-99%20". `id` makes it
        idempotent: the same id with the same request is the same workload, with another one ConflictError. Functions
        are pickled here and unpickled in the workload's own driver only. SpecError and AdmissionError name the field
        that is wrong.
        """
        name = name or _name_of(work)
        environment = dict(runtime_env or {})
        spec: JsonObject = {
            "kind": kind,
            "priority": priority,
            "preemption": {"allowed": preemptible, "grace": grace, "minRuntime": min_runtime},
            "retry": {"max": retries},
            "resizable": resizable,
            "topology": {"require": require, "prefer": prefer},
            "accelerators": _models(accelerators),
            "env": dict(env or {}),
            "wallLimit": wall_limit,
            "expected": expected,
            "begin": begin,
            "after": _models(after),
            "array": array,
            "reservation": reservation,
        }
        if workers is not None:
            amounts = _amounts(gpus_per_worker, cpus_per_worker, resources_per_worker)
            spec["gang"] = {"workers": list(workers) if isinstance(workers, tuple) else workers, "resources": amounts}
        elif gpus_per_worker or resources_per_worker:
            raise SpecError("workers", "is needed with gpus_per_worker or resources_per_worker")
        if driver_resources is not None:
            spec["driver"] = dict(driver_resources)
        folder = Path(working_dir) if working_dir is not None else None
        if callable(work):
            pickled = pickling().dumps((work, tuple(args), dict(kwargs or {})))
            environment["working_dir"] = self._upload(folder, {FUNCTION_FILE: pickled})
            spec["entrypoint"] = f"python -m rayorch.client.function {FUNCTION_FILE}"
            spec["function"] = FUNCTION_FILE
        else:
            if args or kwargs:
                raise SpecError("args", "are for functions; put them into the command")
            spec["entrypoint"] = work if isinstance(work, str) else shlex.join(work)
            if folder is not None:
                environment["working_dir"] = self._upload(folder, {})
        spec["runtimeEnv"] = environment
        return self._submit("Workload", name, id, queue, spec, annotations)

    def _submit(
        self,
        kind: str,
        name: str,
        id: str | None,
        queue: str | None,
        spec: JsonObject,
        annotations: Mapping[str, str] | None,
    ) -> WorkloadHandle:
        metadata: JsonObject = {
            "name": name,
            "id": id or f"{name[:100]}-{secrets.token_hex(3)}",
            "queue": queue or self._http.target.queue or DEFAULT_QUEUE,
            "annotations": dict(annotations or {}),
        }
        document = {"apiVersion": "rayorch/v1", "kind": kind, "metadata": metadata, "spec": spec}
        answer = self._http.call("POST", "/api/v1/workloads", json=document)
        return WorkloadHandle(self._http, str(answer["id"]))

    def _upload(self, folder: Path | None, extra: Mapping[str, bytes]) -> str:
        """Upload what the gateway does not have yet; the URI for `runtime_env["working_dir"]`."""
        name, data = package(folder, extra)
        path = f"/api/packages/gcs/{name}"
        there = self._http.request("GET", path)
        if there.status_code != 200:
            if there.status_code != 404:
                raise_for(there)
            raise_for(self._http.request("PUT", path, content=data, answer_within_s=UPLOAD_TIMEOUT_S))
        return f"gcs://{name}"

    def gang(
        self,
        bundles: Sequence[Mapping[str, float]] | None = None,
        *,
        workers: int | None = None,
        gpus_per_worker: float = 0,
        cpus_per_worker: float = 1,
        queue: str | None = None,
        name: str = "notebook",
        priority: int = 0,
        preemptible: bool = True,
        require: str | None = None,
        prefer: str | None = None,
        accelerators: str | Sequence[str] = (),
        timeout: float | None = None,
    ) -> GangLease:
        """A gang for a `with` block, which gets a real placement group: `bundles` as Ray takes them, or `workers`.

        It waits in its queue like everything else, for at most `timeout` seconds, and is taken back when this
        process shows no sign of life for the length of a lease.
        """
        if (bundles is None) == (workers is None):
            raise SpecError("bundles", "or workers: exactly one of them is needed")
        spec: JsonObject = {
            "kind": "gang",
            "priority": priority,
            "preemption": {"allowed": preemptible},
            "topology": {"require": require, "prefer": prefer},
            "accelerators": _models(accelerators),
        }
        if bundles is not None:
            if not all(isinstance(bundle, Mapping) for bundle in bundles):
                raise SpecError("bundles", f"must be a list of mappings such as {{'GPU': 1}}, got {bundles!r}")
            spec["bundles"] = [dict(bundle) for bundle in bundles]
        else:
            amounts = _amounts(gpus_per_worker, cpus_per_worker, None)
            spec["gang"] = {"workers": workers, "resources": amounts}
        return GangLease(self._http, self._submit("Workload", name, None, queue, spec, None), timeout)

    def apply(self, documents: Sequence[Mapping[str, Any]], base_dir: Path | None = None) -> list[JsonObject]:
        """Set queues and submit workloads from documents (plain values, as YAML gives them); what became of each.

        A local `workingDir` is uploaded; relative ones count from `base_dir`.
        """
        prepared = [self._with_package(document, base_dir or Path.cwd()) for document in documents]
        results = self._http.call("POST", "/api/v1/documents", json={"documents": prepared})["results"]
        assert isinstance(results, list)
        return [result for result in results if isinstance(result, dict)]

    def plan(self, document: Mapping[str, Any]) -> JsonObject:
        """What submitting a Workload or ServeApp document would do, victims included; nothing is submitted.

        `lot` says it: "starts", "starts after evictions", "waits" or "refused" (with `field` and `message`).
        """
        return self._http.call("POST", "/api/v1/plan", json=dict(document))

    def _with_package(self, document: Mapping[str, Any], base_dir: Path) -> Mapping[str, Any]:
        spec = document.get("spec")
        runtime_env = spec.get("runtimeEnv") if isinstance(spec, dict) else None
        if not isinstance(spec, dict) or not isinstance(runtime_env, dict):
            return document
        for key in ("workingDir", "working_dir"):
            folder = runtime_env.get(key)
            if isinstance(folder, str) and "://" not in folder:
                runtime_env = {**runtime_env, key: self._upload(base_dir / folder, {})}
        return {**document, "spec": {**spec, "runtimeEnv": runtime_env}}

    # ------------------------------------------------------------ look

    def workload(self, id: str) -> WorkloadHandle:
        """The handle of a workload that exists; NotFoundError when there is none."""
        handle = WorkloadHandle(self._http, id)
        handle.info()
        return handle

    def workloads(self, limit: int = 100, **filters: str) -> Rows:
        """The newest workloads; filters are state, kind, queue, owner and name."""
        params: dict[str, str | int | float | bool] = {"limit": limit, "newest": True, **filters}
        columns = ("id", "kind", "queue", "priority", "state", "reason")
        return Rows(_items(self._http.call("GET", "/api/v1/workloads", params=params)), columns, "workloads")

    def page_of_workloads(self, limit: int, cursor: str, states: Sequence[str], queue: str | None) -> JsonObject:
        """One page, newest first: {"items": [...], "nextCursor": "..."}."""
        params: dict[str, str | int | float | bool | list[str]] = {"limit": limit, "cursor": cursor, "newest": True}
        if states:
            params["state"] = list(states)
        if queue:
            params["queue"] = queue
        return self._http.call("GET", "/api/v1/workloads", params=params)

    def queues(self) -> Rows:
        """All queues with what they hold."""
        columns = ("name", "deserved", "used", "borrowed", "lent", "pending", "running")
        return Rows(_items(self._http.call("GET", "/api/v1/queues")), columns, "queues")

    def set_queue_mode(self, queue: str, mode: str) -> JsonObject:
        """`mode` open; hold: nothing of it starts; drain: and what runs is stopped and waits."""
        return self._http.call("PATCH", f"/api/v1/queues/{queue}", json={"mode": mode})

    def delete_queue(self, queue: str, drain: bool = False) -> None:
        """Remove a queue; with `drain`, one that is in use takes nothing new and goes when its work has ended."""
        self._http.call("DELETE", f"/api/v1/queues/{queue}{'?drain=true' if drain else ''}")

    def entries(self, array: str, first: int = 0, limit: int = 100) -> Rows:
        """Entries of an array from index `first` on: id, state, attempt and exit code of each."""
        found: list[JsonObject] = []
        next_first: object = first
        while isinstance(next_first, int) and len(found) < limit:
            params: dict[str, str | int | float | bool] = {"first": next_first, "limit": min(1000, limit - len(found))}
            page = self._http.call("GET", f"/api/v1/workloads/{path_part(array)}/entries", params=params)
            found += _items(page)
            next_first = page["nextFirst"]
        return Rows(found, ("id", "state", "attempt", "exitCode"), "entries")

    def reservations(self) -> Rows:
        """Room that is held in advance."""
        columns = ("name", "queue", "state", "count", "inUse", "setAside", "missing")
        return Rows(_items(self._http.call("GET", "/api/v1/reservations")), columns, "reservations")

    def delete_reservation(self, name: str) -> None:
        """Hold it no longer; what runs in it goes on."""
        raise_for(self._http.request("DELETE", f"/api/v1/reservations/{path_part(name)}"))

    def crons(self) -> Rows:
        """What is submitted by a schedule."""
        columns = ("name", "queue", "schedule", "timeZone", "submitted", "note")
        return Rows(_items(self._http.call("GET", "/api/v1/crons")), columns, "crons")

    def delete_cron(self, name: str) -> None:
        """Submit no more of it; what was submitted goes on."""
        raise_for(self._http.request("DELETE", f"/api/v1/crons/{path_part(name)}"))

    def nodes(self) -> Rows:
        """All nodes with who holds their devices."""
        columns = ("name", "total", "used", "health", "reason", "topology")
        return Rows(_items(self._http.call("GET", "/api/v1/nodes")), columns, "nodes")

    def capacity(self) -> JsonObject:
        """Where nodes come from: groups, orders, and what Ray's autoscaler has asked for."""
        return self._http.call("GET", "/api/v1/capacity")

    def bypasses(self) -> JsonObject:
        """Ray jobs that run or wait there and did not come through the queues."""
        return self._http.call("GET", "/api/v1/bypasses")

    def repartition(self) -> JsonObject:
        """Which idle MIG GPUs to cut anew for what waits, and how: {"cuts": [...], "unserved": [...]}."""
        return self._http.call("GET", "/api/v1/repartition")

    def change_node(self, node: str, verb: str, reason: str = "", deadline: str | None = None) -> JsonObject:
        """`verb` cordon, drain or uncordon, on a node named by its name or id."""
        body: JsonObject = {"reason": reason} if reason else {}
        if deadline is not None:
            body["deadline"] = deadline
        return self._http.call("POST", f"/api/v1/nodes/{path_part(node)}/{verb}", json=body)

    def devices(self, node: str) -> JsonObject:
        """What was read last of a node's GPUs: {"devices": [...], "readAt": ..., "error": ...}."""
        return self._http.call("GET", f"/api/v1/nodes/{path_part(node)}/devices")

    def clear_device(self, node: str, index: int) -> JsonObject:
        """Forget the XIDs of a device that somebody has dealt with."""
        return self._http.call("POST", f"/api/v1/nodes/{path_part(node)}/devices/{index}/clear")

    def overview(self) -> JsonObject:
        """Queues, nodes and workloads at one time."""
        return self._http.call("GET", "/api/v1/overview")

    def version(self) -> JsonObject:
        """What the gateway runs."""
        return self._http.call("GET", "/api/v1/version")

    def __repr__(self) -> str:
        return f"<rayorch.Client {self.address}>"

    def _repr_html_(self) -> str:
        queues = self.queues()._repr_html_()
        nodes = table(
            ("node", "health", "GPUs", "used"),
            ((n["name"], n["health"], _gpus(n["total"]), _gpus(n["used"])) for n in self.nodes()),
            "nodes",
        )
        return queues + nodes


def connect_to(target: Target) -> Client:
    """A client of that gateway; an error when it does not answer or wants another token."""
    client = Client(Http(target))
    try:
        client.version()
    except NotFoundError as error:
        client.close()
        raise SpecError("address", f"{target.url} is not a rayorch gateway") from error
    except BaseException:
        client.close()
        raise
    return client


def _items(page: JsonObject) -> list[JsonObject]:
    items = page["items"]
    assert isinstance(items, list)
    return [item for item in items if isinstance(item, dict)]


def _gpus(amounts: object) -> object:
    return amounts.get("GPU", 0) if isinstance(amounts, dict) else None


def _models(accelerators: str | Sequence[str]) -> list[Any]:
    return [accelerators] if isinstance(accelerators, str) else list(accelerators)


def _amounts(gpus: float, cpus: float, more: Mapping[str, float | str] | None) -> JsonObject:
    amounts: dict[str, float | str] = {"CPU": cpus, "GPU": gpus, **(more or {})}
    return cast(JsonObject, {name: amount for name, amount in amounts.items() if amount != 0})


def _name_of(work: Command | Callable[..., Any]) -> str:
    """A readable name: the function's, or the script's in a command."""
    if callable(work):
        words = [getattr(work, "__name__", type(work).__name__)]
    else:
        try:
            words = shlex.split(work) if isinstance(work, str) else list(work)
        except ValueError:  # a quote without an end: the shell will say so
            words = str(work).split()
    script = next((word for word in words if word.endswith((".py", ".sh"))), words[0] if words else "job")
    stem = Path(script).stem
    name = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in stem).strip("-._")
    return name[:60] or "job"
