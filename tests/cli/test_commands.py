"""What each command prints, where, and how it ends."""

from __future__ import annotations

import csv
import io
import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from rayorch.cli.output import age
from rayorch.cli.rows import host_list
from rayorch.core.decisions import Wait, WaitReason
from rayorch.core.payload import Payload
from rayorch.core.types import Allocation, Member, MemberPhase, NodeId, Resources, State, WorkloadId
from rayorch.serve_apps.gateway.fake import FakeBackend
from tests.cli.conftest import Run
from tests.scenes import node, running
from tests.serve_apps.conftest import Served


def _submit(run: Run, *options: str) -> str:
    done = run("submit", "-q", "research/nlp", *options, "-o", "name", "--", "python", "t.py", "--lr", "1")
    assert done.exit_code == 0, done.stderr
    return done.stdout.strip()


def test_submit_prints_the_id_on_stdout_and_its_advice_on_stderr(run: Run, backend: FakeBackend) -> None:
    done = run("submit", "-q", "research/nlp", "-w", "2:4", "--gpus", "1", "--id", "w1", "--", "python", "t.py", "-x")
    assert (done.exit_code, done.stdout) == (0, "w1\n")
    assert "rayorch explain w1" in done.stderr
    spec = backend.known[WorkloadId("w1")].spec
    assert (spec.roles[0].min_count, spec.roles[0].max_count) == (2, 4)
    assert Payload.of_text(spec.payload).entrypoint == "python t.py -x"


@pytest.mark.parametrize(
    ("words", "models"),
    [
        ([], ()),
        (["--accelerator", "H100"], ("H100",)),
        (["--accelerator", "H100, A100"], ("H100", "A100")),
        (["--accelerator", "A100", "--accelerator", "H100"], ("A100", "H100")),
    ],
)
def test_accelerators_are_given_in_order_of_preference(
    run: Run, backend: FakeBackend, words: list[str], models: tuple[str, ...]
) -> None:
    assert backend.known[WorkloadId(_submit(run, "-g", "1x1", *words))].spec.accelerators == models


@pytest.mark.parametrize(("text", "gang"), [("2x8", (2, 2, 8.0)), ("2-4x0.5", (2, 4, 0.5))])
def test_a_gang_is_written_as_it_is_shown(
    run: Run, backend: FakeBackend, text: str, gang: tuple[int, int, float]
) -> None:
    role = backend.known[WorkloadId(_submit(run, "-g", text))].spec.roles[0]
    assert (role.min_count, role.max_count, role.bundle.to_floats()["GPU"]) == gang
    assert text in run("ps").stdout.split()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["submit"], 2),
        (["submit", "-g", "2by8", "--", "true"], 2),
        (["submit", "-g", "2x8", "-w", "2", "--", "true"], 2),
        (["submit", "-g", "4-2x8", "--", "true"], 105),
        (["submit", "-w", "two", "--", "true"], 2),
        (["submit", "-k", "array", "--", "true"], 2),
        (["submit", "-e", "NOVALUE", "--", "true"], 2),
        (["submit", "-w", "0", "--", "true"], 105),
        (["submit", "-q", "nowhere", "--", "true"], 105),
        (["submit", "--accelerator", "H100,,A100", "--", "true"], 105),
        (["explain", "nope"], 102),
        (["logs", "nope"], 102),
        (["cancel", "nope"], 102),
        (["wait", "nope"], 102),
        (["wait", "nope", "--timeout", "soon"], 2),
        (["drain", "nope"], 102),
        (["drain", "gpu-01", "--undo", "--cordon"], 2),
        (["apply", "-f", "/nonexistent.yaml"], 2),
        (["frobnicate"], 2),
        (["submit", "--", ""], 2),
        (["submit", "--", "\udcff"], 105),
        (["submit", "-e", "A=\udcff", "--", "true"], 105),
        (["submit", "-w", "1", "--gpus", "nan", "--", "true"], 105),
        (["submit", "-w", "1", "--gpus", "1.5", "--", "true"], 105),
        (["explain", ""], 102),
        (["explain", ".."], 102),
        (["cancel", "../queues"], 102),
        (["cancel", "a?b#c"], 102),
        (["logs", "a\nb"], 102),
        (["logs", "\udcff"], 102),
        (["drain", ""], 102),
        (["drain", "a/b"], 102),
        (["ps", "-q", "\udcff"], 105),
        (["ps", "--address", "http://["], 105),
        (["ps", "--address", "http://a:99999"], 105),
        (["ps", "--address", "rayorch://\xfc"], 105),
        (["down", "--instance", "../main"], 105),
    ],
)
def test_a_refusal_has_its_exit_code_and_says_why_on_stderr(run: Run, words: list[str], code: int) -> None:
    done = run(*words)
    assert (done.exit_code, done.stdout) == (code, ""), done.stderr
    assert done.stderr


