"""A candidate decides on the recorded turns beside the profile in force; it is compared and never acts."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rayorch.actors.journal import Journal
from rayorch.actors.journal_format import entry_of
from rayorch.cli.main import app
from rayorch.config import load_preset
from rayorch.core.errors import SpecError
from rayorch.core.types import WorkloadId
from rayorch.sim.checked import CheckedCluster
from rayorch.sim.readers import machines
from rayorch.sim.readers.journal import JournalRead, load
from rayorch.sim.shadow import Choice, Moved, Shadow, compare, told
from rayorch.sim.shadow_feed import JournalFeed, nodes_of
from rayorch.sim.trace.cluster import without_leases
from rayorch.sim.work import SimWork
from tests.build import node, queue, workload

IN_FORCE = without_leases(load_preset("default"))
NODES = tuple(node(f"n{n}", gpu=4, model="T4") for n in (1, 2))


def lived() -> CheckedCluster:
    """A small gang, one that a later and larger one preempts, and many that wait."""
    sim = CheckedCluster(NODES, (queue("q"), queue("r")))
    sim.submit(workload("first", 2, priority=1, queue="r"), SimWork(steps=40, rate=1.0))
    sim.submit(workload("low", 6), SimWork(steps=480, rate=1.0, checkpoint_every=60))
    sim.run(20)
    sim.submit(workload("high", 6, priority=5), SimWork(steps=150, rate=1.0))
    for number in range(4):
        sim.submit(workload(f"small{number}", 1, queue="r", priority=number), SimWork(steps=20, rate=1.0))
    sim.run_to_quiet()
    return sim


@pytest.fixture(scope="module")
def held() -> JournalRead:
    return JournalRead("a", None, 0, tuple(enumerate(lived().history, 1)))


def turns(held: JournalRead, shadow: Shadow, nodes: object = NODES) -> list[object]:
    feed = JournalFeed(held, nodes)  # type: ignore[arg-type]
    found: list[object] = [
        shadow.see(snapshot, sequence, turn.started, turn.stopped)
        for snapshot, turn, sequence in feed.take(held.events, to_the_end=True)
    ]
    assert (feed.missed, feed.skipped) == (0, 0)
    return found


def test_the_profile_in_force_makes_the_recorded_decisions_again(held: JournalRead) -> None:
    shadow = Shadow(IN_FORCE, IN_FORCE)
    turns(held, shadow)
    tally = shadow.tally
    assert tally.recorded >= 9 and tally.agreed == tally.recorded
    assert (tally.different, tally.reordered, shadow.earlier) == (0, 0, {})


def test_a_candidate_that_does_not_preempt_shows_as_such(held: JournalRead) -> None:
    shadow = Shadow(IN_FORCE, replace(IN_FORCE, name="gentle", preemption=False))
    found = turns(held, shadow)
    (turn,) = [one for one in found if one.victims[0]]  # type: ignore[attr-defined]
    assert turn.victims == (("first", "low"), ()) and turn.decides_otherwise  # type: ignore[attr-defined]
    assert (shadow.tally.victims_in_force, shadow.tally.victims_candidate) == (2, 0)
    assert any("stopped only by the profile in force: first, low" in line for line in told(turn))  # type: ignore[arg-type]


def test_an_order_turned_round_shows_in_starts_and_places(held: JournalRead) -> None:
    def youngest(workload: object, view: object) -> tuple[float, ...]:
        return (-workload.submitted_s, -workload.sequence)  # type: ignore[attr-defined]

    shadow = Shadow(IN_FORCE, replace(IN_FORCE, name="lifo", order=youngest))  # type: ignore[arg-type]
    turns(held, shadow)
    assert shadow.tally.different + shadow.tally.reordered > 0


def test_the_same_snapshots_give_the_same_report(held: JournalRead) -> None:
    candidate = load_preset("kueue")
    assert turns(held, Shadow(IN_FORCE, candidate)) == turns(held, Shadow(IN_FORCE, candidate))


def test_a_feed_in_pieces_gives_the_same_turns(held: JournalRead) -> None:
    def seen(feed: JournalFeed, size: int) -> list[tuple[int, tuple[str, ...], tuple[str, ...]]]:
        found = []
        for first in range(0, len(held.events), size):
            last = first + size >= len(held.events)
            for snapshot, turn, _ in feed.take(held.events[first : first + size], to_the_end=last):
                assert snapshot.now_s == turn.at_s
                found.append((turn.version, tuple(turn.started), tuple(turn.stopped)))
        return found

    whole = seen(JournalFeed(held, NODES), len(held.events))
    assert whole == seen(JournalFeed(held, NODES), 7) == seen(JournalFeed(held, NODES), 1)
    assert Counter(id for _, started, _ in whole for id in started)["low"] == 2


def test_nodes_are_as_large_as_what_was_held_on_them(held: JournalRead) -> None:
    assert [(n.id, n.total.gpu_units // 10_000, n.model) for n in nodes_of(held)] == [("n1", 4, "T4"), ("n2", 4, "T4")]
    shadow = Shadow(IN_FORCE, IN_FORCE)
    turns(held, shadow, None)
    assert shadow.tally.agreed == shadow.tally.recorded


def test_choices_are_compared_one_by_one() -> None:
    a, b, c = (WorkloadId(name) for name in "abc")
    ours = Choice({a: (("n1", 1),), b: (("n1", 1),)}, frozenset({c}), {}, (a, b, c), {c: "Quota"})
    theirs = Choice({b: (("n2", 1),), c: (("n1", 1),)}, frozenset(), {a: 1}, (c, b, a), {c: "Priority"})
    found = compare(ours, theirs, 1, 0.0, 3)
    assert (found.starts, found.elsewhere, found.victims) == (((a,), (c,)), (b,), ((c,), ()))
    assert found.order == (Moved(a, 0, 2), Moved(c, 2, 0))
    assert (found.resizes, found.reasons) == ((a,), ((c, "Quota", "Priority"),))
    assert compare(ours, ours, 1, 0.0, 3).decides_otherwise is False


# ---------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def journal(held: JournalRead, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shadow") / "journal.db"
    opened = Journal.open(path, create=True)
    opened.append([entry_of(event) for _, event in held.events])
    opened.close()
    return path


def test_the_command_reads_and_writes_nothing(journal: Path, tmp_path: Path) -> None:
    before = journal.read_bytes()
    document = tmp_path / "gentle.yaml"
    document.write_text("apiVersion: rayorch/v1\nkind: Cluster\nmetadata: {name: gentle}\nspec: {preemption: false}\n")
    nodes = tmp_path / "nodes.json"
    shown = [{"id": n.id, "total": {"GPU": 4, "CPU": 16}, "devices": [{"model": "T4"}] * 4} for n in NODES]
    nodes.write_text(json.dumps([*shown, {"id": "gone", "total": {}, "health": "lost"}]))
    options = ["shadow", "--journal", str(journal), "--profile", str(document), "--nodes", str(nodes)]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    assert "stopped only by the profile in force: first, low" in result.output
    assert "decided otherwise by gentle than by default" in result.output
    result = CliRunner().invoke(app, [*options, "-o", "json"])
    report = json.loads(result.stdout)
    assert report["tally"]["victims_in_force"] == 2 and report["tally"]["agreed"] == report["tally"]["recorded"]
    assert [turn["victimsOnlyInForce"] for turn in report["turns"]] == [["first", "low"]]
    assert journal.read_bytes() == before
    assert load(journal).events


def test_a_journal_is_followed_as_it_grows(held: JournalRead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, half = tmp_path / "journal.db", len(held.events) // 2
    journal = Journal.open(path, create=True)
    journal.append([entry_of(event) for _, event in held.events[:half]])
    slept = iter((held.events[half:], [], None))

    def sleep(_: float) -> None:
        more = next(slept)
        if more is None:
            raise KeyboardInterrupt
        if more:
            journal.append([entry_of(event) for _, event in more])

    monkeypatch.setattr("time.sleep", sleep)
    options = ["shadow", "--journal", str(path), "--profile", "default", "--follow", "-o", "json"]
    tally = json.loads(CliRunner().invoke(app, options).stdout)["tally"]
    journal.close()
    assert tally["turns"] >= 4 and tally["agreed"] == tally["recorded"] and tally["missed"] == 0
    assert [sequence for sequence, _ in load(path, half).events] == list(range(half + 1, len(held.events) + 1))


def test_wrong_profiles_nodes_and_journals_are_named(journal: Path, tmp_path: Path) -> None:
    for options, why in (
        (["--journal", str(journal), "--profile", "nothing"], "nothing"),
        (["--journal", str(tmp_path / "none.db"), "--profile", "default"], "journal"),
    ):
        result = CliRunner().invoke(app, ["shadow", *options])
        assert result.exit_code != 0 and why in result.output
    for text in ("{", "[]", "[1]", '[{"id": "a", "total": {"GPU": -1}}]', '[{"id": "a", "total": {}, "labels": 1}]'):
        path = tmp_path / "nodes.json"
        path.write_text(text)
        with pytest.raises(SpecError):
            machines.read(path)
