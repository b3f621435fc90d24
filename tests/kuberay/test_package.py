"""What the package costs and what it must be allowed: said in its docstring, done by its code, granted by manifests."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

import rayorch.adapters.kuberay as package
from rayorch.adapters.kuberay import KubeRayClient
from rayorch.core.capacity import GroupName
from rayorch.core.decisions import GroupChange
from tests.instance import eventually
from tests.kuberay.fake_api import FakeApi, Request
from tests.kuberay.objects import ray_cluster, worker_group
from tests.source_tree import ROOT

Right = tuple[str, str, str]  # API group, resource, verb
MANIFESTS = ROOT / "configs" / "kuberay"


def documented() -> tuple[set[Right], set[str]]:
    """The rights of the docstring's table, and the resources that are bound to one name."""
    rights: set[Right] = set()
    bound: set[str] = set()
    lines = (package.__doc__ or "").splitlines()
    start = next(n for n, line in enumerate(lines) if line.strip().startswith("apiGroups"))
    for line in lines[start + 1 :]:
        if not line.strip():
            break
        group, resource, *rest = line.split()
        verbs = [word for word in rest if word in ("get", "list", "watch", "patch", "create", "update", "delete")]
        rights |= {("" if group == "(core)" else group, resource, verb) for verb in verbs}
        if "name" in rest:
            bound.add(resource)
    return rights, bound


def test_importing_it_loads_no_client() -> None:
    code = (
        "import sys, rayorch.adapters.kuberay; print([m for m in ('kubernetes', 'urllib3', 'ray') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_what_it_sends_is_what_it_says(fake: FakeApi, tmp_path: Path) -> None:
    fake.create("rayclusters", ray_cluster(worker_group("gpu", 1)))
    client = KubeRayClient(fake.settings(tmp_path))
    client.observe()
    client.scale(GroupChange(GroupName("gpu"), 1, 2, "because"))
    client.ray_jobs()
    stop = threading.Event()
    thread = threading.Thread(target=client.watch, args=(lambda news: None, stop))
    thread.start()
    eventually("both watches", lambda: fake.open_watches == 2)
    stop.set()
    thread.join(30)

    assert {_right(request) for request in fake.requests} == documented()[0]


def _right(request: Request) -> Right:
    parts = request.path.strip("/").split("/")
    group, after = ("", parts[4:]) if parts[0] == "api" else (parts[1], parts[5:])
    if request.method != "GET":
        return group, after[0], request.method.lower()
    verb = "watch" if "watch" in request.query else "list" if len(after) == 1 else "get"
    if after[0] == "rayclusters" and verb != "get":
        assert request.query["fieldSelector"] == "metadata.name=demo"  # or a rule with resourceNames forbids it
    return group, after[0], verb


@pytest.mark.parametrize("path", sorted(MANIFESTS.glob("cluster*.yaml")), ids=lambda path: path.name)
def test_the_manifest_grants_exactly_that(path: Path) -> None:
    wanted, bound = documented()
    documents = [document for document in yaml.safe_load_all(path.read_text()) if document]
    (cluster,) = [document for document in documents if document["kind"] == "RayCluster"]
    account = cluster["spec"]["headGroupSpec"]["template"]["spec"]["serviceAccountName"]
    roles = {document["metadata"]["name"]: document for document in documents if document["kind"] == "Role"}
    granted: set[Right] = set()
    for binding in [document for document in documents if document["kind"] == "RoleBinding"]:
        if {"kind": "ServiceAccount", "name": account} not in [
            {"kind": subject["kind"], "name": subject["name"]} for subject in binding["subjects"]
        ]:
            continue
        for rule in roles[binding["roleRef"]["name"]]["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    names = rule.get("resourceNames")
                    assert (names == [cluster["metadata"]["name"]]) == (resource in bound)
                    granted |= {(group, resource, verb) for verb in rule["verbs"]}
    if cluster["spec"].get("enableInTreeAutoscaling"):
        assert granted >= wanted - {("ray.io", "rayclusters", "patch")}  # Ray's autoscaler shares the account
    else:
        assert granted == wanted
