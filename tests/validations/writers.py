"""Ways of saving checkpoints, ours and others', each with its reader. Called by `tests.validations.checkpoints`.

A writer saves the states of steps 1 to `STEPS` below a folder and tells the trace which of them it believes to be safe.
A reader gives the step and the hash of what it loaded, or None where there is no checkpoint, or raises.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from unittest import mock

import torch
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException

from proving_ground.training.checkpoints import checkpoint, sharded_saving
from proving_ground.training.checkpoints.stores import Folder
from tests.validations.in_turn import Gather, Turns
from tests.validations.tracing import Trace

STEPS, RANKS = 4, 4
State = dict[str, Any]
Found = tuple[int, str] | None


@dataclass(frozen=True)
class Writer:
    """`save` below the trace's root, `read` below a folder, `newest`: the path of the newest checkpoint.

    `clear`: the refusals that are clear enough for a caller to go on by; `broken`: a mutant's defect.
    """

    save: Callable[[Trace, int], None]
    read: Callable[[Path], Found]
    newest: Callable[[Path], Path]
    clear: tuple[type[Exception], ...] = ()
    broken: Callable[[], AbstractContextManager[object]] = nullcontext


def state(step: int) -> State:
    """What is saved at a step: like a small model's weights and optimizer, some 60 KB."""
    dice = torch.Generator().manual_seed(step)
    weights = {f"layer{number}": torch.randn(50, 60, generator=dice) for number in range(4)}
    moments = {f"moment{number}": torch.randn(1000, generator=dice) for number in range(3)}
    return {"model": weights, "optimizer": moments, "training": {"step": torch.tensor(step)}}


