"""Rows of recovery: jobs decided before, in turn; the largest with the stuck ones; a goal without data is seen."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.rundir import RunDir
from proving_ground.chaos import spec
from proving_ground.chaos.spec import faults_of
from tests.validations import restart
from tests.validations.recovery import LIVE
from tests.validations.restart import JOBS, RESTART, Goal, Kind, cells, main, table, verdict
from tests.validations.sitting import KeptError, load

GOAL = Goal("a worker", 3.0, 60.0)
TIMELINE = {"inject": 10.0, "detected": 10.1, "first_committed_step": 11.5, "full_speed": 12.0}


def job(*times_s: float, outcome: str = "recovered") -> dict[str, Any]:
    trials = [
        {"outcome": outcome, "resume_s": it, "full_speed_s": it + 1, "detect_s": 0.1, "seed": 1} for it in times_s
    ]
    return {"seed": 1, "trials": trials, "commit": "a1", "date": "2026-11-24"}


def twelve() -> list[dict[str, Any]]:
    return [job(1.0 + 0.01 * number, 2.0 - 0.02 * number) for number in range(JOBS)]


def test_a_row_says_jobs_trials_and_effective_n_and_the_quantile_that_they_support() -> None:
    assert cells(GOAL, twelve()).startswith("12 | 24 | 24 | 24 | 1.45 s | 2.00 s | P88 | ≤3 s | pass | 3.00 s (of 24)")
    alike = [job(*[1.0 + number] * 20) for number in range(3)]
    assert cells(Goal("", 4.0, 1.0), alike).startswith("3 | 60 | 3 | 60 | 2.00 s | 3.00 s | P36 |")


def test_the_time_for_which_a_fault_was_held_is_none_of_full_speed() -> None:
    runs = twelve()
    for trial in chain.from_iterable(it["trials"] for it in runs):
        trial |= {"full_speed_s": 7.5, "healed_s": 6.0}
    runs[0]["trials"][0] |= {"full_speed_s": 2.5}  # before it was lifted
    assert cells(GOAL, runs).endswith("| 7.50 s (of 24)")
    assert cells(GOAL, runs, 6.0).endswith("| 2.50 s (of 24)")
    del runs[0]["trials"][0]["healed_s"]
    assert cells(GOAL, runs, 6.0).endswith("| 1.50 s (of 23)"), "of what was kept before it was recorded nobody knows"


def test_few_jobs_say_nothing_however_many_trials() -> None:
    assert verdict(GOAL, [job(*[1.0] * 20)] * 3) == "cannot tell: 3 of 12 jobs"
    assert verdict(GOAL, [*twelve()[:11], {"seed": 12, "trials": [], "failed": "no results"}]).startswith("cannot tell")
    assert verdict(GOAL, twelve()) == "pass"


def test_an_outcome_that_is_not_known_is_no_pass() -> None:
    assert verdict(GOAL, [*twelve()[:11], job(1.0, outcome="unproven")]) == "cannot tell: 1 undecided"


def test_the_largest_is_a_stuck_one_if_there_is_any() -> None:
    assert verdict(GOAL, [*twelve()[:11], job(0.5, outcome="slow")]) == "fail"
    runs = [*twelve()[:11], job(0.5, outcome="stuck")]
    assert " | stuck | P" in cells(GOAL, runs)
    assert verdict(GOAL, runs) == "fail"


@pytest.mark.parametrize("bad", [job(3.01), job(1.0, outcome="wrong")])
def test_one_trial_above_the_target_or_wrong_fails_the_row_however_few_jobs(bad: dict[str, Any]) -> None:
    assert verdict(GOAL, [bad]) == "fail"


def test_a_fault_without_evidence_is_counted_and_not_timed() -> None:
    runs = [*twelve()[:11], job(9.0, outcome="invalid")]
    assert cells(GOAL, runs).startswith("12 | 22 and 1 invalid |")
    assert " | 2.00 s | " in cells(GOAL, runs)
    assert verdict(GOAL, runs) == "cannot tell: 11 of 12 jobs"


def test_a_goal_without_data_is_a_row_that_says_so() -> None:
    text = table({"cells": {}}, RESTART, {})
    assert text.count("not measured") == len(RESTART.goals) == 3
    assert "stays away for 7 s: the others go on | 0 | 0 | – | – | not measured |" in text


def test_a_baseline_is_under_the_same_fault() -> None:
    """Kind, phase and sort of target are the same in both suites; how long it is held may differ, and is told then."""
    (case, *_) = spec.load("shootout").cases
    peers = {f"{it.kind} {it.target}".strip(): it for it in faults_of(case.faults, case.name)}
    for kind in (RESTART, LIVE):
        for found in spec.load(kind.suite).cases:
            (fault,) = faults_of(found.faults, found.name)
            if like := kind.goals[found.name].like:
                peer = peers[like]
                assert (peer.kind, peer.phase) == (fault.kind, fault.phase)
                assert ("rank0" in peer.where) == ("rank0" in fault.where)


class Chaos:
    """Stands for the chaos runs: each job recovers; the third that is asked for is cut off."""

    def __init__(self, cut_off: int = 0) -> None:
        self.asked: list[str] = []
        self.cut_off = cut_off
        self.outcome = "recovered"

    def run(self, runs: Path, suite: str, *words: str) -> RunDir:
        """The next job."""
        del suite
        self.asked.append(" ".join(words))
        if len(self.asked) == self.cut_off:
            raise KeyboardInterrupt
        (runs / "run").mkdir()
        (runs / "run" / "history.jsonl").write_text(self.outcome)
        return RunDir(runs / "run")

    def results(self, store: RunDir) -> dict[str, Any]:
        """What came of it."""
        del store
        trial = {"seed": 1, "outcome": self.outcome, "timeline": TIMELINE, "verdicts": {}, "why": ""}
        return {"trials": [trial] * 5}


@pytest.fixture
def chaos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Chaos:
    made = Chaos()
    monkeypatch.setattr(restart, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(restart, "chaos_run", made.run)
    monkeypatch.setattr(restart, "results_of", made.results)
    return made


def test_every_row_has_a_job_before_any_a_second_and_the_next_sitting_goes_on(
    tmp_path: Path, chaos: Chaos, capsys: pytest.CaptureFixture[str]
) -> None:
    chaos.cut_off, words = 5, ["--jobs", "2", "--out", str(tmp_path / "it.json")]
    with pytest.raises(KeyboardInterrupt):
        main(words)
    assert main(words) == 1, "all is measured, and 2 jobs of 12 tell nothing"
    jobs = [f"--case {case} --trials {goal.faults} --seed " for case, goal in RESTART.goals.items()]
    order = [f"{job}{seed}" for seed in (1, 2) for job in jobs]
    assert chaos.asked == [*order[:5], *order[4:]]
    document = load(tmp_path / "it.json", RESTART.command)
    assert document["plan"] == {"jobs": 2, "faults": {"worker": 5, "node": 5, "node-lost": 4}}
    assert "Jobs cut off and begun again: 1." in table(document, RESTART, {})
    assert "3 rows of 2 jobs, 4 m 10 s a round; left: 8 m 20 s" in capsys.readouterr().out


def test_jobs_are_decided_before_and_no_option_picks_a_row(tmp_path: Path, chaos: Chaos) -> None:
    file = tmp_path / "it.json"
    main(["--jobs", "1", "--out", str(file)])
    with pytest.raises(KeptError, match="decided before the first measurement"):
        main(["--jobs", "2", "--out", str(file)])
    assert len(chaos.asked) == 3
    options = {word for action in restart.parser(RESTART)._actions for word in action.option_strings}
    assert options == {"-h", "--help", "--minutes", "--jobs", "--out"}


def test_twelve_jobs_that_recover_in_time_pass(tmp_path: Path, chaos: Chaos) -> None:
    kind = Kind("restart", "kill", "", {"worker": GOAL})
    assert main(["--out", str(tmp_path / "it.json")], kind) == 0
    assert len(chaos.asked) == JOBS


def test_a_job_without_results_is_kept_as_that(tmp_path: Path, chaos: Chaos, monkeypatch: pytest.MonkeyPatch) -> None:
    del chaos
    monkeypatch.setattr(restart, "results_of", lambda _store: {"trials": [], "verdicts": []})
    main(["--jobs", "1", "--out", str(tmp_path / "it.json")])
    (run,) = load(tmp_path / "it.json", RESTART.command)["cells"]["worker"]["runs"]
    assert (run["trials"], run["failed"]) == ([], "no results")


@pytest.mark.parametrize("outcome", ["recovered", "invalid", "wrong", "stuck", "slow"])
def test_the_run_of_a_job_that_went_wrong_is_kept(tmp_path: Path, chaos: Chaos, outcome: str) -> None:
    chaos.outcome = outcome
    kind = Kind("restart", "kill", "", {"worker": GOAL})
    main(["--jobs", "1", "--out", str(tmp_path / "it.json")], kind)
    files = [str(it.relative_to(tmp_path / "kept")) for it in (tmp_path / "kept").rglob("*.jsonl")]
    assert files == (["restart-worker-1/run/history.jsonl"] if outcome in ("wrong", "stuck", "slow") else [])
