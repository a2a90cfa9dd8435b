"""What stands in the way: found when it does, not before, and never with a gain that nothing predicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from proving_ground.reports.cli import main
from proving_ground.reports.figures import pick, pick_all
from proving_ground.reports.scaling import advice, bottlenecks, page, results
from proving_ground.reports.scaling.bottlenecks import Finding
from proving_ground.reports.scaling.results import Analysis
from tests.reports.faked import case, faked, suite
from tests.reports.synthetic import Knobs, make

HEALTHY = Knobs(nodes=(1, 2), scalings=("weak",))


def found(root: Path, knobs: Knobs) -> list[Finding]:
    return bottlenecks.find(results.analyse(make(root, knobs)))


def test_a_healthy_run_has_nothing_in_its_way(tmp_path: Path) -> None:
    assert found(tmp_path, HEALTHY) == []


@pytest.mark.parametrize(
    ("knobs", "part", "line"),
    [
        ({"comm": {1: 0.0, 2: 0.5}}, "comm", "exposed communication 32 % of the step (above 20 %): other buckets"),
        ({"plant": {"data": 0.02}}, "data", "waiting for data 17 % of the step (above 5 %): load ahead"),
        ({"plant": {"checkpoint": 0.02}}, "checkpoint", "waiting for checkpoints 16 % of the step (above 5 %): save"),
    ],
)
def test_what_takes_too_much_of_the_step_is_found(
    tmp_path: Path, knobs: dict[str, object], part: str, line: str
) -> None:
    (only,) = found(tmp_path, dataclasses.replace(HEALTHY, **knobs))  # type: ignore[arg-type]
    assert (only.part, only.sure, only.cell.nodes) == (part, True, 2)
    assert f"digits weak, 2 nodes: {line}" in only.line


@pytest.mark.parametrize(("share", "there"), [(0.22, False), (0.29, True)])
def test_the_limit_is_where_it_is_said_to_be(tmp_path: Path, share: float, *, there: bool) -> None:
    """0.22 of the compute is 18 % of the step, 0.29 is 22 %."""
    assert bool(found(tmp_path, dataclasses.replace(HEALTHY, comm={1: 0.0, 2: share}))) == there


def test_the_gain_of_data_and_checkpoints_is_the_most_that_there_is(tmp_path: Path) -> None:
    (only,) = found(tmp_path, dataclasses.replace(HEALTHY, plant={"data": 0.02}))
    (gain,) = only.gains
    assert gain.at_most
    assert gain.percent == pytest.approx(20, abs=1.5)  # 0.02 s of 0.12 s gone
    assert "predicted at most +" in only.line


@pytest.mark.parametrize(("read", "percent"), [(0.02, 20.0), (0.12, 6.0)])
def test_loading_ahead_is_predicted_from_what_reading_took(tmp_path: Path, read: float, percent: float) -> None:
    """Of 0.127 s all the waiting goes, or what reading leaves; the key that does it is named, and a suite tries it."""
    knobs = dataclasses.replace(HEALTHY, plant={"data": 0.02}, read=read, training={"prefetch": 0})
    analysis = results.analyse(make(tmp_path, knobs))
    (only,) = bottlenecks.find(analysis)
    (gain,) = only.gains
    assert not gain.at_most
    assert gain.percent == pytest.approx(percent, abs=2)
    assert f"load ahead of the step (prefetch = 2): predicted {gain.percent:+.1f} % samples/s" in only.line
    (change,) = advice.of_loading(analysis, only.cell)
    assert (change.name, change.training) == ("digits-prefetch", {"prefetch": 2})
    assert change.gain == pytest.approx(gain.percent / 100)


@pytest.mark.parametrize(("read", "training"), [(0.02, {"prefetch": 4}), (0.0, {"prefetch": 0})])
def test_who_loads_ahead_already_or_tells_no_reading_is_not_told_to(
    tmp_path: Path, read: float, training: dict[str, Any]
) -> None:
    knobs = dataclasses.replace(HEALTHY, plant={"data": 0.02}, read=read, training=training)
    analysis = results.analyse(make(tmp_path, knobs))
    (only,) = bottlenecks.find(analysis)
    assert list(advice.of_loading(analysis, only.cell)) == []
    assert only.gains[0].at_most


def test_without_a_model_of_the_link_no_gain_is_made_up(tmp_path: Path) -> None:
    (only,) = found(tmp_path, dataclasses.replace(HEALTHY, comm={1: 0.0, 2: 0.5}))
    assert only.gains == []
    assert only.line.endswith("what that wins cannot be predicted here")


def test_one_repeat_is_not_sure(tmp_path: Path) -> None:
    (only,) = found(tmp_path, dataclasses.replace(HEALTHY, comm={1: 0.0, 2: 0.5}, repeats=1))
    assert not only.sure
    assert "(above 20 %, not surely)" in only.line


def test_a_trainer_that_times_nothing_has_no_findings(tmp_path: Path) -> None:
    assert found(tmp_path, dataclasses.replace(HEALTHY, comm={1: 0.0, 2: 0.9}, bare=True)) == []


def with_gpus(analysis: Analysis, **fields: float) -> Analysis:
    """MADE UP samples of one GPU, once a second."""
    t0 = min(t for t, *_ in analysis.history.machine)
    rows: list[tuple[float, list[Mapping[str, Any]]]] = [
        (t0 + second, [{"index": 0, **fields}]) for second in range(600)
    ]
    return dataclasses.replace(analysis, history=dataclasses.replace(analysis.history, gpus=rows))


@pytest.mark.parametrize(
    ("fields", "lines"),
    [
        ({"memory_used": 30, "memory_total": 100, "utilisation": 95}, ["GPU memory used 30 % (below 70 %)"]),
        ({"memory_used": 80, "memory_total": 100, "utilisation": 30}, ["GPU utilisation 30 % (below 50 %)"]),
        ({"memory_used": 80, "memory_total": 100, "utilisation": 95}, []),
        ({"power_w": 100}, []),
    ],
)
def test_gpus_with_room_are_found(tmp_path: Path, fields: dict[str, float], lines: list[str]) -> None:
    told = bottlenecks.find(with_gpus(results.analyse(make(tmp_path, HEALTHY)), **fields))
    assert [it.line.split(": ")[1] for it in told] == lines


def test_the_simulation_s_advice_is_used_where_the_link_is_known(tmp_path: Path) -> None:
    asked = suite(case(link_mbps=60), nodes=(1, 2), repeats=3)
    run = faked(tmp_path, asked)
    analysis = results.analyse(run)
    found = [it for it in bottlenecks.find(analysis) if it.part == "comm"]
    assert found
    assert found[0].gains
    assert [it.percent for it in found[0].gains] == sorted((it.percent for it in found[0].gains), reverse=True)
    assert not any(it.at_most for it in found[0].gains)
    assert all(it.percent >= 1 for it in found[0].gains)


def test_report_results_and_terminal_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make(tmp_path, dataclasses.replace(HEALTHY, plant={"data": 0.02}))
    assert main([str(run.path), "--no-html"]) in (0, 1)
    said = "digits weak, 2 nodes: waiting for data 17 % of the step"
    assert f"advice:  {said}" in capsys.readouterr().out.replace("\n", " ")
    figures = run.read("results")["figures"]
    where = {"case": "digits", "nodes": 2, "part": "data"}
    measured, gain = pick(figures, "bottleneck", **where), pick(figures, "gain", **where)
    assert measured
    assert gain
    assert (measured["label"], measured["unit"], measured["where"]["limit"]) == ("emulated", "%", 5.0)
    assert (gain["label"], gain["where"]["at_most"]) == ("predicted", True)
    html = page.html(bottlenecks.added(results.analyse(run)))
    assert "What would help" in html
    assert "waiting for data" in html


def test_a_run_without_findings_has_no_such_figures(tmp_path: Path) -> None:
    analysis = bottlenecks.added(results.analyse(make(tmp_path, HEALTHY)))
    assert pick_all(analysis.figures, "bottleneck") == pick_all(analysis.figures, "gain") == []


def test_what_gpus_do_is_a_figure_of_every_size(tmp_path: Path) -> None:
    analysis = with_gpus(results.analyse(make(tmp_path, HEALTHY)), utilisation=91.0)
    added = [it for it in bottlenecks.added(analysis).results["figures"] if it["name"] == "gpu_utilization"]
    assert [it["where"]["nodes"] for it in added] == [it.nodes for it in analysis.cells if it.counted]
    assert {value for it in added for value in it["values"]} == {91.0}
