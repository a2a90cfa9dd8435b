"""One real training for all tests of this folder: a sealed run with checkpoints, and the model made of it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from proving_ground.serving import model, source

ROOT = Path(__file__).parent.parent.parent
SUITE = """\
title = "Trained for an end point"
nodes = [2]
repeats = 1
[[case]]
name = "digits"
workload = "digits"
batch_per_node = 32
steps = 12
warmup_steps = 2
estimated_step_s = 0.1
training.eval_every = 12
training.checkpoint_every = 6
training.checkpoint_dir = "{folder}"
"""


@dataclass(frozen=True)
class Trained:
    """A sealed run under `runs`, its checkpoints, and the model of the newest."""

    runs: Path
    run: Path
    checkpoints: Path
    model: Path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("serving")
    suite, runs, checkpoints = folder / "served.toml", folder / "runs", folder / "checkpoints"
    suite.write_text(SUITE.format(folder=checkpoints))
    words = ["run", "--quiet", "--suite", str(suite), "--runs", str(runs)]
    done = subprocess.run(
        [sys.executable, "-m", "proving_ground.bench", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr  # 1: so few steps reach no threshold
    made = folder / "model"
    model.save(source.find("latest", runs), made)
    return Trained(runs, (runs / "latest").resolve(), checkpoints, made)
