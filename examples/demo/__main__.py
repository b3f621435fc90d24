"""`python -m examples.demo`: the main job end to end on an emulated cluster. Exits non-zero when a bar is missed."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import socket
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

os.environ["RAY_AUTH_MODE"] = "disabled"  # loopback only, and a token file of another cluster must not matter
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from examples.demo.report import html_page, lines, text_table
from examples.demo.story import Plot, Story
from examples.demo.watch import Watch
from rayorch import connect
from rayorch.adapters.ray_emulation import EmulationSpec
from rayorch.config import load_profile
from rayorch.core.types import QueueId, QueueSpec, Resources
from rayorch.server import Server, ServerSettings

QUEUES = (
    QueueSpec(QueueId("research"), deserved=Resources.of({"GPU": 5})),
    QueueSpec(QueueId("production"), deserved=Resources.of({"GPU": 4})),
)


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def main() -> int:
    """Start everything, tell the story, report, end everything."""
    parser = argparse.ArgumentParser(prog="examples.demo", description=__doc__)
    parser.add_argument("--short", action="store_true", help="a shorter burst")
    parser.add_argument("--report", type=Path, default=Path("demo-report.html"))
    given = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    plot = Plot(burst_s=15.0) if given.short else Plot()
    folder = Path(tempfile.mkdtemp(prefix="rayorch-demo-"))
    if "RAY_TMPDIR" not in os.environ:
        os.environ["RAY_TMPDIR"] = str(folder / "ray")
    began_s = time.time()
    serve_port = free_port()
    profile = replace(
        load_profile(),
        lease_s=8.0,
        lease_margin_s=1.0,
        grow_cooldown_s=5.0,
        scale_down_delay_s=5.0,
        failure_settle_s=3.0,
    )
    settings = ServerSettings(
        home=folder / "home",
        profile=profile,
        instance="demo",
        emulate=EmulationSpec(nodes=3, gpus=2, racks=3, cpus=8, head_cpus=8),
        queues=QUEUES,
        serve_port=serve_port,
    )
    print("starting an emulated cluster: a head and 3 nodes with 2 GPUs each", flush=True)
    server = Server(settings)
    try:
        server.start()
        client = connect(server.gateway_url)
        print(f"rayorch is up at {server.gateway_url} after {time.time() - began_s:.1f} s", flush=True)
        watch = Watch(client, time.time())
        watch.start()
        try:
            told = Story(server, client, watch, folder, plot, f"http://127.0.0.1:{serve_port}").tell()
        finally:
            watch.stop()
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    table = lines(told)
    print(f"\n{text_table(table)}\n", flush=True)
    given.report.write_text(html_page(table, watch))
    print(f"the same with a picture: {given.report}; it took {time.time() - began_s:.0f} s", flush=True)
    for failure in told.failed_requests[:5]:
        print(f"failed request: {failure}", file=sys.stderr)
    return 0 if all(line.met for line in table) else 1


if __name__ == "__main__":
    raise SystemExit(main())