def test_a_reason_that_is_a_traceback_keeps_to_its_row(run: Run, backend: FakeBackend) -> None:
    backend.advance(_submit(run), State.FAILED, reason="deployment failed:\n" + "  File x.py, line 1\n" * 500)
    rows = run("ps", "-a").stdout.splitlines()
    assert len(rows) == 2 and len(rows[1]) < 300 and rows[1].endswith("…")


def test_the_same_id_with_another_request_is_a_conflict(run: Run) -> None:
    assert run("submit", "--id", "w", "--", "true").exit_code == 0
    assert run("submit", "--id", "w", "--", "true").exit_code == 0
    assert run("submit", "--id", "w", "--", "false").exit_code == 108


def test_no_gateway_is_exit_code_107(run: Run) -> None:
    done = run("ps", "--address", "http://127.0.0.1:1")
    assert done.exit_code == 107
    assert "no gateway answers" in done.stderr


def test_ps_in_a_pipe_is_plain_columns_without_boxes_and_colours(run: Run, backend: FakeBackend) -> None:
    waiting, running = _submit(run, "-w", "2", "--gpus", "8"), _submit(run)
    backend.waits[WorkloadId(waiting)] = (
        Wait(WaitReason.FRAGMENTED, "12 of 16"),
        Wait(WaitReason.QUOTA, "fine", False),
    )
    backend.advance(running, State.RUNNING)
    member = Member("worker", 0, next(iter(backend.nodes)), Resources.of({"GPU": 1}), phase=MemberPhase.READY)
    backend.seats[WorkloadId(running)] = Allocation(WorkloadId(running), 1, (member,), 0, 0)
    done = run("ps")
    heading, first, second = done.stdout.splitlines()
    assert heading.split() == ["ID", "KIND", "QUEUE", "PRI", "GANG", "STATE", "AGE", "RUN", "RESTARTS", "NODES/REASON"]
    assert first.split()[:6] == [waiting, "job", "research/nlp", "0", "2x8", "PENDING"]
    assert first.endswith("#1 Fragmented")
    assert second.endswith("gpu-01")
    assert done.stdout.isascii() and "\x1b" not in done.stdout
    column = heading.index("STATE")
    assert first[column : column + 7] == "PENDING" and second[column : column + 7] == "RUNNING"


def test_ps_leaves_out_what_has_ended_unless_asked(run: Run, backend: FakeBackend) -> None:
    done, alive = _submit(run), _submit(run)
    backend.advance(done, State.CANCELLED)
    assert run("ps", "-o", "name").stdout.split() == [alive]
    assert run("ps", "-a", "-o", "name").stdout.split() == [done, alive]
    assert run("ps", "-s", "cancelled", "-o", "name").stdout.split() == [done]
    assert run("ps", "-q", "research", "-o", "name").stdout.split() == [alive]
    assert run("ps", "-q", "default", "-o", "name").stdout == ""


def test_programs_get_json_yaml_and_csv(run: Run) -> None:
    first = _submit(run)
    (item,) = json.loads(run("ps", "-o", "json").stdout)
    assert (item["id"], item["state"]) == (first, "PENDING")
    assert yaml.safe_load(run("ps", "-o", "yaml").stdout)[0]["id"] == first
    (row,) = csv.DictReader(io.StringIO(run("ps", "-o", "csv").stdout))
    assert (row["id"], row["state"]) == (first, "PENDING")


def test_explain_lists_every_reason(run: Run, backend: FakeBackend) -> None:
    workload = _submit(run)
    backend.waits[WorkloadId(workload)] = (
        Wait(WaitReason.FRAGMENTED, "needs 2 nodes x 8", True, unblocks="rlhf ends"),
        Wait(WaitReason.QUOTA, "16 of 24\nafter start\x1b[31m", False),
    )
    done = run("explain", workload)
    lines = done.stdout.splitlines()
    assert lines[1].split()[:3] == ["1", "yes", "Fragmented"] and lines[1].endswith("rlhf ends")
    assert lines[2].split()[:3] == ["2", "no", "Quota"]
    assert "\x1b" not in done.stdout
    assert "position 1" in done.stderr
    assert json.loads(run("explain", workload, "-o", "json").stdout)["waits"][0]["reason"] == "Fragmented"


