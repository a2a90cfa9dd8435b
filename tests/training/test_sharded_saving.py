"""A sharded checkpoint's ranks judge it together: threads stand in for them, each with its own way to the store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from errno import EIO
from pathlib import Path
from typing import IO, Any

import pytest
import torch

from proving_ground.training.checkpoints import checkpoint, sharded_saving
from proving_ground.training.checkpoints.checkpoint import CheckpointError, DamagedError, Loaded
from proving_ground.training.checkpoints.sharded_saving import Gather
from proving_ground.training.checkpoints.stores import Folder

RANKS = 2
NEWEST = checkpoint.name_of(2, 1)


def each(work: Callable[[int, Gather], Any]) -> list[Any]:
    """What every rank's work returned or raised."""
    barrier, said = threading.Barrier(RANKS, timeout=20), [None] * RANKS

    def as_rank(rank: int) -> Any:
        def gather(value: Any) -> list[Any]:
            said[rank] = value
            barrier.wait()
            heard = list(said)
            barrier.wait()
            return heard

        try:
            return work(rank, gather)
        except (OSError, CheckpointError) as error:
            return error

    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(as_rank, range(RANKS)))


@pytest.fixture
def saved(tmp_path: Path) -> Folder:
    """Two checkpoints of four rows over two ranks."""
    store = Folder(tmp_path)
    checkpoint.claim_generation(store)

    def save(step: int, rank: int, gather: Gather) -> Any:
        rows = {"local": torch.full((2,), float(step)), "first": 2 * rank, "shape": [4]}
        parts: dict[str, Any] = {sharded_saving.file_of(rank, RANKS): {"model": {"w": rows}}}
        parts |= {} if rank else {"training": {"step": step}}
        return sharded_saving.save(store, step, 1, parts, gather, rank, lambda *_: None)

    for step in (1, 2):
        made = each(lambda rank, gather, step=step: save(step, rank, gather))  # type: ignore[misc]
        assert [it.name for it in made] == [checkpoint.name_of(step, 1)] * RANKS
    return store


class Flawed(Folder):
    """A rank's mount of the folder whose first read of the newest checkpoint fails."""

    def __init__(self, path: Path, problem: OSError) -> None:
        super().__init__(path)
        self._problems: Iterator[OSError] = iter([problem])

    def open(self, name: str, part: str) -> IO[bytes]:
        """As a folder's, but once."""
        if name == NEWEST and (problem := next(self._problems, None)):
            raise problem
        return super().open(name, part)


def read(stores: list[Folder]) -> tuple[list[Any], list[str]]:
    """What every rank gets of the newest that is intact, and what was told to be damaged."""
    bad: list[str] = []

    def load(rank: int, gather: Gather) -> Loaded | None:
        def one(name: str) -> Loaded:
            return sharded_saving.load(stores[rank], name, gather, rank, (rank, RANKS), lambda rows, _: rows)

        return checkpoint.newest_intact(
            checkpoint.newest_first(stores[0]), one, lambda name, _: None if rank else bad.append(name)
        )

    return each(load), bad


def test_a_replica_that_sees_another_store_is_told_when_it_is_saved(tmp_path: Path) -> None:
    """It writes nothing, and would find nothing when it is started again."""
    stores = [Folder(tmp_path / "shared"), Folder(tmp_path / "own")]
    checkpoint.claim_generation(stores[0])

    def save(rank: int, gather: Gather) -> Any:
        parts: dict[str, Any] = {} if rank else {sharded_saving.file_of(0, 1): {"w": 1}, "training": {"step": 1}}
        return sharded_saving.save(stores[rank], 1, 1, parts, gather, rank, lambda *_: None)

    for problem in each(save):
        assert isinstance(problem, OSError)
        assert str(problem).startswith("[Errno 2] rank 1: not where rank 0 saves")
    assert stores[0].names() == []
    stores[1] = stores[0]
    assert [it.name for it in each(save)] == [checkpoint.name_of(1, 1)] * RANKS


@pytest.mark.parametrize("flawed", range(RANKS))
def test_a_passing_error_of_one_rank_moves_no_intact_checkpoint(saved: Folder, flawed: int) -> None:
    stores = [saved, saved]
    stores[flawed] = Flawed(saved.path, OSError(EIO, "Input/output error", "training.pt"))
    found, bad = read(stores)
    assert bad == []
    for error in found:
        assert type(error) is CheckpointError
        assert "Input/output error; read again by rank 0 it is intact" in str(error)
    assert [it.parts["training"]["step"] for it in read([saved, saved])[0]] == [2, 2]


def test_damage_that_rank_0_finds_too_lets_all_go_back(saved: Folder) -> None:
    (saved.path / NEWEST / f"{sharded_saving.file_of(1, RANKS)}.pt").write_bytes(b"nothing")
    found, bad = read([saved, saved])
    assert bad == [NEWEST]
    assert [it.parts["training"]["step"] for it in found] == [1, 1]
    with pytest.raises(DamagedError, match="checksum differs"):
        checkpoint.verify(saved, NEWEST)
    checkpoint.verify(saved, checkpoint.name_of(1, 1))


def test_an_error_without_a_number_keeps_its_words(saved: Folder) -> None:
    def work(rank: int) -> None:
        if rank:
            raise OSError("over quota")

    said = each(lambda rank, gather: sharded_saving.together(gather, lambda: work(rank)))
    assert [it.strerror for it in said] == ["rank 1: over quota"] * RANKS
    with pytest.raises(CheckpointError, match="cannot be read: over quota"):
        checkpoint.load(Flawed(saved.path, OSError("over quota")), NEWEST)
