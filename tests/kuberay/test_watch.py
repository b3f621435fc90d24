"""Following a cluster and its pods through expired versions, cuts and nonsense."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from rayorch.adapters.kuberay import ClusterState, KubeRayClient, watch
from rayorch.core.errors import ClusterError
from tests.instance import eventually
from tests.kuberay.fake_api import FakeApi
from tests.kuberay.objects import ray_cluster, worker_group
from tests.kuberay.operator import PlayedOperator, StoreApi

soon = partial(eventually, patience_s=40.0)


class Watched:
    """A watch in a thread, and all that it has said."""

    def __init__(self, client: KubeRayClient) -> None:
        self.news: list[ClusterState | ClusterError] = []
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self._client = client
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._client.watch(self.news.append, self.stop)
        except BaseException as error:  # noqa: BLE001 - a test looks at it
            self.error = error

    def state(self) -> ClusterState | None:
        """The last that was said, if it is a state."""
        return self.news[-1] if self.news and isinstance(self.news[-1], ClusterState) else None

    def sees(self, replicas: int, pods: int | None = None) -> None:
        """Wait until that is what was said last."""

        def right() -> bool:
            state = self.state()
            if state is None:
                return False
            group = state.groups[0]
            return group.replicas == replicas and pods in (None, len(group.instances))

        soon(f"{replicas} replicas, {pods} pods", right)

    def says(self, words: str) -> None:
        """Wait until the last that was said is an error with these words."""
        soon(words, lambda: bool(self.news) and isinstance(self.news[-1], ClusterError) and words in str(self.news[-1]))

    def errors(self) -> list[str]:
        """All errors so far."""
        return [str(news) for news in self.news if isinstance(news, ClusterError)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No long pauses in tests."""
    monkeypatch.setattr(watch, "BACK_OFF_S", 0.3)
    monkeypatch.setattr(watch, "BACK_OFF_MAX_S", 1.0)
    monkeypatch.setattr(watch, "NO_PODS_RETRY_S", 0.2)


@pytest.fixture
def operator(fake: FakeApi) -> PlayedOperator:
    fake.create("rayclusters", ray_cluster(worker_group("gpu", 1)))
    operator = PlayedOperator(StoreApi(fake.store))
    operator.step()
    operator.step()
    return operator


