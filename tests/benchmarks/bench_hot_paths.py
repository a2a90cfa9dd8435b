"""Micro-benchmarks of our own hot paths: `nox -s microbench`; arguments go to pytest-benchmark.

What a trainer pays at every step (an event, its times, its share of the batch), and what the harness and a report pay
for every record. No test asserts a time: compare runs with `--benchmark-autosave` and `--benchmark-compare`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from proving_ground.bench import rundir
from proving_ground.bench.bound import bound, buckets_of
from proving_ground.bench.clusters.fake import FakeCluster
from proving_ground.bench.plan import make_plan
from proving_ground.bench.spec import load_suite
from proving_ground.bench.tail import Tail
from proving_ground.bench.workloads import read_profile
from proving_ground.reports import history, intervals
from proving_ground.training.data import order
from proving_ground.training.events import EventWriter, check_event
from proving_ground.training.timing import PARTS, Watch

Benchmark = Callable[..., Any]

ROWS = 1_281_167  # of ImageNet-1k
STEP = {"step": 7, "samples": 64, "global_samples": 512, "epoch": 0, "loss": 0.123456, "lr": 0.05}
EVENTS = 20_000


@pytest.fixture
def writer(tmp_path: Path) -> EventWriter:
    return EventWriter(tmp_path / "t001.n1.0.jsonl")


@pytest.fixture
def recorded(tmp_path: Path) -> rundir.RunDir:
    """A run of four processes with 20,000 steps in all."""
    store = rundir.create(tmp_path, "bench")
    for node in range(1, 5):
        lines = (
            json.dumps({"t": step + node / 10, "event": "step", **STEP, "step": step, "step_s": 1.0})
            for step in range(EVENTS // 4)
        )
        (store.events / f"t001.n{node}.0.jsonl").write_text("\n".join(lines) + "\n")
    return store


def test_write_an_event(benchmark: Benchmark, writer: EventWriter) -> None:
    benchmark(writer.emit, "step", **STEP)


def test_time_a_step(benchmark: Benchmark) -> None:
    watch = Watch(torch.device("cpu"))

    def step() -> None:
        watch.begin()
        for part in PARTS:
            with watch.part(part):
                pass
        watch.finish()

    benchmark(step)


def test_check_an_event(benchmark: Benchmark) -> None:
    benchmark(check_event, {"t": 1.0, "event": "step", **STEP})


def test_rows_of_a_global_batch_within_an_epoch(benchmark: Benchmark) -> None:
    order.global_batch_rows(ROWS, 512, 1, 0)  # the epoch's order is drawn once
    benchmark(order.global_batch_rows, ROWS, 512, 1, 5)


def test_a_rank_s_share_of_a_batch(benchmark: Benchmark) -> None:
    benchmark(order.share, np.arange(512), 3, 8)


def test_follow_event_files_in_progress(benchmark: Benchmark, recorded: rundir.RunDir) -> None:
    files = {path.stem: path for path in recorded.events.glob("*.jsonl")}
    benchmark(lambda: Tail(files).read())


def test_merge_20_000_events(benchmark: Benchmark, recorded: rundir.RunDir) -> None:
    benchmark(rundir.merge, recorded)


def test_collect_a_history_of_20_000_events(benchmark: Benchmark, recorded: rundir.RunDir) -> None:
    rundir.merge(recorded)
    benchmark(lambda: history.collect(rundir.read_history(recorded)))


def test_seal_a_run(benchmark: Benchmark, recorded: rundir.RunDir) -> None:
    benchmark(lambda: rundir.seal(recorded, complete=True))


def test_the_bound_of_a_step(benchmark: Benchmark) -> None:
    profile = read_profile("resnet50-cpu", "benchmark")
    benchmark(lambda: bound(profile, buckets_of(profile["backward"], 4), 8, 1000))


def test_plan_the_matrix(benchmark: Benchmark) -> None:
    suite, cluster = load_suite("matrix"), FakeCluster()
    benchmark(make_plan, suite, cluster)


def test_bootstrap_a_throughput(benchmark: Benchmark) -> None:
    samples, seconds = np.full(200, 64.0), np.random.default_rng(0).normal(1, 0.01, 200)
    benchmark(intervals.rate_draws, samples, seconds, 1)
