"""Local updates: against the algorithms written down once more, through kills and stops, and what is refused."""

from __future__ import annotations

import copy
import os
import signal
import sys
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from proving_ground.training.checkpoints.checkpoint import load_newest
from proving_ground.training.checkpoints.stores import open_store
from proving_ground.training.config import Config, ConfigError, from_dict
from proving_ground.training.data import order
from proving_ground.training.exchange import local
from proving_ground.training.exchange.communication import World
from proving_ground.training.models.digits import Digits

from .ranks import Ranks, sets, start
from .test_live_job import Job, learned

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

pytest.importorskip("torchft", reason="local updates are torchft's (extra `live`; Linux, x86-64)")

EVERY, RANKS = 4, 3
KEYS: dict[str, Any] = {
    "model": "digits", "global_batch": 30, "steps": 3 * EVERY, "sync_every": EVERY, "eval_every": -1, "lr": 0.02,
    "outer_lr": 0.5, "outer_momentum": 0.8, "last_batch": "carry", "fingerprint_every": EVERY, "ledger": True,
}  # fmt: skip
BOTH = ("local_sgd", "diloco")


def reference(config: Config) -> list[Tensor]:
    """The parameters after all rounds: every rank alone, then their mean, or an outer step; as the papers have it."""
    torch.set_num_threads(1)
    task = Digits(config)
    torch.manual_seed(config.seed)
    model = task.model()
    whole = [it.detach().clone() for it in model.parameters()]
    speed = [torch.zeros_like(it) for it in whole]
    replicas = [copy.deepcopy(model) for _ in range(RANKS)]
    optimizers = [task.optimizer(replica) for replica in replicas]
    for first in range(0, config.steps, EVERY):
        for rank, (replica, optimizer) in enumerate(zip(replicas, optimizers, strict=True)):
            for parameter, value in zip(replica.parameters(), whole, strict=True):
                parameter.data.copy_(value)
            for step in range(first, first + EVERY):
                batch = order.global_batch_rows(task.rows, config.global_batch, config.seed, step, carry=True)
                mine = order.share(batch, rank, RANKS)
                loss = task.loss(replica, task.batch("train", mine)) / len(mine)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        ends = [list(replica.parameters()) for replica in replicas]
        for at, value in enumerate(whole):
            mean = torch.stack([end[at].detach() for end in ends]).mean(0)
            if config.updates == "local_sgd":
                whole[at] = mean
            else:
                way = value - mean
                speed[at] = config.outer_momentum * speed[at] + way
                whole[at] = value - config.outer_lr * (way + config.outer_momentum * speed[at])
    return whole


def done(job: Ranks) -> Ranks:
    """The same, once all have ended well."""
    assert set(job.wait()) == {0}, [job.printed(rank) for rank in range(len(job.processes))]
    return job


def marks(job: Ranks, rank: int = 0) -> dict[int, tuple[str, str]]:
    """Step → hashes of parameters and optimizers."""
    return {it["step"]: (it["parameters_sha256"], it["optimizer_sha256"]) for it in job.events(rank, "fingerprint")}


@pytest.mark.parametrize("updates", BOTH)
def test_ranks_learn_alone_and_average_as_the_algorithm_says(tmp_path: Path, updates: str) -> None:
    keys = KEYS | {"updates": updates, "checkpoint_dir": str(tmp_path / "saved")}
    job = done(start(tmp_path, RANKS, sets(**keys)))
    found = load_newest(open_store(str(tmp_path / "saved")), lambda *_: None)
    assert found
    assert len(found.parts["training"]["inner"]) == RANKS
    expected = reference(from_dict(keys, "test"))
    for mine, its in zip(found.parts["model"].values(), expected, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)
    assert [marks(job, rank)[EVERY][0] for rank in range(RANKS)] == [marks(job)[EVERY][0]] * RANKS
    assert len({marks(job, rank)[EVERY][1] for rank in range(RANKS)}) == RANKS, "each has its own optimizer"
    waits = {it["step"]: it["comm_s"] for it in job.events(0, "step")}
    assert median(value for step, value in waits.items() if step % EVERY) < min(waits[EVERY], waits[2 * EVERY])


