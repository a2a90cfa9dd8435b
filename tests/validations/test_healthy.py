"""What the healthy hour counts: an alarm and an eviction must show, and what was not watched is not called quiet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.rundir import RunDir
from tests.validations import healthy

PARTS = {"begin_t": 2.0, "data_t": 2.0, "forward_t": 2.0, "backward_t": 2.0, "comm_t": 2.0, "optimizer_t": 2.0}


def run_of(folder: Path, *more: dict[str, Any]) -> RunDir:
    """A run of two nodes from second 10 to 70, watched from second 12, with more records."""
    store = RunDir(folder / "healthy" / "run")
    store.events.mkdir(parents=True)
    made: dict[str, list[dict[str, Any]]] = {"monitoring": [{"t": 12.0, "event": "monitoring_up", "trial": "t001"}]}
    for node in ("n1", "n2"):
        made[f"t001.{node}.0"] = [
            {"t": 9.0, "event": "membership", "round": 1, "group_rank": 0, "world_size": 2},
            *({"t": 10.0 + at, "event": "step", "step": at + 1, "samples": 8, **PARTS} for at in range(61)),
        ]
    for record in more:
        made[record.pop("file")].append(record)
    for name, records in made.items():
        lines = sorted(records, key=lambda it: float(it["t"]))
        (store.events / f"{name}.jsonl").write_text("".join(json.dumps(it) + "\n" for it in lines))
    return store


def test_a_quiet_run_has_its_seconds_and_nothing_else(tmp_path: Path) -> None:
    found = healthy.seen(run_of(tmp_path))
    assert found == {
        "train_s": 60.0, "watched_s": 58.0, "steps": 61, "alarms": [], "evictions": 0, "detected": [],
    }  # fmt: skip


def test_an_alarm_and_an_eviction_are_counted_once_each(tmp_path: Path) -> None:
    firing = {"file": "monitoring", "t": 30.0, "event": "alert", "alert": "NodeLost", "state": "firing", "labels": {}}
    gone = {"file": "t001.n1.0", "t": 31.0, "event": "detected", "why": "peer_lost", "detail": "reset"}
    again = [
        {"file": f"t001.{node}.0", "t": 32.0, "event": "membership", "round": 2, "group_rank": 0, "world_size": 2}
        for node in ("n1", "n2")
    ]
    found = healthy.seen(run_of(tmp_path, firing, {**firing, "t": 33.0, "state": "resolved"}, gone, *again))
    assert [it["alert"] for it in found["alarms"]] == ["NodeLost"]
    assert (found["evictions"], found["detected"]) == (1, ["peer_lost: reset"])
    said = healthy.told({"cells": {"live": [found | {"load_percent": 99.0, "factor": 1.0}]}})
    assert said.endswith(
        "false evictions: 1; false alarms: 1 in 1.0 min watched (NodeLost), durations of the rules divided by 1"
    )


def test_what_was_not_watched_counts_as_no_time(tmp_path: Path) -> None:
    store = run_of(tmp_path)
    (store.events / "monitoring.jsonl").unlink()
    assert healthy.seen(store)["watched_s"] == 0.0


@pytest.mark.parametrize("minutes", ["0", "1"])
def test_a_sitting_too_short_for_a_round_does_nothing(
    minutes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(healthy, "FILE", tmp_path / "healthy.json")
    assert healthy.main(["--minutes", minutes]) == 0


def test_a_round_that_proves_nothing_ends_the_sitting_and_is_no_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(healthy, "FILE", tmp_path / "healthy.json")
    store = run_of(tmp_path)
    (store.events / "monitoring.jsonl").unlink()
    monkeypatch.setattr(healthy, "one_round", lambda *_: {**healthy.seen(store), "factor": 1.0, "load_percent": 99.0})
    assert healthy.main(["--minutes", "5"]) == 1
    printed = capsys.readouterr().out
    assert "round 1" in printed
    assert "round 2" not in printed
    assert "that is no quiet round" in printed
