"""The main job as a story: train, sweep, serve a burst, shrink, grow back, lose a node, recover."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.demo.load import Load
from examples.demo.watch import Watch
from rayorch import Client, WorkloadHandle
from rayorch.server import Server

ROOT = Path(__file__).resolve().parents[2]
POLL_S = 0.2
PATIENCE_S = 150.0
"""How long one step of the story may take on a slow machine before the demo is given up."""


@dataclass(frozen=True, slots=True)
class Plot:
    """How long things are. At least `steps` of at least `step_s`, a checkpoint every `checkpoint_every`; training goes
    on until the story has come to its end, however slow the machine is."""

    steps: int = 300
    step_s: float = 0.08
    checkpoint_every: int = 50
    burst_callers: int = 24
    burst_s: float = 20.0


@dataclass(slots=True)
class Told:
    """What the story measured, for the report. Times in seconds."""

    accuracy: float = 0.0
    steps_lost_preemption: int = -1
    steps_lost_node: int = -1
    checkpoint_every: int = 0
    requests: int = 0
    failed_requests: list[str] = field(default_factory=list)
    request_p50_s: float = 0.0
    served_right: float = 0.0
    grant_s: list[tuple[str, float]] = field(default_factory=list)
    free_s: list[float] = field(default_factory=list)
    recovery_s: float = 0.0
    sweep_output: str = ""
    sweep_exit: int = -1
    sizes: list[int] = field(default_factory=list)


class Story:
    """Runs on a server that is up; `tell` plays every chapter in turn."""

    def __init__(self, server: Server, client: Client, watch: Watch, folder: Path, plot: Plot, serve_url: str) -> None:
        self.server, self.client, self.watch, self.folder, self.plot = server, client, watch, folder, plot
        self.serve_url = serve_url
        self.history = folder / "history.jsonl"
        self.told = Told(checkpoint_every=plot.checkpoint_every)
        self._killed_s = float("inf")

    def tell(self) -> Told:
        """Every chapter; RuntimeError when one does not come to its end."""
        training = self._train()
        sweep = self._sweep()
        self._until("training has committed a checkpoint", lambda: self._info(training)["checkpoint"] is not None)
        self._end_sweep(sweep)
        load = self._serve(training)
        self._burst(training, load)
        self._kill_node(training)
        self._finish(training, load)
        self._measure(training)
        return self.told

    # ------------------------------------------------------------ chapters

    def _train(self) -> WorkloadHandle:
        self.watch.say("training is submitted: 2 to 4 workers with a GPU each")
        command = [
            "python", "-m", "examples.demo.train_digits", "--steps", str(self.plot.steps),
            "--step-s", str(self.plot.step_s), "--checkpoint-every", str(self.plot.checkpoint_every),
            "--storage", str(self.folder / "checkpoints"), "--history", str(self.history),
            "--finish", str(self.folder / "finish"),
        ]  # fmt: skip
        training = self.client.submit(
            command, kind="train", id="digits", queue="research", workers=(2, 4), gpus_per_worker=1, priority=10,
            env=self._environment(),
        )  # fmt: skip
        self._until("training runs", lambda: self._steps() > 0 or self._failed(training))
        return training

    def _sweep(self) -> subprocess.Popen[str]:
        self.watch.say("a sweep comes by stock `ray job submit`")
        command = [
            str(Path(sys.executable).with_name("ray")), "job", "submit", "--address", "rayorch://research",
            "--submission-id", "sweep", "--metadata-json", json.dumps({"rayorch.workers": "1", "rayorch.gpus": "1"}),
            "--working-dir", str(ROOT / "examples" / "demo"), "--", "python", "sweep.py",
        ]  # fmt: skip
        environment = dict(os.environ, RAYORCH_ADDRESS=self.client.address)
        return subprocess.Popen(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self.folder
        )

    def _end_sweep(self, sweep: subprocess.Popen[str]) -> None:
        self.told.sweep_output = sweep.communicate(timeout=PATIENCE_S)[0]
        self.told.sweep_exit = sweep.returncode
        best = [line for line in self.told.sweep_output.splitlines() if "best alpha" in line]
        self.watch.say(
            f"the sweep ended with exit code {sweep.returncode}: {best[-1].strip() if best else 'no result'}"
        )
        if sweep.returncode != 0:
            raise RuntimeError(f"the sweep failed:\n{self.told.sweep_output[-4000:]}")

    def _serve(self, training: WorkloadHandle) -> Load:
        self.watch.say("the model is served: 1 to 4 replicas with a GPU each, above training")
        document = {
            "apiVersion": "rayorch/v1",
            "kind": "ServeApp",
            "metadata": {"name": "classify", "queue": "production"},
            "spec": {
                "importPath": "examples.demo.classify:app",
                "routePrefix": "/classify",
                "replicas": {"min": 1, "max": 4, "gpusPer": 1, "resources": {"CPU": 1}},
                "priority": 50,
                "env": {**self._environment(), "DIGITS_CHECKPOINTS": str(self.folder / "checkpoints")},
            },
        }
        answer = self.client.apply([document])
        if not all(result.get("accepted") for result in answer):
            raise RuntimeError(f"the application was refused: {answer}")
        app = self.client.workload("classify")
        self._until("the application is up", lambda: self._info(app)["readyAt"] is not None)
        load = Load(self.serve_url + "/classify")
        load.trickle()
        return load

    def _burst(self, training: WorkloadHandle, load: Load) -> None:
        app = self.client.workload("classify")
        before = self._size(training)
        self.watch.say(f"a burst of requests from {self.plot.burst_callers} callers begins")
        callers = load.burst(self.plot.burst_callers, self.plot.burst_s)
        self._until("training has given GPUs to the application", lambda: self._size(training) < before)
        self._until("the application has grown", lambda: self._size(app) >= 4)
        for caller in callers:
            caller.join(self.plot.burst_s + 60)
        self.watch.say("the burst is over")
        self._until("the application has shrunk", lambda: self._size(app) == 1)
        self._until("training has grown back", lambda: self._size(training) >= before)
        grown_at = self._steps()
        self._until("training runs at its full size", lambda: self._steps() > grown_at + self.plot.checkpoint_every)

    def _kill_node(self, training: WorkloadHandle) -> None:
        held = self._nodes_of(training)
        served = self._nodes_of(self.client.workload("classify"))
        victims = sorted(set(held) - set(served)) or sorted(held)
        self.watch.say(f"{victims[0]} is killed under training")
        assert self.server.cluster is not None
        self._killed_s = time.time()
        self.server.cluster.kill_node(victims[0])
        attempt = int(self._info(training)["attempt"])
        self._until("training has a new attempt", lambda: self._info(training)["attempt"] > attempt)
        steps = self._lines()
        self._until("training runs again", lambda: self._lines() > steps)
        self.told.recovery_s = time.time() - self._killed_s
        self.watch.say(f"training runs again after {self.told.recovery_s:.1f} s")

    def _finish(self, training: WorkloadHandle, load: Load) -> None:
        (self.folder / "finish").touch()
        state = training.wait(timeout=PATIENCE_S * 2)
        load.stop()
        self.watch.say(f"training ended: {state}")
        if state != "SUCCEEDED":
            raise RuntimeError("training failed:\n" + "".join(training.logs())[-4000:])
        results = [line for line in training.logs() if line.startswith('{"accuracy"')]
        self.told.accuracy = float(json.loads(results[-1])["accuracy"])
        self.told.requests, self.told.failed_requests = load.sent, load.failed
        self.told.request_p50_s = sorted(load.latencies_s)[len(load.latencies_s) // 2]
        self.told.served_right = load.right / max(1, load.sent)

    # ------------------------------------------------------------ measuring

    def _measure(self, training: WorkloadHandle) -> None:
        """Steps that ran more than once are steps that were lost; who is to blame is told by the time."""
        seen: set[int] = set()
        lost_preemption = lost_node = 0
        for line in self.history.read_text().splitlines():
            row = json.loads(line)
            if row["step"] in seen:
                if row["at_s"] > self._killed_s:
                    lost_node += 1
                else:
                    lost_preemption += 1
            seen.add(row["step"])
            if not self.told.sizes or self.told.sizes[-1] != row["world"]:
                self.told.sizes.append(row["world"])
        missing = set(range(1, max(seen) + 1)) - seen
        if missing:
            raise RuntimeError(f"steps were skipped: {sorted(missing)[:10]}")
        self.told.steps_lost_preemption, self.told.steps_lost_node = lost_preemption, lost_node
        for name in ("digits", "sweep", "classify"):
            info = self._info(self.client.workload(name))
            first = next(e for e in self.client.workload(name).events() if e["type"] == "Started")
            self.told.grant_s.append((name, float(str(first["at"])) - float(info["submittedAt"])))
        self.told.free_s = self._free_times(training)

    def _free_times(self, training: WorkloadHandle) -> list[float]:
        """From each decision that takes GPUs from training to their next use by the application, by the journal."""
        frees: list[tuple[float, list[str]]] = []
        for at_s, before, after in _seat_changes(training.events()):
            if len(after) < len(before):
                frees.append((at_s, [node for seat, node in before.items() if seat not in after]))
        times = []
        for at_s, before, after in _seat_changes(self.client.workload("classify").events()):
            taken = [node for seat, node in after.items() if seat not in before]
            for began_s, nodes in frees:
                for node in taken:
                    if node in nodes and at_s > began_s:
                        nodes.remove(node)
                        times.append(at_s - began_s)
        return times

    # ------------------------------------------------------------ looking

    def _environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def _info(self, workload: WorkloadHandle) -> dict[str, Any]:
        return dict(workload.info())

    def _failed(self, workload: WorkloadHandle) -> bool:
        """False while it has not failed; else RuntimeError with the end of its output."""
        if self._info(workload)["state"] == "FAILED":
            raise RuntimeError(f"{workload.id} failed:\n" + "\n".join(workload.logs())[-4000:])
        return False

    def _size(self, workload: WorkloadHandle) -> int:
        return sum(int(n) for n in self._info(workload)["size"].values())

    def _nodes_of(self, workload: WorkloadHandle) -> list[str]:
        explained: Any = workload.explain().to_dict()["workload"]
        return sorted({str(member["node"]) for member in explained["members"]})

    def _lines(self) -> int:
        return len(self.history.read_text().splitlines()) if self.history.exists() else 0

    def _steps(self) -> int:
        lines = self.history.read_text().splitlines() if self.history.exists() else []
        return int(json.loads(lines[-1])["step"]) if lines else 0

    def _how_it_is(self) -> str:
        """State, events and last output of every workload, for when the story breaks off."""
        parts = []
        for row in self.client.workloads():
            handle = self.client.workload(str(row["id"]))
            events = [e for e in handle.events() if e["type"] not in ("Reported", "Submitted")]
            output = "\n".join(list(handle.logs())[-40:])
            parts.append(f"--- {row}\n" + "\n".join(str(e) for e in events) + f"\n{output}")
        return "\n".join(parts)

    def _until(self, what: str, holds: Callable[[], bool]) -> None:
        give_up_s = time.monotonic() + PATIENCE_S
        while not holds():
            if time.monotonic() > give_up_s:
                raise RuntimeError(f"waited {PATIENCE_S:.0f} s in vain until {what}\n{self._how_it_is()}")
            time.sleep(POLL_S)
        self.watch.say(what)


def _seat_changes(events: Sequence[Mapping[str, Any]]) -> Iterator[tuple[float, dict[int, str], dict[int, str]]]:
    """(time, seats before, seats after) of each change of a workload's GPU seats, as number → node."""
    before: dict[int, str] = {}
    for event in events:
        if event["type"] in ("Started", "Resized"):
            seats = {m["surplus"]: m["node"] for m in event["members"] if m["surplus"] and m["bundle"].get("GPU")}
            yield float(event["at"]), before, seats
            before = seats
        elif event["type"] == "AttemptEnded":
            before = {}
