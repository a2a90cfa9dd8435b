"""The matrix and the default suite accumulate over sittings, every cell once before any a second time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.clusters.fake import FakeCluster
from proving_ground.bench.provenance import host
from proving_ground.bench.run import TrialFailed
from proving_ground.bench.spec import Case, Suite
from tests.validations import depends, matrix, scaling
from tests.validations.__main__ import main
from tests.validations.sitting import Document, KeptError, Sitting, State, cut_off, decide, keep, load, named

CASES = tuple(
    Case(
        f"r18-{rate}", "resnet18", steps=4, estimated_step_s=1, batch_per_node=4, link_mbps=rate, warmup_steps=1,
        training={"bucket_mb": 4, "compression": "none"},
    )
    for rate in (400, 800)
)  # fmt: skip
SUITE = Suite("unit", "Unit", (1, 2), CASES, repeats=1)


def sit(
    tmp_path: Path, minutes: float = 60, rounds: int = 2, host: float = 9000.0, bench: matrix.Bench | None = None
) -> tuple[dict[str, Any], list[str]]:
    said: list[str] = []
    file = tmp_path / "matrix.json"
    document = load(file, matrix.MATRIX.command)
    decide(document, rounds=rounds, cells=[case.name for case in CASES])
    bench = bench or matrix.Bench(SUITE, FakeCluster(), tmp_path / "runs", {"busbw_mbps": {"2": host}})
    matrix.sit(bench, CASES, document, file, Sitting(minutes, say=said.append))
    return document, said


def test_every_cell_is_run_once_before_any_a_second_time_and_every_value_is_kept(tmp_path: Path) -> None:
    document, said = sit(tmp_path)
    assert json.loads((tmp_path / "matrix.json").read_text()) == document
    assert [line.split(":")[0] for line in said[1:-1:2]] == ["r18-400", "r18-800", "r18-400", "r18-800"]
    assert "2 cells, 2 rounds of" in said[0]
    assert "of this sitting left" in said[1]
    cell = document["cells"]["r18-800"]
    assert len(cell["runs"]) == cell["begun"] == 2
    at_two = cell["runs"][0]["sizes"]["2"]
    assert {"step_ms", "bound_ms", "above_bound_percent", "efficiency_percent"} <= set(at_two)


class Ill(matrix.Bench):
    """The first cell always fails; the machine is never steady."""

    def run(self, case: Case) -> Any:
        if case.name == "r18-400":
            raise TrialFailed("no step for 61 s")
        analysis = super().run(case)
        return replace(analysis, trials=[replace(trial, flags=("steal",)) for trial in analysis.trials])


def test_a_failed_and_a_disturbed_run_count_and_are_not_measured_again(tmp_path: Path) -> None:
    bench = Ill(SUITE, FakeCluster(), tmp_path / "runs", {"busbw_mbps": {"2": 9000.0}})
    document, said = sit(tmp_path, rounds=1, bench=bench)
    failed, disturbed = (document["cells"][case.name]["runs"] for case in CASES)
    assert [(it["failed"], it["sizes"]) for it in failed] == [("no step for 61 s", {})]
    assert [it["sizes"]["2"]["disturbed"] for it in disturbed] == [["steal"]]
    assert said[-1] == "0 cells to do, 1 failed, 0 refused whole"
    again, _ = sit(tmp_path, rounds=1)
    assert [len(it["runs"]) for it in again["cells"].values()] == [1, 1]


def test_a_run_that_is_cut_off_is_counted(tmp_path: Path) -> None:
    class CutOff(matrix.Bench):
        def run(self, case: Case) -> Any:
            raise KeyboardInterrupt(case.name)

    with pytest.raises(KeyboardInterrupt):
        sit(tmp_path, bench=CutOff(SUITE, FakeCluster(), tmp_path / "runs", None))
    document, _ = sit(tmp_path)
    assert cut_off(document) == 1
    assert [len(it["runs"]) for it in document["cells"].values()] == [2, 2]


def test_no_option_picks_cells_and_another_plan_needs_another_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sit(tmp_path, minutes=0.01)
    keep(file := tmp_path / "matrix.json", load(file, matrix.MATRIX.command) | {"plan": {"rounds": 2, "cells": ["a"]}})
    assert main(["matrix", "--rounds", "5", "--out", str(file)]) == 2
    assert "decided before the first measurement: cells 1, rounds 2; now: cells 48, rounds 5" in capsys.readouterr().err
    options = {word for action in matrix.parser(matrix.MATRIX)._actions for word in action.option_strings}
    assert options == {"-h", "--help", "--minutes", "--rounds", "--runs", "--out"}


def test_what_does_not_fit_is_left_for_the_next_sitting(tmp_path: Path) -> None:
    document, said = sit(tmp_path, minutes=0.01)
    assert document["cells"] == {}
    assert said[-1] == "2 cells to do, 0 failed, 0 refused whole"


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


def test_what_other_code_did_is_not_added_to_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kept.json"
    code = [{"commit": "a1", "paths": [], "sha256": depends.fingerprint(())}]
    keep(file, load(file, "it") | {"cells": {"a": {"runs": [1]}}, "code": code, "plan": {"rounds": 3}})

    def state(document: Document) -> State:
        return State(len(document["cells"]), 2, "cells", 0)

    assert load(file, "it", state)["cells"] == {"a": {"runs": [1]}}
    monkeypatch.setattr(depends, "fingerprint", lambda *_: "other")
    document = load(file, "it", state)
    assert "its code has changed, so it begins anew" in capsys.readouterr().out
    told = f"unknown: 1 of 2 cells. Measured at a1 on {named(host())}."
    assert (document["cells"], document["earlier"]) == ({}, [told])
    assert document["plan"] == {"rounds": 3}
    keep(file, document)
    assert json.loads(file.read_text())["cells"], "until there is a value, the earlier ones stay"
    with pytest.raises(KeptError, match="a part alone does not begin it anew"):
        load(file, "it", state, partial=True)
    document["cells"] = {"a": {"runs": [2]}}
    keep(file, document | {"code": [{"commit": "b2", "paths": [], "sha256": "other"}]})
    assert load(file, "it", state)["earlier"] == document["earlier"]
    said = f"Measured at b2. Its code is still the same. Before it: {told}"
    assert depends.words(json.loads(file.read_text())) == said
    monkeypatch.setattr(depends, "fingerprint", lambda *_: "again another")
    assert load(file, "it")["cells"] == document["cells"]  # counts over many commits go on whatever the code

    def older(_document: Document) -> State:
        raise KeyError

    assert load(file, "it", older)["earlier"][1] == "of an older format. Measured at b2."


def test_wrong_calls_are_answered_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing"]) == 2
    assert main(["matrix", "--minutes", "0"]) == 2
    assert "--minutes 0 --rounds 3: must be above 0" in capsys.readouterr().err


def repeats(*values: float) -> dict[str, Any]:
    runs = [
        {"sizes": {"1": {"efficiency_percent": [100.0]}, "2": {"efficiency_percent": [value]}}} for value in values
    ]  # fmt: skip
    return {"bars": {"2": 0.9}, "runs": runs}


def scaled(rounds: int, **cells: Any) -> list[str]:
    document = {"plan": {"rounds": rounds, "cells": [*cells]}, "cells": {name: it for name, it in cells.items() if it}}
    return [line.split("|")[-2].strip() for line in scaling.table(document).splitlines()[2:]]


def test_a_bar_is_failed_or_passed_only_beyond_the_noise() -> None:
    cells = {"a": repeats(95, 95.2, 94.9), "b": repeats(95, 80, 99), "c": repeats(80, 80.1, 79.9)}
    assert scaled(3, **cells) == ["pass", "cannot tell", "fail"]
    document = {"plan": {"rounds": 3, "cells": [*cells]}, "cells": cells}
    assert str(scaling.state(document)) == "fail: 9 of 9 runs, 1 not as they must be, 1 cannot be told"
    document["plan"] = {"rounds": 4, "cells": [*cells]}
    assert str(scaling.state(document)) == "unknown: 9 of 12 runs"


def test_nothing_is_judged_before_all_rounds_are_there_nor_by_more_rounds_of_some_cases() -> None:
    good, more = repeats(95, 95.2, 94.9), repeats(80, 80.1, 79.9, 95.0)
    assert scaled(4, a=good, b=more) == ["cannot tell yet"] * 2
    assert scaled(3, a=good, b=more) == ["pass", "fail"], "the fourth does not count"
    assert scaled(3, a=good, b=None) == ["cannot tell yet", "not measured"]


def test_a_disturbed_base_supports_no_efficiency() -> None:
    ill = repeats(185.0, 184.0, 186.0)
    for run in ill["runs"]:
        run["sizes"]["1"]["disturbed"] = ["steal"]
    assert scaled(3, a=ill) == ["cannot tell"]
