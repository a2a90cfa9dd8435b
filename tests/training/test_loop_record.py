"""What a `step` event says is what was done: the samples that the loader returned, and the optimizer's own rate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from proving_ground.training.config import Config, from_dict
from proving_ground.training.data import order
from proving_ground.training.data.order import Rows
from proving_ground.training.events import EventWriter
from proving_ground.training.loop import learning_rate, train
from proving_ground.training.models.digits import Digits
from proving_ground.training.models.task import Batch

STEPS, BATCH = 3, 8


def recorded(folder: Path, **keys: object) -> tuple[Config, list[dict[str, Any]]]:
    """The configuration and the `step` events of a short job."""
    file = folder / "events.jsonl"
    asked = {"model": "digits", "steps": STEPS, "global_batch": BATCH, "eval_every": -1, "ledger": True, **keys}
    config, events = from_dict(asked, "test"), EventWriter(file)
    train(config, events)
    events.close()
    records = [json.loads(line) for line in file.read_text().splitlines()]
    return config, [it for it in records if it["event"] == "step"]


@pytest.mark.parametrize("keys", [{}, {"reduction": "exact", "shards": BATCH}])
def test_the_ledger_has_what_the_loader_returned_and_not_what_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, object]
) -> None:
    read = Digits.batch

    def off_by_one(self: Digits, split: str, rows: Rows) -> Batch:
        return read(self, split, (rows + 1) % self.rows)

    monkeypatch.setattr(Digits, "batch", off_by_one)
    config, steps = recorded(tmp_path, **keys)
    rows = Digits(config).rows
    asked = [order.global_batch_rows(rows, BATCH, config.seed, step, carry=False) for step in range(STEPS)]
    assert [sorted(it["rows"]) for it in steps] == [sorted(((one + 1) % rows).tolist()) for one in asked]


def test_a_sample_that_the_loader_left_out_is_not_in_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Digits.batch
    monkeypatch.setattr(Digits, "batch", lambda self, split, rows: read(self, split, np.r_[rows[:1], rows[:-1]]))
    _, steps = recorded(tmp_path)
    assert [len(set(it["rows"])) for it in steps] == [BATCH - 1] * STEPS


def test_the_rate_is_that_of_the_optimizer_and_not_that_of_the_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Digits.optimizer

    def hastier(self: Digits, model: torch.nn.Module) -> torch.optim.Optimizer:
        optimizer = made(self, model)

        def hurry(hurried: torch.optim.Optimizer, *_: object) -> None:
            for group in hurried.param_groups:
                group["lr"] *= 1.5

        optimizer.register_step_pre_hook(hurry)
        return optimizer

    monkeypatch.setattr(Digits, "optimizer", hastier)
    config, steps = recorded(tmp_path, lr_schedule="cosine")
    assert [it["lr"] for it in steps] == [1.5 * learning_rate(config, step, STEPS) for step in range(STEPS)]
