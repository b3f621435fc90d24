"""How far an experiment has come: a bar with an estimate for people, a line for each run in a log."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from rayorch.experiment.plays import Play
from rayorch.sim.report.summary import Summary
from rayorch.sim.report.text import figure
from rayorch.sim.trace.outcome import Progress as RunProgress


class Watcher:
    """Who is told. This one tells nobody."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return

    def began(self, play: Play) -> None:
        """A run begins in this process."""

    def came(self, play: Play, progress: RunProgress) -> None:
        """It has come so far."""

    def done(self, play: Play, run: Summary, kept: bool) -> None:
        """It has finished, or was `kept` from before."""

    def word(self, text: str) -> None:
        """Something that people should know."""


class Lines(Watcher):
    """A line on stderr for each run that has finished: for logs and pipes."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0

    def done(self, play: Play, run: Summary, kept: bool) -> None:
        """One line."""
        self._done += 1
        self.word(f"[{self._done}/{self._total}] {line_of(play, run, kept)}")

    def word(self, text: str) -> None:
        """One line."""
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


class Bar(Watcher):
    """Bars for people: all runs, and the jobs of the one that is played here, with the time that is left.

    The estimate is that of all jobs of all runs at the speed seen so far.
    """

    def __init__(self, total: int, jobs: int, console: Console | None = None) -> None:
        self._jobs = max(1, jobs)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left:"),
            TimeRemainingColumn(),
            console=console or Console(stderr=True),
            speed_estimate_period=600.0,
        )
        self._total = total
        self._finished = 0
        self._all: TaskID = self._bar.add_task(f"jobs of {total} runs", total=total * self._jobs)
        self._open: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def began(self, play: Play) -> None:
        """Name the run."""
        self._bar.update(self._all, description=f"{play.name} ({self._finished + 1}/{self._total})")

    def came(self, play: Play, progress: RunProgress) -> None:
        """Move the bar by the jobs that have ended since."""
        self._open[play.key] = min(progress.ended, self._jobs)
        self._move()

    def done(self, play: Play, run: Summary, kept: bool) -> None:
        """A whole run further, and its line above the bar."""
        self._open.pop(play.key, None)
        self._finished += 1
        if kept:  # no work was done for it, so it says nothing of the speed
            self._total -= 1
            self._finished -= 1
            self._bar.update(self._all, total=max(1, self._total * self._jobs))
        self._move()
        self.word(line_of(play, run, kept))

    def word(self, text: str) -> None:
        """A line above the bar."""
        self._bar.console.print(text, highlight=False, markup=False)

    def _move(self) -> None:
        self._bar.update(self._all, completed=self._finished * self._jobs + sum(self._open.values()))


def watcher(total: int, jobs: int, wanted: bool | None) -> Watcher:
    """A bar where somebody watches stderr (or a notebook), lines elsewhere; `wanted` False: nothing."""
    if wanted is False:
        return Watcher()
    console = Console(stderr=True)
    return Bar(total, jobs, console) if console.is_terminal or console.is_jupyter else Lines(total)


def line_of(play: Play, run: Summary, kept: bool) -> str:
    """One finished run in a line."""
    jct, used = run.figures["jct_avg_s"], run.figures["utilisation"]
    said = [f"{int(run.figures['finished'] or 0)} of {int(run.figures['jobs'] or 0)} jobs finished"]
    said += [f"{int(failed)} failed as in the trace"] if (failed := run.figures["failed"]) else []
    said += [f"JCT avg {figure('jct_avg_s', jct)}"] if jct is not None else []
    said += [f"{figure('utilisation', used)} used"] if used is not None else []
    said += ["kept from before"] if kept else [f"{run.figures['cpu_s'] or 0:.1f} CPU-s"]
    return f"{play.name}: {', '.join(said)}"
