"""Where a job's GPU work goes: into the seats of its own attempt.

Ray asks one function, for every task and every actor, which placement group it belongs to. It is replaced here, in
the driver and in each worker process of the job. Ray has no public hook for this.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ray.util.placement_group import PlacementGroup, get_current_placement_group

from rayorch.adapters.ray_job.attempt import GrantReader, request_of
from rayorch.core.errors import SpecError
from rayorch.core.grants import Seat

log = logging.getLogger(__name__)

HOOKED = "_configure_placement_group_based_on_context"
"""Ray's function that decides the group of a task (`ray.remote_function`) or an actor (`ray.actor`)."""
CHECKED = "validate_placement_group"
"""Ray's function that every `placement_group(...)` call of a user passes through (`ray.util.placement_group`)."""

_turns = itertools.count()


def choose_group(seats: Sequence[Seat], resources: Mapping[str, Any], turn: int) -> str:
    """The id of the group in which a request of `resources` is to run.

    Groups take turns in proportion to their seats that are large enough; which of a group's bundles it is,
    Ray decides when one is free. SpecError when no seat is large enough: the request could only wait forever.
    """
    request = request_of(resources)
    fitting = [seat for seat in seats if seat.group_id and request.fits_in(seat.resources)]
    if not fitting:
        shapes = ", ".join(sorted({str(seat.resources.to_floats()) for seat in seats})) or "none held"
        raise SpecError(
            "resources",
            f"{request.to_floats()} does not fit any seat of this workload's gang ({shapes}); "
            "ask for less (what asks for GPUs takes 1 CPU too unless it says num_cpus=0) or submit with larger members",
        )
    return fitting[turn % len(fitting)].group_id


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _group_handle(group_id: str) -> PlacementGroup:
    from ray._raylet import PlacementGroupID

    return PlacementGroup(PlacementGroupID(bytes.fromhex(group_id)))


def _is_ours(group: PlacementGroup | None, reader: GrantReader) -> bool:
    if group is None:
        return True
    own = {seat.group_id for seat in reader.current(may_wait=not _in_event_loop()).seats}
    return group.id.hex() in own


def install(reader: GrantReader) -> None:
    """From now on, GPU tasks and actors of this process that name no strategy go into the attempt's groups.

    Those with a strategy of their own stay where they want to be, and so do all that ask for no GPU. Installing
    it twice is installing it once.
    """
    import ray.actor
    import ray.remote_function

    original = getattr(ray.remote_function, HOOKED)
    if getattr(original, "rayorch", False):
        return
    handles: dict[str, PlacementGroup] = {}

    def configure(
        placement_group_capture_child_tasks: bool,
        bundle_index: int,
        resources: dict[str, Any],
        placement_resources: dict[str, Any],
        task_or_actor_repr: str,
        placement_group: PlacementGroup | str | None = "default",
    ) -> PlacementGroup:
        plain = placement_group == "default" and bundle_index == -1 and bool(resources.get("GPU"))
        if plain and placement_group_capture_child_tasks:
            plain = _is_ours(get_current_placement_group(), reader)
        if plain:
            seats = reader.current(may_wait=not _in_event_loop()).seats
            wanted = {**resources, **{k: v for k, v in placement_resources.items() if v > resources.get(k, 0)}}
            group_id = choose_group(seats, wanted, next(_turns))
            # One handle per group: it remembers its bundles, so that Ray's table is read once and not per task.
            placement_group = handles.setdefault(group_id, _group_handle(group_id))
        chosen: PlacementGroup = original(
            placement_group_capture_child_tasks,
            bundle_index,
            resources,
            placement_resources,
            task_or_actor_repr,
            placement_group=placement_group,
        )
        return chosen

    configure.rayorch = True  # type: ignore[attr-defined]
    setattr(ray.remote_function, HOOKED, configure)
    setattr(ray.actor, HOOKED, configure)
    # By name, because `ray.util` has a function of the same name as the module.
    _warn_of_groups(importlib.import_module("ray.util.placement_group"))


def _warn_of_groups(groups: Any) -> None:
    """Say it in the job's log when the job asks for a placement group with GPUs of its own, beside its gang."""
    original = getattr(groups, CHECKED)

    def validate(bundles: Sequence[Mapping[str, float]], *args: Any, **kwargs: Any) -> Any:
        gpus = sum(bundle.get("GPU", 0) for bundle in bundles)
        if gpus:
            log.warning(
                "rayorch: placement_group() asks for %g GPUs outside this workload's gang; they count as foreign use, "
                "and where no GPU is free the group waits forever. Use plain num_gpus tasks and actors instead.",
                gpus,
            )
        return original(bundles, *args, **kwargs)

    setattr(groups, CHECKED, validate)
