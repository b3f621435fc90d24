"""Samples who holds which GPU, by the API that everybody has, and follows the events of the journal."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from rayorch import Client, RayorchError

SAMPLE_S = 0.25


@dataclass(frozen=True, slots=True)
class Span:
    """One device in one hand for a while; times in seconds since the demo began."""

    node: str
    device: int
    holder: str
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class Change:
    """A line of the timeline."""

    at_s: float
    text: str


@dataclass(slots=True)
class _Device:
    holder: str
    since_s: float


@dataclass(slots=True)
class Watch:
    """`spans`, `changes` and `devices` (node, index) grow while the thread runs; read them after `stop`."""

    client: Client
    began_s: float
    spans: list[Span] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    devices: set[tuple[str, int]] = field(default_factory=set)
    _devices: dict[tuple[str, int], _Device] = field(default_factory=dict)
    _held: dict[str, int] = field(default_factory=dict)
    _down: set[str] = field(default_factory=set)
    _done: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to sample."""
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, and close the spans that are open."""
        self._done.set()
        if self._thread is not None:
            self._thread.join(10)
        for (node, index), device in self._devices.items():
            if device.holder:
                self.spans.append(Span(node, index, device.holder, device.since_s, self.now_s()))

    def now_s(self) -> float:
        """Seconds since the demo began."""
        return time.time() - self.began_s

    def _run(self) -> None:
        while not self._done.wait(SAMPLE_S):
            try:
                self._sample(self.client.overview())
            except RayorchError as error:  # a moment without an answer is a gap in the picture, no end of the demo
                self.errors.append(f"{self.now_s():.1f} s: {error}")

    def _sample(self, view: dict[str, Any]) -> None:
        held: dict[str, int] = {}
        for node in view["nodes"]:
            if node["health"] == "lost" and node["name"] not in self._down:
                self._down.add(node["name"])
                self.say(f"{node['name']} is lost")
            for device in node["devices"]:
                holder = str(device["holders"][0]["workload"]) if device["holders"] else ""
                self.devices.add((node["name"], device["index"]))
                self._device(node["name"], device["index"], holder)
                if holder:
                    held[holder] = held.get(holder, 0) + 1
        known = {node["name"] for node in view["nodes"]}
        for name, index in list(self._devices):
            if name not in known:
                self._device(name, index, "")
        if held != self._held:
            words = ", ".join(f"{name} {count}" for name, count in sorted(held.items())) or "nobody"
            self.say(f"GPUs held by {words}")
            self._held = held

    def _device(self, node: str, index: int, holder: str) -> None:
        now_s = self.now_s()
        before = self._devices.get((node, index))
        if before is not None and before.holder == holder:
            return
        if before is not None and before.holder:
            self.spans.append(Span(node, index, before.holder, before.since_s, now_s))
        self._devices[node, index] = _Device(holder, now_s)

    def say(self, text: str) -> None:
        """Add a line to the timeline and show it."""
        change = Change(self.now_s(), text)
        self.changes.append(change)
        sys.stdout.write(f"  {change.at_s:6.1f} s  {text}\n")  # one write: two threads tell
        sys.stdout.flush()
