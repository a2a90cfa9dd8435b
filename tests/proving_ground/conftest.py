"""A run of the fake cluster, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

import proving_ground
from tests.reports.recovery import synthetic as chaos
from tests.reports.synthetic import Knobs, make


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `runs/`, of a benchmark and of a chaos run; the benchmark is the newest."""
    folder = tmp_path_factory.mktemp("way-in")
    chaos.make(folder / "runs")
    make(folder / "runs", Knobs(nodes=(1, 2), steps=12, scalings=("weak",)))
    return folder


@pytest.fixture(scope="session")
def bench_run(folder: Path) -> proving_ground.Run:
    return proving_ground.open("scaling", folder / "runs")


@pytest.fixture(scope="session")
def chaos_run(folder: Path) -> proving_ground.Run:
    return proving_ground.open("kill", folder / "runs")
