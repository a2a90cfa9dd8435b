"""What is kept of a run's alerts, and the table made of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proving_ground.bench.rundir import RunDir, RunDirError
from tests.reports.recovery.synthetic import Knobs, make
from tests.reports.recovery.test_alerts import alert, inject_t, monitored
from tests.validations import alerts


def test_what_came_is_kept_with_its_times(tmp_path: Path) -> None:
    run = monitored(tmp_path).run
    found = alerts.taken_of(run)
    first = found["faults"][0]
    assert (first["kind"], first["must"], first["missing"], first["late"]) == (
        "worker_kill", ["WorkersRestarted"], [], [],
    )  # fmt: skip
    assert first["came_s"] == {"WorkersRestarted": pytest.approx(1.5)}
    assert (found["recall"], found["precision"], found["false_alarms"], found["factor"]) == (1.0, 1.0, [], 60.0)
    assert found["healthy_s"] > 0
    assert json.loads(json.dumps(found)) == found


def test_missing_late_and_false_ones_are_told(tmp_path: Path) -> None:
    right = monitored(tmp_path / "right")
    twin = next(it.job for it in right.twins)
    more = [
        alert(inject_t(right, "f03") + 1.7, "t001", "CommunicationHigh"),
        alert(twin.start_t + 1.0, twin.id, "GpuHot"),
    ]
    run = monitored(tmp_path / "wrong", off="NodeFailed", more=more).run
    document = {"cells": {"runs": [alerts.taken_of(run)]}}
    said = alerts.told(document)
    assert "recall 75 %" in said[0]
    assert "1 false in" in said[0]
    assert "missing: node_kill: NodeFailed" in said
    rows = alerts.table(document).splitlines()
    assert any(row.startswith("| `node_kill` | NodeFailed | 0 of 1 | – | – | – |") for row in rows)
    assert any(row.startswith("| `worker_kill` | WorkersRestarted | 1 of 1 | 1.5 s |") for row in rows)
    assert "False alarms: 1 in" in rows[-1]


def test_a_run_without_monitoring_is_refused(tmp_path: Path) -> None:
    run: RunDir = make(tmp_path, Knobs())
    with pytest.raises(RunDirError, match="no alerts to judge: not asked for"):
        alerts.taken_of(run)
