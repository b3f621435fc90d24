"""Two workloads may not drive one application: the second is refused while the first runs."""

from __future__ import annotations

import pytest

from rayorch.adapters.ray_serve import apps
from rayorch.core.errors import SpecError


@pytest.fixture
def living(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The runners that live; the store of keys is a dictionary."""
    kept: dict[bytes, bytes] = {}
    runners: set[str] = set()
    monkeypatch.setattr(apps, "_internal_kv_get", lambda key, namespace: kept.get(key))
    monkeypatch.setattr(apps, "_internal_kv_put", lambda key, value, overwrite, namespace: kept.__setitem__(key, value))
    monkeypatch.setattr(apps, "_lives", lambda actor, namespace: actor in runners)
    return runners


def test_the_name_of_a_running_application_is_taken(living: set[str]) -> None:
    living.add("runner/main/a/1")
    apps._claim("chat", "runner/main/a/1", "rayorch")
    with pytest.raises(SpecError, match=r"app_name.*runner/main/a/1"):
        apps._claim("chat", "runner/main/b/1", "rayorch")
    apps._claim("other", "runner/main/b/1", "rayorch")


def test_the_next_attempt_takes_over_and_so_may_another_when_the_first_is_gone(living: set[str]) -> None:
    living.add("runner/main/a/1")
    apps._claim("chat", "runner/main/a/1", "rayorch")
    apps._claim("chat", "runner/main/a/2", "rayorch")
    apps._claim("chat", "runner/main/b/1", "rayorch")
