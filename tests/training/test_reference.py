"""The first steps by a plain loop are those of the trainer, whatever its ranks, sums and random numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proving_ground.reports.recovery.first_steps import COMPARED, NEAR, NEAR_WEIGHTS
from proving_ground.reports.recovery.jobs import apart

from .ranks import sets, start

STEPS = 6
SHARED = {
    "global_batch": 24, "steps": STEPS, "fingerprint_every": STEPS, "ledger": "true", "eval_every": -1,
    "lr_schedule": "cosine", "lr_warmup_steps": 2, "clip_norm": 1.0, "seed": 5,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "digits": {"model": "digits", "dropout": 0.3, "optimizer": "adamw", "lr": 0.002},
    "exact": {"model": "digits", "dropout": 0.3, "reduction": "exact", "lr_scaling": "linear"},
    "stocks": {"model": "stocks", "accumulate": 2, "weight_decay": 0.1},
}


def both(folder: Path, keys: dict[str, Any], mutant: str = "") -> tuple[list[Any], list[Any]]:
    """Events of the trainer's ranks and of the plain loop: [steps of rank 0, samples by step, last sketch]."""
    job = start(folder / "job", 2, sets(**(SHARED | keys)), mutant=mutant)
    config = folder / "config.yaml"
    config.write_text("".join(f"{name}: {value}\n" for name, value in (SHARED | keys).items()))
    plain = start(folder / "plain", 1, ["--config", str(config), "--ranks", "2"], command="reference")
    assert job.wait() == [0, 0], job.printed()
    assert plain.wait() == [0], plain.printed()
    samples = [sorted(a["rows"] + b["rows"]) for a, b in zip(*(job.events(r, "step") for r in (0, 1)), strict=True)]
    its = [sorted(event["rows"]) for event in plain.events(0, "step")]
    begun, come = (event["sketch"] for event in plain.events(0, "fingerprint"))
    return (
        [job.events(0, "step")[:COMPARED], samples, job.events(0, "fingerprint")[0]["sketch"]],
        [plain.events(0, "step")[:COMPARED], its, begun, come],
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_trainer_does_what_a_plain_loop_does(tmp_path: Path, kind: str) -> None:
    (steps, samples, sketch), (plain, its, begun, come) = both(tmp_path, KINDS[kind])
    assert samples == its
    for name, near in NEAR.items():
        assert np.allclose([it[name] for it in steps], [it[name] for it in plain], rtol=near / 10), name
    assert apart(sketch, come) < NEAR_WEIGHTS / 10 * apart(begun, come)


@pytest.mark.parametrize("mutant", ["gradients_halved", "labels_shifted", "rate_frozen"])
def test_a_defect_that_every_job_of_a_trainer_has_shows(tmp_path: Path, mutant: str) -> None:
    (steps, _, sketch), (plain, _, begun, come) = both(tmp_path, KINDS["stocks"] | {"clip_norm": 1e9}, mutant)
    far = [
        name for name, near in NEAR.items()
        if not np.allclose([it[name] for it in steps], [it[name] for it in plain], rtol=near)
    ]  # fmt: skip
    assert far or apart(sketch, come) > NEAR_WEIGHTS * apart(begun, come)
