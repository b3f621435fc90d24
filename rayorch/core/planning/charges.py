"""Claims and quota: whether a claim may be charged, what it is charged, and which GPU models its queue leaves it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from rayorch.core.planning.claims import Claim
from rayorch.core.quota import LimitKind, Quota, Shortage
from rayorch.core.types import Member, Resources, Workload, charge_of, gpus_of_model, total


def fits_quota(claim: Claim, *quotas: Quota) -> bool:
    """Whether the claim's queue and its owner may take it, by all of these books."""
    if not claim.parts:
        queue, amount, owner, attempts = claim.queue, claim.resources, claim.owner, claim.attempts
        for quota in quotas:  # noqa: SIM110 - a generator costs as much as the question
            if not quota.fits(queue, amount, owner, attempts):
                return False
        return True
    wants = _wants(claim)
    return all(
        quota.fits(claim.queue, amount, owner, attempts) for quota in quotas for owner, amount, attempts in wants
    )


def _wants(claim: Claim) -> list[tuple[str, Resources, int]]:
    """What the claim asks of each owner's limits; all of it, then what is of each owner alone."""
    whole = [(claim.owner, claim.resources, claim.attempts)]
    owners = sorted({part.owner for part in claim.parts})
    if len(owners) < 2:
        return [(claim.owner, claim.resources, len(claim.parts))]
    for owner in owners:
        ours = [part for part in claim.parts if part.owner == owner]
        whole.append((owner, total(part.resources for part in ours), len(ours)))
    return whole


def short_of(claim: Claim, quota: Quota) -> tuple[Shortage, ...]:
    """Every limit that the claim would exceed."""
    return quota.shortages(claim.queue, claim.resources, claim.owner, claim.attempts)


def barred(claim: Claim, quota: Quota) -> bool:
    """Whether the claim would be too much even if its queue could borrow without end: by a cap of its own, by a limit
    of its owner or for want of a countable."""
    if quota.capped(claim.queue, claim.resources):
        return True
    kinds = (LimitKind.USER, LimitKind.CLUSTER)
    return quota.limits_more(claim.queue) and any(short.kind in kinds for short in short_of(claim, quota))


def charge_quota(claim: Claim, amount: Resources, quota: Quota) -> None:
    """Count the amount for the claim."""
    quota.charge(claim.queue, amount, claim.owner, claim.attempts)


def refund_quota(workload: Workload, members: Collection[Member], ends: bool, quota: Quota) -> None:
    """Members leave; `ends`: the attempt with them."""
    quota.refund(workload.spec.queue, charge_of(members), workload.spec.owner, int(ends))


def narrowed(claim: Claim, models: Collection[str], *quotas: Quota) -> Claim:
    """The claim on those GPU models that the limits of its queue leave it; itself where none of them is in the way.

    A claim that names no model may have any mix of them. Where a limit on one of them would not take all of its GPUs,
    it keeps to one model that would, or that nobody limits. `models`: those that there are. A claim that no model is
    left for keeps to the first it may have, whose limit it is then short of.
    """
    if not claim.resources.gpu_units or not any(quota.limits_models(claim.queue) for quota in quotas):
        return claim
    others = tuple(_narrowed(other, models, quotas) for other in claim.others)
    return replace(_narrowed(claim, models, quotas), others=others)


def _narrowed(claim: Claim, models: Collection[str], quotas: tuple[Quota, ...]) -> Claim:
    units = claim.resources.gpu_units
    wanted = claim.shape.accelerators or tuple(sorted(models))
    left = tuple(model for model in wanted if all(_takes(quota, claim, model, units) for quota in quotas))
    if left == wanted:
        return claim
    return claim.on_models(left or wanted[:1])


def _takes(quota: Quota, claim: Claim, model: str, units: int) -> bool:
    return quota.fits(claim.queue, gpus_of_model(model, units), claim.owner)
