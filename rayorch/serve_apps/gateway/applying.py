"""What is done with one document: queues, reservations and crons are set, workloads submitted."""

from __future__ import annotations

from dataclasses import replace

from rayorch.config import (
    CronDocument,
    Document,
    QueueDocument,
    ReservationDocument,
    ServeAppDocument,
    WorkloadDocument,
)
from rayorch.core.errors import SpecError
from rayorch.core.payload import Json
from rayorch.core.requests import Reply
from rayorch.core.types import WorkloadSpec
from rayorch.serve_apps.gateway.backend import Backend
from rayorch.serve_apps.gateway.jobs_form import with_packages_only

SETTINGS = (QueueDocument, ReservationDocument, CronDocument)
"""Kinds that are set, not submitted."""


def rank(document: Document) -> tuple[int, int]:
    """In which order documents are applied."""
    if isinstance(document, QueueDocument):
        return (0, document.metadata.name.count("/"))
    return (1 if isinstance(document, ReservationDocument) else 2, 0)


async def apply_document(backend: Backend, document: Document) -> dict[str, Json]:
    """Set or submit what a document says; what became of it."""
    name = document.metadata.name
    match document:
        case QueueDocument():
            return reply_json(name, await backend.set_queue(document.to_core()))
        case ReservationDocument():
            return reply_json(name, await backend.set_reservation(document.to_core()))
        case CronDocument():
            cron = document.to_core()
            cron = replace(cron, template=with_packages_only(cron.template))
            return reply_json(cron.id, await backend.set_cron(cron))
        case _:
            spec = workload_spec(document)
            (outcome,) = await backend.submit((spec,))
            return reply_json(spec.id, outcome.reply)


def workload_spec(document: Document) -> WorkloadSpec:
    """What is to be submitted; SpecError for another kind."""
    if not isinstance(document, WorkloadDocument | ServeAppDocument):
        raise SpecError("kind", f"must be Workload or ServeApp, got {document.kind}")
    return with_packages_only(document.to_core())


def reply_json(identity: str, reply: Reply) -> dict[str, Json]:
    """What became of one document."""
    if reply.accepted:
        return {"id": identity, "accepted": True}
    return refused(identity, reply.code, reply.field, reply.message)


def refused(identity: str, code: str, field: str, message: str) -> dict[str, Json]:
    """A refusal."""
    return {"id": identity, "accepted": False, "code": code, "field": field, "detail": message}
