"""Slow is not stuck: a job on a machine that others keep busy cannot be told from one that was never fast again."""

from __future__ import annotations

from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from reports.checks import FAIL, UNKNOWN
from reports.recovery import checks
from reports.recovery.jobs import Job

STEP_S = 0.1


def evidence(slower: float, machine: list[tuple[float, ...]], cores: int = 2, steps: int = 20) -> Any:
    """A job whose steps after a fault at 0 take so many times as long."""
    return evidence_of([STEP_S * slower] * steps, machine, cores)


def evidence_of(seconds: list[float], machine: list[tuple[float, ...]], cores: int = 2) -> Any:
    """A job whose steps after a fault at 0 take so long each."""
    ends = list(accumulate(seconds))
    steps = pd.DataFrame({"end": ends, "seconds": seconds, "world": 3, "generation": 2, "committed": True})
    job = Job("t001", machine=machine, cores=cores)
    return SimpleNamespace(steps=steps, cut_off=False, job=job)


def samples(cpu: float, steal: float = 0.0) -> list[tuple[float, ...]]:
    """A minute of the machine's counters, in `t, steal_s, cpu_s, load1, mhz`: shares of two cores."""
    return [(float(t), 2 * steal * t, 2 * cpu * t, 1.0, 2000.0) for t in range(61)]


ONE = SimpleNamespace(inject_t=0.0, until_t=100.0, world=3, new=2, pace_s=STEP_S, end=None)


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


def test_what_was_seen_for_a_moment_only_is_no_slow_job() -> None:
    """Fifteen steps of a trainer whose steps take 0.1 s, in less time than there is a sample of the machine."""
    found, why = checks.slow(evidence(3.2, samples(0.5), steps=6), ONE)  # type: ignore[arg-type]
    assert (found, "for 1.92 s: too short to tell from a slow moment" in why) == (UNKNOWN, True), why
    found, why = checks.slow(evidence(3.2, samples(0.5), steps=7), ONE)  # type: ignore[arg-type]
    assert (found, "last 7 steps took 3.20 times" in why) == (FAIL, True), why


def test_a_job_that_ends_with_a_few_slow_steps_is_not_slow() -> None:
    """Its newest two seconds count; the median of its newest five steps is four times what it was before."""
    ends = [STEP_S * 1.5] * 20 + [STEP_S * 4] * 3 + [STEP_S * 1.2] * 2
    found, why = checks.slow(evidence_of(ends, []), ONE)  # type: ignore[arg-type]
    assert (found, "last 9 steps took 1.50 times" in why) == (UNKNOWN, True), why


def test_what_was_slow_while_a_fault_was_held_does_not_count() -> None:
    """A link that was slowed for a second, and was healed: steps before that are the fault's doing."""
    held = [STEP_S * 10] * 2 + [STEP_S * 1.2] * 8
    one = SimpleNamespace(**{**vars(ONE), "new": None, "end": {"t": 2.0}})
    found, why = checks.slow(evidence_of(held, []), one)  # type: ignore[arg-type]
    assert (found, "last 8 steps took 1.20 times" in why) == (UNKNOWN, True), why
