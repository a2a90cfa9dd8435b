"""Mixed precision trains like FP32 does; FP16's scale is one for all ranks, survives, and what breaks it is caught."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proving_ground.training.config import from_dict
from proving_ground.training.loop import train

from .ranks import Ranks, sets, start
from .test_exact import KEYS as EXACT
from .test_exact import Mark, ended, marks
from .test_reference import both

pytestmark = pytest.mark.timeout(600)  # jobs of half a minute on a busy machine

STEPS = 6
KEYS: dict[str, Any] = {
    "model": "stocks", "global_batch": 32, "steps": STEPS, "optimizer": "adamw", "lr": 0.002, "clip_norm": 0.5,
    "fingerprint_every": 1, "eval_every": -1, "precision": "fp16",
}  # fmt: skip
OVERFLOWS = {"loss_scale": 2.0**26, "steps": 16}
"""A first scale at which gradients are beyond FP16's 65,504: it is halved until they fit."""


def scales(job: Ranks, rank: int) -> list[tuple[float, bool]]:
    return [(it["loss_scale"], it["skipped"]) for it in job.events(rank, "step")]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("size", [1, 3])
def test_exact_is_exact_in_every_precision(tmp_path: Path, precision: str, size: int) -> None:
    keys = EXACT | {"precision": precision, "steps": 4}
    one, many = start(tmp_path / "1", 2, sets(**keys)), start(tmp_path / "n", size, sets(**keys))
    assert ended(one) == ended(many)


def test_it_is_another_training_than_fp32_s_and_near_it() -> None:
    metrics = {}
    for precision in ("fp32", "bf16", "fp16"):
        keys = {"model": "stocks", "steps": 60, "precision": precision, "seed": 1}
        metrics[precision] = train(from_dict(keys), tell=lambda _: None)
    assert len({it.parameters_sha256 for it in metrics.values()}) == 3
    errors = [it.metrics["rmse_log_return"] for it in metrics.values()]
    assert errors == pytest.approx([errors[0]] * 3, rel=0.02)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_the_first_steps_are_a_plain_loop_s(tmp_path: Path, precision: str) -> None:
    """Products are rounded to 8 or 11 bits, in another order of samples: losses differ by less than that."""
    keys = {"model": "stocks", "precision": precision, "loss_scale": 2.0**10}
    (steps, samples, _), (plain, its, _, _) = both(tmp_path, keys)
    assert samples == its
    for name in ("loss", "grad_norm"):
        assert np.allclose([it[name] for it in steps], [it[name] for it in plain], rtol=0.01), name
    assert [it["lr"] for it in steps] == pytest.approx([it["lr"] for it in plain], rel=1e-9)


@pytest.mark.parametrize("keys", [{}, {"reduction": "exact", "shards": 8}], ids=["float", "exact"])
def test_all_ranks_skip_the_same_steps_and_keep_one_scale(tmp_path: Path, keys: dict[str, Any]) -> None:
    job = start(tmp_path, 3, sets(**KEYS | OVERFLOWS | keys))
    assert len({tuple(found) for found in parameters(job)}) == 1
    first = scales(job, 0)
    assert scales(job, 1) == scales(job, 2) == first
    skipped = [it for it, skips in first if skips]
    assert len(skipped) > 2
    assert not first[-1][1]
    assert [it for it, _ in first] == sorted([it for it, _ in first], reverse=True)
    moved = [one != two for one, two in zip(parameters(job)[0], parameters(job)[0][1:], strict=False)]
    assert moved == [not skips for _, skips in first[1:]]


def parameters(job: Ranks) -> list[list[str]]:
    return [[mark[1] for mark in found] for found in marks(job)]


def test_the_scale_grows_after_enough_steps(tmp_path: Path) -> None:
    job = start(tmp_path, 1, sets(**KEYS | {"loss_scale_steps": 2, "loss_scale": 64.0}))
    assert job.wait() == [0]
    assert scales(job, 0) == [(64, False), (64, False), (128, False), (128, False), (256, False), (256, False)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Mark]:
    return ended(start(tmp_path_factory.mktemp("whole"), 2, sets(**GOES_ON)))


GOES_ON = EXACT | {"precision": "fp16", "loss_scale": 2.0**26, "steps": 32, "fingerprint_every": 1}


@pytest.mark.parametrize(("mutant", "same"), [("", True), ("scale_not_restored", False)])
def test_the_scale_survives_a_kill(tmp_path: Path, undisturbed: list[Mark], mutant: str, same: bool) -> None:  # noqa: FBT001 - what the row says
    saved = GOES_ON | {"checkpoint_dir": tmp_path / "saved", "checkpoint_every": 2, "checkpoint_async": False}
    job = start(tmp_path / "first", 2, sets(**saved))
    job.until(10)
    assert job.kill() == [-signal.SIGKILL] * 2
    again = ended(start(tmp_path / "again", 2, sets(**saved), mutant=mutant))
    assert (again[-1] == undisturbed[-1]) == same


def test_a_rank_that_skips_alone_is_seen(tmp_path: Path) -> None:
    """Mutant: rank 1 takes no notice of an overflow that it did not cause."""
    found = parameters(start(tmp_path, 2, sets(**KEYS | OVERFLOWS), mutant="skips_alone"))
    assert found[0] != found[1]


def test_clipping_before_unscaling_is_seen(tmp_path: Path) -> None:
    """Mutant: the norm of scaled gradients is limited, and what is left of them is divided by the scale."""
    keys = {"model": "stocks", "precision": "fp16", "loss_scale": 2.0**10, "optimizer": "sgd"}
    (steps, _, sketch), (plain, _, begun, come) = both(tmp_path, keys, "clips_first")
    assert not np.allclose([it["grad_norm"] for it in steps], [it["grad_norm"] for it in plain], rtol=0.1)
    assert not np.allclose(np.subtract(sketch, begun), np.subtract(come, begun), rtol=0.1)


def test_an_overflow_without_end_is_one_line(tmp_path: Path) -> None:
    job = start(tmp_path, 2, sets(**KEYS | {"steps": 40, "loss_scale": 16.0}), mutant="always_overflows")
    assert job.wait() == [1, 1]
    said = "FP16 overflows at a loss scale of 1: use precision = 'bf16', or a smaller lr"
    assert [job.events(rank, "error")[0]["message"] for rank in (0, 1)] == [said, said]
    assert job.printed(1).splitlines()[-1] == f"training rank 1: RuntimeError: {said}"
