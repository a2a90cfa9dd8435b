"""When a checkpoint is saved, and how training goes on from one. Called by `training.loop`; files: `checkpoint`.

Training stands still while its state is copied in memory; a thread of rank 0 writes the copy, hashes it and commits it.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch

from proving_ground.training.checkpoints import checkpoint
from proving_ground.training.checkpoints.stores import Store, open_store
from proving_ground.training.config import EVERY_STEP, Config, ConfigError
from proving_ground.training.state import from_rank, mapped, tensors_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from proving_ground.training.events import EventWriter, NoEvents
    from proving_ground.training.exchange.communication import World
    from proving_ground.training.loop import Job
    from proving_ground.training.phases import Phases

FIRST_STEPS = 10
"""Where an interval in seconds is asked for, the first two checkpoints come after so many steps each: they show what a
step takes and what a checkpoint costs."""
BUSY_S = 1.0
"""How long training waits for the writer before a checkpoint is left out. The other ranks wait too, and would take the
first for dead where `timeout_s = 0` (2 s at least). The last checkpoint of a job is never left out."""
PATIENCE_S = 2.0
"""How long a training that failed waits for a checkpoint that is being written."""


def young_daly_s(cost_s: float, mtbf_s: float) -> float:
    """The interval between checkpoints that loses the least time: sqrt(2 · cost · mean time between failures), seconds.

    First order of J. W. Young, Communications of the ACM 17 (1974) 530, and J. T. Daly, Future Generation Computer
    Systems 22 (2006) 303; good while the cost is far below the mean time between failures. The cost of a checkpoint
    is what training stands still for.
    """
    return math.sqrt(2 * cost_s * mtbf_s)


class Snapshot:
    """A copy of a state in host memory; the buffers are kept, since a first touch costs ten times the copy."""

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []

    def warm(self, state: dict[str, Any]) -> None:
        """Have the buffers for such a state ready."""
        for buffer, _ in self._pairs(state):
            buffer.zero_()

    def take(self, state: dict[str, Any], pool: ThreadPoolExecutor) -> dict[str, Any]:
        """Copy all tensors in nested dicts and lists, half of them in the pool; valid until the next call."""
        pairs = self._pairs(state)
        half = pool.submit(copy_all, pairs[::2])
        copy_all(pairs[1::2])
        half.result()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        buffers = iter(self._buffers)
        copy: dict[str, Any] = mapped(state, torch.Tensor, lambda _: next(buffers))
        return copy

    def _pairs(self, state: dict[str, Any]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """A buffer for every tensor, in order: the one it had before, unless the tensor is another now."""
        known = [*self._buffers, *[None] * len(tensors := tensors_of(state))]
        self._buffers = [
            old
            if old is not None and (old.shape, old.dtype) == (tensor.shape, tensor.dtype)
            else torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            for old, tensor in zip(known, tensors, strict=False)
        ]
        return list(zip(self._buffers, tensors, strict=True))


def copy_all(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy into each first tensor the second."""
    for buffer, tensor in pairs:
        buffer.copy_(tensor, non_blocking=True)


