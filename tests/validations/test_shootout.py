"""Every mechanism under one schedule: what a round keeps, and that what misses its target shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.rundir import RunDir
from bench.spec import SpecError
from reports.recovery.healthy import Healthy
from tests.reports.recovery.synthetic import FAULTS, Knobs, make
from tests.validations import shootout
from tests.validations.shootout import cost, cost_words, fine, main, told
from tests.validations.sitting import load

KNOBS = Knobs(steps=60, faults=FAULTS[:2], twins=(3, 3), mutant="no_recovery", at="f02")


class Runs:
    """Stands for the chaos runs: made-up ones."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked = folder, list[tuple[str, ...]]()
        self.knobs = replace(KNOBS, mechanisms=("relaunch", "restart"))

    def run(self, runs: Path, suite: str, *words: str) -> RunDir:
        """The next round."""
        del runs
        self.asked.append((suite, *words))
        return make(self.folder / f"{len(self.asked)}", self.knobs)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs(tmp_path)
    monkeypatch.setattr(shootout, "FILE", tmp_path / "shootout.json")
    monkeypatch.setattr(shootout, "chaos_run", made.run)
    return made


def test_rounds_accumulate_and_a_stuck_peer_is_a_result(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rounds", "1", "--minutes", "60"]) == 0
    assert main(["--rounds", "2", "--minutes", "60"]) == 0
    assert runs.asked == [("shootout", "--seed", "1"), ("shootout", "--seed", "2")]
    document = load(shootout.FILE, shootout.COMMAND)
    cells = document["cells"]
    assert [it["outcome"] for it in cells["relaunch"]["trials"]] == ["recovered", "stuck"] * 2
    assert [it["resume_s"] for it in cells["restart"]["trials"]] == pytest.approx([1.4] * 4, abs=0.01)
    assert [len(values) for values in cells["restart"]["step_ms"]] == [2, 2]
    assert "relaunch: 2 of 4 recovered; goes on after 1.40 s" in capsys.readouterr().out
    table = shootout.table(document)
    assert "| relaunch | 4 | 2 | 0 | 2 | 1.40 s | 1.40 s | 6 | – |" in table
    assert "| node_kill n3 | 2 of 2 stuck | 1.40 s |" in table


def test_one_of_ours_that_is_stuck_is_no_pass(runs: Runs) -> None:
    runs.knobs = replace(KNOBS, mechanisms=("restart", "relaunch"))  # the first is the one with the mutant
    assert main(["--rounds", "1", "--minutes", "60"]) == 1


def test_nothing_is_started_that_the_minutes_do_not_hold(runs: Runs) -> None:
    assert main(["--minutes", "5"]) == 1, "no evidence is no pass"
    assert runs.asked == []


def measured(*live: float, outcome: str = "recovered") -> dict[str, Any]:
    """Rounds in which a plain step takes 100 ms and a live one so many."""
    trials = [{"fault": "hang n3", "outcome": outcome, "resume_s": None, "lost_steps": 0.0, "lost_s": 0.0}]
    return {
        "cells": {
            "relaunch": {"mechanism": "relaunch", "trials": trials, "step_ms": [[100.0, 101.0, 99.0] for _ in live]},
            "live": {"mechanism": "live", "trials": trials, "step_ms": [[it] for it in live]},
        }
    }


@pytest.mark.parametrize(
    ("live", "said", "good"),
    [
        ((101.0, 101.2, 101.1), "+1.1 % (+0.8 to +1.4 %)", True),
        ((99.0, 102.0, 100.5), "cannot tell", True),
        ((105.0, 105.2, 105.1), "+5.1 %", False),
        ((102.0,), "cannot tell: one round", True),
    ],
)
def test_what_live_costs_where_nothing_fails(live: tuple[float, ...], said: str, good: bool) -> None:  # noqa: FBT001
    document = measured(*live)
    assert cost_words(document, "live").startswith(said)
    assert cost(document, "relaunch") == Healthy(None)
    assert fine(document) is good
    assert not fine(measured(*live, outcome="wrong"))
    assert "live: 1 of 1 recovered; no time to tell" in told(document)[1]


@pytest.mark.parametrize("words", [["--minutes", "0"], ["--rounds", "0"]])
def test_nonsense_is_refused(words: list[str]) -> None:
    with pytest.raises(SpecError, match="must be above 0"):
        main(words)
