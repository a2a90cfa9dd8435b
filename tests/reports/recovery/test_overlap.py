"""Faults that overlap: one disturbance, one recovery, and nothing is forgiven that would not be otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from proving_ground.reports.figures import pick_all
from proving_ground.reports.recovery import results, words
from proving_ground.reports.recovery.results import Analysis
from proving_ground.reports.verdicts import overall
from tests.reports.recovery.synthetic import Fault, Knobs, make

FIRST = Fault("f01", "link_rate", 26, "n3", how="none", hold_s=1.2)
SECOND = Fault("f02", "worker_kill", 40, "n2", hold_s=0.0, after_s=1.0)
LAST = Fault("f03", "worker_kill", 77, "n3", hold_s=0.0)


def judged(folder: Path, *faults: Fault, mutant: str = "", at: str = "f01") -> Analysis:
    return results.analyse(make(folder, Knobs(faults=faults, mutant=mutant, at=at)))


def test_they_count_once_from_the_first_injection_to_the_end_of_the_last(tmp_path: Path) -> None:
    analysis = judged(tmp_path, FIRST, SECOND, LAST)
    assert overall(analysis.verdicts) == "pass", words.reasons(analysis)
    one, two, three = analysis.trials
    assert [it["phase"] for it in analysis.trials] == ["overlap", "overlap", "step"]
    shared, alone = pick_all(analysis.figures, "resume")
    assert (shared["where"]["kind"], shared["where"]["phase"], shared["n"]) == ("link_rate", "overlap", 1)
    assert shared["values"] == [
        pytest.approx(two["timeline"]["first_committed_step"] - one["timeline"]["inject"], abs=1e-5)
    ]
    assert alone["values"] == [
        pytest.approx(three["timeline"]["first_committed_step"] - three["timeline"]["inject"], abs=1e-5)
    ]
    assert [words.counted_time(analysis, it) is None for it in words.cells(analysis)] == [False, True, False]
    assert [it["command"].split()[-1] for it in analysis.trials] == ["f01..f02", "f01..f02", "f03"]


def test_the_pace_before_the_first_is_what_all_are_measured_by(tmp_path: Path) -> None:
    """Else a fault in the middle of a slow stretch would be got over as soon as it is as slow again."""
    analysis = judged(tmp_path, FIRST, Fault("f02", "worker_kill", 33, "n2", hold_s=0.0, after_s=0.1))
    one, two = analysis.incidents
    assert one.pace_s == two.pace_s == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("mutant", "at", "check"),
    [
        ("again", "f01", "nothing_else_broke"),
        ("again", "f02", "nothing_else_broke"),
        ("bystander", "f02", "nothing_else_broke"),
        ("no_recovery", "f02", "trained_on"),
        ("not_healed", "f01", "healed"),
        ("data_ahead", "f02", "exactly_once"),
    ],
)
def test_what_goes_wrong_is_told_all_the_same(tmp_path: Path, mutant: str, at: str, check: str) -> None:
    kill = Fault("f01", "worker_kill", 26, "n1", hold_s=0.0)
    analysis = judged(tmp_path, kill if mutant == "again" else FIRST, SECOND, mutant=mutant, at=at)
    told = {trial["fault"]: trial for trial in analysis.trials}[at]
    assert told["verdicts"][check] == "fail"
    assert told["outcome"] in (("invalid",) if mutant == "not_healed" else ("wrong", "stuck"))
    assert not pick_all(analysis.figures, "resume"), "a disturbance with a fault that went wrong is in no figure"


def test_one_that_came_too_soon_after_the_one_before_contradicts_its_plan(tmp_path: Path) -> None:
    late = Fault("f02", "worker_kill", 40, "n2", hold_s=0.0, after_s=30.0)
    analysis = judged(tmp_path, FIRST, late)
    (why,) = [v["why"] for v in analysis.verdicts if v["check"] == "happened" and v["verdict"] != "pass"]
    assert "before it was due, 30 s after the fault before" in why
    assert analysis.trials[1]["outcome"] == "invalid"


def test_what_is_left_of_a_disturbance_may_be_alone(tmp_path: Path) -> None:
    refused = Fault("f02", "worker_kill", 40, "n2", after_s=1.0, refused="no worker is running there")
    analysis = judged(tmp_path, Fault("f01", "worker_kill", 26, "n1", hold_s=0.0), refused)
    assert [it["phase"] for it in analysis.trials] == ["step", "step"]
    assert [it["outcome"] for it in analysis.trials] == ["recovered", "invalid"]
    assert pick_all(analysis.figures, "resume")[0]["n"] == 1


def test_one_of_a_certain_moment_overlaps_where_the_job_had_not_got_over_the_one_before(tmp_path: Path) -> None:
    first = Fault("f01", "worker_kill", 26, "n2", hold_s=0.0, at_s=1.0)
    soon, late = (Fault("f02", "worker_kill", step, "n3", hold_s=0.0, at_s=2.5) for step in (33, 60))
    both = judged(tmp_path / "soon", first, soon, LAST)
    assert [it["phase"] for it in both.trials] == ["overlap", "overlap", "step"]
    assert [(it["where"]["phase"], it["n"]) for it in pick_all(both.figures, "resume")] == [("overlap", 1), ("step", 1)]
    apart = judged(tmp_path / "late", first, late, LAST)
    assert [it["phase"] for it in apart.trials] == ["step", "step", "step"]
    assert overall(both.verdicts) == overall(apart.verdicts) == "pass", words.reasons(both) + words.reasons(apart)


def test_one_that_came_before_its_moment_contradicts_its_plan(tmp_path: Path) -> None:
    early = judged(tmp_path, Fault("f01", "worker_kill", 26, "n2", hold_s=0.0, at_s=2.0))
    (why,) = [v["why"] for v in early.verdicts if v["check"] == "happened" and v["verdict"] != "pass"]
    assert "injected 2 s after a job of 7 steps, and it was due that long after 15" in why
    assert early.trials[0]["outcome"] == "invalid"
