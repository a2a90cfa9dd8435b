"""`bench list`: headline, age and duration of a run, from whatever of it is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench import listing
from proving_ground.bench.cli import main
from proving_ground.bench.rundir import RunDir
from proving_ground.reports import document
from proving_ground.reports.recovery import results as recovery
from proving_ground.reports.scaling import results
from tests.reports.recovery import synthetic as chaos
from tests.reports.synthetic import Knobs, make


def efficiency(case: str, nodes: int, value: float, scaling: str = "weak") -> dict[str, Any]:
    return {"name": "efficiency", "where": {"case": case, "scaling": scaling, "nodes": nodes}, "median": value}


def test_a_run_is_headed_by_how_far_it_scaled(tmp_path: Path) -> None:
    run = make(tmp_path, Knobs(nodes=(1, 2), steps=12, scalings=("weak",), bars={2: 0.9}))
    found = results.analyse(run)
    document.write(run, found.results)
    kept = next(it for it in found.figures if it["name"] == "efficiency" and it["where"]["nodes"] == 2)
    listed = listing.listed(run)
    assert listed.headline == f"digits weak 2 nodes {kept['median']:.1f} %"
    assert listed.verdicts["pass"] == sum(it["verdict"] == "pass" for it in found.verdicts)
    assert listed.took_s == pytest.approx(duration(run), abs=0.5)


def duration(run: RunDir) -> float:
    records = [json.loads(line) for line in (run.events / "harness.jsonl").read_text().splitlines()]
    return float(records[-1]["t"]) - float(run.read("provenance")["t"])


def test_the_largest_size_counts_and_the_case_that_scaled_least() -> None:
    figures = [efficiency("a", 2, 99.0), efficiency("a", 8, 90.0), efficiency("b", 8, 70.0)]
    figures.append(efficiency("a", 8, 10.0, "strong"))
    assert listing.headline({"figures": figures}) == "b weak 8 nodes 70.0 %"


@pytest.mark.parametrize("document", [{}, {"figures": None}, {"figures": [{"name": "throughput"}]}, {"trials": 3}])
def test_nothing_is_said_where_nothing_was_measured(document: dict[str, Any]) -> None:
    assert listing.headline(document) == ""


def test_a_chaos_run_is_headed_by_what_was_got_over() -> None:
    faults = [{"outcome": it} for it in ("recovered", "wrong", "recovered")]
    resumes = [{"name": "resume", "median": it} for it in (1.0, 3.0)]
    assert listing.headline({"trials": faults, "figures": resumes}) == "2 of 3 recovered, 2 s"
    assert listing.headline({"trials": faults}) == "2 of 3 recovered"


def test_a_resumed_run_took_as_long_as_its_sittings(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.events.mkdir()
    lines = [{"t": 10.0}, {"t": 15.0}, {"t": 2.0, "sitting": 2}, {"t": 4.0, "sitting": 2}]
    text = "".join(json.dumps({"event": "machine", **it}) + "\n" for it in lines)
    (run.events / "harness.jsonl").write_text(text)
    assert listing.took_s(run, {"t": 10.0, "sittings": [{}]}) == 7.0


def test_a_half_written_line_is_passed_over(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.events.mkdir()
    (run.events / "harness.jsonl").write_text('{"t": 12.5, "event": "machine"}\n{"t": 99')
    assert listing.took_s(run, {"t": 10.0}) == 2.5


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "?"), (0, "0 s"), (59, "59 s"), (60, "1 min"), (7200, "2 h"), (200_000, "2 d")],
)
def test_a_time_is_said_in_its_largest_unit(seconds: float | None, words: str) -> None:
    assert listing.span(seconds) == words


def test_age_counts_from_the_beginning() -> None:
    assert listing.age(1000.0, 1000.0 + 7200) == "2 h ago"
    assert listing.age(None) == "?"
    assert listing.age(1000.0, 900.0) == "0 s ago"  # a clock that was set back


@pytest.mark.parametrize("columns", [80, 100])
def test_an_id_and_every_head_are_whole(
    columns: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    run = make(tmp_path, Knobs(nodes=(1, 2), steps=12, scalings=("weak",)))
    document.write(run, results.analyse(run).results)
    assert main(["list", "--runs", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert run.run_id in shown
    assert max(map(len, shown.splitlines())) <= columns
    assert "…" not in shown
    assert ("took" in shown) is (columns >= 100)


def test_recorded_faults_are_read_as_reports_writes_them(tmp_path: Path) -> None:
    run = chaos.make(tmp_path)
    document.write(run, recovery.analyse(run).results)
    assert listing.listed(run).headline.split(",")[0].endswith("recovered")
