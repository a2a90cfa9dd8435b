"""What an engine noticed of a fault by itself: set beside when training went on, and judged by nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from proving_ground.reports.recovery import engine, page, results, terminal
from proving_ground.reports.recovery.results import Analysis
from tests.reports.recovery.synthetic import Fault, Knobs, Record, make
from tests.reports.rewritten import rewrite

FAULTS = tuple(Fault(f"f0{number}", "node_kill", 30 * number, "n2", hold_s=0.0) for number in (1, 2))
WAITS = {"SlurmdTimeout": 300.0, "KillWait": 30.0}


def said(after_s: float, about: str, node: str, reason: str) -> Record:
    """Of an engine, so long after the first fault."""
    return {"event": "engine_event", "about": about, "node": node, "reason": reason, "at_t": after_s, "error_s": 0.05}


def analysed(folder: Path, *events: Record, waits: bool = True) -> Analysis:
    def change(records: list[Record]) -> list[Record]:
        begin = next(it["inject_t"] for it in records if it["event"] == "fault_begin")
        end = {"t": records[-1]["t"], "source": "harness"}
        told = {"event": "engine_timeouts", "engine": "slurm", "seconds": WAITS, "source": "harness"}
        moved = [{**it, **end, "at_t": it["at_t"] + begin} for it in events]
        return [*([{"t": records[0]["t"], **told}] if waits else []), *records[:-1], *moved, records[-1]]

    return results.analyse(rewrite(make(folder, Knobs(faults=FAULTS)), change))


def test_it_is_told_with_when_training_went_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    analysis = analysed(
        tmp_path, said(-1.0, "Node/e2", "n2", "allocated"), said(0.2, "Node/e2", "n2", "down*"),
        said(0.3, "Node/e1", "n1", "drained"), said(0.4, "Controller", "", "does not answer"),
        said(0.5, "Node/e2", "n2", "down*"),
    )  # fmt: skip
    (line,) = engine.noticed(analysis.recorded, analysis.incidents)
    words = "node down* after 0.2 s ± 0.1 s (1 of 2), controller does not answer after 0.4 s ± 0.1 s (1 of 2)"
    assert line.startswith(f"node_kill, 2 faults: {words}; training went on after ")
    terminal.show(analysis, "x")
    out = " ".join(capsys.readouterr().out.split())
    assert "Time-outs of slurm: SlurmdTimeout 300 s, KillWait 30 s." in out
    assert f"Noticed: {words}" in out.replace("node_kill, 2 faults: ", "")
    shown = page.html(analysis).replace("\N{NO-BREAK SPACE}", " ").replace("&nbsp;", " ")
    assert "slurm: SlurmdTimeout 300 s, KillWait 30 s" in shown
    assert "node_kill, 2 faults: node down* after" in shown


def test_nothing_is_judged_by_it(tmp_path: Path) -> None:
    plain, told = analysed(tmp_path / "a", waits=False), analysed(tmp_path / "b", said(0.2, "Node/e2", "n2", "down*"))
    assert [it["outcome"] for it in plain.trials] == [it["outcome"] for it in told.trials]
    assert engine.timeouts(plain.recorded) == ""
    assert engine.noticed(plain.recorded, plain.incidents) == []
