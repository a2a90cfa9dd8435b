"""Effective training time: schedules from seeds, what a round keeps, and that each way to miss its targets shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from proving_ground.bench.clusters.fake import FakeCluster
from proving_ground.bench.plan import make_plan
from proving_ground.bench.spec import SpecError
from proving_ground.chaos import spec
from proving_ground.reports.recovery.results import Analysis, analyse
from tests.reports.recovery.synthetic import Fault, Knobs, make
from tests.validations import effective, tables
from tests.validations.effective import draw, error, fine, main, suite, told
from tests.validations.sitting import KeptError, load

KILLS = tuple(Fault(f"f{number:02}", "worker_kill", 11 + 54 * number, "n2") for number in range(1, 9))


def test_a_schedule_is_a_function_of_its_seed_and_as_seldom_as_asked() -> None:
    assert draw(3, 20, 500) == draw(3, 20, 500) != draw(4, 20, 500)
    many = draw(1, 4000, 500)
    assert fmean(it["after_steps"] for it in many) == pytest.approx(500, rel=0.05)
    assert {it["kind"] for it in many} == {"worker_kill", "node_kill"}
    assert {it["target"] for it in many} == {"one", "rank0"}


@pytest.mark.parametrize("mechanism", effective.MECHANISMS)
def test_a_schedule_is_a_suite_that_can_be_planned(tmp_path: Path, mechanism: str) -> None:
    file = tmp_path / "effective.toml"
    file.write_text(suite(7, mechanism, draw(7, 10, 4000), 600))
    (trial,) = make_plan(spec.load(str(file)), FakeCluster()).trials
    assert (len(trial.faults), trial.mechanism, trial.seed) == (10, mechanism, 7)
    assert trial.estimate_s == pytest.approx(600, rel=0.02)


class Jobs:
    """Stands for the chaos runs: made-up jobs, one that fails seldom and one that fails often."""

    def __init__(self, folder: Path, mutant: str = "") -> None:
        self.folder, self.mutant = folder, mutant
        self.asked: list[list[dict[str, Any]]] = []

    def play(self, folder: Path, seed: int, mechanism: str, faults: list[dict[str, Any]], seconds: float) -> Analysis:
        """Eight faults where more than ten are asked for, else three."""
        del folder, mechanism, seconds
        self.asked.append(faults)
        often = len(faults) > 10
        knobs = Knobs(steps=500, faults=KILLS if often else KILLS[1::3], twins=(), ledger=False, fingerprints=False)
        knobs = replace(knobs, mutant=self.mutant) if often else knobs
        return analyse(make(self.folder / f"{seed}-{len(self.asked)}", knobs))


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    made = Jobs(tmp_path)
    monkeypatch.setattr(effective, "FILE", tmp_path / "effective.json")
    monkeypatch.setattr(effective, "play", made.play)
    monkeypatch.setattr(effective, "LEAST_SHARE", 0.5)  # their faults come every few seconds
    return made


def test_a_round_forecasts_the_job_that_it_has_not_seen(jobs: Jobs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--minutes", "20"]) == 0
    assert [len(faults) for faults in jobs.asked] == [1, 10, 20] * 2
    gaps = [fmean(it["after_steps"] for it in faults) for faults in jobs.asked[1:3]]
    truth = [60 / 0.1, 20 / 0.1]  # steps take a tenth of a second there
    assert all(0.4 * long < gap < 2 * long for gap, long in zip(gaps, truth, strict=True))
    document = load(effective.FILE, effective.COMMAND)
    (one,) = document["cells"]["restart"]["rounds"]
    assert [len(one[name]["recoveries_s"]) for name in effective.JOBS] == [3, 8]
    assert one["held_out"]["forecast_ci95"][0] < one["held_out"]["share"] < one["held_out"]["forecast_ci95"][1]
    assert "restart: 8 of 8 recovered" in capsys.readouterr().out
    assert tables.effective(document).count("| restart |") == 2
    assert main(["--minutes", "20"]) == 0  # each has its round already
    assert len(jobs.asked) == 6


def test_each_mechanism_has_a_round_before_any_a_second_one(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def one_round(mechanism: str, seed: int) -> dict[str, Any]:
        order.append(f"{mechanism} {seed}")
        return {"known": GOOD, "held_out": HELD}

    monkeypatch.setattr(effective, "one_round", one_round)
    main(["--rounds", "2"])
    assert order == ["live 1", "restart 1", "live 2", "restart 2"]
    with pytest.raises(KeptError, match="decided before the first measurement: rounds 2; now: rounds 3"):
        main(["--rounds", "3"])
    assert jobs.asked == []


def test_a_mechanism_without_a_round_is_a_gap() -> None:
    assert "| restart | 0 | – | – | not measured |" in tables.effective({"cells": {}})


def test_a_fault_that_is_never_got_over_is_no_pass(jobs: Jobs) -> None:
    jobs.mutant = "no_recovery"
    assert main(["--minutes", "20"]) == 1


GOOD = {"share": 0.95, "formula": 0.94, "outcomes": ["recovered"], "wall_s": 60.0}
HELD = {"share": 0.90, "forecast": 0.89, "outcomes": ["recovered"], "wall_s": 20.0}


def changed(known: dict[str, Any], held_out: dict[str, Any]) -> dict[str, Any]:
    """A round with these things in it."""
    return {"known": GOOD | known, "held_out": HELD | held_out}


@pytest.mark.parametrize(
    ("known", "held_out"),
    [
        ({"share": 0.89, "formula": 0.89}, {}),
        ({"formula": 0.90}, {}),
        ({}, {"forecast": 0.95}),
        ({"outcomes": ["stuck"]}, {}),
        ({}, {"outcomes": ["recovered", "invalid"]}),
    ],
)
def test_what_misses_its_target_is_not_fine(known: dict[str, Any], held_out: dict[str, Any]) -> None:
    assert fine(changed({}, {}))
    assert not fine(changed(known, held_out))


def test_without_a_forecast_there_is_no_pass_and_it_is_said() -> None:
    silent = {key: value for key, value in HELD.items() if key != "forecast"}
    one = {"known": GOOD, "held_out": silent}
    assert error(silent, "forecast") is None
    assert not fine(one)
    assert "no forecast" in list(told({"cells": {"live": {"rounds": [one]}}}))[1]


@pytest.mark.parametrize("words", [["--minutes", "0"], ["--rounds", "0"]])
def test_nonsense_is_refused(words: Sequence[str]) -> None:
    with pytest.raises(SpecError, match="must be above 0"):
        main(list(words))