@pytest.fixture
def watched(fake: FakeApi, operator: PlayedOperator, tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(KubeRayClient(fake.settings(tmp_path, read_timeout_s=5.0)))
    watched.sees(1, pods=1)
    soon("both watches", lambda: fake.open_watches == 2)
    yield watched
    watched.stop.set()
    watched.thread.join(20)
    assert not watched.thread.is_alive()
    soon("the streams' ends", lambda: fake.open_watches == 0)


def resize(fake: FakeApi, count: int) -> None:
    fake.change("rayclusters", "demo", lambda thing: thing["spec"]["workerGroupSpecs"][0].update(replicas=count))


def lists(fake: FakeApi, plural: str) -> int:
    return sum(1 for r in fake.requests if r.path.endswith(plural) and r.method == "GET" and "watch" not in r.query)


def test_the_cluster_and_its_pods_are_followed(fake: FakeApi, operator: PlayedOperator, watched: Watched) -> None:
    resize(fake, 3)
    watched.sees(3, pods=1)
    operator.step()
    watched.sees(3, pods=3)
    operator.fail_pod(operator.pods("demo", "gpu")[0])
    operator.step()
    watched.sees(3, pods=2)
    operator.step()
    watched.sees(3, pods=3)

    assert watched.errors() == []
    assert (lists(fake, "rayclusters"), lists(fake, "pods")) == (1, 1)


def test_a_status_that_says_nothing_new_is_no_news(fake: FakeApi, watched: Watched) -> None:
    before = len(watched.news)
    for count in range(3):
        time.sleep(0.3)  # each on its own, not told together
        written = f"2026-11-30T11:00:{count:02}Z"
        fake.change(
            "rayclusters", "demo", lambda thing, t=written: thing["status"].update(lastUpdateTime=t), status=True
        )
    resize(fake, 2)
    watched.sees(2)
    assert len(watched.news) == before + 1


def test_an_expired_version_is_listed_again_without_an_error(fake: FakeApi, watched: Watched) -> None:
    for plural in ("rayclusters", "pods"):
        before = lists(fake, plural)
        fake.end_watches(410, plural)
        soon("another list", lambda plural=plural, before=before: lists(fake, plural) > before)
    resize(fake, 2)
    watched.sees(2)
    assert watched.errors() == []


def test_a_version_that_expires_between_two_watches_is_listed_again(
    fake: FakeApi, operator: PlayedOperator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "WATCH_S", 1)
    fake.bookmark_s = 1e9
    watched = Watched(KubeRayClient(fake.settings(tmp_path)))
    try:
        watched.sees(1, pods=1)
        fake.store.expire()
        soon("another list", lambda: lists(fake, "rayclusters") > 1 and lists(fake, "pods") > 1)
        resize(fake, 2)
        watched.sees(2)
        assert watched.errors() == []
    finally:
        watched.stop.set()
        watched.thread.join(20)


def test_bookmarks_keep_the_version_fresh(
    fake: FakeApi, operator: PlayedOperator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "WATCH_S", 1)
    fake.bookmark_s = 0.05
    watched = Watched(KubeRayClient(fake.settings(tmp_path)))
    try:
        watched.sees(1, pods=1)
        soon("both watches", lambda: fake.open_watches == 2)
        fake.store.expire()  # what they began with can't be watched from any more
        watches = len(fake.requests)
        soon("each began anew", lambda: len(fake.requests) >= watches + 4)
        resize(fake, 2)
        watched.sees(2)
        assert (lists(fake, "rayclusters"), lists(fake, "pods"), watched.errors()) == (1, 1, [])
    finally:
        watched.stop.set()
        watched.thread.join(20)


def test_a_cut_is_unknown_until_the_next_list(fake: FakeApi, watched: Watched) -> None:
    fault = fake.fail(path="rayclusters", status=503, times=10**6)
    fake.end_watches(0, "rayclusters")
    watched.says("503")
    resize(fake, 5)
    fault.times = 0
    watched.sees(5, pods=1)
    assert any("the watch broke" in error for error in watched.errors())


def test_pods_that_can_not_be_followed_make_all_unknown(fake: FakeApi, watched: Watched) -> None:
    fault = fake.fail(path="pods", status=500, times=10**6)
    fake.end_watches(0, "pods")
    watched.says("could not list the pods: 500")
    fault.times = 0
    watched.sees(1, pods=1)


def test_losing_the_right_to_read_pods_leaves_the_groups(fake: FakeApi, watched: Watched) -> None:
    fake.forbidden |= {"list pods", "watch pods"}
    fake.end_watches(410, "pods")
    watched.sees(1, pods=0)
    state = watched.state()
    assert state is not None and "403" in state.pods_error
    fake.forbidden.clear()
    watched.sees(1, pods=1)


def test_failures_are_tried_again_ever_more_slowly(
    fake: FakeApi, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    jitter = watch._jitter
    monkeypatch.setattr(watch, "_jitter", lambda seconds: (pauses.append(seconds), jitter(seconds))[1])
    fault = fake.fail(path="rayclusters", status=500, times=10**6)
    fake.end_watches(0, "rayclusters")
    soon("four failures", lambda: len(pauses) >= 4)
    fault.times = 0
    watched.sees(1, pods=1)

    assert pauses[:4] == [0.3, 0.6, 1.0, 1.0]
    assert len(set(watched.errors())) == len(watched.errors())  # each is said once


def test_watches_that_end_at_once_are_not_opened_in_a_circle(
    fake: FakeApi, operator: PlayedOperator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "BACK_OFF_S", 0.4)
    monkeypatch.setattr(watch, "WATCH_S", 0)
    watched = Watched(KubeRayClient(fake.settings(tmp_path)))
    try:
        watched.sees(1, pods=1)
        before = len(fake.requests)
        time.sleep(1.5)
        assert len(fake.requests) - before <= 2 * (1 + 1.5 / 0.2)
        resize(fake, 2)
        watched.sees(2)
    finally:
        watched.stop.set()
        watched.thread.join(20)


def test_a_malformed_pod_makes_all_unknown_until_it_is_mended_or_gone(
    fake: FakeApi, operator: PlayedOperator, watched: Watched
) -> None:
    (pod,) = operator.pods("demo", "gpu")
    good = fake.get("pods", pod)["status"]
    fake.change("pods", pod, lambda thing: thing.update(status={"phase": "Running", "conditions": "none"}))
    watched.says(f"pod {pod} is malformed: status.conditions")
    fake.change("pods", pod, lambda thing: thing.update(status=good))
    watched.sees(1, pods=1)
    fake.change("pods", pod, lambda thing: thing.update(status={"phase": 7}))
    watched.says("status.phase")
    fake.delete("pods", pod)
    fake.change("rayclusters", "demo", lambda thing: thing.update(status={}), status=True)
    watched.sees(1, pods=0)


def test_a_malformed_cluster_is_unknown_until_it_is_mended(fake: FakeApi, watched: Watched) -> None:
    fake.change("rayclusters", "demo", lambda thing: thing["metadata"].update(annotations={"rayorch.io/groups": "{"}))
    watched.says("rayorch.io/groups is not JSON")
    fake.change("rayclusters", "demo", lambda thing: thing["metadata"].update(annotations={}))
    watched.sees(1, pods=1)


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[]",
        "{}",
        '{"type": "ADDED"}',
        '{"type": "ADDED", "object": {"metadata": {}}}',
        '{"type": "NEW", "object": {"metadata": {"resourceVersion": "1"}}}',
        '{"type": "ERROR", "object": {"code": 500, "message": "lost"}}',
        '{"type": "ERROR", "object": null}',
    ],
)
def test_events_that_are_none_are_errors_and_passed(
    fake: FakeApi, operator: PlayedOperator, tmp_path: Path, line: str
) -> None:
    # The first watch of the cluster gets this instead of events.
    fake.fail(query="watch", path="rayclusters", body=line + "\n")
    watched = Watched(KubeRayClient(fake.settings(tmp_path)))
    try:
        soon("an error", lambda: bool(watched.errors()))
        assert "event" in watched.errors()[0] or "the watch ended" in watched.errors()[0]
        resize(fake, 3)
        watched.sees(3, pods=1)
    finally:
        watched.stop.set()
        watched.thread.join(20)