PLANNED = """
apiVersion: rayorch/v1
kind: Workload
metadata: {name: NAME, queue: research/nlp}
spec: {entrypoint: python t.py, priority: 5, driver: {}, gang: {workers: 1, resources: {GPU: 4}}}
"""


def test_plan_says_what_a_file_would_do(run: Run, backend: FakeBackend, tmp_path: Path) -> None:
    backend.nodes = {NodeId("n1"): node("n1", gpu=4)}
    low, held = running("low", ["n1"], gpu=4, queue="research/nlp", started_s=backend.now_s - 70)
    backend.known[low.id] = replace(low, lease_renewed_s=backend.now_s)
    backend.seats[low.id] = held
    file = tmp_path / "two.yaml"
    file.write_text(PLANNED.replace("NAME", "one") + "---" + PLANNED.replace("NAME", "two").replace("4}", "8}"))
    done = run("plan", "-f", str(file))
    assert done.exit_code == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0] == "one: starts after evictions; it would stop low (400 GPU-s lost)"
    assert lines[1] == "  on n1 (1)"
    assert "two: waits" in lines and lines[-1].startswith("  NeverFitsNow: ")
    assert [a["lot"] for a in json.loads(run("plan", "-f", str(file), "-o", "json").stdout)] == [
        "starts after evictions",
        "waits",
    ]
    assert set(backend.known) == {"low"}