def sha256(value: State) -> str:
    """The hash of all tensors, by name."""
    digest = hashlib.sha256()
    for part, tensors in sorted(value.items()):
        for name, tensor in sorted(tensors.items()):
            digest.update(f"{part} {name} {tensor.dtype} {tuple(tensor.shape)}".encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def found(value: State) -> Found:
    """What a reader says about what it loaded."""
    return int(value["training"]["step"]), sha256(value)


def save_ours(trace: Trace, keep: int) -> None:
    """Four checkpoints by two incarnations of a job."""
    store = Folder(trace.root)
    for step in range(1, STEPS + 1):
        if step in (1, STEPS // 2 + 1):
            generation = checkpoint.claim_generation(store)
        with contextlib.suppress(OSError):
            checkpoint.save(store, step, generation, state(step), keep)
            trace.durable(step)


def read_ours(root: Path) -> Found:
    """The newest intact one; then the job must be able to go on: claim, save and load again."""
    store = Folder(root)
    loaded = checkpoint.load_newest(store, lambda _path, _why: None)
    generation = checkpoint.claim_generation(store)
    saved = checkpoint.save(store, 9, generation, state(9), keep=5)
    again = checkpoint.load_newest(store, lambda _path, _why: None)
    if again is None or (again.sha256, found(again.parts)) != (saved.sha256, found(state(9))):
        raise AssertionError("the job cannot go on from what the crash left")
    return found(loaded.parts) if loaded else None


def newest_of_ours(root: Path) -> Path:
    """The folder of the newest."""
    return root / checkpoint.newest_first(Folder(root))[0]


def shard_of(step: int, rank: int) -> State:
    """A rank's rows of a step's state, in pieces as `training.checkpoints.sharded_saving.local` makes them."""

    def piece(tensor: torch.Tensor) -> State:
        rows = sharded_saving.rows_of(rank, RANKS, len(tensor))
        return {"local": tensor[rows.start : rows.stop].clone(), "first": rows.start, "shape": list(tensor.shape)}

    cut = {part: items for part, items in state(step).items() if part != "training"}
    return {part: {name: piece(tensor) for name, tensor in items.items()} for part, items in cut.items()}


def save_as_ranks(store: Folder, step: int, generation: int, keep: int) -> checkpoint.Saved:
    """One checkpoint by all ranks, each its part."""

    def work(rank: int, gather: Gather) -> checkpoint.Saved:
        parts = {sharded_saving.file_of(rank, RANKS): shard_of(step, rank)}
        parts |= {"training": state(step)["training"]} if rank == 0 else {}
        return sharded_saving.save(store, step, generation, parts, gather, rank, lambda *_: None)

    saved: checkpoint.Saved = Turns(RANKS, step).run(work)[0]
    checkpoint.prune(store, keep)
    return saved


def save_sharded(trace: Trace, keep: int) -> None:
    """As `save_ours`, by four ranks."""
    store = Folder(trace.root)
    for step in range(1, STEPS + 1):
        if step in (1, STEPS // 2 + 1):
            generation = checkpoint.claim_generation(store)
        with contextlib.suppress(OSError):
            save_as_ranks(store, step, generation, keep)
            trace.durable(step)


def load_sharded(store: Folder, readers: int) -> Found:
    """The newest that is intact for so many ranks, put together from what each of them loads."""

    def work(rank: int, gather: Gather) -> checkpoint.Loaded | None:
        def load(name: str) -> checkpoint.Loaded:
            return sharded_saving.load(store, name, gather, rank, (rank, readers), lambda rows, _: rows)

        names = sharded_saving.together(gather, lambda: checkpoint.newest_first(store))[0]
        return checkpoint.newest_intact(names, load, lambda *_: None)

    loaded = Turns(readers, 0).run(work)
    if loaded[0] is None:
        return None
    whole = {"training": loaded[0].parts["training"]}
    for part in ("model", "optimizer"):
        every = [it.parts[part] for it in loaded]
        whole[part] = {name: torch.cat([items[name] for items in every]) for name in every[0]}
    return found(whole)


def read_sharded(root: Path) -> Found:
    """By four ranks and by three; then the job must be able to go on."""
    store = Folder(root)
    loaded = load_sharded(store, RANKS)
    if load_sharded(store, RANKS - 1) != loaded:
        raise AssertionError("fewer ranks load something else")
    save_as_ranks(store, 9, checkpoint.claim_generation(store), 5)
    if load_sharded(store, RANKS) != found(state(9)):
        raise AssertionError("the job cannot go on from what the crash left")
    return loaded


@contextlib.contextmanager
def commits_first() -> Iterator[None]:
    """A mutant: rank 0 commits before the last rank has synced its part."""

    @contextlib.contextmanager
    def create(store: Folder, name: str, part: str) -> Iterator[IO[bytes]]:
        with (store._draft(name) / part).open("xb", buffering=0) as file:
            yield file
            if not part.startswith(f"shard-{RANKS - 1:05d}"):
                os.fsync(file.fileno())

    with mock.patch.object(Folder, "create", create):
        yield


def save_direct(trace: Trace, keep: int) -> None:
    """`torch.save` over the same file, as in torch's tutorials."""
    del keep
    for step in range(1, STEPS + 1):
        with contextlib.suppress(OSError, RuntimeError):
            with (trace.root / "checkpoint.pt").open("wb") as file:
                torch.save(state(step), file)
            trace.durable(step)


def save_replace(trace: Trace, keep: int) -> None:
    """`torch.save` to a file aside, then `os.replace`."""
    del keep
    for step in range(1, STEPS + 1):
        with contextlib.suppress(OSError, RuntimeError):
            with (trace.root / "checkpoint.pt.tmp").open("wb") as file:
                torch.save(state(step), file)
            os.replace(trace.root / "checkpoint.pt.tmp", trace.root / "checkpoint.pt")  # noqa: PTH105 - as people write it
            trace.durable(step)


def read_file(root: Path) -> Found:
    """`torch.load`, if the file is there."""
    path = root / "checkpoint.pt"
    return found(torch.load(path, weights_only=True)) if path.exists() else None


def save_dcp(trace: Trace, keep: int) -> None:
    """The distributed checkpoint, a folder a step; nothing is removed."""
    del keep
    for step in range(1, STEPS + 1):
        with quiet(), contextlib.suppress(OSError, RuntimeError, CheckpointException):
            state_dict_saver.save(state(step), checkpoint_id=trace.root / f"step-{step}", no_dist=True)
            trace.durable(step)


def read_dcp(root: Path) -> Found:
    """The newest folder that has metadata and can be loaded; kinder than most jobs, which stop at the first failure."""
    problem = ""
    for step in range(STEPS, 0, -1):
        folder = root / f"step-{step}"
        if not (folder / ".metadata").exists():
            continue
        value = {
            part: {name: torch.zeros_like(item) for name, item in items.items()} for part, items in state(0).items()
        }
        try:
            with quiet():
                state_dict_loader.load(value, checkpoint_id=folder, no_dist=True)
        except (Exception, CheckpointException) as error:  # noqa: BLE001 - whatever it makes of a damaged folder
            problem = repr(error)
            continue
        return found(value)
    if problem:
        raise RuntimeError(problem)
    return None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without torch's remarks about a checkpoint of one process."""
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


@contextlib.contextmanager
def no_data_sync() -> Iterator[None]:
    """A mutant: files are not synced, folders are."""

    @contextlib.contextmanager
    def create(store: Folder, name: str, part: str) -> Iterator[IO[bytes]]:
        with (store._draft(name) / part).open("xb", buffering=0) as file:
            yield file

    with mock.patch.object(Folder, "create", create):
        yield


@contextlib.contextmanager
def prune_first() -> Iterator[None]:
    """A mutant: older checkpoints go before the new one is committed."""
    commit = Folder.commit

    def early(store: Folder, name: str, manifest: bytes, last_check: Callable[[], None]) -> None:
        for old in checkpoint.newest_first(store):
            shutil.rmtree(store.path / old)
        commit(store, name, manifest, last_check)

    with mock.patch.object(Folder, "commit", early):
        yield


def no_folder_sync() -> AbstractContextManager[object]:
    """A mutant: folders are not synced, files are."""
    return mock.patch("proving_ground.training.checkpoints.stores.sync")


def no_check() -> AbstractContextManager[object]:
    """A mutant: parts are loaded whatever their checksums."""
    return mock.patch.object(checkpoint, "verified", lambda store, name, part, _: checkpoint.read(store, name, part)[0])


OURS = Writer(save_ours, read_ours, newest_of_ours, (checkpoint.CheckpointError,))
OURS_SHARDED = Writer(save_sharded, read_sharded, newest_of_ours, (checkpoint.CheckpointError,))
WRITERS = {
    "proving-ground": OURS,
    "proving-ground, 4 ranks": OURS_SHARDED,
    "torch.save": Writer(save_direct, read_file, lambda root: root / "checkpoint.pt"),
    "torch.save + os.replace": Writer(save_replace, read_file, lambda root: root / "checkpoint.pt"),
    "torch DCP": Writer(save_dcp, read_dcp, lambda root: root / f"step-{STEPS}"),
}
MUTANTS = {
    "no sync of data": Writer(*(OURS.save, OURS.read, OURS.newest, OURS.clear), no_data_sync),
    "no sync of folders": Writer(*(OURS.save, OURS.read, OURS.newest, OURS.clear), no_folder_sync),
    "checksums not checked": Writer(*(OURS.save, OURS.read, OURS.newest, OURS.clear), no_check),
    "4 ranks, the last not synced": Writer(
        *(OURS_SHARDED.save, OURS_SHARDED.read, OURS_SHARDED.newest, OURS_SHARDED.clear), commits_first
    ),
    "pruned before the commit": Writer(*(OURS.save, OURS.read, OURS.newest, OURS.clear), prune_first),
}
