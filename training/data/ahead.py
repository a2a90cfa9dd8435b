"""Loading ahead of the step: threads read the batches of coming steps. Called by `training.loop`.

Which samples a step learns from follows from (seed, step, rank, world size) alone, so coming steps can be read before
their turn. A batch is served only for the very rows that the step asks for; what was read for another membership or
another step is dropped. With `prefetch = 0` nothing is read ahead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import torch

from proving_ground.training.data import order
from proving_ground.training.data.order import Rows

if TYPE_CHECKING:
    from types import TracebackType

    from proving_ground.training.config import Config
    from proving_ground.training.exchange.communication import Piece
    from proving_ground.training.loop import Job
    from proving_ground.training.models.task import Batch, Task

THREADS = "loader"
"""What the reading threads are called."""


class Read(NamedTuple):
    """A batch on the device, the seconds that reading it took, and on CUDA the moment at which its copy is done."""

    batch: Batch
    seconds: float
    copied: torch.cuda.Event | None = None


Reader = Callable[[Rows], Read]


@dataclass(frozen=True)
class Reading:
    """One step's batches, being read or read already: the rows of each piece, and what comes of them."""

    pieces: Sequence[Rows]
    reads: Future[list[Read]]


class Ahead:
    """Reads for one job; as a context: its threads end with it. It must not hold the job, which holds DDP."""

    def __init__(self, config: Config, task: Task, device: torch.device) -> None:
        self._steps = config.prefetch
        self._pool = ThreadPoolExecutor(config.loaders, THREADS) if config.prefetch else None
        self._read: Reader = reader(task, device, ahead=config.prefetch > 0)
        self._device = device
        self._member: tuple[int, int, int] | None = None  # generation, rank, world size: who the readings are for
        self._wanted: dict[int, Rows] = {}  # step → its global batch
        self._readings: dict[int, Reading] = {}  # step → this rank's part of it
        self._now: Reading | None = None  # of the step in hand
        self._read_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        """End the threads; a training that failed does not wait for the batch that is being read."""
        self._forget(range(0))
        self._now = None
        if self._pool:
            self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def begin(self, job: Job) -> tuple[Rows, list[Piece]]:
        """The global batch of the coming step and this rank's pieces of it.

        From here on those after it are read; with a GPU, which has nothing to do yet, only once `further` is called,
        unless there is a single step's time to read in.
        """
        member = (job.generation, job.world.rank, job.world.size)
        if member != self._member:
            self._forget(range(0))
            self._member = member
        self._forget(self._coming(job))
        if job.step not in self._wanted:
            self._plan(job, job.step)
        if self._device.type != "cuda" or self._steps == 1:
            self.further(job)
        self._now, self._read_s = self._readings.pop(job.step, None), 0.0
        return self._wanted[job.step], cut(job, self._wanted[job.step])

    def further(self, job: Job) -> None:
        """Have the batches of the steps after this one read, unless they are."""
        for step in self._coming(job):
            if step not in self._wanted:
                self._plan(job, step)

    def _coming(self, job: Job) -> range:
        """The steps whose batches may be read."""
        return range(job.step, max(job.step + 1, min(job.step + 1 + self._steps, job.steps)))

    def batch(self, number: int, rows: Rows) -> Batch:
        """The batch of the step's piece `number` (from 1), on the device; read now unless these rows were read ahead.

        Raises:
            Exception: whatever reading it raised.
        """
        now = self._now
        if now and number <= len(now.pieces) and np.array_equal(now.pieces[number - 1], rows):
            read = now.reads.result()[number - 1]
        else:
            read = self._read(rows)
        self._read_s += read.seconds
        return arrived(read, self._device)

    def told(self) -> dict[str, float]:
        """For the step's event: the seconds that reading its batches took, whenever that was."""
        return {"read_s": round(self._read_s, 6)}

    def _plan(self, job: Job, step: int) -> None:
        """Work out a step's samples and have this rank's part of them read."""
        config = job.config
        wanted = order.global_batch_rows(job.task.rows, config.global_batch, config.seed, step, carry=job.carry)
        self._wanted[step] = wanted
        if self._pool:
            pieces = [read_for(rows, wanted) for _, rows in cut(job, wanted)]
            self._readings[step] = Reading(pieces, self._pool.submit(read_all, self._read, pieces))

    def _forget(self, keep: range) -> None:
        """Drop what was read or planned for other steps than these."""
        for step in self._wanted.keys() - set(keep):
            del self._wanted[step]
            if reading := self._readings.pop(step, None):
                reading.reads.cancel()


def cut(job: Job, wanted: Rows) -> list[Piece]:
    """The pieces of a global batch that are this rank's in the present membership; an empty one where it has none."""
    return job.exchange.cut(wanted, job.world.rank, job.world.size) or [(0, wanted[:0])]


def read_for(rows: Rows, wanted: Rows) -> Rows:
    """What is read for a piece: of an empty one a sample that counts nothing, since all ranks exchange gradients."""
    return rows if len(rows) else wanted[:1]


def read_all(read: Reader, pieces: Sequence[Rows]) -> list[Read]:
    """The batches of one step, one after another."""
    return [read(rows) for rows in pieces]


def reader(task: Task, device: torch.device, *, ahead: bool) -> Reader:
    """What reads one batch: with CUDA and `ahead` through pinned memory and a stream of its own."""
    if ahead and device.type == "cuda":
        return partial(read_through_pinned, task, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
    return partial(read_to, task, device)


def read_to(task: Task, device: torch.device, rows: Rows) -> Read:
    """Read a batch and bring it to the device."""
    begin = time.monotonic()
    batch = task.batch("train", rows)
    return Read(batch.to(device), time.monotonic() - begin)


def read_through_pinned(task: Task, stream: torch.cuda.Stream, rows: Rows) -> Read:
    """Read a batch and begin to copy it from pinned memory beside what the device computes."""
    begin = time.monotonic()
    batch = task.batch("train", rows)
    seconds = time.monotonic() - begin
    pinned = batch.pinned()
    with torch.cuda.stream(stream):
        moved = pinned.to(stream.device, non_blocking=True)
        copied: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record(stream)
    return Read(moved, seconds, copied)


def arrived(read: Read, device: torch.device) -> Batch:
    """The batch, to be used by what is put into the current stream from here on."""
    if read.copied:
        current = torch.cuda.current_stream(device)
        current.wait_event(read.copied)
        for tensor in (read.batch.inputs, read.batch.targets):
            tensor.record_stream(current)  # its memory is the other stream's: not given away before this one is done
    return read.batch
