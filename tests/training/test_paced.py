"""Paced compute keeps the profile's pace, and its gradients are really summed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from proving_ground.training.config import from_dict
from proving_ground.training.exchange.communication import exchanging, join
from proving_ground.training.loop import train
from proving_ground.training.measuring import profiling
from proving_ground.training.measuring.profiling import Gradient, Profile, ProfileError
from proving_ground.training.models import paced
from proving_ground.training.models.paced import SHORTEST_SLEEP_S, Paced, PacedModel, PacedOptimizer, Pacer

from .ranks import sets, start

GRADIENTS = tuple(Gradient(f"layer{n}", (200, 100), round(0.002 + 0.002 * n, 3)) for n in range(40))
STEPS = 40  # of real ranks: the best of them counts, as a busy machine can only add
LATE_S, LOOK_S = 0.0005, 0.00002  # that a sleep lasts beyond what was asked, and that passes between two looks
BEHIND_S = 2 * LATE_S + LOOK_S  # what a moment may be late where lateness does not add up
TOY = Profile("toy", 4, {"measured": False}, forward_s=0.04, backward_s=0.08, optimizer_s=0.01, backward=GRADIENTS)


@dataclass
class Clock:
    """Stands in for `time`, so that no busy machine adds to it: it moves when it is looked at, and while one sleeps."""

    now: float = 100.0
    naps: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        self.now += LOOK_S
        return self.now

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds + LATE_S


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    it = Clock()
    monkeypatch.setattr(paced, "time", it)
    return it


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    profiling.write(TOY, tmp_path / "toy.json")
    return tmp_path / "toy.json"


def test_a_profile_comes_back_as_written(profile: Path) -> None:
    assert profiling.read(profile) == TOY


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("backward_s", "backwards"), "not a profile: KeyError 'backward_s'"),
        (('"format": 1', '"format": 2'), "format 2; this version reads format 1"),
        (('"ready_s": 0.08', '"ready_s": 0.9'), "end by backward_s"),
        (('"ready_s": 0.002', '"ready_s": -1'), "must not be negative"),
        (('"ready_s": 0.002', '"ready_s": 0.07'), "in order of ready_s"),
        (('"forward_s": 0.04', '"forward_s": "x"'), "not a profile: could not convert"),
        (("{", "[{"), "not a profile"),
    ],
)
def test_a_wrong_profile_is_refused_in_one_line(profile: Path, change: tuple[str, str], words: str) -> None:
    profile.write_text(profile.read_text().replace(*change, 1))
    with pytest.raises(ProfileError) as error:
        profiling.read(profile)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_profile_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ProfileError, match="no such file; shipped: resnet152-h200, resnet18-cpu"):
        profiling.find("resnet51")


def test_the_shipped_profile_is_resnet50s() -> None:
    shipped = profiling.read(profiling.find("resnet50-cpu"))
    count = sum(torch.Size(entry.shape).numel() for entry in shipped.backward)
    assert (len(shipped.backward), count) == (161, 25_557_032)
    assert shipped.origin["measured"] is True
    assert 1 < shipped.forward_s + shipped.backward_s < 2.5


def test_lateness_does_not_add_up(clock: Clock) -> None:
    pacer = Pacer(1.0)
    pacer.begin()
    begin = clock.now
    for wait in range(1, 201):
        pacer.wait(0.001 * wait, exact=wait == 200)
    assert len(clock.naps) > 50, "many that are late"
    assert 0.2 <= clock.now - begin <= 0.2 + BEHIND_S


@pytest.mark.parametrize(("pace", "samples", "times"), [(1.0, 4, 1), (0.5, 4, 0.5), (1.0, 8, 2)])
def test_a_step_takes_the_profiles_time(clock: Clock, pace: float, samples: int, times: float) -> None:
    model = PacedModel(TOY, pace, rank=0)
    begin = clock.now
    loss = model(torch.empty(samples, 0))
    assert 0 <= clock.now - begin - times * 0.04 <= BEHIND_S
    loss.backward()
    assert 0 <= clock.now - begin - times * 0.12 <= BEHIND_S


def test_gradients_become_ready_in_the_profiles_order_and_time(clock: Clock) -> None:
    model = PacedModel(TOY, 1.0, rank=0)
    ready: list[tuple[int, float]] = []
    for number, weight in enumerate(model.weights):
        weight.register_post_accumulate_grad_hook(lambda _, number=number: ready.append((number, clock.now)))
    loss = model(torch.empty(4, 0))
    begin = model.pacer.begun + TOY.forward_s
    loss.backward()  # the last of the model is the first in backward
    assert [number for number, _ in ready] == list(reversed(range(40)))
    late = [moment - begin - entry.ready_s for (_, moment), entry in zip(ready, GRADIENTS, strict=True)]
    assert min(late) >= -SHORTEST_SLEEP_S
    assert max(late) <= BEHIND_S
    assert late[-1] >= 0, "backward takes its time, though the wait before its end may be short"


def one_step(model: PacedModel, samples: int) -> None:
    model(torch.empty(samples, 0)).backward()


def test_a_sum_that_is_wrong_stops_the_training() -> None:
    model = PacedModel(TOY, 0.01, rank=0)
    optimizer = PacedOptimizer(model, range(1))
    one_step(model, 4)
    optimizer.step()
    one_step(model, 4)
    model.weights[7].grad.view(-1)[-1] += 1
    with pytest.raises(RuntimeError, match=r"all-reduce of layer32 gave \[2.0, 3.0\], the sum over 1 ranks is 2"):
        optimizer.step()


def test_a_step_that_was_not_reduced_does_not_pass_for_one() -> None:
    """What one rank has by itself is not the sum over two."""
    model = PacedModel(TOY, 0.01, rank=0)
    one_step(model, 4)
    with pytest.raises(RuntimeError, match=r"the sum over 2 ranks is 3"):
        PacedOptimizer(model, range(2)).step()


def test_with_local_updates_a_gradient_is_the_rank_s_own() -> None:
    model = PacedModel(TOY, 0.01, rank=2)
    one_step(model, 4)
    PacedOptimizer(model, range(2, 3)).step()
    with pytest.raises(RuntimeError, match=r"the sum over 1 ranks is 2"):
        PacedOptimizer(model, range(1)).step()


def test_buckets_are_on_their_way_while_backward_runs(profile: Path, clock: Clock) -> None:
    sent: list[float] = []
    config = from_dict({"model": "paced", "profile": str(profile), "bucket_mb": 0.5})
    with join(config) as world:
        model, exchange = exchanging(PacedModel(TOY, 1.0, rank=0), config, world)

        def noted(values: torch.Tensor) -> dist.Work:
            sent.append(clock.now)
            return world.start_sum(values)

        exchange.start_sum = noted
        for _ in range(2):  # DDP makes its buckets in the first
            sent.clear()
            loss = model(torch.empty(4, 0))
            begin = clock.now
            loss.backward()
            exchange.collect()
    assert len(sent) > 3
    halves = [moment - begin < TOY.backward_s / 2 for moment in sent]
    assert halves.count(True) >= len(sent) // 2 - 1, "bucket after bucket, as their gradients become ready"


@pytest.mark.parametrize("keys", [{}, {"compression": "fp16"}, {"accumulate": 2}])
def test_two_paced_ranks_exchange_every_byte_at_the_profiles_pace(
    tmp_path: Path, profile: Path, keys: dict[str, object]
) -> None:
    job = start(tmp_path, 2, sets(model="paced", profile=profile, steps=STEPS, global_batch=8, bucket_mb=0.5, **keys))
    assert job.wait() == [0, 0], job.printed()
    steps = job.events(0, "step")
    assert sum(steps[1]["bucket_bytes"]) == 40 * 200 * 100 * 4
    assert len(steps[1]["bucket_bytes"]) > 3
    assert all("loss" not in step for step in steps)
    best_s = min(step["backward_t"] - step["begin_t"] for step in steps)
    assert 0.12 <= best_s < 0.18, "the profile's time once, and no half of it twice"


def test_a_paced_batch_is_only_a_number(profile: Path) -> None:
    task = Paced(from_dict({"model": "paced", "profile": str(profile)}))
    assert task.rows == 1_281_167
    result = train(
        from_dict({"model": "paced", "profile": str(profile), "steps": 2, "global_batch": 4}), tell=lambda _: None
    )
    assert (result.step, result.parameters_sha256, result.metrics) == (2, "", {})


def test_a_shared_store_serves_all_ranks_in_turn(profile: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    task = Paced(from_dict({"model": "paced", "profile": str(profile), "store_s": 0.02}))
    for _ in range(2):
        task.batch("train", np.arange(4))
    assert clock.naps == [pytest.approx(0.06)] * 2