class Saver:
    """Saves a job's checkpoints. On all ranks, since all have random states; rank 0 alone touches the store.

    As a context: left in peace it waits until the last checkpoint is durable.
    """

    def __init__(
        self, config: Config, events: EventWriter | NoEvents, generation: int, reached: checkpoint.Reached
    ) -> None:
        self._config, self._events, self._generation, self._reached = config, events, generation, reached
        self._store: Store | None = open_store(config.checkpoint_dir) if config.checkpoint_dir else None
        self._snapshot, self._pool = Snapshot(), ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._flying: Future[None] | None = None  # rank 0: what the thread is at
        self._timed = bool(config.checkpoint_interval_s or config.mtbf_s)
        self._since: tuple[float, int] | None = None  # the clock and the step when the first step was done
        self._next = 0  # the step of the next checkpoint, where seconds decide
        self._costs: list[float] = []
        self._durable_s = 0.0
        self._renewed = False  # so rank 0 decides alone, and may be another at every step

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None:
            self._land()
        elif self._flying:
            wait([self._flying], PATIENCE_S)
        self._pool.shutdown(wait=False)

    def renew(self, generation: int) -> None:
        """Go on in another generation of a live job; what an older one still writes may be refused, and that is told.

        The sums of a live job need every member's time, so a checkpoint that is under way is not waited for.
        """
        self._generation, self._renewed = generation, True

    def save(self, job: Job, *, stopped: bool) -> None:
        """Save after this step if a checkpoint is due. Training survives a full disk, and says so.

        Raises:
            SupersededError: a newer incarnation of this job has taken over while the checkpoint before was written.
        """
        if self._store is None:
            return
        if self._due(job, stopped=stopped):
            self._save_now(job, self._store, stopped=stopped)
        else:
            self._prepare(job)

    def _save_now(self, job: Job, store: Store, *, stopped: bool) -> None:
        """Copy the state and have it written, unless the one before is still being written."""
        begin = time.monotonic()
        if self._renewed and job.world.rank:
            return
        # Live, rank 0 has only its own optimizer, of which a part of the checkpoint is a copy already.
        inner = job.optimizer.state_dict() if job.updates.alone and not self._renewed else {}
        own = (checkpoint.random_state(), self._plan(job), inner)
        said = [own] if self._renewed else job.world.gather(own)
        self._next = said[0][1]  # rank 0's clock decides for all
        if job.world.rank:
            return
        if not self._land(None if stopped or job.step == job.steps else BUSY_S):
            self._survive(f"checkpoint of step {job.step} left out: the one before is still being written", "Busy")
            return
        parts = self._snapshot.take(tensors(job), self._pool) | {
            "training": progress(job, [state for state, _, _ in said], [inner for _, _, inner in said if inner])
        }
        self._start(store, job.step, parts, begin)

    def _start(self, store: Store, step: int, parts: dict[str, Any], begin: float) -> None:
        """Have a copied state written; training stood still since `begin`."""
        block_s = time.monotonic() - begin
        self._costs.append(block_s)
        if self._config.checkpoint_async:
            self._flying = self._pool.submit(self._write, store, step, parts, begin, block_s)
        else:
            self._write(store, step, parts, begin, None)
            self._costs[-1] = time.monotonic() - begin

    def _due(self, job: Job, *, stopped: bool) -> bool:
        if self._since is None:
            self._since = (time.monotonic(), job.step)
            self._next = job.step + FIRST_STEPS if self._timed else 0
        return stopped or job.step == job.steps or job.due(self._config.checkpoint_every) or job.step == self._next

    def _plan(self, job: Job) -> int:
        """The step of the next checkpoint, where seconds decide; 0 elsewhere."""
        if not self._timed or self._since is None or job.step == self._since[1]:
            return job.step + FIRST_STEPS if self._timed else 0
        step_s = (time.monotonic() - self._since[0]) / (job.step - self._since[1])
        wanted_s = self._config.checkpoint_interval_s
        if self._config.mtbf_s:
            if not self._costs:
                return job.step + FIRST_STEPS
            wanted_s = young_daly_s(statistics.median(self._costs), self._config.mtbf_s)
        return job.step + max(1, round(max(wanted_s, self._durable_s) / step_s))

    def _prepare(self, job: Job) -> None:
        """After the first step, when the optimizer has its state: let the thread get the memory for copies."""
        if job.world.rank == 0 and self._flying is None and self._config.checkpoint_async:
            self._flying = self._pool.submit(self._snapshot.warm, tensors(job))

    def _land(self, timeout_s: float | None = None) -> bool:
        """Wait for what the thread is at, and whether it is done; what it could not survive is raised here."""
        if self._flying:
            if self._flying not in wait([self._flying], timeout_s).done:
                return False
            self._flying.result()
        return True

    def _write(self, store: Store, step: int, parts: dict[str, Any], begin: float, block_s: float | None) -> None:
        """Make one checkpoint durable and tell; in the thread. `block_s` None: training waits all the time."""
        generation = self._generation
        try:
            saved = self._save(store, step, generation, parts)
        except checkpoint.SupersededError as error:
            if not self._renewed:
                raise
            self._survive(f"checkpoint of step {step} not saved: {error}", "Superseded")
            return
        except OSError as error:
            self._survive(
                f"checkpoint of step {step} not saved: {store.where()}: {checkpoint.reason(error)}",
                type(error).__name__,
            )
            return
        self._durable_s = time.monotonic() - begin
        if saved is None:
            return
        about = {"step": step, "path": store.where(saved.name), "bytes": saved.bytes, "sha256": saved.sha256}
        times = {"block_s": self._durable_s if block_s is None else block_s, "durable_s": self._durable_s}
        self._events.emit("checkpoint", **about, **times, generation=generation)

    def _save(self, store: Store, step: int, generation: int, parts: dict[str, Any]) -> checkpoint.Saved | None:
        """Write and commit; None where another rank tells."""
        return checkpoint.save(store, step, generation, parts, self._config.keep_checkpoints, self._reached)

    def _survive(self, problem: str, kind: str) -> None:
        """Tell what went wrong."""
        message = f"{problem}; training goes on"
        self._events.emit("error", message=message, kind=kind, fatal=False)
        warn(message)


def saver_of(config: Config, events: EventWriter | NoEvents, generation: int, phases: Phases, world: World) -> Saver:
    """What saves a job's checkpoints: rank 0, or where the model is cut over the ranks every rank its part."""
    if config.parallel == "ddp" or not config.checkpoint_dir:
        return Saver(config, events, generation, phases.reached)
    from proving_ground.training.checkpoints.sharded_saving import ShardedSaver  # noqa: PLC0415 - only who cuts a model over the ranks needs it

    return ShardedSaver(config, events, generation, phases.reached, world)


def tensors(job: Job) -> dict[str, Any]:
    """What is large in a checkpoint, by part."""
    state = {"model": job.model.module.state_dict(), "optimizer": job.optimizer.state_dict()}
    state |= {"loss_scale": job.precision.state()} if job.precision.scales else {}
    return state | ({"outer": job.updates.outer.state_dict()} if job.updates.outer else {})


