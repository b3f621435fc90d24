"""`rayorch shadow`: what another profile would have decided on what really happened. Reads only; needs no gateway."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rayorch.cli.exits import guarded_as
from rayorch.cli.output import Format, say, show_one

if TYPE_CHECKING:
    from rayorch.sim.readers.journal import JournalRead
    from rayorch.sim.shadow import Difference, Shadow
    from rayorch.sim.shadow_feed import JournalFeed

POLL_S = 2.0
"""How often a journal that is followed is looked at."""

Candidate = Annotated[
    str,
    typer.Option(
        "--profile", "-p", help="The candidate: a preset, a YAML file with a Cluster document, or module:NAME."
    ),
]
Against = Annotated[str, typer.Option("--against", help="The profile in force, likewise.")]
JournalFile = Annotated[Path, typer.Option("--journal", help="The queue owner's journal, or a backup of it.")]
NodesFile = Annotated[
    Path | None, typer.Option("--nodes", help="From `rayorch nodes -o json`; else what was held on each node.")
]


@guarded_as("interrupted")
def shadow(
    journal: JournalFile,
    profile: Candidate,
    against: Against = "default",
    nodes: NodesFile = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as the journal grows, until Ctrl-C.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Also turns that differ in order or reasons only.")] = False,
    output: Annotated[Format, typer.Option("--output", "-o", help="table or json.")] = Format.TABLE,
) -> None:
    """Let a candidate profile decide beside the one in force, on a journal, and show where they differ.

    Nothing is started, stopped or written: the journal is opened for reading.
    """
    from rayorch.experiment.profiles import profile_of
    from rayorch.sim.readers import machines
    from rayorch.sim.readers.journal import load
    from rayorch.sim.shadow import Shadow
    from rayorch.sim.shadow_feed import JournalFeed
    from rayorch.sim.trace.cluster import without_leases

    held = load(journal)
    feed = JournalFeed(held, machines.read(nodes) if nodes is not None else None)
    pair = Shadow(without_leases(profile_of(against)), without_leases(profile_of(profile)))
    if nodes is None:
        say("nodes are taken to be as large as what was held on them; --nodes says how large they are")
    base_s = held.events[0][1].at_s if held.events else 0.0
    shown: list[Difference] = []
    try:
        for found in _differences(pair, feed, held, journal, follow):
            if found.decides_otherwise or (everything and (found.order or found.reasons)):
                if output is Format.TABLE:
                    _tell(found, base_s)
                else:
                    shown.append(found)
    except KeyboardInterrupt:
        say("stopped; what was seen so far:")
    _end(pair, feed, shown, output)


def _differences(
    pair: Shadow, feed: JournalFeed, held: JournalRead, journal: Path, follow: bool
) -> Iterator[Difference]:
    """Turn by turn, as the journal has them."""
    import time

    from rayorch.sim.readers.journal import load

    events = held.events
    while True:
        for snapshot, turn, sequence in feed.take(events, to_the_end=not follow):
            yield pair.see(snapshot, sequence, turn.started, turn.stopped)
        if not follow:
            return
        time.sleep(POLL_S)
        events = load(journal, feed.sequence).events


def _tell(found: Difference, base_s: float) -> None:
    from rayorch.sim.shadow import told

    lines = told(found, base_s) or [f"{found.at_s - base_s:10.1f} s  record {found.sequence}, {found.waiting} waiting"]
    for moved in found.order[:3]:
        lines.append(f"place in the line: {moved.workload} {moved.from_place + 1} -> {moved.to_place + 1}")
    sys.stdout.write("\n              ".join(lines) + "\n")
    sys.stdout.flush()


def _end(pair: Shadow, feed: JournalFeed, shown: list[Difference], output: Format) -> None:
    from dataclasses import asdict

    from rayorch.sim.shadow import as_json

    tally = pair.tally
    sums = {**asdict(tally), "missed": feed.missed, "skipped": feed.skipped}
    report = {
        "inForce": pair.in_force.name,
        "candidate": pair.candidate.name,
        "tally": sums,
        "earlier": dict(sorted(pair.earlier.items())),
        "turns": [as_json(found) for found in shown],
    }
    show_one(report, output, lambda: _summary(pair, feed), key="candidate")


def _summary(pair: Shadow, feed: JournalFeed) -> str:
    tally = pair.tally
    names = f"{pair.candidate.name} than by {pair.in_force.name}"
    lines = [f"{tally.turns} turns, {tally.different} decided otherwise by {names}"]
    lines.append(
        f"starts: {tally.starts} and {tally.starts_of_candidate}; only in force {tally.only_in_force},"
        f" only the candidate {tally.only_candidate}, on other nodes {tally.elsewhere}"
    )
    lines.append(
        f"stops: only in force {tally.victims_in_force}, only the candidate {tally.victims_candidate};"
        f" another order in {tally.reordered} turns"
    )
    lines.append(
        f"of {tally.recorded} recorded decisions {pair.in_force.name} makes {tally.agreed} again from the journal"
    )
    if pair.earlier:
        waits = sorted(pair.earlier.values())
        lines.append(f"wanted to start earlier: {len(waits)}, the median by {waits[len(waits) // 2]:.0f} s")
    if feed.missed or feed.skipped:
        lines.append(f"left out: {feed.missed} decisions on older facts, {feed.skipped} events that do not follow")
    return "\n".join(lines)
