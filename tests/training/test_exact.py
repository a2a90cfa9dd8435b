"""Exact mode: the same bits at every number of ranks, through kills and changes of size; and what must be caught."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from proving_ground.training.config import ConfigError, from_dict

from .mutants import MUTANTS, POISON
from .ranks import Ranks, sets, start

SHARDS = 8
KEYS: dict[str, Any] = {
    "model": "digits", "reduction": "exact", "shards": SHARDS, "global_batch": 16, "steps": 6, "bucket_mb": 0.05,
    "optimizer": "adamw", "lr": 0.002, "weight_decay": 0.01, "clip_norm": 1.0, "lr_schedule": "cosine",
    "lr_warmup_steps": 2, "dropout": 0.3, "fingerprint_every": 2, "eval_every": -1, "ledger": True,
}  # fmt: skip
SHORT = {"model": "stocks", "global_batch": 4000, "steps": 3, "dropout": 0.0, "fingerprint_every": 1}
"""Of 4,004 rows: the second batch has 4 samples, so half of the shards are empty, and half of 8 ranks learn nothing."""


Mark = tuple[Any, ...]


def marks(job: Ranks) -> list[list[Mark]]:
    """Every rank's fingerprints, random states included, of a job that ended by itself."""
    assert set(job.wait()) == {0}, [job.printed(rank) for rank in range(len(job.processes))]
    names = ("step", "parameters_sha256", "optimizer_sha256", "random_sha256", "lr")
    return [
        [tuple(it[name] for name in names) for it in job.events(rank, "fingerprint")]
        for rank in range(len(job.processes))
    ]


def ended(job: Ranks) -> list[Mark]:
    """The fingerprints that all ranks of a job have in common."""
    first, *others = marks(job)
    assert first, "nothing was recorded"
    assert all(found == first for found in others)
    return first


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """One rank, undisturbed."""
    job = start(tmp_path_factory.mktemp("alone"), 1, sets(**KEYS))
    ended(job)
    return job


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_any_number_of_ranks_ends_with_the_same_bits(tmp_path: Path, alone: Ranks, size: int) -> None:
    job = start(tmp_path, size, sets(**KEYS))
    assert ended(job) == ended(alone)
    assert [step["loss"] for step in job.events(0, "step")] == [step["loss"] for step in alone.events(0, "step")]
    assert [step["grad_norm"] for step in job.events(0, "step")] == [it["grad_norm"] for it in alone.events(0, "step")]


@pytest.mark.parametrize("size", [3, 8])
def test_a_short_last_batch_and_ranks_without_samples(tmp_path: Path, size: int) -> None:
    one, many = start(tmp_path / "1", 1, sets(**KEYS | SHORT)), start(tmp_path / "n", size, sets(**KEYS | SHORT))
    assert ended(one) == ended(many)
    samples = [many.events(rank, "step")[1]["samples"] for rank in range(size)]
    assert sum(samples) == 4
    assert (0 in samples) == (size == 8)


@pytest.mark.parametrize("mutant", [*MUTANTS])
def test_a_mutant_is_caught(tmp_path: Path, alone: Ranks, mutant: str) -> None:
    """What makes the sum depend on the number of ranks must show in the hash."""
    found = marks(start(tmp_path, 3, sets(**KEYS), mutant=mutant))
    assert any(one[-1][1] != ended(alone)[-1][1] for one in found)


def test_killed_and_gone_on_at_other_sizes(tmp_path: Path) -> None:
    """From 3 ranks to 2 to 4, each time by SIGKILL; the end is that of one rank that was left alone."""
    keys = KEYS | {"steps": 36}
    saved = keys | {"checkpoint_dir": tmp_path / "saved", "checkpoint_every": 2, "checkpoint_async": False}
    undisturbed = ended(start(tmp_path / "whole", 1, sets(**keys)))
    for size, step in ((3, 6), (2, 12)):
        job = start(tmp_path / str(size), size, sets(**saved))
        job.until(step)
        assert job.kill() == [-signal.SIGKILL] * size
    last = start(tmp_path / "4", 4, sets(**saved))
    assert ended(last)[-1] == undisturbed[-1]
    assert last.events(3, "resume")[0]["step"] >= 12


