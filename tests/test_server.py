"""The server's own logic, without Ray."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import ray

from rayorch import server
from rayorch.core.errors import ClusterError, SpecError
from rayorch.policies.default import DEFAULT
from rayorch.server import Server, ServerSettings


@pytest.mark.parametrize(("ran_before", "ended"), [(True, []), (False, ["main"])])
def test_a_failed_start_ends_only_what_it_started(
    ran_before: bool, ended: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []

    def no_port(self: Server) -> str:
        raise ClusterError("the port is taken")

    fake = SimpleNamespace(is_initialized=lambda: True, exceptions=ray.exceptions)
    monkeypatch.setattr(server, "ray", fake)
    monkeypatch.setattr(server, "find_or_none", lambda name: object() if ran_before else None)
    monkeypatch.setattr(server, "start_instance", lambda settings: None)
    monkeypatch.setattr(server, "stop_instance", stopped.append)
    monkeypatch.setattr(Server, "_run_gateway", no_port)
    state = tmp_path / "main" / "server.json"
    state.parent.mkdir()
    state.write_text("{}")
    made = Server(ServerSettings(home=tmp_path, profile=DEFAULT))
    with pytest.raises(ClusterError):
        made.start()
    made.stop()
    assert stopped == ended and state.exists() is ran_before


def test_an_instance_can_not_be_named_after_a_path(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="instance"):
        ServerSettings(home=tmp_path, profile=DEFAULT, instance="../other")


def test_emulated_nodes_name_their_gpus_when_asked(tmp_path: Path) -> None:
    home = ["--home", str(tmp_path)]
    for words, exact in (([], False), (["--exact-devices"], True)):
        emulate = server.settings_from([*home, "--emulate", "2x4", *words]).emulate
        assert emulate is not None and emulate.exact_devices is exact
    with pytest.raises(SpecError, match="emulated") as refused:
        server.settings_from([*home, "--exact-devices"])
    assert refused.value.field == "exact-devices"


def test_who_provides_nodes_is_read_with_the_cluster_document(tmp_path: Path) -> None:
    document = tmp_path / "cluster.yaml"
    document.write_text(
        "apiVersion: rayorch/v1\nkind: Cluster\nmetadata: {name: c}\n"
        "spec: {topology: [rack], kuberay: {cluster: ml, namespace: research}, timing: {provision: 3m}}\n"
    )
    settings = server.settings_from(["--home", str(tmp_path), "-f", str(document)])
    assert settings.groups is not None and settings.groups.kuberay is not None
    assert (settings.groups.kuberay.cluster, settings.groups.kuberay.namespace) == ("ml", "research")
    assert (settings.groups.levels, settings.groups.knobs.provision_s) == (("rack",), 180.0)
    assert server.settings_from(["--home", str(tmp_path)]).groups is None
