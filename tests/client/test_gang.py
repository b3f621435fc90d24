"""A leased gang: held while its client lives, given back or noticed as lost. Ray itself is not started here."""

from __future__ import annotations

import threading
import time

import pytest

from rayorch import Client, GangLostError, SpecError
from rayorch.core.types import Allocation, Kind, Member, MemberPhase, NodeId, Resources, State, WorkloadId
from rayorch.serve_apps.gateway.fake import FakeBackend

GROUP = "0123456789abcdef0123456789abcdef0123"


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group's handle is Ray's own; what is tested is the lease around it."""
    monkeypatch.setattr("rayorch.client.gang.GangLease._group", lambda self, group_id: group_id)
    monkeypatch.setattr("rayorch.client.gang.RENEW_S", 0.05)


def _start(backend: FakeBackend) -> WorkloadId:
    """The cluster starts the first gang that comes."""
    while not backend.known:
        time.sleep(0.01)
    workload = next(iter(backend.known))
    backend.advance(workload, State.RUNNING)
    members = tuple(
        Member("worker", n, NodeId("n"), Resources.of({"GPU": 1}), 0, n, MemberPhase.READY, GROUP) for n in range(2)
    )
    backend.seats[workload] = Allocation(workload, 1, members, 0.0, 0.0)
    return workload


def _starting(backend: FakeBackend) -> threading.Thread:
    thread = threading.Thread(target=_start, args=(backend,))
    thread.start()
    return thread


def test_the_group_is_held_with_heartbeats_and_given_back(client: Client, backend: FakeBackend) -> None:
    thread = _starting(backend)
    with client.gang(workers=2, gpus_per_worker=1, queue="research/nlp", timeout=30) as group:
        thread.join()
        assert group == GROUP
        before = backend.renewals
        while backend.renewals < before + 3:
            time.sleep(0.01)
    (workload,) = backend.known.values()
    assert (workload.spec.kind, workload.spec.queue, workload.state) == (Kind.GANG, "research/nlp", State.CANCELLED)
    after = backend.renewals
    time.sleep(0.2)
    assert backend.renewals == after


def test_a_lost_gang_is_noticed_at_the_end_of_the_block(client: Client, backend: FakeBackend) -> None:
    thread = _starting(backend)
    lease = client.gang(bundles=[{"GPU": 1}, {"CPU": 2}], timeout=30)
    with pytest.raises(GangLostError):
        with lease:
            thread.join()
            backend.lapsed.add(next(iter(backend.known)))
            while not lease.lost:
                time.sleep(0.01)


def test_a_gang_that_does_not_come_in_time_leaves_nothing_in_the_queue(client: Client, backend: FakeBackend) -> None:
    with pytest.raises(TimeoutError):
        with client.gang(workers=1, gpus_per_worker=1, timeout=0.2):
            pytest.fail("it was never started")
    (workload,) = backend.known.values()
    assert workload.state is State.CANCELLED


def test_an_error_of_the_block_is_not_hidden(client: Client, backend: FakeBackend) -> None:
    thread = _starting(backend)
    with pytest.raises(ZeroDivisionError):
        with client.gang(workers=2, timeout=30):
            thread.join()
            raise ZeroDivisionError
    assert next(iter(backend.known.values())).state is State.CANCELLED


def test_bundles_or_workers_but_not_both(client: Client) -> None:
    for wrong in ({}, {"bundles": [{"GPU": 1}], "workers": 1}):
        with pytest.raises(SpecError):
            client.gang(**wrong)  # type: ignore[arg-type]