def test_plan_ends_as_refused_when_the_door_would_refuse(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(PLANNED.replace("research/nlp", "nowhere"))
    done = run("plan", "-f", str(file))
    assert done.exit_code == 105 and "would be refused: queue" in done.stderr
    file.write_text("kind: Queue")
    assert run("plan", "-f", str(file)).exit_code == 105


def test_explain_names_what_would_let_it_start(run: Run, backend: FakeBackend) -> None:
    backend.nodes = {NodeId("n1"): node("n1", gpu=1)}
    workload = _submit(run, "--gang", "2x1")
    backend.waits[WorkloadId(workload)] = (Wait(WaitReason.RESOURCES, "2 GPU are needed, 1 is free"),)
    assert "ask for fewer members: 1 of role worker in place of 2" in run("explain", workload).stderr
    assert "fewer members" not in run("explain", workload, "--no-changes").stderr


def test_wait_ends_as_the_workload_ended(run: Run, backend: FakeBackend) -> None:
    for state, fields, code in (
        (State.SUCCEEDED, {"exit_code": 0}, 0),
        (State.FAILED, {"exit_code": 7}, 7),
        (State.FAILED, {"exit_code": -9}, 1),
        (State.FAILED, {"exit_code": None}, 100),
        (State.CANCELLED, {}, 103),
    ):
        workload = _submit(run)
        backend.advance(workload, State.RUNNING)
        backend.advance(workload, state, **fields)
        assert run("wait", workload).exit_code == code, state
    assert run("wait", _submit(run), "--timeout", "50ms").exit_code == 101


def test_logs_follow_to_the_end_and_take_over_the_exit_code(run: Run, backend: FakeBackend) -> None:
    workload = _submit(run)

    def act() -> None:
        time.sleep(0.2)
        backend.advance(workload, State.RUNNING)
        backend.write_log(workload, "one\ntwo\n")
        time.sleep(0.2)
        backend.advance(workload, State.FAILED, exit_code=4)

    thread = threading.Thread(target=act)
    thread.start()
    done = run("logs", "-f", workload)
    thread.join()
    assert (done.stdout, done.exit_code) == ("one\ntwo\n", 4)
    assert run("logs", workload).stdout == "one\ntwo\n"


def test_interrupting_a_wait_detaches(run: Run, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = _submit(run)

    def interrupt(*_: object, **__: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("rayorch.client.handle.WorkloadHandle.wait", interrupt)
    done = run("wait", workload)
    assert done.exit_code == 130
    assert "goes on" in done.stderr
    assert backend.known[WorkloadId(workload)].state is State.PENDING


def test_cancel_queues_nodes_and_drain(run: Run, backend: FakeBackend) -> None:
    workload = _submit(run)
    assert run("cancel", workload, "-m", "wrong data").exit_code == 0
    assert backend.known[WorkloadId(workload)].reason == "wrong data"
    lines = run("queues").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["QUEUE", "default", "research/nlp"]
    assert run("drain", "gpu-01", "--deadline", "5m", "-m", "XID 79").exit_code == 0
    assert "drained" in run("nodes").stdout and "XID 79" in run("nodes").stdout
    assert run("drain", "gpu-01", "--undo").exit_code == 0
    assert run("nodes", "-o", "json").stdout.count('"ok"') == 1


DOCUMENTS = """
apiVersion: rayorch/v1
kind: Workload
metadata: {name: w, queue: team}
spec: {entrypoint: python t.py, runtimeEnv: {workingDir: wd}}
---
apiVersion: rayorch/v1
kind: Queue
metadata: {name: team}
spec: {deserved: 4}
"""


def test_a_dry_run_says_how_many_documents_are_good(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "documents.yaml"
    file.write_text("apiVersion: rayorch/v1\nkind: Queue\nmetadata: {name: team}\nspec: {}\n")
    assert "1 document is good" in run("apply", "-f", str(file), "--dry-run").stderr
    head = "apiVersion: rayorch/v1\nkind: Cluster\nmetadata: {name: main}\n"
    for policies, said in (
        ("queueOrder: nonesuch", "spec.policies.queueOrder: can't import rayorch.policies.queue_order.nonesuch"),
        ("order: nonesuch", "order.nonesuch: there are only ageing"),
        ("preset: nonesuch", "spec.policies.preset: is none of default"),
        ("order: 'on_the_head_only:key'", "1 document is good"),
    ):
        file.write_text(head + f"spec: {{policies: {{{policies}}}}}\n")
        assert said in run("apply", "-f", str(file), "--dry-run").stderr
    file.write_text("# nothing yet\n")
    empty = run("apply", "-f", str(file), "--dry-run")
    assert empty.exit_code == 105 and "holds no document" in empty.stderr


def test_apply_is_idempotent_and_uploads_working_directories(run: Run, backend: FakeBackend, tmp_path: Path) -> None:
    (tmp_path / "wd").mkdir()
    (tmp_path / "wd" / "t.py").write_text("pass\n")
    file = tmp_path / "all.yaml"
    file.write_text(DOCUMENTS)
    checked = run("apply", "-f", str(file), "--dry-run")
    assert checked.exit_code == 0 and "2 documents are good" in checked.stderr
    assert not backend.known
    for _ in range(2):
        done = run("apply", "-f", str(file))
        assert done.exit_code == 0, done.stderr
        assert [line.split() for line in done.stdout.splitlines()[1:]] == [
            ["Queue", "team", "applied"],
            ["Workload", "w", "applied"],
        ]
    payload = Payload.of_text(backend.known[WorkloadId("w")].spec.payload)
    assert payload.runtime_env["working_dir"] in backend.packages


def test_apply_takes_stdin_and_refuses_the_whole_for_one_bad_field(run: Run, backend: FakeBackend) -> None:
    done = run("apply", "-f", "-", input=DOCUMENTS.replace("deserved: 4", "deserved: -4"))
    assert done.exit_code == 105
    assert "documents[1].spec.deserved.GPU" in done.stderr
    assert not backend.known and "team" not in backend.queues


def test_version_names_both_ends(run: Run) -> None:
    done = run("version")
    assert done.exit_code == 0
    assert "server" in done.stdout and "Ray 2." in done.stdout


def test_output_for_people_has_no_box_and_obeys_no_color(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from rayorch.cli import output

    columns = [output.Column("STATE", lambda item: item["state"])]
    shown = {}
    for no_color in ("", "1"):
        monkeypatch.setenv("NO_COLOR", no_color)
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setattr(output, "for_people", lambda stream: True)
        stream = io.StringIO()
        monkeypatch.setattr("sys.stdout", stream)
        output.show([{"state": "RUNNING"}], columns, output.Format.TABLE)
        monkeypatch.undo()
        shown[no_color] = stream.getvalue()
    assert "RUNNING" in shown[""] and "RUNNING" in shown["1"]
    assert "\x1b[32m" in shown[""] and "\x1b[32m" not in shown["1"]
    assert not any(ord(c) > 127 for text in shown.values() for c in text)


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["gpu-01", "gpu-02", "gpu-03", "gpu-07"], "gpu-[01-03,07]"),
        (["gpu-01"], "gpu-01"),
        (["a1", "b1", "head"], "a1,b1,head"),
        (["n9", "n10"], "n10,n9"),
        ([], ""),
    ],
)
def test_host_lists(names: list[str], shown: str) -> None:
    assert host_list(names) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0s"), (59.9, "59s"), (252, "4m12s"), (11100, "3h05m"), (784800, "9d2h"), (None, "")]
)
def test_ages(seconds: float | None, shown: str) -> None:
    assert age(seconds) == shown
