"""Nested state comes from the first rank to the others as it is, whatever is in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore  # its public name is untyped

from proving_ground.training.exchange.communication import World
from proving_ground.training.judging.fingerprint import sha256
from proving_ground.training.state import from_rank, mapped, tensors_of
from tests.training.ranks import FORKED

WORLD_SIZE = 2


def nested() -> dict[str, Any]:
    return {
        "floats": [torch.arange(6.0).view(2, 3), torch.ones(2, 3).t(), torch.tensor(3.5), torch.empty(0)],
        "more": {0: torch.tensor([True, False]), "half": (torch.ones(3, dtype=torch.bfloat16), None, "text", 7)},
    }


def be_rank(rank: int, folder: Path) -> None:
    """Receive, and tell the hash."""
    dist.init_process_group(
        "gloo", rank=rank, world_size=WORLD_SIZE, store=FileStore(str(folder / "store"), WORLD_SIZE)
    )
    world = World(rank, WORLD_SIZE, torch.device("cpu"), "gloo")
    got = from_rank(world, nested() if rank == 0 else None)
    (folder / f"{rank}.json").write_text(json.dumps([sha256(got["floats"]), sha256(got["more"][0])]))
    shapes = [(str(tensor.dtype), tuple(tensor.shape)) for tensor in tensors_of(got)]
    assert shapes == [(str(tensor.dtype), tuple(tensor.shape)) for tensor in tensors_of(nested())]
    assert torch.equal(got["more"]["half"][0], torch.ones(3, dtype=torch.bfloat16))
    assert got["more"]["half"][1:] == (None, "text", 7)
    dist.destroy_process_group()


def test_every_rank_has_what_the_first_had(tmp_path: Path) -> None:
    ranks = [FORKED.Process(target=be_rank, args=(rank, tmp_path)) for rank in range(WORLD_SIZE)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(30)
    assert [rank.exitcode for rank in ranks] == [0, 0]
    wanted = [sha256(nested()["floats"]), sha256(nested()["more"][0])]
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(WORLD_SIZE)] == [wanted, wanted]


def test_leaves_are_changed_in_order_and_the_nesting_is_new() -> None:
    state = {"a": [1, "x"], "b": (2, {"c": 3})}
    assert mapped(state, int, lambda number: number * 10) == {"a": [10, "x"], "b": (20, {"c": 30})}
    assert state["a"] == [1, "x"]
    assert [tensor.numel() for tensor in tensors_of(nested())] == [6, 6, 1, 0, 2, 3]
