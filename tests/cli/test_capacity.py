"""`rayorch capacity`: tables for people, one object for programs."""

from __future__ import annotations

import json
import time
from dataclasses import replace

from rayorch.core.capacity import Capacity, Provider
from rayorch.serve_apps.gateway.fake import FakeBackend
from tests.cli.conftest import Run
from tests.serve_apps import test_capacity as shown


def test_each_group_is_a_row_with_its_order_and_the_reasons(run: Run, backend: FakeBackend) -> None:
    backend.capacity = shown.capacity()
    done = run("capacity")
    heading, h100, spot = done.stdout.splitlines()
    assert " ".join(heading.split()) == (
        "GROUP MODEL SPOT GPUS HOSTS REPLICAS MIN-MAX RUNNING PENDING LEAVING FAILED ORDER WHY"
    )
    assert h100.split()[:6] == ["h100", "H100", "8", "1", "2", "0-16"]
    assert "1→2" in h100 and "for llm; Unschedulable: 0/12" in h100
    assert spot.split()[:3] == ["spot", "A100", "spot"] and "→0" in spot


def test_a_back_off_that_is_not_over_says_how_long_and_why(run: Run, backend: FakeBackend) -> None:
    soon_s = time.time() - shown.NOW_S  # the command reads this machine's clock
    backend.capacity = shown.capacity()
    group = backend.capacity.groups[1]
    assert group.back_off is not None
    back_off = replace(group.back_off, until_s=group.back_off.until_s + soon_s)
    backend.capacity = replace(backend.capacity, groups=(replace(group, back_off=back_off),))
    assert ": out of stock" in run("capacity").stdout


def test_programs_get_one_object(run: Run, backend: FakeBackend) -> None:
    backend.capacity, backend.autoscaler = shown.capacity(), shown.AUTOSCALER
    found = json.loads(run("capacity", "-o", "json").stdout)
    assert [group["name"] for group in found["groups"]] == ["h100", "spot"]
    assert found["autoscaler"]["unmet"] == ["64 GPU"]
    assert run("capacity", "-o", "name").stdout == "h100\nspot\n"


def test_what_rays_autoscaler_asked_for_is_a_table_of_its_own(run: Run, backend: FakeBackend) -> None:
    backend.capacity, backend.autoscaler = Capacity(Provider.RAY), shown.AUTOSCALER
    done = run("capacity")
    assert [line.split()[:3] for line in done.stdout.splitlines()] == [
        ["AUTOSCALER", "NODES", "STATE"],
        ["h100", "3", "requested"],
        ["l4", "1", "failed"],
    ]
    assert "no node type of Ray's autoscaler can take 64 GPU" in done.stderr


def test_unknown_groups_and_nobody_are_said_on_stderr(run: Run, backend: FakeBackend) -> None:
    assert "nobody provides nodes here" in run("capacity").stderr
    backend.capacity = shown.capacity(error="API server gone")
    assert "not known now: API server gone" in run("capacity").stderr
