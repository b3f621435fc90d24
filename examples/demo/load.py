"""Real HTTP requests against the served model: a trickle, and a burst on top of it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import httpx
from sklearn.datasets import load_digits

TIMEOUT_S = 60.0
TRICKLE_PAUSE_S = 1.0


@dataclass(slots=True)
class Load:
    """Counts what came back. A request that ends in anything but a 200 with the right shape is a failed one."""

    url: str
    sent: int = 0
    right: int = 0
    failed: list[str] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _done: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def trickle(self) -> None:
        """One request a second until `stop`."""
        self._spawn(TRICKLE_PAUSE_S, None)

    def burst(self, callers: int, length_s: float) -> list[threading.Thread]:
        """`callers` threads that each send one request after another for a while."""
        return [self._spawn(0.0, time.monotonic() + length_s) for _ in range(callers)]

    def stop(self) -> None:
        """End the trickle; every request that was sent is waited for."""
        self._done.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S + 5)

    def _spawn(self, pause_s: float, until_s: float | None) -> threading.Thread:
        thread = threading.Thread(target=self._run, args=(pause_s, until_s), daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _run(self, pause_s: float, until_s: float | None) -> None:
        digits = load_digits()
        row = 0
        with httpx.Client(timeout=TIMEOUT_S) as client:
            while not self._done.is_set() and (until_s is None or time.monotonic() < until_s):
                row = (row + 5) % len(digits.target)  # every fifth image: those that training never saw
                self._one(client, (digits.images[row] / 16.0).ravel().tolist(), int(digits.target[row]))
                if pause_s:
                    self._done.wait(pause_s)

    def _one(self, client: httpx.Client, pixels: list[float], wanted: int) -> None:
        began_s = time.monotonic()
        error, digit = "", None
        try:
            answer = client.post(self.url, json=pixels)
            if answer.status_code == 200:
                digit = int(answer.json()["digit"])
            else:
                error = f"{answer.status_code} {answer.text[:200]}"
        except (httpx.HTTPError, KeyError, ValueError) as failure:
            error = f"{type(failure).__name__}: {failure}"
        with self._lock:
            self.sent += 1
            self.right += digit == wanted
            self.latencies_s.append(time.monotonic() - began_s)
            if error:
                self.failed.append(error)