def put(job: Job, parts: dict[str, Any]) -> None:
    """Put what is large in a checkpoint into the job."""
    job.model.module.load_state_dict(parts["model"])
    job.optimizer.load_state_dict(parts["optimizer"])
    if job.precision.scales:
        job.precision.put(parts["loss_scale"])
    if job.updates.outer:
        job.updates.outer.load_state_dict(parts["outer"])


def progress(job: Job, randoms: list[checkpoint.State], inner: Sequence[checkpoint.State] = ()) -> dict[str, Any]:
    """How far training is, every rank's random states, and where ranks learn alone the optimizer of each."""
    done = {"step": job.step, "epoch": job.epoch, "best": job.best, "metrics": dict(job.metrics)}
    return done | {"config": asdict(job.config), "random": randoms} | ({"inner": list(inner)} if inner else {})


def warn(line: str) -> None:
    """Tell people about something that went wrong and was survived."""
    sys.stderr.write(line + "\n")


def claim(config: Config) -> int:
    """The number of this incarnation of the job: one more than the newest in checkpoint_dir; nobody else has it.

    Raises:
        ConfigError: checkpoint_dir is no place for checkpoints.
        CheckpointError: it cannot be read.
    """
    if not config.checkpoint_dir:
        return 1
    try:
        return checkpoint.claim_generation(open_store(config.checkpoint_dir))
    except ValueError as error:
        raise ConfigError(f"checkpoint_dir = {error}") from None
    except OSError as error:
        raise checkpoint.CheckpointError(
            f"{config.checkpoint_dir}: cannot be read: {checkpoint.reason(error)}"
        ) from None


def resume(job: Job) -> int:
    """Go on from the newest intact checkpoint: rank 0 reads and verifies it, the others get it from there.

    Where the model is cut over the ranks, every rank reads what it needs.

    Returns the generation that had written it, 0 where there is none.

    Raises:
        CheckpointError: on every rank: none is intact, or the newest is of another training.
    """
    if not job.config.checkpoint_dir or not job.config.resume:
        return 0
    if job.config.parallel == "ddp":
        found, read_s = read_by_one(job)
    else:
        from proving_ground.training.checkpoints import sharded_saving  # noqa: PLC0415 - only who cuts a model over the ranks needs it

        found, read_s = sharded_saving.read_by_all(job)
    if not found:
        return 0
    check_same_training(job.config, found)
    restore(job, found.parts)
    about = {"of_generation": found.generation, "sha256": found.sha256, "read_s": read_s}
    job.events.emit("resume", step=job.step, path=found.path, **about)
    job.tell(f"resumed after step {job.step} from {found.path}")
    return found.generation


def read_by_one(job: Job) -> tuple[checkpoint.Loaded | None, float]:
    """The newest intact checkpoint, and the seconds that rank 0 took to read it."""
    said: dict[str, Any] = {}
    begin = time.monotonic()
    if job.world.rank == 0:
        try:
            found = checkpoint.load_newest(open_store(job.config.checkpoint_dir), partial(passed_over, job))
            said = {"found": vars(found) if found else None, "read_s": time.monotonic() - begin}
        except checkpoint.CheckpointError as error:
            said = {"problem": str(error)}
    said = from_rank(job.world, said)
    if "problem" in said:
        raise checkpoint.CheckpointError(said["problem"])
    return checkpoint.Loaded(**said["found"]) if said["found"] else None, said["read_s"]


def passed_over(job: Job, path: str, why: str) -> None:
    """A damaged checkpoint was found, and is at `path` now."""
    job.events.emit("quarantine", path=path, why=why)
    warn(f"checkpoint passed over: {why}; it is {path} now")


def check_same_training(config: Config, found: checkpoint.Loaded) -> None:
    """Refuse what cannot be gone on from."""
    there = asdict(Config()) | found.parts["training"]["config"]  # an older one knows fewer keys
    names = ["model", "size", "precision", "parallel", "global_batch", "seed", "reduction", "updates"]
    names += ["shards"] if config.reduction == "exact" else []
    names += ["sync_every"] if config.updates != EVERY_STEP else []
    differs = [name for name in names if there[name] != getattr(config, name)]
    if differs:
        words = ", ".join(f"{name} = {there[name]!r} there, {getattr(config, name)!r} here" for name in differs)
        raise checkpoint.CheckpointError(f"{found.path}: of another training ({words}); resume = false starts again")


def restore(job: Job, parts: dict[str, checkpoint.State]) -> None:
    """Put a checkpoint's state into the job."""
    training = parts["training"]
    put(job, parts)
    job.step, job.best, job.metrics = training["step"], training["best"], training["metrics"]
    if job.world.rank < len(training["random"]):  # a rank that is new in a larger world keeps its fresh state
        checkpoint.restore_random_state(training["random"][job.world.rank])
    if job.world.rank < len(training.get("inner", [])):
        job.optimizer.load_state_dict(training["inner"][job.world.rank])
