"""Slow is not stuck; and what was not seen for long, or on a machine that others keep busy, is nobody's being slow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from proving_ground.reports.recovery import checks
from proving_ground.reports.recovery.jobs import Job
from proving_ground.reports.verdicts import FAIL, PASS, UNKNOWN

STEP_S = 0.1
Machine = list[tuple[float, ...]]


def samples(cpu: float, steal: float = 0.0) -> Machine:
    """The machine's counters from a minute before to a minute after, in `t, steal_s, cpu_s, load1, mhz`: two cores."""
    return [(float(t), 2 * steal * (t + 60), 2 * cpu * (t + 60), 1.0, 2000.0) for t in range(-60, 61)]


HALF_BUSY = samples(0.5)


def evidence(
    after: Sequence[float],
    machine: Machine = HALF_BUSY,
    before: Sequence[float] = (STEP_S,) * 30,
    incidents: Sequence[Any] = (),
    **about: Any,
) -> Any:
    """A job whose steps took so long each before its fault, at 0, and after it."""
    seconds = [*before, *after]
    ends = [it - sum(before) for it in accumulate(seconds)]
    generation = [1] * len(before) + [2] * len(after)
    steps = pd.DataFrame({
        "begin": np.subtract(ends, seconds), "end": ends, "seconds": seconds, "world": 3, "generation": generation,
        "committed": True, "step": range(1, len(ends) + 1),
    })  # fmt: skip
    usual = {"plan": {"steps": 1000}, "ok": True, "start_t": -60.0, "end_t": 100.0}
    job = Job("t001", machine=machine, cores=2, **{**usual, **about})
    return checks.Evidence(job, pd.DataFrame(), steps, (), incidents, None, None)  # type: ignore[arg-type]


def fault(**about: Any) -> Any:
    """A kill at 0, that was got over by a new generation."""
    usual = {
        "inject_t": -0.001, "until_t": 100.0, "world": 3, "old": 1, "new": 2, "pace_s": STEP_S, "begin": {"t": 0.0},
        "end": None, "injected": True, "refused": None, "since": 30, "newest": 30, "held_s": None,
        "took": lambda _: None, "recorded": lambda *_: [], "traits": {}, "moments": {},
    }  # fmt: skip
    return SimpleNamespace(**{**usual, **about})


@pytest.mark.parametrize(
    ("slower", "machine", "value", "words"),
    [
        (6.7, HALF_BUSY, FAIL, "6.70 times as long as those before the fault"),
        (6.7, [], UNKNOWN, "6.70 times as long as those before the fault, and the machine's CPU counters were not re"),
        (6.7, samples(1.0), UNKNOWN, "the machine was disturbed: all cores were busy (100 %)"),
        (6.7, samples(0.5, steal=0.2), UNKNOWN, "the machine was disturbed: the hypervisor took 20.0 %"),
        (1.5, HALF_BUSY, UNKNOWN, "1.50 times"),
    ],
)
def test_a_disturbed_machine_decides_nothing(slower: float, machine: Machine, value: str, words: str) -> None:
    found, why = checks.full_speed(evidence([STEP_S * slower] * 20, machine), fault())
    assert found == value
    assert words in why


def test_what_was_seen_for_a_moment_only_is_no_slow_job() -> None:
    """Fewer steps than there is a sample of the machine for."""
    found, why = checks.full_speed(evidence([STEP_S * 3.2] * 6), fault())
    assert (found, "in 1.92 s: too short to tell a slow job from a slow moment" in why) == (UNKNOWN, True), why
    found, why = checks.full_speed(evidence([STEP_S * 3.2] * 7), fault())
    assert (found, "last 7 steps took 3.20 times" in why) == (FAIL, True), why


def test_a_pace_that_was_seen_for_a_moment_only_is_none() -> None:
    """Its first steps came from what was fetched before: four times as fast as it can go on."""
    fast = [STEP_S / 4] * 30
    found, why = checks.full_speed(evidence([STEP_S] * 30, before=fast), fault(pace_s=STEP_S / 4))
    assert (found, "4.00 times" in why) == (UNKNOWN, True), why
    found, why = checks.full_speed(evidence([STEP_S * 2.5] * 30, before=fast), fault(pace_s=STEP_S / 4))
    assert (found, "10.00 times" in why) == (FAIL, True), "that is no prefetching"
    one = fault(pace_s=STEP_S / 4)
    found, why = checks.full_speed(evidence([STEP_S] * 30, before=[STEP_S] * 30 + fast[:15]), one)
    assert (found, "1.00 times as long" in why) == (UNKNOWN, True), why


def test_a_job_that_ends_with_a_few_slow_steps_is_not_slow() -> None:
    """Its newest two seconds count; the median of its newest five steps is four times what it was before."""
    ends = [STEP_S * 1.5] * 20 + [STEP_S * 4] * 3 + [STEP_S * 1.2] * 2
    found, why = checks.full_speed(evidence(ends), fault())
    assert (found, "last 9 steps took 1.50 times" in why) == (UNKNOWN, True), why


