"""Printed lines that become events."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bench.clusters.lines import LineEvents, number, pump

STEP = {"step": r"step (?P<step>\d+)(?: loss (?P<loss>[\d.e-]+))?"}
ENV = {"RANK": "1", "WORLD_SIZE": "2", "PROVING_GROUND_BATCH": "16"}


def events_of(lines: list[str], pattern: dict[str, str], env: dict[str, str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    reader = LineEvents(pattern, env, 42, lambda event, **fields: found.append({"event": event, **fields}))
    reader.start()
    for line in lines:
        reader.line(line)
    return found


def test_fields_come_from_the_line_and_what_is_known() -> None:
    start, first, second = events_of(["step 1 loss 2.5e-1", "hello", "step 2"], STEP, ENV)
    assert {key: start[key] for key in ("event", "rank", "world_size", "pid")} == {
        "event": "start", "rank": 1, "world_size": 2, "pid": 42
    }  # fmt: skip
    assert first == {"event": "step", "step": 1, "samples": 16, "loss": 0.25}
    assert second == {"event": "step", "step": 2, "samples": 16}


def test_a_line_that_lacks_a_required_field_is_no_event() -> None:
    assert events_of(["step 1"], STEP, {}) == []


def test_the_last_step_fills_in_for_events_about_it() -> None:
    pattern = STEP | {"end": "^done"}
    assert events_of(["done"], pattern, {"PROVING_GROUND_BATCH": "1"}) == []
    assert events_of(["step 7", "done"], pattern, {"PROVING_GROUND_BATCH": "1"})[-1] == {"event": "end", "step": 7}


@pytest.mark.parametrize(("text", "value"), [("3", 3), ("1,024", 1024), ("0.5", 0.5), ("1e3", 1000.0), ("val", "val")])
def test_numbers(text: str, value: object) -> None:
    assert number(text) == value
    assert type(number(text)) is type(value)


def test_pump_keeps_every_byte_in_the_log(tmp_path: Path) -> None:
    source, write = os.pipe()
    os.write(write, b"step 1\r\nst")
    os.write(write, b"ep 2\n\xff odd\nstep 3")
    os.close(write)
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    pump(source, log, tmp_path / "e.jsonl", lambda emit: LineEvents(STEP, ENV, 1, emit))
    os.close(log)
    os.close(source)
    records = [json.loads(line) for line in (tmp_path / "e.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if record["event"] == "step"] == [1, 2, 3]
    assert [record["t"] for record in records] == sorted(record["t"] for record in records)
    assert (tmp_path / "log").read_bytes() == b"step 1\r\nstep 2\n\xff odd\nstep 3"
