"""Whole runs of paced suites on a cluster in memory, with a known truth: links that reach 94 % of their rate.

Used by the tests of predictions, advice, comparisons and trends. Virtual time: a run takes milliseconds.
"""

from __future__ import annotations

import random
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from proving_ground.bench.bound import buckets_of
from proving_ground.bench.clusters.fake import FakeCluster, FakeJob
from proving_ground.bench.protocols import ProcessSpec
from proving_ground.bench.run import Parts, run
from proving_ground.bench.rundir import RunDir
from proving_ground.bench.spec import Case, Suite
from proving_ground.bench.workloads import read_profile
from proving_ground.reports.scaling import forecast
from proving_ground.reports.scaling.predict import PlannedStep, exposed

PROFILE = read_profile("resnet50-cpu", "tests")
SHARE = 0.94  # of the configured rate that rings reach here


def case(name: str = "resnet50", link_mbps: float = 400, batch: int = 4, **training: Any) -> Case:
    """A paced case of few steps."""
    return Case(
        name, "resnet50", steps=8, warmup_steps=2, estimated_step_s=1.0, batch_per_node=batch, link_mbps=link_mbps,
        training=training,
    )  # fmt: skip


def suite(*cases: Case, nodes: tuple[int, ...] = (1, 2, 4), repeats: int = 3, predict: bool = False) -> Suite:
    """A suite of such cases, predicted from 1 and 2 nodes or not."""
    return Suite("faked", "Faked", nodes, cases or (case(),), repeats, predict_from=(1, 2) if predict else ())


class ProfiledCluster(FakeCluster):
    """Steps take the profile's time and what backward cannot hide; jobs with `slow_if` take `slow` times that."""

    def __init__(
        self, *, noise: float = 0.001, slow: float = 1.0, slow_if: tuple[str, Any] | None = None, seed: int = 1
    ) -> None:
        super().__init__()
        self._random, self._noise = random.Random(seed), noise  # noqa: S311 - noise
        self._slow, self._slow_if = slow, slow_if
        self._drawn: dict[tuple[str, int], float] = {}
        self._told: dict[str, dict[str, Any]] = {}

    def start(self, process: ProcessSpec) -> int:
        """As ever; what the trainer's config file says is remembered."""
        config = process.argv[-1]
        self._told[config] = tomllib.loads(Path(config).read_text())
        return super().start(process)

    def _config(self, job: FakeJob) -> dict[str, Any]:
        return self._told[job.first.argv[-1]]

    def _load(self, job: FakeJob) -> float:
        return float(int(job.env["PROVING_GROUND_BATCH"]) / PROFILE["batch"])

    def _step_s(self, job: FakeJob) -> float:
        key = job.first.argv[-1], job.step
        noise = self._drawn.setdefault(key, self._random.gauss(1, self._noise))
        hit = self._slow_if is None or self._config(job).get(self._slow_if[0]) == self._slow_if[1]
        compute = (PROFILE["forward_s"] + PROFILE["backward_s"]) * self._load(job) + PROFILE["optimizer_s"]
        return float((compute + self._comm_s(job)) * noise * (self._slow if hit else 1.0))

    def _comm_s(self, job: FakeJob) -> float:
        told = self._config(job)
        micro = self._load(job) / int(told.get("accumulate", 1))
        made = buckets_of(PROFILE["backward"], told.get("bucket_mb", 25), told.get("compression", "none"))
        buckets = tuple(type(it)(it.wire_bytes, it.ready_s * micro) for it in made)
        there = PlannedStep(
            len(job.members), 0.0, PROFILE["backward_s"] * micro, buckets, float(self._link_mbps or 1e6) * 1e6 / 8
        )
        return float(exposed(there, np.array(SHARE), np.array(0.0)))


def faked(runs: Path, asked: Suite, cluster: ProfiledCluster | None = None) -> RunDir:
    """Run it; predictions are made between the blocks, as in a real run."""

    def predict(store: RunDir) -> None:
        forecast.write(store)

    return run(asked, cluster or ProfiledCluster(), runs, Parts(between=predict))
