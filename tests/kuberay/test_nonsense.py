"""Objects that make no sense: never more than a ClusterError from us, and the fake server judges as the real one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayorch.adapters.kuberay.groups import node_groups
from rayorch.adapters.kuberay.models import Pod, RayCluster, parse
from rayorch.core.errors import ClusterError
from tests.kuberay.crd import definitions
from tests.kuberay.crd_server import CrdServer
from tests.kuberay.objects import ray_cluster, worker_group
from tests.kuberay.store import Refused, Store, Thing

JUNK: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "x", "8", "-1", "1e99", "500m", "{", "true", "a=b", "1Gi", "[]"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "CPU", "GPU"]), inner, max_size=2)
    ),
    max_leaves=3,
)
GROUP_FIELDS = (
    *("groupName", "replicas", "minReplicas", "maxReplicas", "numOfHosts", "priority", "suspend", "labels"),
    *("resources", "rayStartParams", "scaleStrategy", "idleTimeoutSeconds", "template"),
)
EDITS = st.dictionaries(st.sampled_from(GROUP_FIELDS), JUNK, min_size=1, max_size=3)
SPEC_EDITS = st.dictionaries(
    st.sampled_from(["enableInTreeAutoscaling", "suspend", "managedBy", "rayVersion", "workerGroupSpecs"]),
    JUNK,
    max_size=1,
)


def edited(group: Thing, spec: Thing) -> Thing:
    cluster = ray_cluster(worker_group("first"), {**worker_group("gpu"), **copy.deepcopy(group)})
    cluster["spec"] |= copy.deepcopy(spec)
    return cluster


@settings(max_examples=300)
@given(EDITS, SPEC_EDITS, st.dictionaries(st.sampled_from(["phase", "conditions", "containerStatuses", "podIP"]), JUNK))
def test_nonsense_is_a_cluster_error_or_makes_sense(group: Thing, spec: Thing, status: Thing) -> None:
    pod = {"metadata": {"name": "p", "labels": {"ray.io/node-type": "worker", "ray.io/group": "gpu"}}, "status": status}
    try:
        cluster = parse(RayCluster, edited(group, spec), "RayCluster demo")
        view = node_groups(cluster, [parse(Pod, pod, "pod p")])
    except ClusterError as error:
        assert 0 < len(str(error)) < 2000
        return
    for shown in view.groups:
        assert 0 <= shown.min_replicas <= shown.max_replicas
        assert shown.hosts >= 1
        assert all(amount > 0 for _, amount in shown.total)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(group=EDITS, spec=SPEC_EDITS)
def test_the_fake_server_judges_as_the_real_one(real: CrdServer, crds_dir: Any, group: Thing, spec: Thing) -> None:
    thing = edited(group, spec)
    outcomes = []
    real.clear()
    for server in (Store(definitions(crds_dir)), real):
        try:
            outcomes.append(server.create("rayclusters", copy.deepcopy(thing))["spec"])
        except Refused as refused:
            outcomes.append({"refused": refused.code})
    fake, true = outcomes
    if "managedBy" in spec and true == {"refused": 422}:
        return  # rules in CEL are the real server's alone
    assert fake == true


def test_a_rule_in_cel_is_the_real_server_s_alone(real: CrdServer, crds_dir: Any) -> None:
    """What the fake leaves out, so that nobody counts on it."""
    thing = ray_cluster(managedBy="somebody")
    with pytest.raises(Refused) as refused:
        real.create("rayclusters", thing)
    assert refused.value.code == 422
    Store(definitions(crds_dir)).create("rayclusters", thing)