@pytest.mark.parametrize("other", [{"reduction": "float"}, {"shards": 4}], ids=str)
def test_what_was_saved_otherwise_is_not_gone_on_from(tmp_path: Path, other: dict[str, object]) -> None:
    keys = KEYS | {"checkpoint_dir": tmp_path / "saved", "steps": 1, "model": "stocks"}
    assert start(tmp_path / "first", 1, sets(**keys | other)).wait() == [0]
    again = start(tmp_path / "again", 1, sets(**keys))
    assert again.wait() == [1]
    name, value = next(iter(other.items()))
    assert f"of another training ({name} = {value!r} there, {KEYS[name]!r} here)" in again.printed()


@pytest.mark.parametrize("poison", POISON)
def test_what_no_integer_can_hold_stops_every_rank(tmp_path: Path, poison: str) -> None:
    """One gradient of one rank in the third step."""
    job = start(tmp_path, 3, sets(**KEYS | {"timeout_s": 20}), mutant=poison)
    assert job.wait() == [1, 1, 1]
    for rank in range(3):
        said = job.events(rank, "error")[0]["message"]
        assert said == "a gradient of step 3 is not finite, or above 524288; a smaller lr may help"
        assert len(job.events(rank, "step")) == 2
        assert job.printed(rank).splitlines()[-1].startswith(f"training rank {rank}: RuntimeError: ")


def test_the_loss_is_checked_as_ever(tmp_path: Path) -> None:
    job = start(tmp_path, 2, sets(**KEYS | {"lr": 1e15, "clip_norm": 0.0}))
    assert job.wait() == [1, 1]
    assert "not finite" in job.events(0, "error")[0]["message"]


def test_exact_is_float_but_for_rounding(tmp_path: Path) -> None:
    """Gradients differ by less than shards × 2⁻⁴¹ each; with SGD the losses of a few steps then hardly do."""
    keys = KEYS | {"dropout": 0.0, "optimizer": "sgd", "lr": 0.05}
    exact, floats = (
        start(tmp_path / it, 2, sets(**keys | {"reduction": it, "fingerprint_every": 0})) for it in ("exact", "float")
    )
    assert exact.wait() == floats.wait() == [0, 0]
    losses = [[step["loss"] for step in job.events(0, "step")] for job in (exact, floats)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    norms = [[step["grad_norm"] for step in job.events(0, "step")] for job in (exact, floats)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_gradients_travel_in_buckets_of_integers(alone: Ranks) -> None:
    told = [it["bucket_bytes"] for it in alone.events(0, "step") if "bucket_bytes" in it]
    assert len(told) == 1
    counts = 8 * len(told[0])
    assert sum(told[0]) == 2 * alone.events(0, "ready")[0]["gradient_bytes"] + counts
    assert len(told[0]) > 2
    assert all(0 < it["compress_s"] < it["step_s"] for it in alone.events(0, "step"))


def test_more_ranks_than_shards_is_refused(tmp_path: Path) -> None:
    job = start(tmp_path, 2, sets(**KEYS | {"shards": 1}))
    assert job.wait() == [2, 2]
    assert job.printed(1) == "training rank 1: shards = 1: must be at least the number of ranks, 2\n"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"global_batch": 64}, "needs a batch that divides into 24 shards: try global_batch = 72 or shards = 16"),
        ({"accumulate": 2}, "needs accumulate = 1, not 2"),
        ({"norm": "batch"}, "needs norm = 'group'"),
        ({"compression": "fp16"}, "needs compression = 'none', not 'fp16'"),
        ({"model": "paced", "profile": "resnet50-cpu"}, "needs a model that learns"),
    ],
)
def test_what_cannot_be_exact_is_refused(keys: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        from_dict({"reduction": "exact", "global_batch": 48} | keys)
