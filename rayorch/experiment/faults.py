"""What fails in a simulated world, from words such as "node=60d,repair=4h" and "slow=30d,slowdown=1.3"."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rayorch.config import typed_duration_s
from rayorch.core.errors import SpecError
from rayorch.core.types import NodeSpec
from rayorch.experiment.words import bounded, pairs_of, within
from rayorch.sim.models import FailureModel, FaultKind, FaultLaw
from rayorch.sim.models.distributions import Lognormal, Weibull
from rayorch.sim.models.failures import GPU, LARGE_CLUSTER, NODE

FIELD = "--fault"
LARGE = "large-cluster"
"""The name of the laws of `LARGE_CLUSTER`."""
SLOWDOWN = 1.5
"""How many times as long work takes on a slow node, or over a link that fails, where nothing is said."""
NOTICE_S = 30.0
"""Before a spot node is taken back, where nothing is said."""
KEYS = ("repair", "slowdown", "notice", "per", "label", "shape")


def laws_of(texts: Sequence[str]) -> tuple[FaultLaw, ...]:
    """One law for each text; "large-cluster" is several. SpecError for what can't be, and for one said twice."""
    found: list[FaultLaw] = []
    for text in texts:
        found += LARGE_CLUSTER.laws if text == LARGE else (_law(text),)
    keys = [law.key for law in found]
    twice = next((law for law, key in zip(found, keys, strict=True) if keys.count(key) > 1), None)
    if twice is not None:
        raise SpecError(FIELD, f"{twice.kind.value} is given twice")
    return tuple(found)


def check_acts(failures: FailureModel, nodes: Sequence[NodeSpec]) -> None:
    """SpecError for a law that none of the nodes could ever be hit by: a label, or a level, that none of them has."""
    for law in failures.laws:
        able = [node for node in nodes if set(law.labels) <= set(node.labels)]
        if not able:
            labels = ", ".join(f"{key}:{value}" for key, value in law.labels)
            raise SpecError(FIELD, f"{law.kind.value}: no node has the label {labels}")
        if law.per not in (NODE, GPU) and not any(node.domain(law.per) is not None for node in able):
            raise SpecError(FIELD, f"{law.kind.value}: no node is in any {law.per}")


def _law(text: str) -> FaultLaw:
    first, *rest = text.split(",")
    word, _, every = first.partition("=")
    try:
        kind = FaultKind(word.strip())
    except ValueError:
        names = f"{', '.join(FaultKind)}, or {LARGE}"
        raise SpecError(FIELD, f"must be KIND=TIME[,KEY=VALUE…] with one of {names}; got {text!r}") from None
    given = pairs_of(rest, KEYS, FIELD, " after the kind")
    mean_s = _time(every, kind.value, text)
    if mean_s <= 0:
        raise SpecError(FIELD, f"{kind.value} must be more than nothing, got {text!r}")
    _check_fit(kind, given, text)
    slow = kind in (FaultKind.SLOW, FaultKind.LINK)
    default_s = 4 * 3600.0 if kind is not FaultKind.SPOT else 3600.0
    repair_s = _time(given["repair"], "repair", text) if "repair" in given else default_s
    per = given.get("per", GPU if kind is FaultKind.DEVICE else NODE)
    label = given.get("label", "")
    key, colon, value = label.rpartition(":")
    if label and not (colon and key):
        raise SpecError(FIELD, f"label must be NAME:VALUE, got {text!r}")
    return FaultLaw(
        kind,
        Weibull.of_mean(mean_s, _number(given.get("shape", "1"), "shape", 0.1, 10.0, text)),
        Lognormal(max(1.0, repair_s), 1.0),
        per,
        _number(given.get("slowdown", str(SLOWDOWN)), "slowdown", 1.0, math.inf, text) if slow else math.inf,
        _time(given["notice"], "notice", text) if "notice" in given else NOTICE_S * (kind is FaultKind.SPOT),
        ((key, value),) if label else (),
    )


def _check_fit(kind: FaultKind, given: dict[str, str], text: str) -> None:
    """What has no meaning for a kind is refused, not ignored."""
    if "slowdown" in given and kind not in (FaultKind.SLOW, FaultKind.LINK):
        raise SpecError(FIELD, f"slowdown is of slow and link only, got {text!r}")
    if "notice" in given and kind in (FaultKind.SLOW, FaultKind.LINK, FaultKind.DEVICE):
        raise SpecError(FIELD, f"a notice comes before node and spot only, got {text!r}")
    if kind is FaultKind.DEVICE and given.get("per", GPU) != GPU:
        raise SpecError(FIELD, f"a device fails by itself (per=gpu), got {text!r}")
    if kind is not FaultKind.DEVICE and given.get("per") == GPU:
        raise SpecError(FIELD, f"per=gpu is of device only, got {text!r}")


def _time(text: str, name: str, whole: str) -> float:
    try:
        return typed_duration_s(text)
    except ValueError as error:
        raise SpecError(FIELD, f"{name}: {error}{within(text, whole)}") from error


def _number(text: str, name: str, least: float, most: float, whole: str) -> float:
    return bounded(text, least, most, FIELD, name, whole)
