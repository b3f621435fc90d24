"""One process that runs rayorch on a Ray cluster: the owners, the gateway and, with `--emulate`, the cluster itself.

    python -m rayorch.server --emulate 4x8 --racks 2      a cluster of its own on this machine
    python -m rayorch.server --address auto               the cluster that runs here

`rayorch up` starts it in the background and waits for its state file; `rayorch down` ends it by SIGTERM. The owners
are detached actors: when a server that attached to a cluster dies, they go on, and a new server finds them.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

import ray
from ray import serve

from rayorch.actors.names import NAMESPACE, find_or_none, queues_name
from rayorch.actors.node_groups import GroupSettings
from rayorch.actors.provider import group_settings
from rayorch.actors.start import InstanceSettings, start_instance, stop_instance
from rayorch.adapters.ray_emulation import EmulatedCluster, EmulationSpec
from rayorch.adapters.ray_serve import ensure_serve_started
from rayorch.config import ClusterDocument, ClusterSettings, QueueDocument, load_documents, load_profile
from rayorch.core.admission import NodeShape, check_instance
from rayorch.core.errors import RayorchError, SpecError
from rayorch.core.policy import Profile
from rayorch.core.types import QueueSpec, Resources
from rayorch.serve_apps.gateway import (
    DEFAULT_PORT,
    GatewaySettings,
    UvicornGateway,
    check_listening,
    create_app,
    gateway_app,
    jobs_token_from,
    token_from,
)
from rayorch.serve_apps.gateway.ray_backend import RayBackend

log = logging.getLogger(__name__)

LEVELS = ("zone", "block", "rack")
GATEWAY_STOP_S = 10.0
"""How long open requests may hold up the end of this process."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """`emulate` None: attach to the cluster at `address` ("auto": the one on this machine). `port` 0: any free one.

    `gateway`: "uvicorn" serves HTTP from this process, "serve" from a Ray Serve application on the head.
    `serve_port`: start Ray Serve now, with its HTTP on this port; None starts it with the first application, on 8000.
    `jobs_token`: a second token, good for Ray's Jobs routes only. `leave_running`: `stop` ends the gateway alone,
    so that this process can be replaced (a container that is started again) without any running gang noticing.
    """

    home: Path
    profile: Profile
    instance: str = "main"
    emulate: EmulationSpec | None = None
    address: str = "auto"
    gateway: str = "uvicorn"
    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = None
    jobs_token: str | None = None
    leave_running: bool = False
    serve_port: int | None = None
    levels: tuple[str, ...] = LEVELS
    queues: tuple[QueueSpec, ...] = field(default=())
    pools: tuple[NodeShape, ...] = field(default=())
    groups: GroupSettings | None = None
    countables: Resources = Resources()

    def __post_init__(self) -> None:
        check_instance(self.instance)

    @property
    def state_dir(self) -> Path:
        """Journal, logs, and the state file by which clients find us."""
        return self.home / self.instance


class Server:
    """Starts everything by `start()`; `stop()` undoes it.

    After a failed start it undoes what that start did: an instance that ran before goes on.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.cluster: EmulatedCluster | None = None
        self.gateway_url = ""
        self._gateway: UvicornGateway | None = None
        self._gateway_thread: threading.Thread | None = None
        self._ours = False
        self._attached = False  # the instance ran before us
        self._up = False

    def start(self) -> None:
        """Cluster (or attach), owners, gateway, state file."""
        settings = self.settings
        address = settings.address
        if settings.emulate is not None:
            self.cluster = EmulatedCluster(settings.emulate)
            address = self.cluster.address
        if not ray.is_initialized():
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.WARNING)
            self._ours = True
        self._attached = find_or_none(queues_name(settings.instance)) is not None
        start_instance(
            InstanceSettings(
                profile=settings.profile,
                state_dir=settings.state_dir,
                instance=settings.instance,
                levels=settings.levels,
                queues=settings.queues,
                pools=settings.pools,
                groups=settings.groups,
                countables=settings.countables,
            )
        )
        if settings.serve_port is not None:
            ensure_serve_started(settings.host, settings.serve_port)
        self.gateway_url = self._serve_gateway() if settings.gateway == "serve" else self._run_gateway()
        self._write_state(ray.get_runtime_context().gcs_address)
        self._up = True

    def _run_gateway(self) -> str:
        """HTTP from a thread of this process."""
        settings = self.settings
        gateway = GatewaySettings(instance=settings.instance, token=settings.token, jobs_token=settings.jobs_token)
        backend = RayBackend(settings.instance, settings.state_dir)
        backend.start_results()
        self._gateway = UvicornGateway(create_app(backend, gateway), settings.host, settings.port, gateway)
        self._gateway_thread = threading.Thread(target=self._gateway.run, name="gateway", daemon=True)
        self._gateway_thread.start()
        return self._gateway.address

    def _serve_gateway(self) -> str:
        """HTTP from a Serve application on the head."""
        settings = self.settings
        port = settings.port or DEFAULT_PORT
        ensure_serve_started(settings.host, port)
        application = gateway_app({"instance": settings.instance, "folder": str(settings.state_dir)})
        serve.run(application, name="gateway", route_prefix="/")
        return f"http://{settings.host}:{port}"

    def _write_state(self, address: str) -> None:
        """Tell clients where we are; written whole or not at all, readable by this user alone."""
        state = {
            "pid": os.getpid(),
            "instance": self.settings.instance,
            "address": address,
            "gateway_url": self.gateway_url,
            "emulated": self.cluster is not None,
        }
        path = self.settings.state_dir / "server.json"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(state))
        fresh.chmod(0o600)
        fresh.replace(path)

    def stop(self) -> None:
        """End the gateway, the owners (not with `leave_running`) and an emulated cluster. The journal stays."""
        others = self._attached and not self._up
        keep = others or (self.settings.leave_running and self.cluster is None)
        if not others:
            (self.settings.state_dir / "server.json").unlink(missing_ok=True)
        if self._gateway is not None:
            self._gateway.stop()
            self._gateway = None
        if self._gateway_thread is not None:
            self._gateway_thread.join(GATEWAY_STOP_S)
            self._gateway_thread = None
        try:
            if ray.is_initialized() and not keep:
                stop_instance(self.settings.instance)
        except (RayorchError, ray.exceptions.RayError) as error:
            log.warning("the owners did not end cleanly: %s", error)
        if self.cluster is not None:
            self.cluster.shutdown()
            self.cluster = None
        elif self._ours:
            ray.shutdown()