@pytest.mark.parametrize("new", [None, 2])
def test_what_was_slow_while_a_fault_was_held_does_not_count(new: int | None) -> None:
    """Five seconds of a link that another fault had slowed, then twelve steps of a job that is not as fast again."""
    killed, slowed = fault(new=new, traits={"victims": "killed"}), fault(new=new, inject_t=0.5, end={"t": 4.99})
    after = [STEP_S * 10] * 5 + [STEP_S * 1.2] * 12
    found, why = checks.full_speed(evidence(after, incidents=[killed, slowed]), killed)
    assert (found, "last 12 steps took 1.20 times" in why) == (UNKNOWN, True), why
    found, why = checks.full_speed(evidence(after[:5], incidents=[killed, slowed]), killed)
    assert (found, why) == (UNKNOWN, "too few steps after it to tell")


@pytest.mark.parametrize(
    ("about", "value", "words"),
    [
        ({}, FAIL, ""),
        ({"plan": {"steps": 30}, "end_t": 1.0}, UNKNOWN, "the job had made all of its steps"),
        ({"plan": {"steps": 30}, "ok": False}, FAIL, ""),
        ({"plan": {"steps": 30}, "end_t": 91.0}, FAIL, ""),  # it hung at its end
        ({"end_t": 0.25}, FAIL, ""),  # it ended itself
        ({"plan": {"patience_s": 0.2}, "end_t": 0.25}, UNKNOWN, "it had 0 s, less than 3 of its steps take (0 s)"),
        ({"ok": None}, UNKNOWN, "the recording ends in the middle"),
    ],
)
def test_a_job_with_nothing_more_to_do_or_without_the_time_is_not_stuck(
    about: dict[str, Any], value: str, words: str
) -> None:
    """No step after the fault; or none at full strength, of a job that is smaller since."""
    for check, begins in (
        (checks.trained_on, "no step beyond step 30"),
        (checks.full_speed, "it was not as fast again" if words else "the job never came back to full strength"),
    ):
        found, why = check(evidence([], **about), fault())
        assert (found, why) == (value, begins + (f", and {words}" if words else ""))


@pytest.mark.parametrize(
    ("since", "later", "pace_s", "value"),
    [
        (8.0, [STEP_S] * 9, STEP_S, UNKNOWN),  # another was got over when its turn came, soon after that
        (8.0, [], STEP_S, FAIL),
        (3.0, [], STEP_S, UNKNOWN),
        (90.0, [], math.nan, UNKNOWN),  # one step so far, which took two minutes, and nobody said when it had begun
        (190.0, [], math.nan, FAIL),
        (90.0, [], 10.0, UNKNOWN),
    ],
)
def test_whom_a_refused_fault_found_idle_is_stuck_only_if_it_stays_so(
    since: float, later: list[float], pace_s: float, value: str
) -> None:
    about: Any = evidence([since, *later][bool(not later) :], start_t=-123.0)
    found, _ = checks.trained_on(about, fault(inject_t=since - 0.01, pace_s=pace_s, refused={"why": "nobody there"}))
    assert found == value


def test_a_job_that_is_slow_after_its_stopped_worker_was_replaced_is_slow_though_nobody_healed_it_before() -> None:
    """A worker that hangs until the end, when it is let go on: it had been replaced long before."""
    hung = fault(end={"t": 99.0}, traits={"victims": "stopped"})
    found, why = checks.full_speed(evidence([STEP_S * 10] * 30, incidents=[hung]), hung)
    assert (found, "10.00 times" in why) == (FAIL, True), why
    slowed = fault(end={"t": 99.0})
    assert checks.full_speed(evidence([STEP_S * 10] * 30, incidents=[slowed]), slowed)[0] == UNKNOWN


def test_the_pace_before_is_not_that_of_another_fault() -> None:
    earlier = fault(inject_t=-22.0, until_t=-0.001, end={"t": -2.1}, fault="f00")
    one, before = fault(), [STEP_S] * 30 + [STEP_S * 10] * 20 + [STEP_S] * 20
    found, why = checks.full_speed(evidence([STEP_S * 5] * 10, before=before, incidents=[earlier, one]), one)
    assert (found, "5.00 times" in why) == (FAIL, True), why


def test_few_steps_that_crawl_are_enough() -> None:
    found, why = checks.full_speed(evidence([STEP_S * 100] * 3), fault())
    assert (found, "100.00 times" in why) == (FAIL, True), why


def test_when_a_step_began_is_known_of_a_trainer_that_does_not_say() -> None:
    steps = evidence([STEP_S]).steps.assign(begin=math.nan)
    about = checks.Evidence(Job("t001"), steps, steps, (), (), None, None)  # type: ignore[arg-type]
    assert about.last_begin == pytest.approx(0.0)
    assert checks.Evidence(Job("t001"), steps, steps[:0], (), (), None, None).last_begin == math.inf  # type: ignore[arg-type]
    assert checks.full_speed(evidence([]), fault(took=lambda _: 1.0)) == (PASS, "after 1.00 s")
