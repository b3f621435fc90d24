"""A queue tree whose changes are on disk before anyone hears of them, many callers sharing one fsync.

Commands that arrive while a batch is being written wait, and become the next batch together. Within a batch each
command sees what those before it did. Readers wait for the batch that is being written, so they see durable facts
only. When the disk refuses a batch, the tree is rebuilt from the journal: what was refused has not happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rayorch.actors.journal import Journal
from rayorch.actors.journal_format import Entry, JournalCorrupt, JournalError, entry_of, pack_state
from rayorch.core.errors import ClusterError, RayorchError
from rayorch.core.events import Event
from rayorch.core.queues import QueueTree, TreeState

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_BATCH = 2_000
"""Most commands in one transaction: bounds how long the first of them waits."""

BATCH_S = 0.1
"""A batch takes in no further command after so long: meanwhile nobody is answered, and no lease renewed."""

STEP_S = 2.0
"""A clock that gains this much on the machine's uptime between two looks was set forward, or the machine slept."""

COMPACT_EVERY = 10_000
"""Records after which a snapshot is taken: bounds the replay at a restart (about 0.1 ms a record). Where there are more
workloads than that, as many records as workloads: a snapshot holds them all, so each record pays for one at most."""


class Stage:
    """The newest state, as a command sees it, and where it leaves its events."""

    def __init__(self, tree: QueueTree, now_s: float) -> None:
        self.tree = tree
        self.now_s = now_s
        self.entries: list[Entry] = []
        self.events: list[Event] = []
        self.broken = False

    def take(self, events: tuple[Event, ...]) -> None:
        """Let these events happen, all or none. SpecError when one can't be written."""
        entries = [entry_of(event) for event in events]
        try:
            for event in events:
                self.tree.apply(event)
        except BaseException:
            self.broken = True  # half of them are in the tree: it has to be built anew
            raise
        self.entries += entries
        self.events += events

    def settle(self) -> None:
        """Let happen what follows by itself from what has happened so far."""
        while events := self.tree.due(self.now_s):
            self.take(events)


Command = Callable[[Stage], T]


