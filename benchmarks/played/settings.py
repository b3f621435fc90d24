"""Settings that differ from the default profile in one thing each, and whole profiles: what `policies_table` compares.

Left out is what would be the default again on this work: nobody has a deadline or an owner of its own, and Slurm's
weights are 0 unless a profile gives some (`slurm` does).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from benchmarks.las import FIFO, FJF, LAS
from rayorch.core.eviction import Action
from rayorch.core.model_choice import ModelKnobs
from rayorch.core.ordering import OrderKnobs
from rayorch.core.policy import BackfillKnobs, OrderPolicy, Profile, QueueOrderPolicy
from rayorch.core.types import Allocation, Workload
from rayorch.experiment.profiles import profile_of
from rayorch.policies.default import DEFAULT
from rayorch.policies.order import (
    ageing,
    auction,
    fifo,
    finish_time,
    gittins,
    las,
    remaining,
    smallest,
    usage,
)
from rayorch.policies.place import (
    at_random,
    clustering,
    dot_product,
    fgd,
    fragmentation,
    packing,
    spread,
    weighted_best_fit,
)
from rayorch.policies.queue_order import cohort, drf, fair, plain, proportion, share, stranded, used

BASE = "default"
PRESETS = ("kai", "kueue", "slurm", "volcano", "yunikorn")
GUIDE = ("fifo", "finish-time", "least-attained", "shortest", "smallest", "usage")
"""The profiles of configs/profiles/ that are no presets and no setting of the other groups."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is compared. `group`: the default that it is an alternative to; "" of the default itself."""

    name: str
    group: str
    profile: Profile


def newest_first(workload: Workload, allocation: Allocation, now_s: float) -> float:
    """A victim's cost: for how long it has run, whatever it saved and however large it is."""
    return now_s - (workload.ready_s if workload.ready_s is not None else now_s)


def fewest_gpus_first(workload: Workload, allocation: Allocation, now_s: float) -> float:
    """A victim's cost: its GPUs."""
    return sum(member.bundle.gpu_units for member in allocation.members) / 10_000


def least_size(workload: Workload, now_s: float) -> int:
    """As few members as it runs with."""
    role = workload.spec.elastic_role
    return role.min_count if role is not None else 0


def _order(name: str, policy: OrderPolicy) -> Setting:
    return Setting(name, "order", replace(DEFAULT, order=policy))


def _queues(name: str, policy: QueueOrderPolicy) -> Setting:
    return Setting(f"queues by {name}", "queues", replace(DEFAULT, queue_order=policy))


def _place(policy: ModuleType) -> Setting:
    device = getattr(policy, "device", DEFAULT.device)
    return Setting(policy.__name__.rpartition(".")[2], "place", replace(DEFAULT, score=policy.score, device=device))


def _backfill(name: str, knobs: BackfillKnobs) -> Setting:
    return Setting(name, "backfill", replace(DEFAULT, backfill=knobs))


def _eviction(name: str, **knobs: bool | float | tuple[Action, ...]) -> Setting:
    changed = replace(DEFAULT.eviction, **knobs)  # type: ignore[arg-type]  # by the names of its fields
    return Setting(name, "eviction", replace(DEFAULT, eviction=changed))


def _models(name: str, knobs: ModelKnobs) -> Setting:
    return Setting(name, "models", replace(DEFAULT, models=knobs))


def _growth(name: str, **knobs: bool | float) -> Setting:
    return Setting(name, "growth", replace(DEFAULT, **knobs))  # type: ignore[arg-type]  # by the names of its fields


SETTINGS: tuple[Setting, ...] = (
    Setting(BASE, "", DEFAULT),
    Setting("fifo, strict", "backfill", FIFO),
    Setting("first fit (no held nodes)", "backfill", FJF),
    _backfill("no backfill", BackfillKnobs(heads=0)),
    _backfill("backfill, 1 head", BackfillKnobs(heads=1)),
    _order("fifo", fifo.key),
    _order("ageing", ageing.key),
    _order("usage", usage.key),
    _order("las", las.key),
    _order("las with promotion", las.promoting_key),
    _order("gittins", gittins.key),
    _order("remaining GPU-seconds", remaining.gpu_key),
    _order("smallest", smallest.key),
    _order("finish_time", finish_time.key),
    _order("rho guardrail over las", finish_time.las_key),
    _order("auction", auction.key),
    _queues("cohort", cohort.key),
    _queues("drf", drf.key),
    _queues("fair", fair.key),
    _queues("plain", plain.key),
    _queues("proportion", proportion.key),
    _queues("share", share.key),
    _queues("stranded", stranded.key),
    _queues("used", used.key),
    _place(spread),
    _place(weighted_best_fit),
    _place(dot_product),
    _place(packing),
    _place(clustering),
    _place(fgd),
    _place(fragmentation),
    _place(at_random),
    Setting("nobody is evicted", "eviction", replace(DEFAULT, preemption=False)),
    _eviction("no consolidation", consolidate=False),
    _eviction("nodes emptied, worth 60 s", whole_node_worth_s=60.0),
    _eviction("exempt 10 min", exempt_s=600.0),
    _eviction("by passes", passes=tuple(Action)),
    _eviction("lost work alike at any priority", priority_doubles=0.0),
    Setting("victims: newest", "victims", replace(DEFAULT, victims=newest_first)),
    Setting("victims: fewest GPUs", "victims", replace(DEFAULT, victims=fewest_gpus_first)),
    _models("models by score", ModelKnobs(by_score=True)),
    _models("next model before eviction is off", ModelKnobs(evict_before_next=True)),
    _models("moved to better models", ModelKnobs(upgrade=True)),
    _growth("the oldest grows first", even_growth=False),
    Setting("surplus stays", "growth", replace(DEFAULT, eviction=replace(DEFAULT.eviction, surplus_yields=False))),
    _growth("growth at most every 10 min", grow_cooldown_s=600.0),
    Setting("nobody grows", "growth", replace(DEFAULT, train_size=least_size)),
    Setting("las, by order", "by order", LAS),
    Setting(
        "las, by order, exempt 10 min",
        "by order",
        replace(LAS, eviction=replace(LAS.eviction, exempt_s=600.0)),
    ),
    Setting(
        "las with promotion, by order",
        "by order",
        replace(LAS, order=las.promoting_key, ordering=OrderKnobs(las_promote=2.0)),
    ),
    Setting("remaining, by order", "by order", replace(LAS, order=remaining.key)),
)


def whole_profiles() -> tuple[Setting, ...]:
    """The other profiles that come with rayorch, as a user names them."""
    folder = Path(__file__).parents[2] / "configs" / "profiles"
    return tuple(
        Setting(f"profile {name}", "profiles", profile_of(str(folder / f"{name}.yaml"))) for name in GUIDE + PRESETS
    )


def chosen(groups: str) -> Mapping[str, Setting]:
    """The default and the settings of these groups (separated by commas; empty: of all), by name."""
    wanted = {group for group in groups.split(",") if group}
    every = (*SETTINGS, *whole_profiles())
    if unknown := wanted - {setting.group for setting in every}:
        raise ValueError(f"{', '.join(sorted(unknown))}: no such group; there are {', '.join(GROUPS)}")
    return {s.name: s for s in every if not s.group or not wanted or s.group in wanted}


GROUPS = (*dict.fromkeys(setting.group for setting in SETTINGS if setting.group), "profiles")
