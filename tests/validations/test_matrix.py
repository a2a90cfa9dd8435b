"""The matrix accumulates over sittings, does what fits, and its tables judge what was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.clusters.fake import FakeCluster
from bench.provenance import host
from bench.spec import Case, Suite
from tests.validations import matrix, tables
from tests.validations.__main__ import main
from tests.validations.sitting import KeptError, Sitting, keep, load

CASES = tuple(
    Case(
        f"r18-{rate}", "resnet18", steps=4, estimated_step_s=1, batch_per_node=4, link_mbps=rate, warmup_steps=1,
        training={"bucket_mb": 4, "compression": "none"},
    )
    for rate in (400, 800)
)  # fmt: skip
SUITE = Suite("unit", "Unit", (1, 2), CASES, repeats=1)


def sit(
    tmp_path: Path, minutes: float = 60, repeats: int = 1, host: float = 9000.0
) -> tuple[dict[str, Any], list[str]]:
    said: list[str] = []
    file = tmp_path / "matrix.json"
    document = load(file, matrix.MATRIX.command)
    bench = matrix.Bench(SUITE, FakeCluster(), tmp_path / "runs", {"busbw_mbps": {"2": host}})
    assert matrix.sit(bench, CASES, document, file, Sitting(minutes, say=said.append), repeats) == 0
    return document, said


def test_a_sitting_does_what_is_left_and_keeps_every_value(tmp_path: Path) -> None:
    sit(tmp_path)
    document, said = sit(tmp_path, repeats=2)
    assert json.loads((tmp_path / "matrix.json").read_text()) == document
    cell = document["cells"]["r18-800"]
    assert len(cell["runs"]) == 2
    at_two = cell["sizes"]["2"]
    assert at_two["n"] == 2
    assert {"step_ms", "bound_ms", "above_bound_percent", "efficiency_percent"} <= set(at_two)
    assert len(said) == 2 * 2 + 1
    assert "of this sitting left" in said[0]


def test_what_does_not_fit_is_left_for_the_next_sitting(tmp_path: Path) -> None:
    document, said = sit(tmp_path, minutes=0.01)
    assert document["cells"] == {}
    assert said == ["2 cells to do, 0 failed, 0 refused whole"]


def test_a_case_that_really_computes_is_measured_alone_and_not_predicted(tmp_path: Path) -> None:
    real = Case("digits", "digits", steps=4, estimated_step_s=1, batch_per_node=4, repeats=4)
    suite = replace(SUITE, nodes=(1, 2, 4), predict_from=(1, 2), cases=(*CASES, real))
    bench = matrix.Bench(suite, FakeCluster(), tmp_path, None)
    plan = bench.plan(real)
    assert plan is not None
    assert [trial.repeat for trial in plan.trials] == [1, 1, 1]
    paced = bench.plan(CASES[0])
    assert paced is not None
    assert {trial.block for trial in paced.trials} == {"a", "b"}


def test_a_disturbed_run_is_repeated_and_does_not_count() -> None:
    disturbed = {"step_ms": [200.0], "disturbed": ["steal"]}
    steady = {"step_ms": [100.0]}

    def document(*sizes: object) -> Any:
        return {"cells": {CASES[0].name: {"runs": [{"sizes": {"2": it}} for it in sizes]}}}

    done = [matrix.done(document(*sizes), CASES[0], 1) for sizes in ([], [disturbed], [disturbed, steady])]
    assert done == [0, 0, 1]
    assert matrix.done(document(disturbed, disturbed, disturbed), CASES[0], 1) == 1, "not for ever"
    runs = document(disturbed, steady)["cells"][CASES[0].name]["runs"]
    assert matrix.summarised(runs, "2") == {"n": 1, "step_ms": 100.0}
    assert matrix.summarised(runs[:1], "2") == {"n": 1, "step_ms": 200.0, "disturbed": True}


def test_refused_sizes_are_kept_with_the_reason(tmp_path: Path) -> None:
    document, said = sit(tmp_path, host=5000.0)
    cells = document["cells"]
    assert "above a tenth" in cells["r18-800"]["refused"]["2"]
    assert cells["r18-400"]["refused"] == {}
    assert said[-1] == "0 cells to do, 0 failed, 0 refused whole"


@pytest.mark.parametrize("text", ["{", '{"command": "other", "cells": {}}', "[]"])
def test_results_that_cannot_be_used_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "matrix.json"
    file.write_text(text)
    with pytest.raises(KeptError, match="move it away to start afresh"):
        load(file, matrix.MATRIX.command)


def test_counts_of_several_machines_are_added_and_times_are_not(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    elsewhere = host() | {"cpu": "another", "cores": 64}
    keep(file, {"command": "it", "machine": elsewhere, "cells": {}})
    with pytest.raises(KeptError, match=r"measured on another machine \(64 × another\)"):
        load(file, "it")
    keep(file, load(file, "it", anywhere=True))
    document = load(file, "it", anywhere=True)
    assert (document["machine"], document["other_machines"]) == (elsewhere, [host()])


def test_wrong_calls_are_answered_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing"]) == 2
    assert main(["matrix", "--cells", "nothing"]) == 2
    assert main(["matrix", "--minutes", "0"]) == 2
    assert "no case has that in its name" in capsys.readouterr().err


def cell(link: float, allowed: float, efficiency: float, above: float = 1.0, error: float = 1.0) -> dict[str, object]:
    size = {
        "n": 1, "step_ms": 100.0, "bound_ms": 99.0, "above_bound_percent": above, "efficiency_percent": efficiency,
        "efficiency_bound_percent": allowed, "prediction_error_percent": error,
    }  # fmt: skip
    return {"workload": "resnet18", "link_mbps": link, "bucket_mb": 4, "compression": "none", "sizes": {"8": size}}


def test_the_efficiency_is_judged_at_the_lowest_link_that_allows_it() -> None:
    slow, middle, fast = cell(100, 80, 79), cell(200, 94, 91.5), cell(400, 98, 97.5)
    lines = tables.efficiencies({"cells": {"a": slow, "b": middle, "c": fast}})
    assert lines[2].endswith("0 of 1 combinations ≥92 %; lowest 91.5 % of 94.0 % (resnet18, 200 Mb/s, 4 MB, none)")
    assert lines[0].endswith("no cell allows it")


def test_the_worst_cell_is_named() -> None:
    document = {"cells": {"a": cell(100, 80, 79), "b": cell(200, 94, 90, above=-7.0, error=-9.0)}}
    assert "1 of 2 sizes within 5 %, worst -7.0 % (b, 8 nodes)" in tables.closeness(document)
    assert "mean error 5.00 %" in tables.predictions(document)
    assert "worst 9.0 % (asked ≤8; b, 8 nodes)" in tables.predictions(document)
    assert "| b | 8 | 1 | 100 | 99 | -7.0 % |" in tables.matrix(document)
    assert tables.targets(document).count("\n- ") == 4


def test_a_bar_is_failed_or_passed_only_beyond_the_noise() -> None:
    def cell(*values: float) -> dict[str, object]:
        runs = [{"sizes": {"2": {"efficiency_percent": [value]}}} for value in values]
        return {"bars": {"2": 0.9}, "runs": runs}

    cells = {"a": cell(95, 95.2, 94.9), "b": cell(95, 80, 99), "c": cell(80, 80.1, 79.9), "d": cell(95), "e": cell()}
    cells["f"] = cell(95, 95.2, 94.9)
    cells["f"]["runs"].append({"sizes": {"2": {"efficiency_percent": [10.0], "disturbed": ["steal"]}}})  # type: ignore[attr-defined]
    said = [line.split("|")[-2].strip() for line in tables.scaling({"cells": cells}).splitlines()[2:]]
    assert said == ["pass", "cannot tell", "fail", "cannot tell", "cannot tell", "pass"]


def test_the_documents_tables_are_those_of_the_measured_values() -> None:
    stale = [path.name for path in tables.DOCUMENTS if tables.rendered(path.read_text()) != path.read_text()]
    assert stale == [], "python -m tests.validations tables"
