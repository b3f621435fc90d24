"""MIG: how each GPU model can be cut into instances, and where on the GPU an instance of each profile may lie.

A GPU has memory slices in a row (eight, an A30 four). An instance takes some that lie side by side, and begins only
where NVIDIA allows it for its profile. Source: NVIDIA's MIG User Guide, "Supported MIG Profiles", and what
`nvidia-smi mig -lgipp` prints. Cutting a GPU so that the memory slices do not overlap never takes more compute slices
than it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of instance: how many memory slices it takes, and at which of them it may begin. `most`: on one GPU."""

    name: str
    size: int
    starts: tuple[int, ...]
    most: int = 8


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance on a GPU: its profile, and the memory slice that it begins at."""

    profile: str
    start: int


@dataclass(frozen=True, slots=True)
class MigModel:
    """How one GPU model is cut. `names`: as Ray or a node's label calls it."""

    name: str
    slices: int
    profiles: tuple[Profile, ...]

    def profile(self, name: str) -> Profile | None:
        """The profile of that name, None where the model does not have it."""
        return next((p for p in self.profiles if p.name == name), None)


def _seven(name: str, one: str, two: str, three: str, seven: str) -> MigModel:
    """A GPU of seven compute and eight memory slices; what one slice's memory, two, half and all of it are called."""
    return MigModel(
        name,
        8,
        (
            Profile(f"1g.{one}", 1, (0, 1, 2, 3, 4, 5, 6)),
            Profile(f"1g.{one}+me", 1, (0, 1, 2, 3, 4, 5, 6), most=1),
            Profile(f"1g.{two}", 2, (0, 2, 4, 6)),
            Profile(f"2g.{two}", 2, (0, 2, 4)),
            Profile(f"3g.{three}", 4, (0, 4)),
            Profile(f"4g.{three}", 4, (0,)),
            Profile(f"7g.{seven}", 8, (0,)),
        ),
    )


MODELS: tuple[MigModel, ...] = (
    _seven("A100-40G", "5gb", "10gb", "20gb", "40gb"),
    _seven("A100-80G", "10gb", "20gb", "40gb", "80gb"),
    _seven("H100", "10gb", "20gb", "40gb", "80gb"),
    _seven("H100-94G", "12gb", "24gb", "47gb", "94gb"),
    _seven("GH200", "12gb", "24gb", "48gb", "96gb"),
    _seven("H200", "18gb", "35gb", "71gb", "141gb"),
    _seven("B200", "23gb", "45gb", "90gb", "180gb"),
    _seven("GB200", "23gb", "47gb", "93gb", "186gb"),
    MigModel(
        "A30",
        4,
        (
            Profile("1g.6gb", 1, (0, 1, 2, 3)),
            Profile("1g.6gb+me", 1, (0, 1, 2, 3), most=1),
            Profile("2g.12gb", 2, (0, 2)),
            Profile("2g.12gb+me", 2, (0, 2), most=1),
            Profile("4g.24gb", 4, (0,)),
        ),
    ),
)

KNOWN_AS: dict[str, tuple[str, ...]] = {
    "A100": ("A100-40G", "A100-80G"),
    "A100-80G": ("A100-80G",),
    "A100-40G": ("A100-40G",),
    "H100": ("H100", "H100-94G"),
    "GH200": ("GH200",),
    "H200": ("H200",),
    "B200": ("B200",),
    "GB200": ("GB200",),
    "A30": ("A30",),
}
"""What a node's accelerator type may be here: of an A100 only its memory, or its instances, say which."""


def mig_model(accelerator: str, memory_mib: int = 0, profiles: Iterable[str] = ()) -> MigModel | None:
    """The model that is cut in this way, None where that is not known.

    `accelerator`: Ray's name of it. `memory_mib` of the whole GPU and the `profiles` that it has now decide between
    models of one name.
    """
    names = KNOWN_AS.get(accelerator, ())
    able = [m for m in MODELS if m.name in names and all(m.profile(p) is not None for p in profiles)]
    if memory_mib and able:  # NVIDIA's names are a little below what the driver shows
        able = [min(able, key=lambda m: abs(_gigabytes(m) - memory_mib / 1024))]
    return able[0] if len(able) == 1 else None


def _gigabytes(model: MigModel) -> int:
    """The memory of the whole GPU as its largest profile is called: 80 of 7g.80gb."""
    return int(model.profiles[-1].name.partition(".")[2].removesuffix("gb").removesuffix("gb+me"))


# ---------------------------------------------------------------- placing instances


def taken_slices(model: MigModel, instances: Iterable[Instance]) -> frozenset[int]:
    """The memory slices that instances take; ValueError when one may not be there, or two overlap."""
    taken: set[int] = set()
    counts: Counter[str] = Counter()
    for instance in instances:
        profile = model.profile(instance.profile)
        if profile is None or instance.start not in profile.starts:
            raise ValueError(f"{model.name} has no {instance.profile} at slice {instance.start}")
        mine = set(range(instance.start, instance.start + profile.size))
        counts[profile.name] += 1
        if mine & taken or counts[profile.name] > profile.most:
            raise ValueError(f"{instance.profile} at slice {instance.start} of {model.name} collides with another")
        taken |= mine
    return frozenset(taken)


def open_starts(model: MigModel, profile: Profile, taken: frozenset[int]) -> tuple[int, ...]:
    """Where one more instance of the profile may begin."""
    return tuple(s for s in profile.starts if not any(n in taken for n in range(s, s + profile.size)))


@lru_cache(maxsize=4096)
def arrange(model: MigModel, wanted: tuple[str, ...], kept: tuple[Instance, ...] = ()) -> tuple[Instance, ...] | None:
    """Places for all `wanted` profiles beside what is `kept`, None where there are none; exact.

    By size, the large first; at most eight slices, so that a search of all places is short.
    """
    order = sorted(wanted, key=lambda name: (-(p.size if (p := model.profile(name)) else 0), name))
    if any(model.profile(name) is None for name in order):
        return None

    def place(position: int, found: tuple[Instance, ...]) -> tuple[Instance, ...] | None:
        if position == len(order):
            return found
        name = order[position]
        profile = model.profile(name)
        assert profile is not None, "checked above"
        if sum(i.profile == name for i in found) >= profile.most:
            return None
        for start in reversed(open_starts(model, profile, taken_slices(model, found))):
            done = place(position + 1, (*found, Instance(name, start)))
            if done is not None:
                return done
        return None

    return place(0, kept)
