"""A run's figures as OpenMetrics: Prometheus' own parser reads back every figure, in base units."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from proving_ground.bench import rundir
from proving_ground.monitoring import openmetrics
from proving_ground.monitoring.cli import main
from proving_ground.reports import document
from proving_ground.reports.recovery import results as recovery
from proving_ground.reports.scaling import results
from tests.reports.recovery import synthetic as chaos
from tests.reports.synthetic import Knobs, make


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> rundir.RunDir:
    made = make(tmp_path_factory.mktemp("runs"), Knobs(nodes=(1, 2), steps=12, scalings=("weak",)))
    document.write(made, results.analyse(made).results)
    return made


def samples(run: rundir.RunDir) -> list[Any]:
    families = text_string_to_metric_families(openmetrics.text(run))  # type: ignore[no-untyped-call] # no types
    return [sample for family in families for sample in family.samples]


def test_every_figure_is_there_in_its_base_unit(run: rundir.RunDir) -> None:
    figures = run.read("results")["figures"]
    found = samples(run)
    medians = [
        it for it in found if "end" not in it.labels and not it.name.endswith("_values") and "check" not in it.labels
    ]
    assert len(medians) == len(figures)
    [step] = [it for it in found if it.name == "proving_ground_step_time_seconds" and it.labels["nodes"] == "2"]
    ms = next(it["median"] for it in figures if it["name"] == "step_time" and it["where"]["nodes"] == 2)
    assert step.value == pytest.approx(ms / 1000)
    assert step.labels["run"] == run.run_id
    [low] = [
        it for it in found
        if it.name == "proving_ground_step_time_seconds_ci95" and (it.labels["nodes"], it.labels["end"]) == ("2", "low")
    ]  # fmt: skip
    assert low.value < step.value


def test_unknown_is_neither_0_nor_1(run: rundir.RunDir) -> None:
    document = run.read("results")
    values = {"pass": 1.0, "fail": 0.0, "unknown": None}
    found = [it for it in samples(run) if it.name == "proving_ground_verdict"]
    assert len(found) == len(document["verdicts"])
    wanted = [values[it["verdict"]] for it in document["verdicts"]]
    assert [None if math.isnan(it.value) else it.value for it in found] == wanted


@pytest.mark.parametrize("change", [{"median": {}}, {"median": "fast"}, {"n": []}, {"where": 1}, {"unit": {}}])
def test_what_no_report_writes_is_refused_in_a_line(
    change: dict[str, Any], run: rundir.RunDir, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / run.suite / run.run_id
    shutil.copytree(run.path, folder)
    document = run.read("results")
    first, *rest = document["figures"]
    rundir.RunDir(folder).write("results", {**document, "figures": [{**first, **change}, *rest]})
    assert main(["openmetrics", str(folder)]) == 2
    said = capsys.readouterr()
    assert "results.json: not as a report writes it (" in said.err
    assert (said.out, said.err.count("\n")) == ("", 1)


def test_a_median_changed_is_seen(run: rundir.RunDir) -> None:
    document = run.read("results")
    for it in document["figures"]:
        it["median"] *= 2
    changed = {it.name: it.value for it in families(document) if it.labels.get("nodes") == "2"}
    before = {it.name: it.value for it in families(run.read("results")) if it.labels.get("nodes") == "2"}
    assert changed["proving_ground_throughput_samples_per_second"] == pytest.approx(
        2 * before["proving_ground_throughput_samples_per_second"]
    )


def families(document: dict[str, Any]) -> list[Any]:
    return [sample for family in openmetrics.Figures(document).collect() for sample in family.samples]


def test_a_chaos_run_is_read_too(tmp_path: Path) -> None:
    run = chaos.make(tmp_path)
    document.write(run, recovery.analyse(run).results)
    assert any(it.name == "proving_ground_resume_seconds" for it in samples(run))


def test_without_results_it_says_how_to_make_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make(tmp_path / "runs", Knobs(nodes=(1, 2), steps=12, scalings=("weak",)))
    assert main(["openmetrics", str(run.path), "--runs", str(tmp_path / "runs")]) == 2
    assert f"make it: pg reports {run.path}" in capsys.readouterr().err
