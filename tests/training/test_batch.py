"""The largest batch that a device trains: found by real steps under a real limit, and true of the training then."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proving_ground.training.__main__ import main
from proving_ground.training.device.batch import EIGHTS, LONG_S, WITHIN, Tried, saturated, sizes

from .ranks import sets
from .test_fit import IMPORTS

ROOM_MB = 500  # beyond what the imports take


def imagined(room: int, step_s: float = 0.0) -> Any:
    """A device that has room for so many samples, each of which takes so long."""
    return lambda samples: Tried(samples, 1.0 if samples <= room else 0.0, samples * step_s)


@given(room=st.integers(1, 100_000))
def test_the_largest_is_found_within_a_twentieth(room: int) -> None:
    tried = list(sizes(imagined(room)))
    largest = max(it.samples for it in tried if it.fits)
    beyond = min(it.samples for it in tried if not it.fits)
    assert largest <= room < beyond
    assert beyond - largest <= max(1, WITHIN * largest, 8 if largest >= EIGHTS else 1)
    assert len({it.samples for it in tried}) == len(tried) < 40  # none is tried twice


@given(room=st.integers(1, 1000), most=st.integers(1, 1000))
def test_no_more_is_tried_than_was_asked_for(room: int, most: int) -> None:
    tried = list(sizes(imagined(room), most))
    assert max(it.samples for it in tried) <= most
    if room >= most:
        assert tried[-1].samples == most


def test_what_takes_long_ends_the_search() -> None:
    tried = list(sizes(imagined(10**9, LONG_S / 100)))
    assert [it.samples for it in tried] == [1, 2, 4, 8, 16, 32, 64, 128]


def test_nothing_fits() -> None:
    assert [it.fits for it in sizes(imagined(0))] == [False]


def test_a_rate_that_no_longer_rises_is_enough() -> None:
    rates = {1: 10.0, 2: 19.0, 4: 30.0, 8: 31.0, 16: 29.0}
    assert saturated([Tried(samples, rate, 1.0) for samples, rate in rates.items()]) == 4


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--set", "model=paced", "--set", "profile=resnet50-cpu"], "model = 'paced' computes nothing"),
        (["--set", "model=gpt2", "--set", "parallel=fsdp"], "a part of a model needs its other ranks"),
        (["--most", "-3"], "--most -3: must be at least 1"),
        (["--most", "1", "--set", "model=resnet50", "--set", "norm=batch"], "--most 1: must be at least 2"),
    ],
)
def test_what_has_no_batch_to_be_found_is_refused(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert main(["batch", *words]) == 2
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1


def test_batch_statistics_begin_with_two_samples_and_exact_sums_count_shards() -> None:
    words = ["--most", "4", "--set", "model=resnet50", "--set", "device=cpu"]
    for keys, first, times in ((["norm=batch"], "2", "accumulate × ranks"), (["reduction=exact"], "1", "shards")):
        sets_ = [part for it in (*keys, "global_batch=24") for part in ("--set", it)]
        done = subprocess.run(
            [sys.executable, "-m", "proving_ground.training", "batch", *words, *sets_],
            capture_output=True,
            text=True,
            check=True,
        )
        lines = done.stdout.splitlines()
        assert lines[2].split()[0] == first
        assert lines[-2].startswith("4 fit; larger ones were not tried: --most")
        assert lines[-1].endswith(f"global_batch is this × {times}")


def under_a_limit(*words: str, **keys: object) -> subprocess.CompletedProcess[str]:
    """A command of the trainer's whose process may hold what its imports take, and some more."""
    imports = int(subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, check=True, text=True).stdout)
    most = imports + ROOM_MB * 2**20
    return subprocess.run(
        [sys.executable, "-m", "proving_ground.training", *words, *sets(model="vit", **keys)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (most, most)),
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_training_of_the_largest_batch_fits_and_one_half_as_large_again_does_not() -> None:
    """By the kernel's own limit.

    Of so little memory a tenth is kept for threads and connections, sizes are known to within 8 samples of some 200,
    and in how many pieces the heap lies is a matter of chance: a quarter more has been seen to fit.
    """
    found = under_a_limit("batch", "--most", "512")
    assert found.returncode == 0, found.stderr
    (line,) = [it for it in found.stdout.splitlines() if it.startswith("largest that fits: ")]
    largest = int(line.rpartition(" ")[2].replace(",", ""))
    keys = {"steps": 3, "eval_every": -1}
    assert under_a_limit("run", global_batch=largest, **keys).returncode == 0
    beyond = under_a_limit("run", global_batch=largest + largest // 2, **keys)
    assert (beyond.returncode, "OutOfMemoryError" in beyond.stderr) == (1, True), beyond.stderr


def test_a_model_that_does_not_fit_at_all_is_one_line() -> None:
    found = under_a_limit("batch", size="full", precision="fp32")
    assert found.returncode == 1
    assert "not enough memory for the smallest batch of model = 'vit', beside its weights" in found.stderr
    assert found.stderr.count("\n") == 1
