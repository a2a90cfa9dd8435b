"""A matrix becomes cases; dilation stretches compute and links alike; what would measure the host is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench import calibrate, rundir
from proving_ground.bench.clusters.fake import FakeCluster
from proving_ground.bench.faithful import Calibration
from proving_ground.bench.matrix import MatrixError, expand
from proving_ground.bench.plan import Plan, make_plan
from proving_ground.bench.run import Parts, run
from proving_ground.bench.spec import Case, SpecError, Suite, load_suite, suite_from

MATRIX: dict[str, Any] = {
    "case": {"steps": 3, "training": {"momentum": 0.5}},
    "axes": {
        "model": {"a": {"workload": "resnet18"}, "b": {"workload": "resnet50"}},
        "bucket": {"4mb": {"training": {"bucket_mb": 4}}, "25mb": {"training": {"bucket_mb": 25}}},
    },
}
PACED = Case(
    "r18", "resnet18", steps=3, estimated_step_s=99, batch_per_node=4, link_mbps=800, dilation=4.0,
    training={"bucket_mb": 4},
)  # fmt: skip


def suite(case: Case = PACED, nodes: tuple[int, ...] = (1, 2, 8)) -> Suite:
    return Suite("unit", "Unit", nodes, (case,), repeats=1)


def test_every_combination_is_a_case() -> None:
    cases = expand(MATRIX)
    assert [case["name"] for case in cases] == ["a-4mb", "a-25mb", "b-4mb", "b-25mb"]
    assert cases[3] == {
        "name": "b-25mb", "steps": 3, "workload": "resnet50", "training": {"momentum": 0.5, "bucket_mb": 25},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        ([], "it must be a table of tables"),
        ({"axis": {}}, "unknown key 'axis'; allowed: case, axes"),
        ({"case": {}}, "0 cells; allowed: at least one axis"),
        ({"axes": {"model": {}}}, "axes.model: needs at least one option"),
        ({"axes": {"model": {"a": 3}}}, "axes.model must be a table of tables"),
        ({"axes": {"model": {"a": {"name": "x"}}}}, "'name' is set already"),
        ({"case": {"steps": 1}, "axes": {"m": {"a": {"steps": 2}}}}, "axes.m.a: 'steps' is set already"),
        ({"axes": {x: {str(n): {} for n in range(40)} for x in "ab"}}, "1600 cells"),
    ],
)
def test_a_wrong_matrix_is_refused_in_one_line(matrix: object, words: str) -> None:
    with pytest.raises(MatrixError, match=words):
        expand(matrix)


def test_a_suite_says_where_its_matrix_is_wrong() -> None:
    with pytest.raises(SpecError, match=r"mine\.toml: matrix: unknown key"):
        suite_from({"title": "t", "nodes": [1], "matrix": {"x": {}}}, where="mine.toml", name="mine")


def test_the_shipped_matrix_has_the_cells_it_promises() -> None:
    cells = load_suite("matrix").cases
    assert len(cells) == len({cell.name for cell in cells}) == 48
    assert len({cell.link_mbps for cell in cells}) >= 4
    assert {cell.workload for cell in cells} == {"resnet18", "resnet50", "vit_b_16"}
    assert {(cell.training["bucket_mb"], cell.training["compression"]) for cell in cells} == {
        (4, "none"), (4, "fp16"), (25, "none"), (25, "fp16"),
    }  # fmt: skip
    assert {cell.link_mbps / cell.dilation for cell in cells if cell.link_mbps} == {200.0}


def planned(made: Plan, nodes: int) -> Any:
    return next(trial for trial in made.trials if trial.nodes == nodes)


def test_dilation_stretches_compute_and_links_alike() -> None:
    slow, plain = (planned(make_plan(suite(case), FakeCluster()), 8) for case in (PACED, replace(PACED, dilation=1.0)))
    assert (slow.link_mbps, slow.training["pace"]) == (200.0, 4.0)
    assert slow.bound["step_s"] == pytest.approx(4 * plain.bound["step_s"])
    assert any("stand for links of 800 Mb/s" in words for words in slow.imitated)
    assert not any("stand for" in words for words in plain.imitated)
    assert slow.estimate_s == pytest.approx(1.5 + 8 * 0.15 + 3 * slow.bound["step_s"])


def test_real_compute_cannot_be_dilated() -> None:
    with pytest.raises(SpecError, match="dilation = 2: allowed for paced compute only"):
        make_plan(suite(replace(PACED, workload="digits", dilation=2.0, training={})), FakeCluster())


def test_what_would_measure_the_host_is_refused_with_the_reason() -> None:
    made = make_plan(suite(), FakeCluster(), found=Calibration({2: 8000.0, 8: 1999.0}))
    assert [trial.nodes for trial in sorted(made.trials, key=lambda it: it.nodes)] == [1, 2]
    assert [(it["case"], it["nodes"]) for it in made.refused] == [("r18", 8)]
    assert "above a tenth" in made.refused[0]["why"]
    assert "1999 Mb/s" in made.refused[0]["why"]
    assert make_plan(suite(), FakeCluster(), found=Calibration({2: 8000.0, 8: 2000.0})).refused == ()


def test_a_matrix_of_which_nothing_is_left_is_refused() -> None:
    with pytest.raises(SpecError, match="every trial would measure the host: 8 nodes: links of 200 Mb/s"):
        make_plan(suite(nodes=(8,)), FakeCluster(), found=Calibration({8: 500.0}))


def test_a_profile_of_another_model_is_refused() -> None:
    with pytest.raises(SpecError, match="profile 'resnet50-cpu' is of resnet50, not of resnet18"):
        make_plan(suite(replace(PACED, training={"profile": "resnet50-cpu"})), FakeCluster())


def test_the_calibration_is_kept_in_the_run_and_sealed(tmp_path: Path) -> None:
    calibration = {"busbw_mbps": {"2": 9000.0, "8": 100.0}}
    store = run(suite(), FakeCluster(), tmp_path, Parts(calibration=calibration))
    assert store.read("calibration") == calibration
    assert "calibration.json" in store.read("seal")["files"]
    assert [it["nodes"] for it in store.read("plan")["refused"]] == [8]


def test_calibration_takes_the_median_of_the_rounds_after_the_first(tmp_path: Path) -> None:
    store = rundir.create(tmp_path, "calibration")
    store.write("plan", {"trials": [{"id": "t001", "warmup_steps": 1}]})
    rates = [1.0, 500e6, 900e6, 300e6]
    lines = [
        json.dumps({"t": step, "event": "collective", "trial": "t001", "ranks": 4, "step": step, "busbw": rate})
        for step, rate in enumerate(rates, 1)
    ]
    store.history.write_text("\n".join(lines) + "\n")
    assert calibrate.bandwidths(store) == {4: 4000.0}


def test_calibration_needs_two_nodes(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="at least one count above 1"):
        calibrate.calibrate(FakeCluster(), [1], tmp_path)
