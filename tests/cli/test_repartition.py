"""What `rayorch repartition` prints, and the note of `explain` about shared GPUs."""

from __future__ import annotations

import json

from rayorch.core.types import Resources, WorkloadId
from rayorch.serve_apps.gateway.fake import FakeBackend
from tests.cli.conftest import Run
from tests.core.test_mig import SMALL, cut

WORKLOAD = """
apiVersion: rayorch/v1
kind: Workload
metadata: {name: w, queue: research/nlp}
spec: {entrypoint: "true", gang: {workers: 1, resources: {%s}}}
"""


def test_the_cuts_are_a_table_and_the_steps_are_words(run: Run, backend: FakeBackend) -> None:
    assert "nothing waits for MIG instances" in run("repartition").stderr
    node = cut("n1", SMALL)
    backend.nodes[node.id] = node
    assert run("apply", "-f", "-", input=WORKLOAD % "mig-3g.20gb: 1").exit_code == 0
    done = run("repartition")
    assert done.exit_code == 0
    assert "3g.20gb@4" in done.stdout
    assert "nvidia-smi mig -i p0 -dci" in done.stderr
    assert json.loads(run("repartition", "-o", "json").stdout)["cuts"][0]["serves"] == ["w"]


def test_who_is_not_served_is_named(run: Run) -> None:
    run("apply", "-f", "-", input=WORKLOAD % "mig-3g.20gb: 1")
    assert "w: no idle GPU can be cut into 1 x 3g.20gb" in run("repartition").stderr


def test_explain_notes_what_a_share_is_without(run: Run) -> None:
    run("apply", "-f", "-", input=WORKLOAD % "GPU: 0.5")
    assert "note: it shares a GPU with others" in run("explain", "w").stderr


def test_a_mixed_node_shows_what_its_gpus_are_cut_into(run: Run, backend: FakeBackend) -> None:
    node = cut("n1", SMALL)
    backend.nodes[node.id] = node
    line = next(line for line in run("nodes").stdout.splitlines() if line.startswith("n1"))
    assert "(7 x 1g.5gb)" in line


def test_parts_of_gpus_on_the_command_line(run: Run, backend: FakeBackend) -> None:
    options = ("-q", "research/nlp", "-w", "2", "-R", "gpu-memory=20Gi", "-R", "gpu-devices=2")
    assert run("submit", *options, "--id", "w", "--", "true").exit_code == 0
    assert backend.known[WorkloadId("w")].spec.roles[0].bundle == Resources.of(
        {"CPU": 1, "gpu-memory-mib": 20_480, "gpu-devices": 2}
    )
    refused = run("submit", "-q", "research/nlp", "-w", "2", "-R", "gpu-memory=20", "--", "true")
    assert refused.exit_code == 105
    assert "with its unit" in refused.stderr
