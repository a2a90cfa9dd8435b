"""A suite small enough for a unit test, and a run of it on the fake cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from proving_ground.bench.clusters.fake import FakeCluster
from proving_ground.bench.run import Parts, run
from proving_ground.bench.rundir import RunDir
from proving_ground.bench.spec import Case, Suite
from proving_ground.bench.workloads import Command

CASE = Case(
    name="sleepy", workload="command", steps=6, warmup_steps=2, estimated_step_s=0.1, batch_per_node=8, global_batch=16,
    command={"argv": ["python", "train.py"]},
)  # fmt: skip
SUITE = Suite(name="unit", title="Unit", nodes=(1, 2, 4), cases=(CASE,), repeats=2)


@pytest.fixture
def suite() -> Suite:
    return SUITE


@pytest.fixture
def small_suite() -> Suite:
    return replace(SUITE, nodes=(2,), repeats=1, cases=(replace(CASE, global_batch=None),))


@pytest.fixture
def parts() -> Parts:
    return Parts(workloads={"command": Command()})


@pytest.fixture
def recorded(tmp_path: Path, suite: Suite, parts: Parts) -> RunDir:
    return run(suite, FakeCluster(), tmp_path / "runs", parts)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


Runner = Callable[..., RunDir]
