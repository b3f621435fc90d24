"""In a pod: the service account's files, its rotated token and the cluster's own certificate authority."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from rayorch.adapters.kuberay import KubeRayClient, KubeRaySettings
from rayorch.core.errors import ClusterError
from tests.kuberay.fake_api import FakeApi, kubeconfig
from tests.kuberay.objects import ray_cluster


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that vouches for itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=127.0.0.1"
    command += " -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:TRUE"
    command += " -addext keyUsage=critical,digitalSignature,keyCertSign -keyout tls.key -out tls.crt"
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return folder / "tls.crt", folder / "tls.key"


@pytest.fixture
def api(crds_dir: Path, certificate: tuple[Path, Path]) -> Iterator[FakeApi]:
    with FakeApi(crds_dir, token="first", tls=certificate) as api:
        api.create("rayclusters", ray_cluster())
        yield api


@pytest.fixture
def account(tmp_path: Path, api: FakeApi, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A service account as the kubelet mounts it, in a process that runs in a pod."""
    host, port = api.url.removeprefix("https://").split(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    (tmp_path / "token").write_text("first")
    shutil.copy(certificate[0], tmp_path / "ca.crt")
    return tmp_path


def test_a_pod_uses_its_service_account(api: FakeApi, account: Path) -> None:
    client = KubeRayClient(KubeRaySettings("demo", service_account=str(account)))
    assert client.observe().groups[0].replicas == 1


def test_a_rotated_token_is_read_as_soon_as_the_old_one_is_refused(api: FakeApi, account: Path) -> None:
    client = KubeRayClient(KubeRaySettings("demo", service_account=str(account)))
    client.observe()
    (account / "token").write_text("second")
    api.token = "second"

    assert client.observe().groups[0].replicas == 1


@pytest.mark.parametrize("name", ["token", "ca.crt"])
@pytest.mark.parametrize("text", [None, ""])
def test_files_that_are_missing_or_empty_are_unknown(api: FakeApi, account: Path, name: str, text: str | None) -> None:
    good = (account / name).read_text()
    (account / name).unlink() if text is None else (account / name).write_text(text)
    client = KubeRayClient(KubeRaySettings("demo", service_account=str(account)))
    with pytest.raises(ClusterError, match="could not log in to Kubernetes"):
        client.observe()
    (account / name).write_text(good)
    assert client.observe().groups[0].replicas == 1


def test_a_server_of_another_authority_is_not_believed(
    api: FakeApi, account: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("other")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=other"
    subprocess.run([*command.split(), "-keyout", "k", "-out", "c"], cwd=folder, check=True, capture_output=True)
    shutil.copy(folder / "c", account / "ca.crt")
    with pytest.raises(ClusterError, match="certificate verify failed"):
        KubeRayClient(KubeRaySettings("demo", service_account=str(account))).observe()
    assert api.requests == []


def test_a_kubeconfig_that_is_named_goes_before_the_service_account(
    api: FakeApi, account: Path, certificate: tuple[Path, Path]
) -> None:
    (account / "token").write_text("of the pod")
    raw = kubeconfig(api.url, {"token": "first"})
    raw["clusters"][0]["cluster"]["certificate-authority"] = str(certificate[0])
    raw["contexts"].append({"name": "nobody", "context": {"cluster": "c", "user": "nobody"}})
    raw["users"].append({"name": "nobody", "user": {"token": "none"}})
    path = account / "kubeconfig"
    path.write_text(yaml.safe_dump(raw))
    settings = {"kubeconfig": str(path), "service_account": str(account)}

    assert KubeRayClient(KubeRaySettings("demo", **settings)).observe().groups[0].replicas == 1
    with pytest.raises(ClusterError, match="401"):
        KubeRayClient(KubeRaySettings("demo", context="nobody", **settings)).observe()
    with pytest.raises(ClusterError, match="could not log in"):
        KubeRayClient(KubeRaySettings("demo", context="gone", **settings)).observe()


def test_other_namespaces_are_other_clusters(api: FakeApi, account: Path) -> None:
    with pytest.raises(ClusterError, match="no RayCluster demo in namespace team-a"):
        KubeRayClient(KubeRaySettings("demo", "team-a", service_account=str(account))).observe()
    api.store.create("rayclusters", ray_cluster(), "team-a")
    client = KubeRayClient(KubeRaySettings("demo", "team-a", service_account=str(account)))
    assert client.observe().groups[0].replicas == 1
