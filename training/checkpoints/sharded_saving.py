"""Checkpoints of a model that is cut over the ranks: each rank writes its part. Called by `saving`.

A checkpoint has a file of each part, `shard-00001-of-00004.pt`, and `training.pt`; it is there once rank 0 has
committed the manifest that names and hashes all of them, by the rules of `checkpoint`. Files are written by a
thread of each rank, of the first replica's where there are several; these threads agree in a process group of their
own, so that training goes on meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from errno import ENOENT
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard

from proving_ground.training.checkpoints import checkpoint
from proving_ground.training.checkpoints.saving import BUSY_S, Saver, passed_over, progress, tensors
from proving_ground.training.checkpoints.stores import Store, open_store
from proving_ground.training.config import parts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch.distributed.device_mesh import DeviceMesh

    from proving_ground.training.checkpoints.checkpoint import Loaded, Reached, Saved, State
    from proving_ground.training.config import Config
    from proving_ground.training.events import EventWriter, NoEvents
    from proving_ground.training.exchange.communication import World
    from proving_ground.training.loop import Job

WRITERS_S = 1800.0
"""How long a rank's thread waits for the slowest to have written."""
PIECE = {"local", "first", "shape"}
"""Of a tensor that is cut over the ranks: this rank's rows, the number of the first, and the shape of the whole."""

T = TypeVar("T")
Place = tuple[int, int]
"""Which part of a model, of how many."""
Gather = Callable[[object], list[Any]]
"""One object of every rank, in order of rank, on every rank."""
Cut = Callable[[torch.Tensor, list[int]], torch.Tensor]
"""A rank's rows of a tensor of a shape, as the model wants to have them."""


def place_of(config: Config, world: World) -> Place:
    """Which part of the model this rank holds."""
    parts = parts_of(config, world.size)
    return world.rank % parts, parts


def file_of(part: int, parts: int) -> str:
    """The name of a part."""
    return f"shard-{part:05d}-of-{parts:05d}"


def rows_of(part: int, parts: int, rows: int) -> range:
    """Which rows of a tensor are in a part, as torch cuts them: all but the last parts have as many."""
    most = -(-rows // parts)
    return range(min(part * most, rows), min((part + 1) * most, rows))


def together(gather: Gather, work: Callable[[], T]) -> list[T]:
    """Every rank does its work; the results of all. What one rank's work raised is raised on all.

    Raises:
        OSError, CheckpointError: the first rank's that has a problem.
    """
    done: list[Any] = []
    problem: Exception | None = None
    try:
        done.append(work())
    except (OSError, checkpoint.CheckpointError) as error:
        problem = error
    said = gather((done, problem))
    for rank, (_, problem) in enumerate(said):
        if isinstance(problem, OSError):
            raise OSError(problem.errno, f"rank {rank}: {checkpoint.reason(problem)}", problem.filename)
        if problem:
            raise problem
    return [it[0] for it, _ in said]


def changed(tree: Any, change: Callable[[dict[str, Any]], Any]) -> Any:  # noqa: ANN401 - a tree
    """The same nesting with every piece changed."""
    if isinstance(tree, dict):
        return change(tree) if tree.keys() == PIECE else {name: changed(item, change) for name, item in tree.items()}
    return type(tree)(changed(item, change) for item in tree) if isinstance(tree, list | tuple) else tree


def local(tree: Any, rank: int, size: int) -> Any:  # noqa: ANN401 - a tree
    """The same nesting with this rank's piece in place of every tensor that is cut over the ranks."""
    if isinstance(tree, DTensor):
        shape = list(tree.shape)
        return {"local": tree.to_local(), "first": rows_of(rank, size, shape[0]).start, "shape": shape}
    if isinstance(tree, dict):
        return {name: local(item, rank, size) for name, item in tree.items()}
    return type(tree)(local(item, rank, size) for item in tree) if isinstance(tree, list | tuple) else tree


class ShardedSaver(Saver):
    """Saves a job's checkpoints, every rank its part."""

    def __init__(
        self, config: Config, events: EventWriter | NoEvents, generation: int, reached: Reached, world: World
    ) -> None:
        super().__init__(config, events, generation, reached)
        self._world, self._place = world, place_of(config, world)
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=WRITERS_S))  # of the threads

    def _save_now(self, job: Job, store: Store, *, stopped: bool) -> None:
        """The same, on every rank."""
        begin = time.monotonic()
        landed = self._land(None if stopped or job.step == job.steps else BUSY_S)
        said = job.world.gather((checkpoint.random_state(), self._plan(job), landed))
        self._next = said[0][1]  # rank 0's clock decides for all
        if not all(landed for _, _, landed in said):
            self._survive(f"checkpoint of step {job.step} left out: the one before is still being written", "Busy")
            return
        parts: dict[str, Any] = {"shard": self._snapshot.take(self._mine(job), self._pool)} if self._writes else {}
        if job.world.rank == 0:
            parts["training"] = progress(job, [state for state, _, _ in said])
        self._start(store, job.step, parts, begin)

    def _mine(self, job: Job) -> dict[str, Any]:
        mine: dict[str, Any] = local(tensors(job), *self._place)
        return mine

    @property
    def _writes(self) -> bool:
        """Whether this rank is of the first replica; the others have the same parts."""
        return self._world.rank < self._place[1]

    def _prepare(self, job: Job) -> None:
        """After the first step, when the optimizer has its state: let the thread get the memory for copies."""
        if self._writes and self._flying is None and self._config.checkpoint_async:
            self._flying = self._pool.submit(self._snapshot.warm, self._mine(job))

    def _save(self, store: Store, step: int, generation: int, parts: dict[str, Any]) -> Saved | None:
        named = {file_of(*self._place): parts["shard"]} if self._writes else {}
        named |= {"training": parts["training"]} if "training" in parts else {}
        saved = save(store, step, generation, named, self._gather, self._world.rank, self._reached)
        if self._world.rank:
            return None
        checkpoint.prune(store, self._config.keep_checkpoints)
        return saved

    def _survive(self, problem: str, kind: str) -> None:
        """Rank 0 tells what went wrong."""
        if self._world.rank == 0:
            super()._survive(problem, kind)

    def _gather(self, value: object) -> list[Any]:
        values: list[Any] = [None] * self._world.size
        dist.all_gather_object(values, value, group=self._group)
        return values


