"""The held seats in place of Train's own placement group: which of them a script starts on, and its workers in them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, cast

import ray
from ray._raylet import PlacementGroupID
from ray.exceptions import GetTimeoutError, RayActorError
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError
from ray.train.v2._internal.execution.worker_group.placement_group_handle import PlacementGroupHandle
from ray.train.v2._internal.execution.worker_group.worker import Worker
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
from ray.train.v2._internal.util import bundle_to_remote_args
from ray.train.v2.api.config import ScalingConfig
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rayorch.adapters.ray_train.contact import AttemptIds
from rayorch.adapters.ray_train.session import GrantSession, worker_seats
from rayorch.adapters.ray_train.workers import ActorGroup, GrantTrainWorker
from rayorch.core.errors import SpecError
from rayorch.core.grants import Grant, Seat
from rayorch.core.types import GPU, Resources

logger = logging.getLogger(__name__)

GROUP_WAIT_STEP_S = 1
"""How often a wait for a placement group looks whether the start was given up."""
WORKERS_START_TIMEOUT_S = 1800.0
"""Workers may take this long to come up, environments that are built for them included."""


def check_shape(config: ScalingConfig, grant: Grant) -> tuple[Seat, ...]:
    """The seats that a script's ScalingConfig starts on. Raises SpecError when script and grant don't match."""
    held = worker_seats(grant, len(grant.seats))
    if not config.elasticity_enabled and len(held) != config.num_workers:
        raise SpecError(
            "num_workers",
            f"the script asks for exactly {config.num_workers} workers but this workload holds {len(held)} worker "
            f"seats; submit it with {config.num_workers} workers, or make it elastic: num_workers=(min, max)",
        )
    if len(held) < config.min_workers:
        raise SpecError(
            "num_workers",
            f"the script asks for at least {config.min_workers} workers but this workload holds {len(held)} worker "
            f"seats; submit it with a minimum of {config.min_workers} workers, or lower the script's minimum",
        )
    seats = held[: config.max_workers]
    if len(seats) < len(held):
        logger.warning("%d seats stay empty: the script wants at most %d", len(held) - len(seats), config.max_workers)
    wanted = Resources.of(cast("dict[str, float]", config.resources_per_worker or {}), "resources_per_worker")
    if config.use_gpu and not wanted.gpu_units:
        wanted += Resources.of({GPU: 1})
    for seat in seats:
        if not wanted.fits_in(seat.resources):
            raise SpecError(
                "resources_per_worker",
                f"the script asks for {wanted.to_floats()} per worker but seat {seat.index} has "
                f"{seat.resources.to_floats()}; submit it with bundles that are large enough",
            )
    return seats


def placement_group_of(seat: Seat) -> PlacementGroup:
    """The held group that a seat is a bundle of."""
    return PlacementGroup(PlacementGroupID(bytes.fromhex(seat.group_id)))


class HeldSeats(PlacementGroupHandle):
    """The groups of the seats in use, which somebody else made and somebody else removes."""

    def __init__(self, seats: tuple[Seat, ...], given_up: Callable[[], bool]) -> None:
        first_of_group = {seat.group_id: seat for seat in reversed(seats)}
        self._groups = [placement_group_of(seat) for seat in first_of_group.values()]
        self._first = placement_group_of(seats[0])
        self._given_up = given_up

    @property
    def placement_group(self) -> PlacementGroup:
        """The group of rank 0; Train shows it, our workers are placed one by one."""
        return self._first

    def ready(self) -> Any:
        """A reference that resolves when the first group is ready."""
        return self._first.ready()

    def wait(self, timeout_seconds: float = 30) -> bool:
        """Whether all groups are ready in time; False as well when the start was given up meanwhile."""
        deadline_s = time.monotonic() + timeout_seconds
        for group in self._groups:
            try:
                while not group.wait(GROUP_WAIT_STEP_S):
                    if self._given_up() or time.monotonic() >= deadline_s:
                        return False
            except Exception:
                logger.warning("placement group %s of the grant is gone", group.id.hex(), exc_info=True)
                return False
        return not self._given_up()

    def shutdown(self) -> None:
        """The seats stay held; only the allocator removes their groups."""


class HeldWorkerGroup(WorkerGroup):
    """Train's worker group, worker k in the k-th seat. Ranks are then Ray's: those of a node follow each other."""

    _worker_cls = GrantTrainWorker
    session: GrantSession
    ids: AttemptIds

    def _start(self) -> None:
        try:
            cast("Any", super())._start()
        except BaseException:
            self.session.kill_group()
            self.session.released()
            raise

    def _create_placement_group(self, scaling_config: Any, worker_group_context: Any) -> PlacementGroupHandle:
        self._seats = self.session.used
        return HeldSeats(self._seats, lambda: self.session.abandoned)

    def _create_workers(
        self,
        num_workers: int,
        placement_group: Any,
        resources_per_worker: dict[str, float],
        placement_group_bundle_indices: list[int] | None = None,
        starting_world_rank: int = 0,
        world_size: int | None = None,
        replica_group_size: int | None = None,
    ) -> list[Worker]:
        """Actors in their seats; a "bundle index" of Train is an index into the seats here."""
        indices = placement_group_bundle_indices or list(range(num_workers))
        runtime_env = self._get_worker_runtime_env(
            custom_runtime_env=self._train_run_context.run_config.worker_runtime_env or {}
        )
        actors = [self._actor(self._seats[k], runtime_env) for k in indices]
        group = ActorGroup(actors)
        self.session.starting(group)
        try:
            leased = [actor.keep_lease.remote(self.ids) for actor in actors]
            metadata = ray.get([actor.get_metadata.remote() for actor in actors], timeout=WORKERS_START_TIMEOUT_S)
            ray.get(leased, timeout=WORKERS_START_TIMEOUT_S)
        except (RayActorError, GetTimeoutError) as error:
            group.kill()
            raise WorkerGroupStartupFailedError(f"a worker did not come up in its seat: {error}") from error
        workers = [
            Worker(actor, data, self._seats[k].resources.to_floats(), placement_group_bundle_index=k)
            for k, actor, data in zip(indices, actors, metadata, strict=True)
        ]
        ranked = WorkerGroup._assign_worker_ranks(workers, starting_world_rank, world_size, replica_group_size)
        group.ranked(ranked)
        return ranked

    def _actor(self, seat: Seat, runtime_env: Any) -> Any:
        resources = bundle_to_remote_args(seat.resources.to_floats())
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=placement_group_of(seat), placement_group_bundle_index=seat.bundle_index
        )
        actor_class = ray.remote(runtime_env=runtime_env, **resources)(self._worker_cls)
        return actor_class.options(scheduling_strategy=strategy).remote()
