"""Planting: a plant hits the larger size only, and is judged by what the steps became."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.clusters.fake import FakeCluster
from proving_ground.bench.plan import make_plan
from proving_ground.bench.protocols import Node, TrialFiles
from proving_ground.bench.spec import Suite
from proving_ground.bench.workloads import WORKLOADS
from proving_ground.reports.scaling import results
from tests.reports.synthetic import Knobs, make
from tests.validations import attribution, tables
from tests.validations.__main__ import main
from tests.validations.attribution import HEALTHY, PLANTS, Plant, Planted, case, judge


@pytest.mark.parametrize("name", list(PLANTS))
def test_one_node_stays_healthy(name: str, tmp_path: Path) -> None:
    planted = Planted(WORKLOADS["resnet18"], PLANTS[name], FakeCluster())
    suite = Suite("unit", "Unit", (1, 4), (case(name, PLANTS[name]),), repeats=1)
    told = {}
    for trial in make_plan(suite, FakeCluster(), {name: planted}).trials:
        nodes = [Node(f"n{number}", "10.0.0.1") for number in range(1, trial.nodes + 1)]
        specs = planted.processes(trial, nodes, TrialFiles(tmp_path, tmp_path, tmp_path))
        told[trial.nodes] = [{key for key in spec.env if key.removeprefix("PROVING_GROUND_") in KEYS} for spec in specs]
    assert told[1] == [set()]
    assert any(told[4]) == bool(PLANTS[name].everywhere or PLANTS[name].last)


KEYS = {"PACE", "STORE_S", "PREFETCH", "CHECKPOINT_EVERY", "CHECKPOINT_ASYNC", "CHECKPOINT_DIR"}


def judged(folder: Path, monkeypatch: pytest.MonkeyPatch, booked_on: str) -> dict[str, Any]:
    """A made-up run with a healthy case and one in which 20 ms of data wait are planted at two nodes."""
    monkeypatch.setitem(attribution.PLANTS, "sick", Plant(booked_on, "twenty milliseconds"))
    knobs = Knobs(nodes=(1, 2), scalings=("weak",), bars={}, noise=0.0005, jitter=0.0, cases=(HEALTHY,), steps=16)
    healthy, sick = make(folder / "a", knobs), make(folder / "b", replace(knobs, cases=("sick",), plant={"data": 0.02}))
    analyses = [results.analyse(run) for run in (healthy, sick)]
    figures = [figure for analysis in analyses for figure in analysis.figures]
    both = replace(
        analyses[0], trials=[trial for analysis in analyses for trial in analysis.trials],
        results={**analyses[0].results, "figures": figures},
    )  # fmt: skip
    return judge(both, "sick", 2)


def test_a_plant_that_is_found_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = judged(tmp_path, monkeypatch, "data")
    assert found["found"]
    assert found["true_points"] == pytest.approx(100 * 0.02 / 0.129, abs=0.6)
    assert json.loads(json.dumps(found)) == found
    assert "| `data` |" in tables.attribution({"plants": {"sick": found}, "nodes": 2})


def test_chosen_plants_do_not_take_the_place_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attribution", "--plant", "slow-link"]) == 2
    assert (
        "--plant: attribution.json has all plants of one run; name another file with --out" in capsys.readouterr().err
    )


def test_a_plant_booked_elsewhere_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not judged(tmp_path, monkeypatch, "wait")["found"]
