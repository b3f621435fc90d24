"""`rayorch simulate`: what it prints, keeps and refuses."""

from __future__ import annotations

import csv
import errno
import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rayorch.cli.main import app

# Eight jobs of one to four GPUs; the seventh asks for 64. job_id, submit, wait, run, procs …
ROWS = [(1, 0, 100, 2), (2, 10, 300, 4), (3, 20, 50, 4), (4, 30, 400, 1), (5, 200, 100, 2), (6, 300, 60, 4)]
ROWS += [(7, 400, 100, 64), (8, 500, 30, 1)]


def simulate(*words: str) -> Result:
    """The command's result; what is no exit is raised."""
    result = CliRunner().invoke(app, ["simulate", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """A small trace in the Standard Workload Format."""
    lines = [
        "; a small trace",
        *(f"{n} {at} 0 {run} {procs} -1 -1 {procs} {run} -1 1 1 1 1 {n % 2} 1 -1 -1" for n, at, run, procs in ROWS),
    ]
    path = tmp_path / "small.swf"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_profiles_and_seeds_side_by_side(trace: str) -> None:
    done = simulate(
        trace, "-c", "2x4", "-p", "default", "-p", "slurm", "--seeds", "0-1", "--load", "0.8", "--resample", "blocks"
    )
    assert done.exit_code == 0, done.stderr
    heading, first, second = done.stdout.splitlines()
    assert heading.split()[:3] == ["PROFILE", "LOAD", "SEEDS"] and "JCT AVG" in heading
    assert first.split()[:3] == ["default", "0.8", "2"] and second.split()[:3] == ["slurm", "0.8", "2"]
    assert "±" in first
    assert "[4/4] slurm-load0.8-seed1: " in done.stderr
    assert "slurm against default at load 0.8: no difference seen" in done.stderr


def test_json_has_its_version_and_all_that_is_known(trace: str) -> None:
    done = simulate(trace, "--cluster", "2x4", "--format", "json", "--quiet")
    assert done.exit_code == 0 and done.stderr == ""
    report = json.loads(done.stdout)
    assert report["schema"] == "rayorch/report/v1" and report["wanted"] == 1
    (run,) = report["runs"]
    assert (run["profile"], run["seed"], run["load"], run["trace"], run["cluster"]) == (
        "default",
        0,
        None,
        "small.swf",
        "2x4",
    )
    assert run["figures"]["finished"] == 7 and run["figures"]["too_large"] == 1
    assert run["too_large"] == ["7 (64 x 1 GPU)"]
    assert any("too large" in note for note in report["notes"])


def test_other_forms_are_plain_numbers(trace: str) -> None:
    done = simulate(trace, "-c", "2x4", "-o", "csv", "-m", "finished", "-m", "makespan_s", "--quiet")
    (row,) = csv.DictReader(io.StringIO(done.stdout))
    assert (row["profile"], row["finished"], float(row["makespan_s"])) == ("default", "7.0", 550.0)
    assert simulate(trace, "-c", "2x4", "-o", "name", "--quiet").stdout == "default\n"


def test_finished_runs_are_kept_and_taken_up(trace: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = (trace, "-c", "2x4", "--out", str(out), "--per-job")
    assert simulate(*words).exit_code == 0
    (kept,) = (out / "runs").glob("*.json")
    assert kept.name.startswith("default-seed0-")
    with gzip.open(next((out / "runs").glob("*.jobs.csv.gz")), "rt") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == ["1", "2", "3", "4", "5", "6", "8"] and rows[0]["state"] == "SUCCEEDED"
    assert json.loads((out / "report.json").read_text())["runs"][0]["figures"]["finished"] == 7

    again = simulate(*words, "--resume", "--seeds", "0,3")
    assert "default-seed0: 7 of 7 jobs finished" in again.stderr and again.stderr.count("kept from before") == 1
    assert len(list((out / "runs").glob("*.json"))) == 2


def test_another_input_is_another_run_and_a_spoiled_file_is_played_again(trace: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("-c", "2x4", "--out", str(out), "--resume")
    assert simulate(trace, *words).exit_code == 0
    (kept,) = (out / "runs").glob("*.json")
    good = kept.read_text()
    for spoiled in ("", good[: len(good) // 2], json.dumps({"key": "x"}), good.replace('"jobs": 7', '"jobs": "7"')):
        kept.write_text(spoiled)
        done = simulate(trace, *words)
        assert done.exit_code == 0 and "again" in done.stderr and "kept from before" not in done.stderr
        assert json.loads(kept.read_text())["run"]["figures"]["jobs"] == 7
    Path(trace).write_text(Path(trace).read_text().replace("1 0 0 100 2", "1 0 0 101 2"))
    assert "kept from before" not in simulate(trace, *words).stderr
    assert len(list((out / "runs").glob("*.json"))) == 2


def test_the_page_is_written_where_it_is_asked_for(trace: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = simulate(trace, "-c", "2x4", "--html", str(page), "--quiet")
    assert done.exit_code == 0 and f"the page with plots: {page}" in done.stderr
    text = page.read_text()
    assert "<h1>small.swf on 2x4</h1>" in text and "<svg" in text


def test_without_matplotlib_the_page_is_refused_before_anything_runs(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayorch.experiment.side_by_side.find_spec", lambda name: None)
    done = simulate(trace, "-c", "2x4", "--html", str(tmp_path / "page.html"))
    assert done.exit_code == 105 and "pip install 'rayorch[report]'" in done.stderr


def test_a_limit_on_time_is_said(trace: str) -> None:
    done = simulate(trace, "-c", "1x4", "--until", "250s", "--quiet")
    assert done.exit_code == 0
    assert "jobs had not ended when the time limit of 250 s was reached" in done.stderr


def test_an_interrupt_reports_what_has_finished(trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rayorch.experiment import side_by_side as module

    original, calls = module.play, []

    def interrupted(*args: object) -> object:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "play", interrupted)
    out = str(tmp_path / "out")
    done = simulate(trace, "-c", "2x4", "--seeds", "0-3", "--out", out)
    assert done.exit_code == 130
    assert done.stdout.splitlines()[1].split()[:2] == ["default", "1"]
    assert "interrupted after 1 of 4 runs" in done.stderr and "3 of 4 runs have not finished" in done.stderr
    done = simulate(trace, "-c", "2x4", "--seeds", "0-3", "--out", out, "--resume")
    assert done.exit_code == 0 and done.stderr.count("kept from before") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-c", "2x4", "-p", "nobody"), "--profile: 'nobody' is none of default"),
        (("-c", "2x4", "-p", "fifo"), "there is configs/profiles/fifo.yaml"),
        (("-c", "2x4", "--resample", "weeks"), "--resample: weeks draws whole weeks, but the 8 jobs"),
        (("-c", "2x4", "-p", "rayorch.core:NOTHING"), "--profile: can't import rayorch.core:NOTHING"),
        (("-c", "2x4", "-p", "missing.yaml"), "--profile: can't read missing.yaml"),
        ((), "--cluster: swf names no machines"),
        (("-c", "2 nodes"), "--cluster: must be NODESxGPUS"),
        (("-c", "0x8"), "--cluster: takes 1 to"),
        (("-c", "missing.yaml"), "--cluster: can't read missing.yaml"),
        (("-c", "2x4", "--racks", "9"), "--racks: must be 1 to 2"),
        (("-c", "2x4", "--seeds", "a"), "--seeds: must be numbers"),
        (("-c", "2x4", "--seeds", "5-1"), "--seeds: must be a range"),
        (("-c", "2x4", "--load", "0"), "--load: must be from"),
        (("-c", "2x4", "--load", "nan"), "--load: must be from"),
        (("-c", "2x4", "--until", "soon"), "--until: must be a duration"),
        (("-c", "2x4", "--resample", "days"), "--resample: must be one of none, blocks"),
        (("-c", "2x4", "--resume"), "--resume: needs the folder"),
        (("-c", "2x4", "--per-job"), "--per-job: needs a folder"),
        (("-c", "2x4", "--html", "/nowhere/at/all.html"), "--html: there is no folder"),
        (("-c", "2x4", "-m", "speed"), "--measure: 'speed' is none of jobs"),
        (("-c", "2x4", "--misstate", "much"), "--misstate: must be FACTOR"),
        (("-c", "2x4", "--trace-option", "x"), "--trace-option: must be KEY=VALUE"),
        (("-c", "2x4", "--trace-option", "x=1"), "--trace-option: x is no option of swf"),
        (("-c", "2x4", "--trace-option", "per_node=many"), "--trace-option: per_node must be a whole number"),
        (("-c", "2x4", "--trace-option", "per_node=-1"), "--trace-option: per_node must be a whole number"),
        (("-c", "2x4", "--trace-option", "processor=3"), "--trace-option: processor must be a word"),
        (("-c", "2x4", "--trace-option", "processor=TPU"), "--trace-option: processor must be GPU or CPU"),
        (("-c", "2x4", "--trace-format", "swift"), "--trace-format: must be one of philly"),
        (("-c", "2x4", "--node-mtbf", "0s"), "--node-mtbf: must be more"),
        (("-c", "2x4", "--fault", "fire=1d"), "--fault: must be KIND=TIME"),
        (("-c", "2x4", "--fault", "spot=1d,label=zone:b"), "--fault: spot: no node has the label zone:b"),
        (("-c", "2x4", "--fault", "node=1d,per=rack"), "--fault: node: no node is in any rack"),
        (("-c", "2x4", "--fault", "node=1d", "--node-mtbf", "9d"), "--node-mtbf: and --fault node"),
        (("-c", "2x4", "--elastic", "2"), "--elastic: must be LEAST:MOST"),
        (("-c", "2x4", "--serial", "2"), "--serial: must be 0 to 1"),
        (("-c", "2x4", "--serve", "chat"), "--serve: needs either peak"),
        (("-c", "2x4", "--serve", "chat,demand=/nowhere.csv"), "/nowhere.csv"),
        (("-c", "2x4", "--provision", "0s"), "--provision: must be more"),
        (("-c", "2x4", "--racks", "2", "--provision", "3m"), "--provision: needs nodes of a short form"),
        (("-c", "2x4", "--min-nodes", "1"), "--min-nodes: needs --provision"),
        (("-c", "2x4", "--provision", "3m", "--min-nodes", "3"), "--min-nodes: must be 0 to 2"),
        (("-c", "2x4", "--provision-refused", "0.5"), "--provision-refused: needs --provision"),
        (("-c", "2x4", "--misstate", "provision=2"), "--misstate: provision=… needs --provision"),
        (("-c", "2x4", "--queues", "missing.yaml"), "--queues: can't read missing.yaml"),
        (("-c", "2x4", "--out", "/dev/null/x"), "--out: can't write into"),
    ],
)
def test_bad_input_is_refused_by_its_option(trace: str, words: tuple[str, ...], said: str) -> None:
    done = simulate(trace, *words)
    assert done.exit_code == 105
    assert said in done.stderr and done.stdout == ""


def test_bad_traces_are_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.swf"
    empty.write_text("; nothing\n")
    done = simulate(str(empty), "-c", "2x4")
    assert done.exit_code == 105 and "has no job" in done.stderr
    assert simulate(str(tmp_path / "none.swf"), "-c", "2x4").exit_code == 105
    unknown = tmp_path / "what.txt"
    unknown.write_text("hello\n")
    assert simulate(str(unknown), "-c", "2x4").exit_code == 105


@pytest.mark.parametrize(("full_at", "runs"), [("default-seed1", 2), ("report", 3)])
def test_a_disk_that_fills_up_ends_it_and_what_was_computed_is_shown(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_at: str, runs: int
) -> None:
    whole, out = os.replace, tmp_path / "out"

    def replace_until_full(source: str, target: Path) -> None:
        if target.name.startswith(full_at):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        whole(source, target)

    monkeypatch.setattr(os, "replace", replace_until_full)
    words = ("-c", "2x4", "-s", "0-2", "--out", str(out), "-o", "json")
    done = simulate(trace, *words)
    assert done.exit_code == 105 and f"--out: can't write {out}" in done.stderr and "No space left" in done.stderr
    assert len(json.loads(done.stdout)["runs"]) == runs
    assert not [path for path in out.rglob("*") if path.name.startswith(".")]
    monkeypatch.setattr(os, "replace", whole)
    assert len(json.loads(simulate(trace, *words, "--resume").stdout)["runs"]) == 3


def test_a_page_that_can_t_be_written_is_refused_by_its_option(trace: str, tmp_path: Path) -> None:
    done = simulate(trace, "-c", "2x4", "--html", str(tmp_path))
    assert done.exit_code == 105 and "rayorch: --html: can't write" in done.stderr and "default" in done.stdout


def test_a_full_disk_under_stdout_is_said(trace: str) -> None:
    command = [sys.executable, "-m", "rayorch", "simulate", trace, "-c", "2x4", "--quiet"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (1, "rayorch: can't write: No space left on device\n")
