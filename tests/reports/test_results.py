"""The analysis finds the truth that a made-up run was made with, and its document keeps to the schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from proving_ground.reports import document
from proving_ground.reports.figures import pick
from proving_ground.reports.scaling import page, results, sections, words
from proving_ground.reports.scaling.results import Analysis
from tests.reports.rewritten import rewrite
from tests.reports.synthetic import Knobs, make


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return results.analyse(make(tmp_path_factory.mktemp("runs"), Knobs(accuracy=0.97, baseline=0.1)))


def figure(analysis: Analysis, name: str, **where: object) -> dict[str, Any]:
    found = pick(analysis.figures, name, **where)
    assert found is not None, (name, where)
    return found


@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_efficiency_is_what_the_run_was_made_with(healthy: Analysis, nodes: int) -> None:
    found = figure(healthy, "efficiency", scaling="weak", nodes=nodes)
    one = 0.1 * 1.05 + 0.001
    truth = 100 * one / (one + 0.1 * Knobs().comm[nodes])
    assert found["ci95"][0] - 1 <= truth <= found["ci95"][1] + 1  # jitter costs the larger sizes up to a point
    assert found["n"] == len(found["values"]) == 3


@pytest.mark.parametrize("peak", [{}, {"peak_tflops": 0.5}])
def test_work_is_a_rank_s_part_of_the_samples_and_its_share_of_the_peak(tmp_path: Path, peak: dict[str, float]) -> None:
    told = {"flops_per_sample": 2e9} | peak
    analysis = results.analyse(make(tmp_path, Knobs(nodes=(1, 2), scalings=("weak",), work=told)))
    for nodes in (1, 2):
        rate = figure(analysis, "throughput", nodes=nodes)
        work = figure(analysis, "model_flops", nodes=nodes)
        assert work["median"] == pytest.approx(2e9 * rate["median"] / nodes / 1e12, rel=1e-6)
        used = pick(analysis.figures, "mfu", nodes=nodes)
        assert (used is None) == (not peak)
        assert used is None or used["median"] == pytest.approx(100 * work["median"] / 0.5, rel=1e-6)
    assert ("; MFU " in "".join(sections.work(analysis))) == bool(peak)
    assert "GFLOP/s a rank" in page.html(analysis)


@pytest.mark.parametrize("told", [{}, {"flops_per_sample": "many"}, {"flops_per_sample": -1.0}])
def test_work_that_was_not_told_is_no_figure(tmp_path: Path, told: dict[str, Any]) -> None:
    analysis = results.analyse(make(tmp_path, Knobs(nodes=(1,), scalings=("weak",), work={"peak_tflops": 1.0} | told)))
    assert pick(analysis.figures, "model_flops", nodes=1) is None


@pytest.mark.parametrize("most", [1, 2, 3, 9])
@pytest.mark.parametrize("repeats", [2, 3])
def test_what_is_shown_of_a_loss_adds_up_to_it(tmp_path: Path, most: int, repeats: int) -> None:
    comm = {1: 0.08, 2: 0.05, 4: 0.03, 8: 0.12}  # one node waits for more than two or four do: won, not lost
    analysis = results.analyse(make(tmp_path, Knobs(comm=comm, repeats=repeats, plant={"data": 0.004, "rest": 0.001})))
    won = []
    for cell in analysis.cells:
        kept = pick(analysis.figures, "efficiency", **cell.where)
        if kept is None or kept["where"]["base_nodes"] == cell.nodes:
            continue
        said = words.lost_to(analysis, cell, most)
        shown = [float(it.rpartition(" ")[2].replace("\N{MINUS SIGN}", "-")) for it in said.split(", ")]
        assert sum(shown) == pytest.approx(round(100 - kept["median"], 1), abs=0.051), said
        won += [it for it in said.split(", ") if "\N{MINUS SIGN}" in it]
    assert won


def test_lost_points_add_up_to_the_whole_loss(healthy: Analysis) -> None:
    for scaling in ("weak", "strong"):
        kept = figure(healthy, "efficiency", scaling=scaling, nodes=8)
        parts = [f for f in healthy.figures if f["name"] == "lost" and f["where"]["scaling"] == scaling]
        at_8 = [f["values"] for f in parts if f["where"]["nodes"] == 8]
        for repeat in range(3):
            assert sum(values[repeat] for values in at_8) == pytest.approx(100 - kept["values"][repeat], abs=0.3)


def test_shares_add_up_to_the_step(healthy: Analysis) -> None:
    shares = [f for f in healthy.figures if f["name"] == "time_share" and f["unit"] == "%"]
    assert len(shares) == 10 * 8  # parts x cells
    for repeat in range(3):
        whole = sum(f["values"][repeat] for f in shares if f["where"]["nodes"] == 4 and f["where"]["scaling"] == "weak")
        assert whole == pytest.approx(100)


def test_the_reference_has_no_interval(healthy: Analysis) -> None:
    found = figure(healthy, "efficiency", scaling="weak", nodes=1)
    assert found["median"] == 100
    assert found["ci95"] is None


def test_same_directory_same_document(tmp_path: Path) -> None:
    run = make(tmp_path, Knobs(repeats=2, nodes=(1, 2)))
    document.write(run, results.analyse(run).results)
    first = run.results.read_bytes()
    document.write(run, results.analyse(run).results)
    assert run.results.read_bytes() == first


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("figures", {"label": "guessed"}),
        ("figures", {"values": []}),
        ("figures", {"ci95": [1.0]}),
        ("figures", {"note": "more than the contract"}),
        ("verdicts", {"verdict": "maybe"}),
        ("verdicts", {"why": ""}),
    ],
)
def test_schema_refuses_what_is_not_the_contract(healthy: Analysis, key: str, change: dict[str, Any]) -> None:
    schema = json.loads(document.SCHEMA_FILE.read_text())
    made = json.loads(document.text(healthy.results))
    jsonschema.validate(made, schema)
    made[key][0] |= change
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(made, schema)


def test_a_clock_that_stands_still_is_no_measurement(tmp_path: Path) -> None:
    run = make(tmp_path, Knobs(nodes=(1, 2), steps=8))
    rewrite(run, lambda frozen: [{**record, "t": 1000.0} if record["event"] == "step" else record for record in frozen])
    analysis = results.analyse(run)
    assert not analysis.figures
    assert "samples in 0 s: its events make no sense" in analysis.verdicts[1]["why"]
