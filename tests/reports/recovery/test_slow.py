"""Slow is not stuck: a job on a machine that others keep busy cannot be told from one that was never fast again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from reports.checks import FAIL, UNKNOWN
from reports.recovery import checks
from reports.recovery.jobs import Job

STEP_S = 0.1


def evidence(slower: float, machine: list[tuple[float, ...]], cores: int = 2) -> Any:
    """A job whose steps after a fault at 0 take so many times as long."""
    ends = [number * STEP_S * slower for number in range(1, 21)]
    steps = pd.DataFrame({"end": ends, "seconds": STEP_S * slower, "world": 3, "generation": 2, "committed": True})
    job = Job("t001", machine=machine, cores=cores)
    return SimpleNamespace(steps=steps, cut_off=False, job=job)


def samples(cpu: float, steal: float = 0.0) -> list[tuple[float, ...]]:
    """A minute of the machine's counters, in `t, steal_s, cpu_s, load1, mhz`: shares of two cores."""
    return [(float(t), 2 * steal * t, 2 * cpu * t, 1.0, 2000.0) for t in range(61)]


ONE = SimpleNamespace(inject_t=0.0, until_t=100.0, world=3, new=2, pace_s=STEP_S)


@pytest.mark.parametrize(
    ("slower", "machine", "value", "words"),
    [
        (6.7, samples(0.5), FAIL, "6.70 times as long as those before the fault"),
        (6.7, [], FAIL, "6.70 times as long"),
        (6.7, samples(1.0), UNKNOWN, "the machine was disturbed: all cores were busy (100 %)"),
        (6.7, samples(0.5, steal=0.2), UNKNOWN, "the machine was disturbed: the hypervisor took 20.0 %"),
        (1.5, samples(0.5), UNKNOWN, "1.50 times"),
    ],
)
def test_a_disturbed_machine_decides_nothing(
    slower: float, machine: list[tuple[float, ...]], value: str, words: str
) -> None:
    found, why = checks.slow(evidence(slower, machine), ONE)  # type: ignore[arg-type]
    assert found == value
    assert words in why
