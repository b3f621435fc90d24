"""What a workload has had: seats are counted for use as quota and ledger count them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.decisions import Start
from rayorch.core.service import attained_gpu_s, gpus_held
from rayorch.core.snapshot import Versions
from rayorch.core.types import GPU, Member, NodeId, QueueId, Resources, Role, WorkloadId
from tests.build import apply, queue, tree, workload


@pytest.mark.parametrize(
    ("bundle", "gpus"),
    [({"GPU": 2}, 2.0), ({"mig-1g.10gb": 1}, 0.1428), ({"mig-3g.40gb": 1}, 0.4284), ({"CPU": 4}, 0.0)],
)
def test_a_mig_instance_is_used_as_the_part_of_a_gpu_that_quota_charges(bundle: dict[str, float], gpus: float) -> None:
    amount = Resources.of(bundle)
    spec = replace(workload("w", queue="q"), roles=(Role("worker", amount, 1, 1),))
    built = tree(queue("q"), waiting=[spec])
    seat = Member("worker", 0, NodeId("n1"), amount, 0, 0)
    apply(built, built.commit_start(Start(WorkloadId("w"), 1, (seat,), "fits"), Versions(), 10.0))
    live = built.workloads[WorkloadId("w")]
    assert gpus_held(live) == gpus
    assert attained_gpu_s(live, 20.0) == pytest.approx(10.0 * gpus)
    assert built.used(QueueId("q")).units(GPU) == round(gpus * 10_000)
    (account,) = built.changes_since(0).history.accounts or (None,)
    assert (account.gpu_units if account is not None else 0) == round(gpus * 10_000)