def save(
    store: Store, step: int, generation: int, parts: dict[str, State], gather: Gather, rank: int, reached: Reached
) -> Saved:
    """Write one checkpoint durably: every rank its parts, then rank 0 commits. All ranks call this together.

    Raises:
        OSError: on every rank: one's disk is full, read-only, gone, or not the others'; nothing was changed.
        SupersededError: on every rank: a newer incarnation of the job has taken over.
    """
    name = checkpoint.name_of(step, generation)

    def begin(needed: int) -> None:
        if rank == 0:
            checkpoint.check_space(store, needed)
            store.begin(name)

    def write() -> dict[str, dict[str, Any]]:
        if not parts and generation not in store.claims():  # of a later replica: it will have to read what is there
            raise FileNotFoundError(ENOENT, "not where rank 0 saves", store.where())
        return checkpoint.write_parts(store, name, parts, lambda: reached("checkpoint_write", step))

    def commit(files: dict[str, dict[str, Any]]) -> Saved | None:
        return checkpoint.commit(store, step, generation, files, reached) if rank == 0 else None

    try:
        needed = together(gather, lambda: checkpoint.size_of(parts))
        together(gather, lambda: begin(sum(needed)))
        written = together(gather, write)
        saved = together(gather, lambda: commit({part: it for files in written for part, it in files.items()}))[0]
    except BaseException:
        if rank == 0:
            store.discard(name)
        raise
    assert saved is not None  # noqa: S101 - rank 0's
    return saved


def read_by_all(job: Job) -> tuple[Loaded | None, float]:
    """The newest intact checkpoint with this rank's part of the state, and the seconds that reading it took.

    Raises:
        CheckpointError: on every rank: none is intact, or one's store does not answer.
    """
    store, world, begin = open_store(job.config.checkpoint_dir), job.world, time.monotonic()
    mesh = next(it.device_mesh for it in job.model.parameters() if isinstance(it, DTensor))
    place = place_of(job.config, world)

    def set_aside(name: str, why: str) -> None:
        if world.rank == 0:
            passed_over(job, checkpoint.set_aside(store, name), why)

    try:
        names = together(world.gather, lambda: checkpoint.newest_first(store) if world.rank == 0 else [])[0]
        cut = partial(as_cut, mesh=mesh)
        found = checkpoint.newest_intact(
            names, lambda name: load(store, name, world.gather, world.rank, place, cut), set_aside
        )
    except OSError as error:
        raise checkpoint.CheckpointError(f"{store.where()}: cannot be read: {checkpoint.reason(error)}") from None
    return found, time.monotonic() - begin


