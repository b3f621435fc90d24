"""The rendered objects are taken by the API server, strictly: the fake one and, where it was built, the real one."""

from __future__ import annotations

from typing import Any

import pytest

from rayorch.config.kuberay import load_values, render
from tests.source_tree import ROOT

VALUES = ROOT / "configs" / "kuberay"


@pytest.mark.parametrize("name", ["values", "values-ray"])
def test_a_rendered_cluster_a_job_and_a_service_are_taken_with_strict_fields(server: Any, name: str) -> None:
    values = load_values((VALUES / f"{name}.yaml").read_bytes(), overrides={"namespace": "default"})
    (cluster,) = (d for d in render(values) if d["kind"] == "RayCluster")
    kept = server.create("rayclusters", cluster, strict=True)
    assert [g["groupName"] for g in kept["spec"]["workerGroupSpecs"]] == [g.name for g in values.groups]
    (job,) = render(values, "job")
    kept = server.create("rayjobs", job, strict=True)
    assert kept["spec"]["submissionMode"] == "HTTPMode"
    assert kept["spec"]["metadata"]["rayorch.queue"] == values.queue
    (service,) = render(values, "service")
    kept = server.create("rayservices", service, strict=True)
    assert kept["spec"]["rayClusterConfig"]["enableInTreeAutoscaling"] is True


def test_the_server_refuses_a_field_that_nobody_has(server: Any) -> None:
    """So that the test above can fail."""
    values = load_values("", overrides={"cluster": "main", "namespace": "default"})
    (cluster,) = (d for d in render(values) if d["kind"] == "RayCluster")
    spec = cluster["spec"]
    assert isinstance(spec, dict)
    spec["replicas"] = 3
    with pytest.raises(Exception, match="replicas"):
        server.create("rayclusters", cluster, strict=True)
