"""Every mechanism under one schedule: what a round keeps, and that what misses its target shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.rundir import RunDir
from proving_ground.bench.spec import SpecError
from proving_ground.reports.recovery.healthy import Healthy
from tests.reports.recovery.synthetic import FAULTS, Knobs, make
from tests.validations import shootout
from tests.validations.shootout import cost, cost_words, fine, main, told
from tests.validations.sitting import KeptError, load

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
    assert main(["--rounds", "2", "--minutes", "30"]) == 0
    assert main(["--rounds", "2", "--minutes", "60"]) == 0
    with pytest.raises(KeptError, match="decided before"):
        main(["--rounds", "3"])
    assert runs.asked == [("shootout", "--seed", "1"), ("shootout", "--seed", "2")]
    document = load(shootout.FILE, shootout.COMMAND)
    cells = document["cells"]
    assert [it["outcome"] for it in cells["relaunch"]["trials"]] == ["recovered", "stuck"] * 2
    assert [it["resume_s"] for it in cells["restart"]["trials"]] == pytest.approx([1.4] * 4, abs=0.01)
    assert [len(values) for values in cells["restart"]["step_ms"]] == [2, 2]
    assert "relaunch: 2 of 4 recovered; time to recovery stuck, stuck at most" in capsys.readouterr().out
    table = shootout.table(document)
    assert "| relaunch | 4 | 0 | 2 | 0 | 2 | 0 | stuck | stuck | 6 | – |" in table
    assert "| node_kill n3 | 2 of 2 stuck | 1.40 s |" in table
    assert "| torchrun | 0 | 0 | not measured |" in table
    assert table.endswith("Rounds: 2, each fault once a round.\n")


def trial(outcome: str, resume_s: float | None, fault: str = "hang n3") -> dict[str, Any]:
    return {"fault": fault, "outcome": outcome, "resume_s": resume_s, "lost_steps": 2.0, "lost_s": 0.1}


def test_a_fault_without_evidence_is_counted_and_gives_no_time() -> None:
    trials = [trial("recovered", 0.6), trial("recovered", 0.8), trial("invalid", 2.14)]
    document = {"cells": {"live": {"mechanism": "live", "trials": trials, "step_ms": []}}}
    assert "| live | 2 | 1 | 2 | 0 | 0 | 0 | 0.70 s | 0.80 s | 2 |" in shootout.table(document)
    assert "| hang n3 | 0.70 s, 1 of 3 invalid |" in shootout.table(document)
    assert shootout.shot(trials[2:], "hang n3") == "1 of 1 invalid"


def test_a_stuck_one_is_larger_than_every_time() -> None:
    document = {"cells": {"live": {"mechanism": "live", "step_ms": [], "trials": [
        trial("recovered", 0.6), trial("recovered", 0.8), trial("stuck", 0.1)]}}}  # fmt: skip
    assert "| live | 3 | 0 | 2 | 0 | 1 | 0 | 0.80 s | stuck | 2 |" in shootout.table(document)


def test_the_baseline_is_what_was_measured_with_its_number_of_trials() -> None:
    cells = {
        "torchrun": {"trials": [trial("stuck", None), trial("recovered", 16.0, "node_kill rank0")]},
        "torchrun-tuned": {"trials": [trial("recovered", 44.98), trial("recovered", 43.0)]},
    }
    said = shootout.baseline({"cells": cells}, "hang n3", 6.0)
    assert said == "torchrun 1 of 1 stuck (n = 1), torchrun-tuned 43.99 s (n = 2); held for 50 s"
    assert shootout.baseline({"cells": cells}, "node_kill rank0", 1.0) == "torchrun 16.00 s (n = 1)"
    assert shootout.baseline({"cells": cells}, "", 6.0) == "–"
    assert shootout.baseline({}, "hang n3", 6.0) == "–"


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
    assert not fine(measured(*live, outcome="invalid")), "no evidence is no pass"


@pytest.mark.parametrize("words", [["--minutes", "0"], ["--rounds", "0"]])
def test_nonsense_is_refused(words: list[str]) -> None:
    with pytest.raises(SpecError, match="must be above 0"):
        main(words)