def load(store: Store, name: str, gather: Gather, rank: int, place: Place, cut: Cut) -> Loaded:
    """One checkpoint with this rank's part of the state. All ranks call this together.

    Raises:
        DamagedError: on every rank: something that one needs is missing or changed.
        CheckpointError: on every rank: another format, a store that did not answer, or one that told a rank of damage
            where rank 0 finds none: going back to an older one would hide that.
    """
    held: list[Loaded] = []
    try:
        together(gather, lambda: held.append(load_mine(store, name, place, cut)))
    except checkpoint.DamagedError as error:
        why = str(error)
        together(gather, lambda: confirm_damage(store, name, why) if rank == 0 else None)
        raise
    return held[0]


def confirm_damage(store: Store, name: str, why: str) -> None:
    """Read all of a checkpoint once more, after some rank found it damaged.

    Raises:
        CheckpointError: it is intact, so what failed is a rank's way to it.
    """
    try:
        checkpoint.verify(store, name)
    except checkpoint.DamagedError:
        return
    raise checkpoint.CheckpointError(f"{why}; read again by rank 0 it is intact, so nothing was moved")


def load_mine(store: Store, name: str, place: Place, cut: Cut) -> Loaded:
    """What a rank needs of a checkpoint: its part's file, or rows out of all of them where there were more or fewer.

    One file at a time is in memory, and each is hashed before it is unpickled.
    """
    where, (rank, size) = store.where(name), place
    with checkpoint.refusing(where):
        about, sha256 = checkpoint.manifest_of(store, name)

    def content(part: str) -> State:
        with checkpoint.refusing(where):
            found = checkpoint.verified(store, name, part, about["files"][part])
        return checkpoint.unpickled(found, where, part)

    shards = sorted(part for part in about["files"] if part.startswith("shard-"))
    mine = shards[rank : rank + 1] if len(shards) == size else shards
    state = assembled((content(part) for part in mine), place, cut) if mine else {}  # else it is no sharded one
    return checkpoint.Loaded(where, {"training": content("training.pt"), **state}, about["generation"], sha256)


def assembled(states: Iterable[State], place: Place, cut: Cut) -> State:
    """A state with the rows of one part of so many, of what the states of all parts have in pieces."""
    rank, size = place
    tree: State = {}
    rows: list[torch.Tensor] = []
    for state in states:
        pieces: list[dict[str, Any]] = []
        changed(state, pieces.append)
        if not tree:
            tree, rows = state, [room_for(piece, rank, size) for piece in pieces]
        for mine, piece in zip(rows, pieces, strict=True):
            take(mine, piece, rank, size)
    filled = iter(rows)
    whole: State = changed(tree, lambda piece: cut(next(filled), piece["shape"]))
    return whole


def room_for(piece: dict[str, Any], rank: int, size: int) -> torch.Tensor:
    """Memory for a rank's rows of a tensor: the piece's own where it has just these."""
    (rows, *rest), found = piece["shape"], piece["local"]
    wanted = rows_of(rank, size, rows)
    if (piece["first"], len(found)) == (wanted.start, len(wanted)):
        return torch.as_tensor(found)
    return torch.empty([len(wanted), *rest], dtype=found.dtype)


def take(mine: torch.Tensor, piece: dict[str, Any], rank: int, size: int) -> None:
    """Copy those of a piece's rows that are this rank's."""
    wanted, first, found = rows_of(rank, size, piece["shape"][0]), piece["first"], piece["local"]
    begin, end = max(wanted.start, first), min(wanted.stop, first + len(found))
    if found is not mine and begin < end:
        mine[begin - wanted.start : end - wanted.start] = found[begin - first : end - first]


def as_cut(rows: torch.Tensor, shape: Sequence[int], mesh: DeviceMesh) -> DTensor:
    """A rank's rows as what torch holds them in."""
    size, stride = torch.Size(shape), torch.empty(shape, device="meta").stride()
    placements = [*[Replicate()] * (mesh.ndim - 1), Shard(0)]
    return DTensor.from_local(rows.to(mesh.device_type), mesh, placements, run_check=False, shape=size, stride=stride)
