"""What is recorded while the harness ends a job: a step more, half a fingerprint. No fault's doing."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from proving_ground.bench.rundir import RunDir
from proving_ground.reports.recovery import injection, results, sameness
from proving_ground.reports.recovery.jobs import Fingerprint, Job
from proving_ground.reports.recovery.sameness import Twin
from proving_ground.reports.recovery.steps import Stretch, lineage
from tests.reports.recovery.synthetic import FAULTS, Knobs, make
from tests.reports.rewritten import Record, rewrite

HELD = (FAULTS[2],)


def mark(step: int, rank: int, generation: int = 1) -> Fingerprint:
    return Fingerprint(step / 10, step, rank, generation, f"p{step}.{generation}", None, None, None, None, None)


def twin(*marks: Fingerprint) -> Twin:
    stretches = [Stretch(1, 1, 30, 2), Stretch(2, 31, 40, 1)]
    return Twin(Job("t002"), 2, {(it.step, it.rank): it for it in marks}, stretches)


def test_a_last_fingerprint_that_not_every_rank_told_is_left_out() -> None:
    whole = [mark(step, rank) for step in (10, 20) for rank in (0, 1)]
    job = Job("t001", fingerprints=[mark(step, rank) for step in (10, 20, 30) for rank in (0, 1)])
    ended = sameness.without_its_end(twin(*whole, mark(30, 0)))
    found = sameness.compare(job, [Stretch(1, 1, 30, 2)], {}, [ended])
    assert (found.steps(), found.undecided(0, 30)) == ([10, 20], "")


def test_one_on_the_way_that_not_every_rank_told_is_not() -> None:
    marks = [mark(10, 0), mark(20, 0), mark(20, 1)]
    assert sameness.without_its_end(twin(*marks)).marks.keys() == {(10, 0), (20, 0), (20, 1)}


def test_a_step_that_was_made_by_those_who_had_not_left_yet_is_no_twin_of_any() -> None:
    whole = [mark(step, rank) for step in (10, 20) for rank in (0, 1)]
    ended = sameness.without_its_end(twin(*whole, mark(40, 0, 2)))
    assert sorted(ended.marks) == [(10, 0), (10, 1), (20, 0), (20, 1)]
    assert [it.world for it in ended.stretches] == [2]


@pytest.mark.parametrize(("over_t", "parts"), [(2.5, [(1, 1, 2)]), (3.5, [(1, 1, 2), (2, 3, 4)])])
def test_the_final_weights_are_not_of_who_went_on_alone_when_the_job_was_over(
    over_t: float, parts: list[tuple[int, int, int]]
) -> None:
    job = Job("t001", events={"job_over": [{"t": over_t, "event": "job_over"}]})
    made = pd.DataFrame({
        "generation": [1, 1, 2, 2], "step": [1, 2, 3, 4], "world": [2, 2, 1, 1], "committed": True,
        "begin": [0.0, 1.0, 3.0, 4.0], "end": [1.0, 2.0, 4.0, 5.0], "seconds": 1.0,
    })  # fmt: skip
    assert [(it.generation, it.first, it.last) for it in lineage(job, made)] == parts


def healed_early(run: RunDir, *, over: bool) -> tuple[str, str]:
    """The answer to whether a fault happened that was healed a second early, as a job that is over is."""

    def change(records: list[Record]) -> list[Record]:
        (end,) = [it for it in records if it["event"] == "fault_end"]
        end["t"] -= 1.0
        told = {"t": end["t"] - 0.01, "event": "job_over", "source": "harness", "trial": "t001"}
        return [*records, *[told] * over]

    rewrite(run, change)
    found = results.analyse(run)
    (verdict,) = [it for it in found.verdicts if it["check"] == "happened"]
    return verdict["verdict"], verdict["why"]


def test_what_is_healed_because_the_job_is_over_is_not_healed_early(tmp_path: Path) -> None:
    """The trainer makes a step more before it leaves."""
    assert healed_early(make(tmp_path, Knobs(faults=HELD)), over=True)[0] == "pass"


def test_what_is_healed_while_the_job_goes_on_is(tmp_path: Path) -> None:
    verdict, why = healed_early(make(tmp_path, Knobs(faults=HELD)), over=False)
    assert (verdict, "before its time" in why) == ("unknown", True)


def test_a_job_that_trains_on_for_long_was_not_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(injection, "LEAVING_S", 0.5)
    verdict, why = healed_early(make(tmp_path, Knobs(faults=HELD)), over=True)
    assert verdict == "unknown"
    assert "a step was made" in why
    assert "after the job was over" in why