class DurableTree:
    """Owns the tree, the journal and the one thread that writes. All methods belong to one event loop."""

    def __init__(
        self,
        journal: Journal,
        clock: Callable[[], float],
        prepare: Callable[[QueueTree], None] = lambda tree: None,
        on_durable: Callable[[tuple[Event, ...]], None] = lambda events: None,
        compact_every: int = COMPACT_EVERY,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: seconds since the epoch; `ticks`: seconds that can't be set.

        `prepare` is called with every tree that comes from the journal, `on_durable` after every batch.

        JournalCorrupt when the journal does not give a tree.
        """
        self.journal = journal
        self._clock = clock
        self._ticks = ticks
        self._ahead_s = clock() - ticks()
        self._prepare = prepare
        self._on_durable = on_durable
        self._compact_every = compact_every
        self._compact_at = 0
        self._now_s = 0.0
        self._stale = ""
        self._waiting: list[tuple[Command[object], asyncio.Future[object]]] = []
        self._gate = asyncio.Lock()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._tasks: set[asyncio.Task[None]] = set()
        self._working = False
        self._compacting = False
        self.tree = self._load()
        self._set_next_compaction()

    # ------------------------------------------------------------ for callers

    def now_s(self) -> float:
        """The owner's clock [s since the epoch]; it never goes back.

        When it was set forward, every live attempt counts as seen now: else all leases would seem to be over at once.
        """
        now_s = self._clock()
        ahead_s = now_s - self._ticks()
        step_s, self._ahead_s = ahead_s - self._ahead_s, ahead_s
        self._now_s = max(self._now_s, now_s)
        if step_s > STEP_S:
            log.warning("the clock was set forward by %.1f s: leases count from now", step_s)
            self.tree.renew_all(self._now_s)
        return self._now_s

    async def run(self, command: Command[T]) -> T:
        """What the command returned, when what it did is durable.

        Raises what the command raised, and ClusterError when the journal could not be written.
        """
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._waiting.append((command, future))
        if not self._working:
            self._working = True
            self._spawn(self._work())
        return await future  # type: ignore[return-value] # the command's own

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[QueueTree]:
        """The tree, with durable facts only, until the block is left."""
        async with self._gate:
            self._check_sound()
            yield self.tree

    def peek(self) -> QueueTree:
        """The tree with what is being written, for checks whose answer promises nothing durable."""
        self._check_sound()
        return self.tree

    async def close(self) -> None:
        """Finish what is under way and close the journal."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._in_writer(self.journal.close)
        self._writer.shutdown()

    # ------------------------------------------------------------ batches

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _in_writer(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writer, function)

    async def _work(self) -> None:
        """Write batches until nobody waits."""
        try:
            while self._waiting:
                async with self._gate:
                    batch = self._waiting[:MAX_BATCH]
                    del self._waiting[:MAX_BATCH]
                    await self._commit_or_refuse(batch)
        finally:
            self._working = False

    async def _commit_or_refuse(self, batch: list[tuple[Command[object], asyncio.Future[object]]]) -> None:
        try:
            await self._ensure_sound()
            await self._commit(batch)
        except Exception as error:  # whatever it is, nobody may be left waiting
            if not isinstance(error, JournalError):
                log.exception("a batch of %d commands failed", len(batch))
            for _, future in batch:
                if not future.done():
                    future.set_exception(ClusterError(f"not accepted: {error}"))

    async def _commit(self, batch: list[tuple[Command[object], asyncio.Future[object]]]) -> None:
        stage = Stage(self.tree, self.now_s())
        answers: list[tuple[asyncio.Future[object], object, Exception | None]] = []
        began_s = self._ticks()
        for done, (command, future) in enumerate(batch, start=1):
            if future.done():
                continue  # its caller has gone, or was told that it failed
            try:
                answer = command(stage)
                stage.settle()
                answers.append((future, answer, None))
            except RayorchError as error:
                answers.append((future, None, error))
            except Exception as error:  # a defect in one command must not take the others with it
                log.exception("a command failed")
                answers.append((future, None, error))
            if stage.broken:
                self._stale = "an event could not be applied"
                self._waiting[:0] = batch[done:]
                break
            if self._ticks() - began_s > BATCH_S and done < len(batch):
                self._waiting[:0] = batch[done:]
                del batch[done:]
                break
        if stage.entries:
            await self._append(stage.entries)
        for future, value, refused in answers:
            if future.done():
                continue
            if refused is not None:
                future.set_exception(refused)
            else:
                future.set_result(value)
        if stage.events:
            self._on_durable(tuple(stage.events))
        if self._stale:
            await self._ensure_sound()
        self._compact_if_due()

    async def _append(self, entries: list[Entry]) -> None:
        try:
            await self._in_writer(lambda: self.journal.append(entries))
        except JournalError as error:
            log.error("%d events refused: %s", len(entries), error)
            self._stale = str(error)
            await self._try_disk()
            await self._rebuild()
            raise

    async def _try_disk(self) -> None:
        """A disk that works again lets us remove at once what it refused: else a crash now would bring it back."""
        try:
            await self._in_writer(self.journal.probe)
        except JournalError as error:
            log.warning("the disk still refuses: %s", error)

    # ------------------------------------------------------------ the tree from the journal

    def _load(self) -> QueueTree:
        with _no_collection():
            return self._read()

    def _read(self) -> QueueTree:
        recovered = self.journal.recover()
        tree = QueueTree()
        if recovered.state is not None:
            if not isinstance(recovered.state, TreeState):
                raise JournalCorrupt(f"{self.journal.path}: snapshot {recovered.state_sequence} is no tree")
            tree = QueueTree.restore(recovered.state)
        for recorded in recovered.events:
            try:
                tree.apply(recorded.event)
            except (RayorchError, KeyError) as error:
                raise JournalCorrupt(
                    f"{self.journal.path}: record {recorded.sequence} does not follow from those before it: {error}"
                ) from error
        self._prepare(tree)
        return tree

    async def _rebuild(self) -> None:
        """After a refused batch: what is in the tree and not in the journal has not happened."""
        try:
            self.tree = await self._in_writer(self._load)
            self._stale = ""
        except JournalError as error:
            log.error("the tree can't be rebuilt, trying again at the next command: %s", error)

    async def _ensure_sound(self) -> None:
        """Before a batch: the disk takes writes again and the tree is the journal's. JournalError if not."""
        if self.journal.failure:
            await self._in_writer(self.journal.probe)
        if self._stale:
            await self._rebuild()
        self._check_sound()

    def _check_sound(self) -> None:
        if self._stale:
            raise JournalCorrupt(f"the queue owner can't answer: {self._stale}")

    # ------------------------------------------------------------ compaction

    def _set_next_compaction(self) -> None:
        self._compact_at = self.journal.snapshot_sequence + max(self._compact_every, len(self.tree.workloads))

    def _compact_if_due(self) -> None:
        if not self._compacting and not self._stale and self.journal.sequence >= self._compact_at:
            self._compacting = True
            self._spawn(self._compact(self.tree.dump(), self.journal.sequence))

    async def _compact(self, state: TreeState, sequence: int) -> None:
        try:
            body = await asyncio.to_thread(pack_state, state)
            await self._in_writer(lambda: self.journal.write_snapshot(sequence, body))
            self._set_next_compaction()
        except RayorchError as error:
            self._compact_at = self.journal.sequence + max(1, self._compact_every // 4)
            log.warning("no snapshot after record %d, trying again after %d: %s", sequence, self._compact_at, error)
        finally:
            self._compacting = False


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """While a journal is read almost every new object stays: looking for garbage would be a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
