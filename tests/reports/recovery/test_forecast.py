"""The forecast against what can be worked out otherwise: brute force, other intervals, a run that it has not seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from proving_ground.reports import arguments
from proving_ground.reports.cli import main
from proving_ground.reports.recovery import failures, forecast, outlook, page
from proving_ground.reports.recovery.forecast import Asked, Known
from proving_ground.reports.recovery.results import analyse
from tests.reports.recovery.synthetic import FAULTS, Fault, Knobs, make

KNOWN = Known("restart", 3, "emulated", {"node_kill": [60.0, 90.0], "worker_kill": [30.0]}, block_s=2.0, step_s=0.5)
KILLS = tuple(Fault(f"f{number:02}", "worker_kill", 11 + 54 * number, "n2") for number in range(1, 9))
SELDOM = Knobs(steps=500, faults=KILLS[1::3], twins=(3,))
OFTEN = Knobs(steps=500, faults=KILLS, twins=(3,))


def test_the_published_record_adds_up() -> None:
    assert failures.INTERRUPTIONS == 419
    assert failures.mtbf_node_hours() == pytest.approx(54 * 24 * 2048 / 419)
    assert pytest.approx(356 / 419) == failures.REPAIR_SHARE


def test_the_mean_recovery_is_weighed_by_the_mix_and_what_was_not_measured_is_the_mean_of_all() -> None:
    software, network_and_watchdog = 54 + 2, 35 + 7 + 7
    nodes = 419 - software - network_and_watchdog
    mean = (75 * nodes + 30 * software + 60 * network_and_watchdog) / 419
    assert pytest.approx(mean) == KNOWN.restart_s
    drawn = KNOWN.draw(np.random.default_rng(1), 40_000)
    assert drawn.mean() == pytest.approx(mean, rel=0.01)


@pytest.mark.parametrize("nodes", [64, 2048, 16_384])
def test_simulated_jobs_agree_with_the_closed_form(nodes: int) -> None:
    row = forecast.row(KNOWN, nodes, Asked(mtbf_node_hours=6000))
    assert row.ends[0] < row.middle < row.ends[1]
    assert row.middle == pytest.approx(row.ettr, abs=0.012)
    assert row.lost_node_hours == pytest.approx(24 * nodes * (1 - row.middle), rel=0.1)


@pytest.mark.parametrize("back", [0.02, 0.3])
def test_where_few_failures_take_training_back_checkpoints_are_rarer_and_less_is_lost(back: float) -> None:
    live = replace(KNOWN, back=back)
    asked = Asked(mtbf_node_hours=6000)
    row, before = forecast.row(live, 2048, asked), forecast.row(KNOWN, 2048, asked)
    assert row.interval_s == pytest.approx(before.interval_s / back**0.5)
    assert row.ettr > before.ettr
    assert row.middle == pytest.approx(row.ettr, abs=0.012)
    assert "of the failures are taken to bring training back" in outlook.basis(live, asked)
    assert "taken to bring" not in outlook.basis(KNOWN, asked)


def test_no_other_interval_is_better_than_young_and_daly_s() -> None:
    rate = 2048 / 6000 / 3600
    best = forecast.best_interval_s(KNOWN, rate)
    around = {factor: forecast.simulated(KNOWN, rate, factor * best, 86400.0 * 20).mean() for factor in (0.4, 1, 2.5)}
    assert max(around, key=lambda factor: around[factor]) == 1


def test_spares_are_the_fewest_with_which_nobody_waits() -> None:
    away = 9.0
    spares = forecast.spares_needed(away)
    rng = np.random.default_rng(3)
    starts = np.cumsum(rng.exponential(1 / away, 200_000))  # repairs that take 1 each, begun at random
    busy = [np.searchsorted(starts, t) - np.searchsorted(starts, t - 1) for t in rng.uniform(10, starts[-1], 100_000)]
    assert np.mean(np.array(busy) > spares) < forecast.WAITING < np.mean(np.array(busy) > spares - 1)


def test_spares_and_money_by_what_is_stated() -> None:
    few, many = (forecast.row(KNOWN, 512, Asked(mtbf_node_hours=1000, repair_hours=hours)) for hours in (2, 200))
    assert few.spares < many.spares
    assert few.cost is None
    priced = forecast.row(KNOWN, 512, Asked(mtbf_node_hours=1000, price=3.0))
    assert priced.cost == pytest.approx(3 * priced.lost_node_hours)


def test_a_run_at_another_rate_of_faults_is_foretold(tmp_path: Path) -> None:
    seldom, often = analyse(make(tmp_path / "a", SELDOM)), analyse(make(tmp_path / "b", OFTEN))
    (it,) = forecast.known(seldom)
    (score,) = forecast.held_out(it, often)
    assert (score.faults, score.close) == (8, True)
    assert abs(score.error_points) < 1.5
    assert score.ends[0] < score.measured < score.ends[1]


def test_costs_that_are_not_those_of_the_run_are_found_out(tmp_path: Path) -> None:
    (it,) = forecast.known(analyse(make(tmp_path, OFTEN)))
    slower = replace(it, times={"worker_kill": [seconds + 1.5 for seconds in it.every]})
    (score,) = forecast.held_out(slower, analyse(make(tmp_path / "b", OFTEN)))
    assert not score.close
    assert outlook.told(score, "restart").endswith("NOT within 3 points")


def test_stuck_faults_are_said_and_left_out(tmp_path: Path) -> None:
    run = analyse(make(tmp_path, Knobs(mutant="no_recovery", at="f02")))
    (it,) = forecast.known(run)
    assert (it.stuck, list(it.times)) == (1, ["worker_kill"])
    assert "1 fault not got over, or slow ever after: not in the forecast" in outlook.basis(
        it, Asked(mtbf_node_hours=1000)
    )


def test_a_fault_that_left_the_job_slow_is_left_out_too(tmp_path: Path) -> None:
    faults = Knobs(faults=FAULTS[:2], mutant="stays_slow", at="f02")
    (it,) = forecast.known(analyse(make(tmp_path, faults)))
    assert (it.stuck, list(it.times)) == (1, ["worker_kill"])


def test_the_page_has_the_forecast_and_says_that_nothing_of_it_was_run(tmp_path: Path) -> None:
    text = page.html(analyse(make(tmp_path, Knobs())))
    assert "predicted, not run" in text
    assert ">16,384<" in text


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, SELDOM, suite="seldom")
    make(tmp_path, OFTEN, suite="often")
    words = ["forecast", "seldom", "--runs", str(tmp_path), "--nodes", "8,64", "--price", "2"]
    assert main([*words, "--mtbf-node-hours", "500"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("predicted: restart: 3 recoveries on 3 nodes")
    assert "a failure every 500 hours of a node;" in said
    assert main([*words, "--held-out", "often"]) == 0
    assert "within 3 points" in capsys.readouterr().out


def test_a_mistake_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, Knobs(faults=FAULTS[2:3]), suite="slow")
    assert main(["forecast", "slow", "--runs", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "reports: slow: no recovery and checkpoint were measured\n"
    for text in ("0", "8,x", "2000000"):
        with pytest.raises(Exception, match="whole numbers from 1 to 1000000"):
            arguments.counts(text)
