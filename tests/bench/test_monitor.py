"""Monitoring beside a run: started, ended before the seal, gone with the harness; or the record says why not."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench import monitor
from tests.monitoring.conftest import Recorded, needs_prometheus


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    made = Recorded(tmp_path / "s" / "r")
    made.begin()
    return made


def said(told: list[tuple[str, dict[str, Any]]]) -> list[str]:
    return [fields["message"] for event, fields in told if event == "warning"]


def test_without_prometheus_the_run_goes_on_and_says_why(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(recorded.run.path))
    told: list[tuple[str, dict[str, Any]]] = []
    went_on = False
    with monitor.beside(recorded.run, lambda event, **fields: told.append((event, fields))):
        went_on = True
    assert went_on
    (line,) = said(told)
    assert line.startswith("the run is not monitored: monitoring: prometheus is not installed")
    assert '"monitoring_off"' in (recorded.run.events / "monitoring.jsonl").read_text()


@needs_prometheus
def test_it_watches_and_is_gone_afterwards(recorded: Recorded) -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    earlier = children(os.getpid())
    with monitor.beside(recorded.run, lambda event, **fields: told.append((event, fields))):
        wait_for(recorded.run.events / "monitoring.jsonl", '"monitoring_up"')
        processes = set(children(os.getpid())) - set(earlier)
    assert said(told) == []
    assert "Alertmanager http://127.0.0.1:" in (recorded.run.logs / "monitoring.log").read_text()
    assert len(processes) >= 3
    assert [pid for pid in processes if alive(pid)] == []


@needs_prometheus
@pytest.mark.parametrize(("factor", "scrape_s"), [(None, 0.5), (1.0, 15.0)])
def test_its_rules_are_as_fast_as_the_suite_says(recorded: Recorded, factor: float | None, scrape_s: float) -> None:
    file = recorded.run.events / "monitoring.jsonl"
    with monitor.beside(recorded.run, lambda *_, **__: None, factor):
        wait_for(file, '"monitoring_up"')
    told = json.loads(file.read_text().splitlines()[0])
    assert (told["factor"], told["interval_s"]) == (factor or 60.0, scrape_s)


@needs_prometheus
def test_it_goes_with_a_harness_that_is_killed(recorded: Recorded) -> None:
    code = (
        "import sys, time; from pathlib import Path; from proving_ground.bench import monitor\n"
        "from proving_ground.bench.rundir import RunDir\n"
        "with monitor.beside(RunDir(Path(sys.argv[1])), lambda *_, **__: None): time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(recorded.run.path)]) as harness:
        wait_for(recorded.run.events / "monitoring.jsonl", '"monitoring_up"')
        processes = children(harness.pid)
        harness.send_signal(signal.SIGKILL)
    end = time.monotonic() + 30
    while any(map(alive, processes)) and time.monotonic() < end:
        time.sleep(0.1)
    assert len(processes) == 3
    assert [pid for pid in processes if alive(pid)] == []


def wait_for(file: Path, text: str) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if file.exists() and text in file.read_text():
            return
        time.sleep(0.1)
    pytest.fail(f"{file.name} never had {text}")


def children(pid: int) -> list[int]:
    """All processes below one."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ends meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                for child in (task / "children").read_text().split():
                    found += [int(child), *children(int(child))]
    return found


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
