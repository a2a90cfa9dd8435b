"""Advice as it is told: what the reports found, with the gains that they predict, and nothing of its own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from proving_ground.bench.rundir import RunDir, RunDirError
from proving_ground.monitoring import advice, rules
from proving_ground.monitoring.cli import main
from proving_ground.reports import document
from proving_ground.reports.scaling import bottlenecks, results
from tests.reports.synthetic import Knobs, make

WHERE = {"case": "own", "scaling": "weak", "nodes": 4, "part": "comm"}


def figure(name: str, median: float, label: str = "emulated", unit: str = "%", **where: Any) -> dict[str, Any]:
    about = {**WHERE, **where}
    return {"name": name, "median": median, "label": label, "unit": unit, "where": about, "values": [median]}


def told(root: Path, *figures: dict[str, Any]) -> list[str]:
    run = RunDir(root)
    run.write("results", {"figures": list(figures), "verdicts": [], "trials": []})
    return list(advice.lines(run))


FOUND = figure("bottleneck", 31.4, limit=20.0, sure=True)


def test_a_finding_is_told_with_its_gains(tmp_path: Path) -> None:
    gain = figure("gain", 12.34, "predicted", "% of samples/s", advice="FP16", at_most=False)
    assert told(tmp_path, FOUND, gain) == [
        "own weak, 4 nodes: exposed communication 31 % (above 20 %; emulated)",
        "  FP16: predicted +12.3 % of samples/s",
    ]


def test_without_a_prediction_no_gain_is_named(tmp_path: Path) -> None:
    other = figure("gain", 9.0, "predicted", "% of samples/s", advice="less data", at_most=True, part="data")
    assert told(tmp_path, FOUND, other) == [
        "own weak, 4 nodes: exposed communication 31 % (above 20 %; emulated)",
        "  what a change would win cannot be predicted here",
        "own weak, 4 nodes: less data: predicted at most +9.0 % of samples/s",
    ]


def test_doubt_is_told_and_what_should_be_high_is_below(tmp_path: Path) -> None:
    (line, _) = told(tmp_path, figure("bottleneck", 41, "real", part="gpu_utilization", limit=50.0, sure=False))
    assert line == "own weak, 4 nodes: GPU utilisation 41 % (below 50 %, not surely; real)"


def test_a_recovery_report_s_gains_are_told_the_largest_first(tmp_path: Path) -> None:
    gains = [figure("gain", value, "predicted", "points", advice=f"do {value}") for value in (1.0, 7.0)]
    assert [line.split(": ")[1] for line in told(tmp_path, *gains)] == ["do 7.0", "do 1.0"]


def test_a_run_without_results_says_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match=r"no results\.json yet; make it when the run is over: pg reports"):
        list(advice.lines(RunDir(tmp_path)))


def test_the_whole_way_from_a_recorded_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    knobs = Knobs(nodes=(1, 2), scalings=("weak",))
    for plant, line in (
        ({"data": 0.02}, "  load ahead of the step"),
        ({}, "run 20260102T030405Z-abcd: nothing is bey"),
    ):
        run = make(tmp_path / str(len(plant)), dataclasses.replace(knobs, plant=plant))
        document.write(run, bottlenecks.added(results.analyse(run)).results)
        assert main(["advice", str(run.path)]) == 0
        assert line in capsys.readouterr().out


def test_names_of_parts_are_those_of_the_reports() -> None:
    assert advice.NAMES == bottlenecks.NAMES
    assert set(advice.LOWER_IS_WORSE) == set(bottlenecks.UNDER)


@pytest.mark.parametrize(("alert", "file"), [("CommunicationHigh", "training"), ("GpuIdle", "gpus")])
def test_alerts_about_waste_name_the_advice(alert: str, file: str) -> None:
    document = yaml.safe_load((rules.RULES / f"{file}.yaml").read_text())
    (rule,) = (it for it in rules.rules_of(document) if it.get("alert") == alert)
    assert "pg monitoring advice" in rule["annotations"]["first"]
