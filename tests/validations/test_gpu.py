"""What one GPU showed: which trials count, and when a loop is called as fast as another."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validations import answers, gpu

STEP_S = 0.05


def document(
    ours: list[float], plain: list[float], outcome: str = "recovered", cores: float | None = None
) -> dict[str, Any]:  # fmt: skip
    fault = {"mechanism": "live", "kind": "worker_kill", "phase": "step", "outcome": outcome, "recovery_s": 0.34,
             "same_training": "pass"}  # fmt: skip
    return {
        "command": gpu.COMMAND, "machine": {"gpu": "G", "cores": 2, "cpu": "C", "torch": "2"},
        "cells": {
            "faults": {"runs": [fault]},
            "vit": {
                "batch": 8, "flops_per_sample": 1e12, "peak_tflops": 100.0,
                "runs": [{"rate": it, "cores": cores} for it in ours],
            },
            "vit-plain": {"batch": 8, "runs": [{"plain_rate": it} for it in plain]},
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "plain", "told"),
    [
        ([99.5, 99.7, 99.6], [100.0, 100.2, 99.9], "pass"),
        ([90.0, 91.0, 92.0], [100.0, 100.0, 100.0], "fail"),
        ([90.0, 101.0, 99.0], [100.0, 95.0, 105.0], "cannot tell: repeats lie too far apart"),
        ([100.0, 100.0], [100.0, 100.0], "cannot tell: fewer than 3 repeats"),
    ],
)
def test_a_loop_is_as_fast_only_where_all_its_repeats_are(ours: list[float], plain: list[float], told: str) -> None:
    assert gpu.verdict(document(ours, plain), "vit") == told
    assert told in gpu.table(document(ours, plain))


def test_a_trainer_that_was_held_to_one_core_is_not_compared() -> None:
    good = [100.0] * 3
    assert gpu.verdict(document(good, good, cores=1.0), "vit").startswith("cannot tell: the trainer was held to 1 core")
    assert gpu.verdict(document(good, good, cores=15.6), "vit") == "pass"


def test_the_answer_is_no_pass_without_evidence_and_a_fail_with_a_fault_that_was_not_got_over() -> None:
    good = [100.0] * 3
    assert answers.of_gpu(document(good, good)).verdict == "pass"
    assert answers.of_gpu(document(good[:1], good)).verdict == "unknown"
    assert answers.of_gpu(document(good, good, outcome="wrong")).verdict == "fail"


def test_a_rate_is_of_the_measured_steps() -> None:
    plan = {"warmup_steps": 1, "global_batch": 8}
    ends = [0.0, 3.0, 3.0 + STEP_S, 3.0 + 4 * STEP_S]
    steps = [{"event": "step", "step": number, "t": t} for number, t in enumerate(ends)]
    assert gpu.values_of(plan, steps) == {"rate": 2 * 8 / (4 * STEP_S)}
    rounds = [{"event": "measure", "name": "plain_rate", "step": it, "value": 10.0 * it} for it in (1, 2, 3)]
    assert gpu.values_of(plan, rounds) == {"plain_rate": 24.0}
