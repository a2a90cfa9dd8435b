"""What makes a trainer testable under faults: phases, patience, fingerprints, and its ledger."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from proving_ground.training import phases as of_phases
from proving_ground.training.events import EventWriter
from proving_ground.training.exchange.patience import EVERY, LEAST_S, START_S, Patience
from proving_ground.training.judging.fingerprint import SKETCH, sha256, sketch
from proving_ground.training.phases import CONTROL_VARIABLE, LOOK_S, PATIENCE_S, Phases


def phases(folder: Path, monkeypatch: pytest.MonkeyPatch, rank: int = 1) -> Phases:
    """Of a rank whose control folder this is."""
    monkeypatch.setenv(CONTROL_VARIABLE, str(folder))
    return Phases(rank, EventWriter(folder / "events.jsonl"))


def hold(folder: Path, phase: str, ranks: list[int]) -> Path:
    """Ask for a rank to stand still."""
    file = folder / "hold.json"
    file.write_text(json.dumps({"id": "f01", "phase": phase, "ranks": ranks}))
    return file


@dataclass
class Clock:
    """Stands in for `time`: moves while somebody sleeps, and does something at a moment."""

    now: float = 0.0
    at_s: float = float("inf")
    then: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        before, self.now = self.now, self.now + seconds
        if before < self.at_s <= self.now:
            self.then()


def test_a_rank_stands_still_until_it_is_let_go_and_tells_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = phases(tmp_path, monkeypatch)
    file = hold(tmp_path, "allreduce", [1])
    clock = Clock(at_s=0.2, then=file.unlink)
    monkeypatch.setattr(of_phases, "time", clock)
    rank.reached("allreduce", 7)
    assert not file.exists(), "it goes on before it is let go"
    assert clock.now < 0.25 < PATIENCE_S, "it stands still though it is let go"
    told = json.loads((tmp_path / "events.jsonl").read_text())
    assert (told["event"], told["phase"], told["step"], told["hold"]) == ("phase", "allreduce", 7, "f01")


@pytest.mark.parametrize(("phase", "ranks"), [("forward", [1]), ("allreduce", [0, 2])])
def test_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, ranks: list[int]) -> None:
    monkeypatch.setattr("proving_ground.training.phases.time.sleep", lambda _: pytest.fail("it stands still"))
    rank = phases(tmp_path, monkeypatch)
    hold(tmp_path, phase, ranks)
    rank.reached("allreduce", 7)
    assert (tmp_path / "events.jsonl").read_text() == ""


def test_nobody_waits_for_ever_nor_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(of_phases, "time", clock)
    rank = phases(tmp_path, monkeypatch)
    hold(tmp_path, "forward", [1])
    for step in (1, 2):
        rank.reached("forward", step)
        assert clock.now == pytest.approx(PATIENCE_S, abs=2 * LOOK_S)
    assert (tmp_path / "events.jsonl").read_text().count("\n") == 1


def test_the_time_out_follows_the_step_but_not_below_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[float] = []
    monkeypatch.setattr(
        "proving_ground.training.exchange.patience._set_pg_timeout", lambda it, _: set_to.append(it.total_seconds())
    )
    clock = iter(range(0, 10_000, 5))  # a step takes five seconds
    monkeypatch.setattr("proving_ground.training.exchange.patience.time.monotonic", lambda: float(next(clock)))
    patience = Patience(0)
    assert patience.seconds() == START_S
    for _ in range(EVERY):
        patience.step_done()
    assert set_to == [15.0]
    fast = Patience(0)
    fast._steps.extend([0.1] * 10)
    assert fast.seconds() == LEAST_S


def test_groups_of_replicas_wait_as_long_as_all(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[object] = []
    monkeypatch.setattr(
        "proving_ground.training.exchange.patience._set_pg_timeout", lambda _, group: set_to.append(group)
    )
    patience = Patience(0, groups=("columns", "rows"))  # type: ignore[arg-type]
    for _ in range(EVERY):
        patience.step_done()
    assert set_to == [None, "columns", "rows"]


def test_a_time_out_that_was_asked_for_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "proving_ground.training.exchange.patience._set_pg_timeout", lambda *_: pytest.fail("was changed")
    )
    patience = Patience(60)
    for _ in range(3 * EVERY):
        patience.step_done()


def test_a_hash_differs_with_every_bit_type_and_nesting() -> None:
    one = {"a": [torch.zeros(2), 1.0]}
    others: list[object] = [
        {"a": [torch.tensor([0.0, -0.0]), 1.0]}, {"a": [torch.zeros(2, dtype=torch.float64), 1.0]},
        {"a": [torch.zeros(1, 2), 1.0]}, {"a": [[torch.zeros(2)], 1.0]}, {"b": [torch.zeros(2), 1.0]},
        {"a": [torch.zeros(2), 1]}, {"a": [torch.zeros(2)]},
    ]  # fmt: skip
    assert sha256(one) == sha256({"a": [torch.zeros(2), 1.0]})
    assert len({sha256(it) for it in (one, *others)}) == len(others) + 1


def test_the_distance_of_sketches_is_that_of_parameters_within_its_limits() -> None:
    generator = torch.Generator().manual_seed(1)
    ratios = []
    for _ in range(20):
        one, other = (torch.randn(5000, generator=generator, dtype=torch.float64) for _ in range(2))
        ratios.append(float((sketch(one) - sketch(other)).norm() / (one - other).norm()))
    assert len(sketch(one)) == SKETCH
    assert sum(0.65 < ratio < 1.35 for ratio in ratios) >= 18