def test_a_cluster_that_is_deleted_and_made_again_is_another(fake: FakeApi, watched: Watched) -> None:
    fake.delete("rayclusters", "demo")
    watched.says("RayCluster demo was deleted")
    fake.create("rayclusters", ray_cluster(worker_group("gpu", 1)))
    watched.says("was replaced by another of the same name")
    fake.end_watches(410, "rayclusters")
    time.sleep(0.5)
    watched.says("was replaced by another of the same name")


def test_a_cluster_that_comes_later_is_seen(fake: FakeApi, tmp_path: Path) -> None:
    watched = Watched(KubeRayClient(fake.settings(tmp_path)))
    try:
        watched.says("there is no RayCluster demo in namespace default")
        fake.create("rayclusters", ray_cluster(worker_group("gpu", 1)))
        watched.sees(1, pods=0)
    finally:
        watched.stop.set()
        watched.thread.join(20)


def test_what_the_callback_raises_ends_the_watch(fake: FakeApi, operator: PlayedOperator, tmp_path: Path) -> None:
    def refuse(news: object) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        KubeRayClient(fake.settings(tmp_path)).watch(refuse, threading.Event())
    soon("the streams' ends", lambda: fake.open_watches == 0)


def test_a_watch_that_is_stopped_before_it_begins_ends(fake: FakeApi, tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    KubeRayClient(fake.settings(tmp_path)).watch(lambda news: None, stop)


def test_many_changes_are_told_together(fake: FakeApi, watched: Watched) -> None:
    before = len(watched.news)
    for count in range(200):
        resize(fake, 1 + count % 7)
    resize(fake, 8)
    watched.sees(8)
    assert len(watched.news) - before < 100


def test_events_of_pods_and_cluster_come_in_any_order(
    fake: FakeApi, operator: PlayedOperator, watched: Watched
) -> None:
    """The two streams race; in the end both are as they are."""
    for count in (4, 2, 6, 1, 5):
        resize(fake, count)
        operator.chosen_by_operator.clear()
        operator.step()
    watched.sees(5, pods=5)
    assert watched.errors() == []