def settings_from(arguments: list[str]) -> ServerSettings:
    """Read the command line and the documents that it names. SpecError for what is wrong in them."""
    parser = argparse.ArgumentParser(prog="rayorch.server", description=__doc__)
    parser.add_argument("--instance", default="main")
    parser.add_argument("--home", type=Path, default=Path(os.environ.get("RAYORCH_HOME", "~/.rayorch")).expanduser())
    parser.add_argument("--emulate", metavar="NODESxGPUS")
    parser.add_argument("--racks", type=int, default=1)
    parser.add_argument("--accelerators", metavar="MODEL:NODES,...", help="what emulated nodes say that they have")
    parser.add_argument("--exact-devices", action="store_true", help="emulated nodes name their GPUs: gpu0, gpu1, …")
    parser.add_argument("--address", default="auto")
    parser.add_argument("--gateway", choices=("uvicorn", "serve"), default="uvicorn")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--serve-port", type=int, help="start Ray Serve now, with its HTTP on this port")
    parser.add_argument("--leave-running", action="store_true", help="a signal ends this process, not the owners")
    parser.add_argument("-f", "--file", action="append", type=Path, default=[], help="Cluster and Queue documents")
    given = parser.parse_args(arguments)
    token = token_from()
    check_listening(given.host, token)  # before anything is started
    if given.accelerators and not given.emulate:
        raise SpecError("accelerators", "are of an emulated cluster; real nodes are labelled by Ray")
    emulate = EmulationSpec.parse(given.emulate, given.racks, given.accelerators or "") if given.emulate else None
    if given.exact_devices:
        if emulate is None:
            raise SpecError("exact-devices", "is for an emulated cluster; real nodes declare gpu0, … to ray start")
        emulate = replace(emulate, exact_devices=True)
    settings = ServerSettings(
        home=given.home,
        profile=load_profile(),
        instance=given.instance,
        emulate=emulate,
        address=given.address,
        gateway=given.gateway,
        host=given.host,
        port=given.port,
        serve_port=given.serve_port,
        token=token,
        jobs_token=jobs_token_from(),
        leave_running=given.leave_running,
    )
    return with_documents(settings, given.file)


def with_documents(settings: ServerSettings, files: list[Path]) -> ServerSettings:
    """The settings with what Cluster and Queue documents say. Other kinds are for `rayorch apply`: SpecError."""
    cluster = ClusterSettings(settings.instance)
    for path in files:
        try:
            text = path.read_bytes()
        except OSError as error:
            raise SpecError("file", f"can't read {path}: {error}") from error
        for document in load_documents(text, str(path)):
            match document:
                case ClusterDocument():
                    cluster = document.to_core()
                    levels = cluster.topology or settings.levels
                    pools = tuple(pool.shape() for pool in cluster.pools)
                    profile, countables = cluster.load_profile(), cluster.countables
                    settings = replace(settings, profile=profile, levels=levels, pools=pools, countables=countables)
                case QueueDocument():
                    settings = replace(settings, queues=(*settings.queues, document.to_core()))
                case _:
                    raise SpecError("kind", f"{path}: a server takes Cluster and Queue, not {document.kind}")
    groups = group_settings(cluster, settings.profile, settings.levels, os.environ)
    return replace(settings, groups=groups)


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    done = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        log.info("ending on signal %d", number)
        done.set()

    try:
        server = Server(settings_from(sys.argv[1:] if arguments is None else arguments))
        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)
        try:
            server.start()
            log.info("rayorch is up: %s", server.gateway_url)
            done.wait()
        finally:
            server.stop()
    except RayorchError as error:
        log.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
