"""When the trainer judges its model: at the end, every so many steps, or never."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proving_ground.training.config import from_dict
from proving_ground.training.events import EventWriter
from proving_ground.training.loop import train


@pytest.mark.parametrize(("every", "steps"), [(0, [3]), (2, [2, 3]), (-1, [])])
def test_evaluations_come_when_asked_for(tmp_path: Path, every: int, steps: list[int]) -> None:
    file = tmp_path / "events.jsonl"
    events = EventWriter(file)
    train(from_dict({"model": "digits", "steps": 3, "global_batch": 8, "eval_every": every}, "test"), events)
    events.close()
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert [it["step"] for it in records if it["event"] == "eval" and it["metric"] == "accuracy"] == steps