def test_a_round_of_one_step_is_a_sum_at_every_step_but_for_rounding(tmp_path: Path) -> None:
    plain = KEYS | {"momentum": 0.0, "fingerprint_every": 1, "steps": 6}
    each = done(start(tmp_path / "a", RANKS, sets(**plain)))
    rounds = done(start(tmp_path / "b", RANKS, sets(**plain | {"updates": "local_sgd", "sync_every": 1})))
    for one, other in zip(each.events(0, "fingerprint"), rounds.events(0, "fingerprint"), strict=True):
        np.testing.assert_allclose(one["sketch"], other["sketch"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("updates", BOTH)
def test_killed_within_a_round_it_goes_on_bitwise_the_same(tmp_path: Path, updates: str) -> None:
    keys = KEYS | {"updates": updates, "optimizer": "adamw", "lr": 0.002, "dropout": 0.2, "steps": 20 * EVERY}
    left_alone = done(start(tmp_path / "twin", RANKS, sets(**keys)))
    saving = keys | {"checkpoint_dir": str(tmp_path / "saved"), "checkpoint_every": EVERY, "checkpoint_async": False}
    broken = start(tmp_path / "a", RANKS, sets(**saving))
    broken.until(EVERY + 1)
    broken.kill()
    again = done(start(tmp_path / "b", RANKS, sets(**saving)))
    (resumed,) = again.events(0, "resume")
    assert resumed["step"] % EVERY == 0
    assert resumed["step"] > 0
    for rank in range(RANKS):
        after = marks(again, rank)
        assert after
        assert after == {step: marks(left_alone, rank)[step] for step in after}


def test_asked_to_stop_all_ranks_finish_their_round(tmp_path: Path) -> None:
    keys = KEYS | {"updates": "diloco", "steps": 40_000, "checkpoint_dir": str(tmp_path / "saved")}
    job = start(tmp_path, 2, sets(**keys))
    job.until(EVERY)
    os.kill(job.processes[1].pid or 0, signal.SIGTERM)
    assert job.wait() == [0, 0]
    last = [max(it["step"] for it in job.events(rank, "step")) for rank in range(2)]
    assert last[0] == last[1]
    assert last[0] % EVERY == 0
    assert job.events(0, "checkpoint")[-1]["step"] == last[0]


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"steps": 10}, "needs steps = 10 to be a multiple of sync_every"),
        ({"checkpoint_dir": "x", "checkpoint_every": 6}, "needs checkpoint_every = 6"),
        ({"fingerprint_every": 3}, "needs fingerprint_every = 3"),
        ({"eval_every": 5}, "needs eval_every = 5"),
        ({"checkpoint_dir": "x", "mtbf_s": 9.0}, "not mtbf_s"),
        ({"reduction": "exact", "global_batch": 48}, "reduction = 'float'"),
        ({"compression": "fp16"}, "compression = 'none'"),
        ({"norm": "batch"}, "norm = 'group'"),
        ({"sync_every": 0}, "must be at least 1"),
        ({"outer_lr": 0}, "must be above 0"),
    ],
)
def test_what_cannot_be_local_is_refused(keys: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        from_dict(KEYS | {"updates": "diloco"} | keys, "test")


def test_without_torchft_it_says_where_it_is_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchft.local_sgd", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[live\]'"):
        local.exchanging(torch.nn.Linear(1, 1), Config(), World(0, 1, torch.device("cpu"), "gloo"))


def test_another_round_is_another_training(tmp_path: Path) -> None:
    keys = KEYS | {"updates": "diloco", "checkpoint_dir": str(tmp_path / "saved"), "steps": EVERY}
    done(start(tmp_path / "a", 1, sets(**keys)))
    other = start(tmp_path / "b", 1, sets(**keys | {"sync_every": 2}))
    assert other.wait() == [1]
    assert "sync_every = 4 there, 2 here" in other.printed()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """A live job of three nodes that average every eight steps."""
    made = Job(tmp_path, updates="diloco", sync_every=8, fingerprint_every=8)
    yield made
    made.end()


@pytest.mark.timeout(240)
def test_live_a_loss_costs_the_round_in_hand(job: Job) -> None:
    job.more(0, world=3, steps=20)
    job.kill(1)
    job.more(0, world=2, steps=20)
    job.ranks.processes[1] = job.node(1)
    job.more(1, world=3, steps=20)
    last = job.newest(0)
    job.end()
    (resumed,) = job.ranks.events(1, "resume")
    assert resumed["step"] % 8 == 0
    assert resumed["peer"] in (0, 2)
    steps = job.ranks.events(0, "step")
    firsts = {it["generation"]: it["step"] for it in reversed(steps)}
    assert len(firsts) == 3
    assert all(first % 8 == 1 for first in firsts.values()), "a new membership begins a round"
    for step, rows in learned(job).items():
        if step <= last - 8:
            assert rows == sorted(order.global_batch_rows(1437, 96, 0, step - 1, carry=True).tolist()), step
    same = [
        {it["step"]: it["parameters_sha256"] for it in job.ranks.events(number, "fingerprint")} for number in (0, 2)
    ]
    shared = same[0].keys() & same[1].keys()
    assert len(shared) >= 6
    assert all(same[0][step] == same[1][step] for step in shared)
