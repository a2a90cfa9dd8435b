"""Was the right alert told? Mutants of the monitoring: an alert switched off, too late, false; no monitoring at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench import rundir
from proving_ground.monitoring.expected import EXPECTED
from proving_ground.reports.recovery import alerts, page, results, terminal
from proving_ground.reports.recovery.results import Analysis
from tests.reports.recovery.synthetic import Knobs, make

MUST = {"worker_kill": "WorkersRestarted", "node_kill": "NodeFailed", "link_rate": "CommunicationHigh",
        "checkpoint_bitflip": "CheckpointDamaged"}  # fmt: skip
AFTER_S = 1.5


def monitored(
    folder: Path, *, off: str = "", up: bool = True, more: list[dict[str, Any]] | None = None, note: str = ""
) -> Analysis:
    """A right run of four faults whose monitoring told the right alert each time; `off` is one that never came."""
    run = make(folder, Knobs())
    run.write("spec", {**run.read("spec"), "monitor": True})
    history = list(rundir.read_history(run))
    told: list[dict[str, Any]] = []
    for record in history:
        if record["event"] == "trial_start" and up:
            told.append(watching(record["t"] + 0.01, record["trial"]))
        if record["event"] == "fault_begin" and up and MUST[record["kind"]] != off:
            t = record["inject_t"] + AFTER_S
            told += [alert(t, record["trial"], MUST[record["kind"]], state) for state in ("firing", "resolved")]
    told += more or []
    lines = [json.dumps(record) + "\n" for record in sorted(told, key=lambda it: float(it["t"]))]
    (run.events / "monitoring.jsonl").write_text("".join(lines))
    if note:
        with (run.events / "harness.jsonl").open("a") as file:
            file.write(json.dumps({"t": history[-1]["t"], "event": "warning", "message": note}) + "\n")
    rundir.merge(run)
    rundir.seal(run, complete=True)
    return results.analyse(run)


def watching(t: float, trial: str) -> dict[str, Any]:
    expected = {kind: {"must": it.must, "may": it.may} for kind, it in EXPECTED.items()}
    about = {"factor": 60.0, "within_s": dict.fromkeys(MUST.values(), 1.0), "interval_s": 0.5, "expected": expected}
    return {"t": t, "event": "monitoring_up", "trial": trial, **about}


def alert(t: float, trial: str, name: str, state: str = "firing") -> dict[str, Any]:
    t = t + 0.2 * (state == "resolved")
    return {"t": t, "event": "alert", "trial": trial, "alert": name, "state": state, "labels": {"trial": trial}}


def verdicts(analysis: Analysis) -> dict[str, tuple[str, str]]:
    return {
        v["where"]["fault"]: (v["verdict"], v["why"]) for v in analysis.verdicts if v["check"] == "alerted"
    }  # fmt: skip


def inject_t(analysis: Analysis, fault: str) -> float:
    return next(one.inject_t for one in analysis.incidents if one.fault == fault)


def figure(analysis: Analysis, name: str) -> float:
    return float(next(found["median"] for found in analysis.figures if found["name"] == name))


def test_every_alert_came(tmp_path: Path) -> None:
    analysis = monitored(tmp_path)
    assert {value for value, _ in verdicts(analysis).values()} == {"pass"}
    assert verdicts(analysis)["f01"][1] == "WorkersRestarted after 1.5 s (its rule: 1.0 s)"
    assert figure(analysis, "alert_recall") == 100
    assert figure(analysis, "alert_precision") == 100
    assert figure(analysis, "false_alarms") == 0
    assert figure(analysis, "alert_delay") == pytest.approx(AFTER_S)
    assert {trial["outcome"] for trial in analysis.trials} == {"recovered"}


def test_an_alert_is_late_by_more_than_a_scrape_after_what_it_is_about(tmp_path: Path) -> None:
    right = monitored(tmp_path / "right")
    late = alert(inject_t(right, "f02") + 1.6, "t001", "NodeFailed")
    assert verdicts(monitored(tmp_path / "late", off="NodeFailed", more=[late]))["f02"] == (
        "fail", "NodeFailed after 1.6 s (late: its rule: 1.0 s)",
    )  # fmt: skip
    (found,) = right.jobs[0].job.of("quarantine")
    told = alert(float(found["t"]) + 1.4, "t001", "CheckpointDamaged")
    analysis = monitored(tmp_path / "since", off="CheckpointDamaged", more=[told])
    assert verdicts(analysis)["f04"][0] == "pass", "it counts from where the damage was met, not from the fault"
    assert analysis.alerts.rows[3].took["CheckpointDamaged"] == pytest.approx(1.4)
    assert analysis.alerts.rows[3].fired["CheckpointDamaged"] > 1.4


def test_an_alert_that_is_switched_off_is_missed(tmp_path: Path) -> None:
    analysis = monitored(tmp_path, off="NodeFailed")
    assert verdicts(analysis)["f02"] == ("fail", "NodeFailed did not come")
    assert {value for fault, (value, _) in verdicts(analysis).items() if fault != "f02"} == {"pass"}
    assert figure(analysis, "alert_recall") == 75
    assert {trial["outcome"] for trial in analysis.trials} == {"recovered"}  # whoever was told: it recovered


def test_an_alert_that_comes_only_during_the_next_fault_is_missed(tmp_path: Path) -> None:
    right = monitored(tmp_path / "right")
    late = alert(inject_t(right, "f03") + 0.5, "t001", "NodeFailed")
    analysis = monitored(tmp_path / "late", off="NodeFailed", more=[late])
    assert verdicts(analysis)["f02"] == ("fail", "NodeFailed did not come")
    assert figure(analysis, "alert_precision") == 75  # and it is one too many there


def test_an_alert_of_another_job_is_none_of_this_one(tmp_path: Path) -> None:
    right = monitored(tmp_path / "right")
    other = alert(inject_t(right, "f02") + 0.5, "t002", "NodeFailed")
    assert verdicts(monitored(tmp_path / "other", off="NodeFailed", more=[other]))["f02"][0] == "fail"


def test_an_alert_that_had_been_firing_before_proves_nothing(tmp_path: Path) -> None:
    right = monitored(tmp_path / "right")
    early = alert(inject_t(right, "f02") - 0.5, "t001", "NodeFailed")
    analysis = monitored(tmp_path / "early", off="NodeFailed", more=[early])
    assert verdicts(analysis)["f02"] == ("unknown", "NodeFailed had been firing before the fault")


def test_consequences_are_told_and_what_nobody_expected_costs_precision(tmp_path: Path) -> None:
    right = monitored(tmp_path / "right")
    t = inject_t(right, "f02")
    more = [alert(t + 0.4, "t001", "RecoverySlow"), alert(t + 0.6, "t001", "GpuHot")]
    analysis = monitored(tmp_path / "more", more=more)
    (row,) = [row for row in alerts.table(analysis.alerts) if row["fault"] == "f02 node_kill"]
    assert row["others"] == "RecoverySlow 0.4 s, GpuHot 0.6 s (!)"
    assert row["verdict"] == "pass"
    assert figure(analysis, "alert_precision") == pytest.approx(100 * 5 / 6)


def test_an_alert_in_the_healthy_control_is_false(tmp_path: Path) -> None:
    right = monitored(tmp_path / "right")
    t = next(evidence.job.start_t for evidence in right.twins if evidence.job.id == "t002")
    analysis = monitored(tmp_path / "false", more=[alert(t + 1, "t002", "Straggler")])
    assert figure(analysis, "false_alarms") == pytest.approx(3600 / analysis.alerts.healthy_s)
    assert any("1 false in" in line and "Straggler in t002" in line for line in alerts.lines(analysis.alerts))


def test_without_prometheus_it_is_unknown_and_says_why(tmp_path: Path) -> None:
    note = "the run is not monitored: monitoring: prometheus is not installed"
    analysis = monitored(tmp_path, up=False, note=note)
    assert set(verdicts(analysis).values()) == {("unknown", note)}
    assert alerts.lines(analysis.alerts) == [f"alerts: {note}"]


def test_monitoring_that_left_no_record_is_unknown(tmp_path: Path) -> None:
    assert {value for value, _ in verdicts(monitored(tmp_path, up=False)).values()} == {"unknown"}


def test_a_run_that_asked_for_no_monitoring_is_not_judged_by_it(tmp_path: Path) -> None:
    analysis = results.analyse(make(tmp_path, Knobs()))
    assert verdicts(analysis) == {}
    assert alerts.lines(analysis.alerts) == []


def test_terminal_and_page_show_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    analysis = monitored(tmp_path, off="NodeFailed")
    terminal.show(analysis, "report.html")
    said = capsys.readouterr().out
    assert "✗ f02 node_kill" in said
    assert "WorkersRestarted 1.5 s" in said
    assert "recall 75 %" in said
    html = page.html(analysis)
    assert "Was the right alert told?" in html
    assert "NodeFailed" in html
