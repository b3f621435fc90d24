"""/api/v1 over a fake cluster: what is accepted, what is refused and how, and what is shown."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from rayorch.core.decisions import Wait, WaitReason
from rayorch.core.payload import Payload
from rayorch.core.types import NodeId, State, WorkloadId
from rayorch.serve_apps.gateway.fake import FakeBackend
from tests.scenes import node


def document(identity: str | None = "w1", **spec: Any) -> dict[str, Any]:
    """A Workload document."""
    metadata = {"name": "w", "queue": "research/nlp"} | ({"id": identity} if identity else {})
    return {
        "apiVersion": "rayorch/v1",
        "kind": "Workload",
        "metadata": metadata,
        "spec": {"entrypoint": "python t.py", "gang": {"workers": 2, "resources": {"GPU": 1}}, **spec},
    }


async def test_a_document_becomes_a_waiting_workload(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    answer = await client.post("/api/v1/workloads", json=document())
    assert answer.status_code == 201
    assert answer.headers["location"] == "/api/v1/workloads/w1"
    shown = answer.json()
    assert (shown["id"], shown["queue"], shown["state"]) == ("w1", "research/nlp", "PENDING")
    role = {"name": "worker", "min": 2, "max": 2, "resources": {"GPU": 1}, "group": None, "segments": []}
    assert shown["roles"][0] == role
    assert Payload.of_text(backend.known[WorkloadId("w1")].spec.payload).entrypoint == "python t.py"


async def test_the_same_id_again_is_the_same_workload(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    assert (await client.post("/api/v1/workloads", json=document())).status_code == 201
    assert (await client.post("/api/v1/workloads", json=document())).status_code == 201
    assert len(backend.known) == 1


async def test_the_same_id_with_another_spec_is_a_conflict(client: httpx.AsyncClient) -> None:
    await client.post("/api/v1/workloads", json=document())
    answer = await client.post("/api/v1/workloads", json=document(priority=9))
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


async def test_an_idempotency_key_stands_for_the_id(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    first = await client.post("/api/v1/workloads", json=document(None), headers={"Idempotency-Key": "exp-42"})
    again = await client.post("/api/v1/workloads", json=document(None), headers={"Idempotency-Key": "exp-42"})
    other = await client.post("/api/v1/workloads", json=document(None), headers={"Idempotency-Key": "exp-43"})
    assert first.json()["id"] == again.json()["id"] != other.json()["id"]
    assert len(backend.known) == 2


@pytest.mark.parametrize(
    ("change", "status", "code", "field"),
    [
        ({"gang": {"workers": 0}}, 400, "invalid", "spec.gang.workers"),
        ({"gang": {"workers": 1, "resources": {"GPU": -1}}}, 400, "invalid", "spec.gang.resources.GPU"),
        ({"surprise": 1}, 400, "invalid", "spec.surprise"),
        ({"runtimeEnv": {"workingDir": "."}}, 400, "invalid", "spec.runtimeEnv.workingDir"),
        ({"runtimeEnv": {"py_modules": ["gcs://a.zip", "/tmp"]}}, 400, "invalid", "spec.runtimeEnv.pyModules"),
    ],
)
async def test_a_wrong_field_is_named(
    client: httpx.AsyncClient, change: dict[str, Any], status: int, code: str, field: str
) -> None:
    answer = await client.post("/api/v1/workloads", json=document(**change))
    problem = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, problem["code"], problem["field"]) == (status, code, field)


async def test_an_unknown_queue_is_refused_with_its_field(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    value = document()
    value["metadata"]["queue"] = "nowhere"
    answer = await client.post("/api/v1/workloads", json=value)
    assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (422, "rejected", "queue")
    assert not backend.known


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"a": 1, "a": 2}', b'{"a": NaN}', b"\xff", b"[" * 100 + b"]" * 100]
)
async def test_a_body_that_is_no_document_is_refused(client: httpx.AsyncClient, body: bytes) -> None:
    answer = await client.post("/api/v1/workloads", content=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")


async def test_a_batch_takes_the_good_and_names_the_bad(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    bad = document("b", gang={"workers": 0})
    answer = await client.post("/api/v1/workloads:batch", json={"documents": [document("a"), bad, document("c")]})
    results = answer.json()["results"]
    assert [r["accepted"] for r in results] == [True, False, True]
    assert results[1]["field"] == "spec.gang.workers"
    assert sorted(backend.known) == ["a", "c"]


async def test_apply_sets_queues_before_what_is_submitted_to_them(
    client: httpx.AsyncClient, backend: FakeBackend
) -> None:
    queue = {"apiVersion": "rayorch/v1", "kind": "Queue", "metadata": {"name": "new"}, "spec": {"deserved": 4}}
    workload = document("a")
    workload["metadata"]["queue"] = "new"
    answer = await client.post("/api/v1/documents", json={"documents": [workload, queue]})
    assert [(r["kind"], r["id"], r["accepted"]) for r in answer.json()["results"]] == [
        ("Queue", "new", True),
        ("Workload", "a", True),
    ]
    assert backend.queues["new"].deserved.to_floats() == {"GPU": 4.0}  # type: ignore[index]


async def test_apply_with_one_bad_document_changes_nothing(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    queue = {"apiVersion": "rayorch/v1", "kind": "Queue", "metadata": {"name": "new"}, "spec": {}}
    answer = await client.post("/api/v1/documents", json={"documents": [queue, document(priority="high")]})
    assert (answer.status_code, answer.json()["field"]) == (400, "documents[1].spec.priority")
    assert "new" not in backend.queues


async def test_a_list_filters_and_pages(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    for n in range(5):
        await client.post("/api/v1/workloads", json=document(f"w{n}"))
    backend.advance("w3", State.RUNNING)
    first = (await client.get("/api/v1/workloads", params={"limit": 3})).json()
    rest = (await client.get("/api/v1/workloads", params={"limit": 3, "cursor": first["nextCursor"]})).json()
    assert [w["id"] for w in first["items"] + rest["items"]] == ["w0", "w1", "w2", "w3", "w4"]
    assert rest["nextCursor"] == ""
    running = (await client.get("/api/v1/workloads", params={"state": "running"})).json()
    assert [w["id"] for w in running["items"]] == ["w3"]
    wrong = await client.get("/api/v1/workloads", params={"state": "asleep"})
    assert (wrong.status_code, wrong.json()["field"]) == (400, "state")


async def test_explain_gives_every_reason_with_its_numbers(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    await client.post("/api/v1/workloads", json=document())
    wait = Wait(WaitReason.FRAGMENTED, "needs 2x8, 12 idle", True, 16, 12, "GPU", (WorkloadId("a"),), "a ends")
    backend.waits[WorkloadId("w1")] = (wait,)
    shown = (await client.get("/api/v1/workloads/w1/explain")).json()
    assert shown["position"] == 1
    assert shown["waits"] == [
        {
            "reason": "Fragmented",
            "blocks": True,
            "detail": "needs 2x8, 12 idle",
            "need": 16,
            "have": 12,
            "unit": "GPU",
            "blockers": ["a"],
            "unblocks": "a ends",
        }
    ]


async def test_changes_that_would_let_it_start_come_when_asked_for(
    client: httpx.AsyncClient, backend: FakeBackend
) -> None:
    backend.nodes = {NodeId("n1"): node("n1", gpu=1)}
    await client.post("/api/v1/workloads", json=document(driver={}))
    shown = (await client.get("/api/v1/workloads/w1/explain")).json()
    assert shown["changes"] is None
    shown = (await client.get("/api/v1/workloads/w1/explain", params={"changes": True})).json()
    assert shown["changes"] == [
        {
            "change": "ask for fewer members",
            "detail": "1 of role worker in place of 2",
            "victims": [],
            "start": None,
        }
    ]


async def test_a_plan_says_what_a_submission_would_do_and_submits_nothing(
    client: httpx.AsyncClient, backend: FakeBackend
) -> None:
    backend.nodes = {NodeId("n1"): node("n1", gpu=2)}
    shown = (await client.post("/api/v1/plan", json=document(driver={}))).json()
    assert (shown["lot"], shown["seats"], shown["victims"]) == ("starts", [{"node": "n1", "members": 2}], [])
    wanted = {"workers": 3, "resources": {"GPU": 1}}
    shown = (await client.post("/api/v1/plan", json=document(driver={}, gang=wanted))).json()
    assert (shown["lot"], shown["position"]) == ("waits", 1)
    assert shown["waits"][0]["reason"] == "Resources"
    assert backend.known == {} and backend.journal == []


async def test_a_plan_says_what_the_door_would_refuse(client: httpx.AsyncClient) -> None:
    value = document()
    value["metadata"]["queue"] = "nowhere"
    shown = (await client.post("/api/v1/plan", json=value)).json()
    assert (shown["lot"], shown["field"]) == ("refused", "queue")
    assert (await client.post("/api/v1/plan", json=document(priority="high"))).status_code == 400


@pytest.mark.parametrize("path", ["", "/explain", "/wait", "/logs", "/result"])
async def test_an_unknown_workload_is_not_found(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(f"/api/v1/workloads/nope{path}")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_wait_answers_when_it_has_ended(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    await client.post("/api/v1/workloads", json=document())
    waiting = asyncio.create_task(client.get("/api/v1/workloads/w1/wait", params={"timeout": 30}))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    backend.advance("w1", State.RUNNING)
    backend.advance("w1", State.SUCCEEDED, exit_code=0)
    assert (await waiting).json()["state"] == "SUCCEEDED"


async def test_wait_with_a_timeout_answers_with_what_is(client: httpx.AsyncClient) -> None:
    await client.post("/api/v1/workloads", json=document())
    answer = await client.get("/api/v1/workloads/w1/wait", params={"timeout": 0})
    assert answer.json()["state"] == "PENDING"


async def test_cancel_is_repeatable_and_keeps_its_reason(client: httpx.AsyncClient) -> None:
    await client.post("/api/v1/workloads", json=document())
    for _ in range(2):
        answer = await client.post("/api/v1/workloads/w1/cancel", json={"reason": "wrong data"})
        assert (answer.json()["state"], answer.json()["reason"]) == ("CANCELLED", "wrong data")


async def test_followed_output_goes_across_attempts_to_the_end(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    await client.post("/api/v1/workloads", json=document())

    async def read() -> str:
        answer = await client.get("/api/v1/workloads/w1/logs", params={"follow": True, "notes": True})
        return answer.text

    reading = asyncio.create_task(read())
    await asyncio.sleep(0.1)
    backend.advance("w1", State.RUNNING)
    backend.write_log("w1", "one\n")
    await asyncio.sleep(0.1)
    backend.advance("w1", State.PENDING, reason="preempted by z")
    await asyncio.sleep(0.1)
    backend.advance("w1", State.RUNNING)
    backend.write_log("w1", "two\n")
    backend.advance("w1", State.SUCCEEDED)
    text = await reading
    assert text.index("position 1") < text.index("one") < text.index("preempted by z") < text.index("two")


async def test_a_piece_of_output_says_where_the_next_begins(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    await client.post("/api/v1/workloads", json=document())
    backend.advance("w1", State.RUNNING)
    backend.write_log("w1", "hello\n")
    first = (await client.get("/api/v1/workloads/w1/logs")).json()
    assert first == {"attempt": 1, "text": "hello\n", "nextOffset": 6, "ended": False}
    rest = (await client.get("/api/v1/workloads/w1/logs", params={"offset": 6})).json()
    assert rest["text"] == ""


async def test_a_result_is_taken_from_the_current_attempt_only(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    await client.post("/api/v1/workloads", json=document())
    backend.advance("w1", State.RUNNING)
    stale = await client.put("/api/v1/workloads/w1/result", params={"attempt": 2}, content=b"x")
    assert stale.status_code == 409
    taken = await client.put("/api/v1/workloads/w1/result", params={"attempt": 1}, content=b"x" * 2_000_000)
    assert taken.status_code == 204
    assert (await client.get("/api/v1/workloads/w1/result")).content == b"x" * 2_000_000


async def test_events_page_and_hide_the_payload(client: httpx.AsyncClient) -> None:
    await client.post("/api/v1/workloads", json=document(env={"KEY": "secret-value"}))
    await client.post("/api/v1/workloads/w1/cancel", json={})
    first = (await client.get("/api/v1/events", params={"limit": 1})).json()
    assert [e["type"] for e in first["events"]] == ["Submitted"] and first["more"]
    rest = (await client.get("/api/v1/events", params={"since": first["nextCursor"]})).json()
    assert [e["type"] for e in rest["events"]] == ["CancelRequested"]
    assert "secret-value" not in json.dumps(first)


async def test_nodes_are_drained_by_name_with_a_deadline(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    answer = await client.post("/api/v1/nodes/gpu-01/drain", json={"reason": "XID 79", "deadline": "1h"})
    assert answer.status_code == 200
    (node,) = (await client.get("/api/v1/nodes")).json()["items"]
    assert (node["health"], node["reason"], node["drainDeadlineAt"]) == ("draining", "XID 79", backend.now_s + 3600)
    await client.post("/api/v1/nodes/gpu-01/uncordon")
    (node,) = (await client.get("/api/v1/nodes")).json()["items"]
    assert node["health"] == "ok"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [("nope/drain", {}, 404), ("gpu-01/explode", {}, 404), ("gpu-01/drain", {"deadline": "soon"}, 400)],
)
async def test_a_wrong_drain_is_refused(client: httpx.AsyncClient, path: str, body: object, status: int) -> None:
    assert (await client.post(f"/api/v1/nodes/{path}", json=body)).status_code == status


async def test_a_lease_is_renewed_until_it_has_lapsed(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    await client.post("/api/v1/workloads", json=document())
    assert (await client.post("/api/v1/workloads/w1/renew", json={"attempt": 1})).json() == {"alive": True}
    backend.lapsed.add(WorkloadId("w1"))
    assert (await client.post("/api/v1/workloads/w1/renew", json={"attempt": 1})).json() == {"alive": False}


async def test_queues_can_be_deleted(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    assert (await client.delete("/api/v1/queues/research/nlp")).status_code == 204
    assert (await client.delete("/api/v1/queues/research/nlp")).status_code == 422
    assert sorted(backend.queues) == ["default"]


async def test_an_unexpected_error_tells_no_details(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("a secret of the inside")

    backend.workload = broken  # type: ignore[method-assign,assignment]
    answer = await client.get("/api/v1/workloads/w1")
    assert answer.status_code == 500
    assert "secret" not in answer.text
