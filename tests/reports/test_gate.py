"""Constraints are judged by intervals: what straddles a bound, was not measured or is one value is no pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.rundir import RunDirError
from proving_ground.reports import arguments, document, gate
from proving_ground.reports.cli import main
from proving_ground.reports.recovery import results as recovery
from proving_ground.reports.scaling import results
from proving_ground.reports.verdicts import FAIL, PASS, UNKNOWN
from tests.reports.recovery import synthetic as chaos
from tests.reports.synthetic import Knobs, make

WHOLE: list[dict[str, Any]] = [
    {"check": it, "verdict": "pass", "why": "", "where": {}} for it in ("sealed", "completed")
]


def figure(name: str, unit: str, ci95: list[float] | None, values: list[float], **where: Any) -> dict[str, Any]:
    middle = sorted(values)[len(values) // 2]
    return {"name": name, "unit": unit, "label": "emulated", "where": where, "n": len(values), "median": middle,
            "ci95": ci95, "values": values}  # fmt: skip


FIGURES = [
    figure("efficiency", "%", None, [100.0, 100.0], case="a", nodes=1, base_nodes=1),
    figure("efficiency", "%", [88.0, 92.0], [89.0, 90.0, 91.0], case="a", nodes=4, base_nodes=1),
    figure("resume", "s", [0.9, 1.4], [1.0, 1.1, 1.3], kind="worker_kill"),
    figure("time_to_recovery", "s", [0.9, 1.4], [1.0, 1.1, 1.3], kind="worker_kill"),
    figure("ettr", "%", None, [97.0], trial="t001", nodes=3, by="measured"),
    figure("ettr", "%", None, [96.0], trial="t002", nodes=3, by="measured"),
    {**figure("ettr", "%", None, [10.0], trial="t001", nodes=3, by="formula"), "label": "predicted"},
    figure("lost_steps", "steps", None, [4.0], kind="worker_kill"),
    figure("time_share", "ms", [5.0, 6.0], [5.0, 6.0], part="comm", nodes=4),
    figure("time_share", "%", [7.0, 8.0], [7.0, 8.0], part="comm", nodes=4),
]


def judged(line: str, *, verdicts: list[dict[str, Any]] | None = None) -> list[str]:
    document = {"figures": FIGURES, "verdicts": WHOLE if verdicts is None else verdicts}
    return [it.verdict for it in gate.judge([gate.parsed(line, "test")], document)]


@pytest.mark.parametrize(
    ("line", "verdicts"),
    [
        ("efficiency{nodes=4} >= 0.88", [PASS]),
        ("efficiency{nodes=4} >= 88 %", [PASS]),
        ("efficiency{nodes=4} >= 0.9", [UNKNOWN]),  # the median is 0.9, and its interval straddles the bound
        ("efficiency{nodes=4} > 0.88", [UNKNOWN]),
        ("efficiency{nodes=4} >= 0.93", [FAIL]),
        ("efficiency >= 0.88", [PASS]),  # the reference size is 100 % by definition: no evidence
        ("efficiency{nodes=8} >= 0.1", [UNKNOWN]),  # was not measured
        ("resume <= 1.5 s", [PASS]),
        ("resume <= 1.2", [UNKNOWN]),
        ("resume < 0.5", [FAIL]),
        ("time_to_recovery{kind=worker_kill} <= 1.5", [PASS]),
        ("every resume <= 1.3", [PASS]),
        ("every resume <= 1.2", [FAIL]),
        ("every goodput >= 0.96", [PASS]),
        ("goodput >= 0.99", [UNKNOWN]),  # two jobs leave much open
        ("goodput >= 1.5", [FAIL]),
        ("lost_steps <= 50", [UNKNOWN]),  # one value: its noise is not known
        ("every lost_steps <= 50", [PASS]),
        ("time_share{part=comm} <= 0.1", [PASS]),
        ("time_share{part=comm} <= 10 ms", [PASS]),
        ("alert_delay <= 10", [UNKNOWN]),
    ],
)
def test_a_constraint_is_judged_by_its_interval(line: str, verdicts: list[str]) -> None:
    assert judged(line) == verdicts


@pytest.mark.parametrize(("line", "told"), [
    ("efficiency{nodes=4} >= 88", "; 88 was read as 8,800 %, for 88 % add the unit"),
    ("time_share{part=comm} <= 5", "; 5 was read as 500 %, for 5 % add the unit"),
    ("efficiency{nodes=4} >= 88 %", ""), ("efficiency{nodes=4} >= 1.5", ""), ("resume <= 88", ""),
])  # fmt: skip
def test_a_bound_that_is_no_likely_share_is_told_as_it_was_read(line: str, told: str) -> None:
    (found,) = gate.judge([gate.parsed(line, "test")], {"figures": FIGURES, "verdicts": WHOLE})
    assert found.why.partition(";")[1:] == (told[:1], told[1:])


def test_jobs_of_a_kind_are_repeats_of_each_other() -> None:
    low = gate.judge([gate.parsed("goodput >= 0.5", "test")], {"figures": FIGURES, "verdicts": WHOLE})
    assert len(low) == 1
    assert low[0].why.endswith("n = 2")


@pytest.mark.parametrize("check", ["sealed", "completed"])
@pytest.mark.parametrize("verdict", [FAIL, UNKNOWN])
def test_a_run_that_is_not_whole_decides_nothing(check: str, verdict: str) -> None:
    broken = [{"check": check, "verdict": verdict, "why": "a file differs", "where": {}}]
    assert judged("efficiency{nodes=4} >= 0.1", verdicts=broken) == [UNKNOWN]
    assert judged("every resume <= 100", verdicts=broken) == [UNKNOWN]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("efficency >= 0.9", "did you mean 'efficiency'?"),
        ("godput >= 0.9", "did you mean 'goodput'?"),
        ("efficiency{node=4} >= 0.9", "did you mean 'nodes'?"),
        ("efficiency{nodes} >= 0.9", "'nodes' is no label"),
        ("resume <= 5 ms", "unknown unit 'ms'; allowed: s"),
        ("efficiency = 0.9", "is no constraint; allowed: NAME{label=value"),
        ("", "is no constraint"),
        ("efficiency >= nan", "is no constraint"),
    ],
)
def test_a_mistake_names_what_was_meant(line: str, said: str) -> None:
    with pytest.raises(RunDirError) as told:
        judged(line)
    assert said in str(told.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("requires = []", "did you mean 'require'?"),
        ("require = []", "must be a list of texts"),
        ("require = 3", "must be a list of texts"),
        ("require = [", "not TOML"),
        ('require = ["x >"]', "is no constraint"),
    ],
)
def test_a_file_that_is_none_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "constraints.toml"
    file.write_text(text)
    with pytest.raises(RunDirError) as told:
        gate.read(file)
    assert said in str(told.value)
    assert str(file) in str(told.value)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    make(root, Knobs(nodes=(1, 2), steps=12, scalings=("weak",)))
    return root


@pytest.mark.parametrize(
    ("bound", "status", "last"),
    [
        (0.01, 0, "constraints: pass (1 hold)"),
        (1.5, 1, "constraints: fail (1 of 1 do not hold)"),
        (None, 1, "constraints: cannot tell (1 of 1), which is no pass"),
    ],
)
def test_fail_and_cannot_tell_end_with_1_and_are_told_apart(
    runs: Path, tmp_path: Path, bound: float | None, status: int, last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = results.analyse(rundir_of(runs))
    kept = next(it for it in found.figures if it["name"] == "efficiency" and it["where"]["nodes"] == 2)
    file = tmp_path / "constraints.toml"
    file.write_text(f'require = ["efficiency{{nodes=2}} >= {kept["median"] / 100 if bound is None else bound}"]')
    assert main(["check", "scaling", "--require", str(file), "--runs", str(runs)]) == status
    assert capsys.readouterr().out.splitlines()[-1] == last


def test_a_changed_results_file_changes_no_answer(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = rundir_of(runs)
    document.write(run, results.analyse(run).results)
    run.results.write_text(run.results.read_text().replace('"median"', '"median": 1e9, "was"'))
    assert main(["check", "scaling", "--that", "throughput >= 1e8", "--runs", str(runs)]) == 1
    assert capsys.readouterr().out.startswith("fail ")


def test_nothing_to_check_is_a_mistake(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "scaling", "--runs", str(runs)]) == 2
    assert "nothing to check" in capsys.readouterr().err


def rundir_of(runs: Path) -> Any:
    from proving_ground.bench import rundir  # noqa: PLC0415 - one line of a test

    return rundir.find(runs, "scaling")


def test_every_figure_that_a_run_has_can_be_named(runs: Path, tmp_path: Path) -> None:
    found = results.analyse(rundir_of(runs)).figures + list(recovery.analyse(chaos.make(tmp_path)).results["figures"])
    assert {it["name"] for it in found} - set(gate.NAMES) == set()


# --- the bars that ship ---------------------------------------------------------------------------------------------

BAR: dict[str, tuple[str, str, dict[str, Any], float]] = {
    "time_share{part=comm} <= 15 %": ("time_share", "%", {"part": "comm", "nodes": 4}, 15.0),
    "time_share{part=comm} <= 50 ms": ("time_share", "ms", {"part": "comm", "nodes": 4}, 50.0),
    "gpu_utilization >= 85 %": ("gpu_utilization", "%", {"nodes": 4}, 85.0),
    "checkpoint_save{size_mb=500} <= 30000 ms": ("checkpoint_save", "ms", {"size_mb": 500, "address": "disk"}, 3e4),
    "checkpoint_load{size_mb=500} <= 20000 ms": ("checkpoint_load", "ms", {"size_mb": 500, "address": "disk"}, 2e4),
}


def test_every_shipped_bar_is_tried() -> None:
    assert {it.text for name in arguments.shipped() for it in gate.read(arguments.file(name))} == set(BAR)


@pytest.mark.parametrize("text", BAR)
@pytest.mark.parametrize(("at", "verdict"), [(0.9, PASS), (1.0, UNKNOWN), (1.1, FAIL), (None, UNKNOWN)])
def test_a_shipped_bar_tells_three_values(text: str, at: float | None, verdict: str) -> None:
    """Figures on either side of the bar, across it, and none; a bar for more mirrors one for less."""
    name, unit, where, bound = BAR[text]
    middle = bound * (at if at is None or "<=" in text else 2 - at) if at else 0.0
    ends = [0.95 * middle, 1.05 * middle]
    found = [figure(name, unit, ends, [*ends, middle], **where)] if at else []
    (answer,) = gate.judge([gate.parsed(text, "test")], {"figures": found, "verdicts": WHOLE})
    assert answer.verdict == verdict


def test_a_shipped_file_is_named_and_one_s_own_is_a_path(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(rundir_of(runs).path), "--require", "training"]) == 1
    said = capsys.readouterr().out
    assert "gpu_utilization >= 85 %: cannot tell: not measured" in said, "no GPU here"
    assert main(["check", str(rundir_of(runs).path), "--require", "trainings"]) == 2
