"""Wall clocks are compared with wall clocks, whatever the machines' monotonic clocks say."""

from __future__ import annotations

import time
from typing import Any

import pytest

from proving_ground.bench.rundir import Record
from proving_ground.monitoring.board import Board
from proving_ground.monitoring.clocks import Clocks
from proving_ground.monitoring.exporter import taker_of
from proving_ground.monitoring.intake import Intake
from tests.monitoring.conftest import Recorded

DAYS_S = 3 * 86400.0
WALL_S, T = 1_767_000_000.0, 5000.0  # of the harness, read together
PLAN = {"trials": [{"id": "t001", "nodes": 2}]}


def event(t: float, name: str, source: str = "n1.0", **more: Any) -> Record:
    return {"t": t, "event": name, "source": source, "trial": "t001", **more}


def shifted(t: float, name: str, wall_ahead_s: float = 0.0, **more: Any) -> Record:
    """An event of a node whose monotonic clock is days ahead, as the collector sets it to the harness' clock."""
    wall_s = WALL_S + (t - T) + wall_ahead_s
    return event(t, name, node_t=t + DAYS_S, wall_s=wall_s, **more)


def steps(wall_ahead_s: float = 0.0) -> list[Record]:
    begun = shifted(T + 1, "start", wall_ahead_s, rank=0, world_size=1, pid=1)
    return [begun, *(shifted(T + 1 + it, "step", wall_ahead_s, step=it, samples=1) for it in (1, 2, 3))]


def node_clock(wall_ahead_s: float, incarnation: int = 0) -> Record:
    about = {"node": "n1", "incarnation": incarnation, "offset_s": DAYS_S, "error_s": 1e-4}
    return {"t": T, "event": "node_clock", "source": "harness", **about, "wall_ahead_s": wall_ahead_s}


def board_of(*records: Record, harness: bool = True) -> Board:
    board = Board()
    clock = {"wall_s": WALL_S, "t": T} if harness else None
    intake = Intake(board, "r", PLAN if harness else {}, clock, 0.0)
    begin = [event(T, "trial_start", "harness")] if harness else []
    for record in [*begin, *records]:
        intake.take(record)
    assert intake.refused == 0
    return board


def offset(*records: Record) -> float | None:
    return board_of(*records).get("node_clock_offset_seconds", ("r", "t001", "n1"))


def test_clocks_days_apart_are_no_skew() -> None:
    assert offset(*steps()) == pytest.approx(0, abs=1e-3)
    assert offset(node_clock(0.0), *steps()) == 0


def test_a_wall_clock_that_is_a_minute_ahead_is_a_minute_ahead() -> None:
    assert offset(*steps(60.0)) == pytest.approx(60, abs=1e-3)
    assert offset(node_clock(60.0), *steps(60.0)) == 60


def test_what_the_harness_measured_of_a_node_s_newest_incarnation_counts() -> None:
    assert offset(node_clock(60.0), node_clock(0.25, 1), *steps(60.0)) == 0.25
    assert offset(*steps(), node_clock(60.0)) == 60, "at once, and not only with the next step"
    other = {**node_clock(60.0), "node": "n2"}
    assert board_of(*steps(), other).get("node_clock_offset_seconds", ("r", "t001", "n2")) is None, "none of the job's"


def test_moments_of_other_machines_are_told_in_the_harness_time() -> None:
    last = board_of(*steps()).get("training_last_step_timestamp_seconds", ("r", "t001", "n1", "0"))
    assert last == pytest.approx(WALL_S + 4)


def bare(source: str, ahead_s: float) -> list[Record]:
    """A trainer without the harness whose monotonic clock began `ahead_s` seconds earlier than T."""
    begun = event(T + ahead_s, "start", source, rank=0, world_size=1, pid=1, wall_s=WALL_S)
    return [begun, *(event(T + ahead_s + it, "step", source, step=it, samples=1, wall_s=WALL_S + it) for it in (1, 2))]


def test_without_a_harness_nobody_s_wall_clock_is_called_wrong_and_each_node_s_events_are_placed_by_its_own() -> None:
    board = board_of(*bare("n1.0", 0.0), *bare("n2.0", -DAYS_S / 100), harness=False)
    assert board.values.get("node_clock_offset_seconds", {}) == {}
    for node in ("n1", "n2"):
        last = board.get("training_last_step_timestamp_seconds", ("r", "t001", node, "0"))
        assert last == pytest.approx(WALL_S + 2)


def test_a_moment_that_nobody_can_place_is_not_made_up() -> None:
    board = board_of(event(T, "step", step=1, samples=1), harness=False)
    assert board.get("training_step", ("r", "t001", "n1", "0")) == 1
    assert not [name for name, held in board.values.items() if held and name.endswith("timestamp_seconds")]


def test_a_recovery_across_machines_without_a_harness_is_measured_on_one_clock() -> None:
    """Machine n2's monotonic clock is days from n1's; both know the time of day."""
    records = []
    for begin, generation, first in ((0.0, 1, 1), (10.0, 2, 3)):
        for rank, (source, clock_s) in enumerate((("n1.0", 0.0), ("n2.0", DAYS_S))):
            at = T + clock_s + begin
            about = {"rank": rank, "world_size": 2, "pid": 1, "wall_s": WALL_S + begin}
            records += [event(at, "start", source, **about), event(at + 1, "ready", source, generation=generation)]
            records += [event(at + 1 + it, "step", source, step=first - 1 + it, samples=1) for it in (1, 2)]
    board = board_of(*records, harness=False)
    assert board.distributions["recovery_standstill_seconds"]["r", "t001"].total == pytest.approx(9.0)


@pytest.mark.parametrize("name", ["search", "load"])
def test_a_trainer_s_own_file_of_our_name_changes_nothing(recorded: Recorded, name: str) -> None:
    (recorded.run.path / f"{name}.json").write_text("[1]")
    assert isinstance(taker_of(recorded.run, Board(), 0), Intake)


def test_event_files_alone_have_no_clock(recorded: Recorded) -> None:
    assert taker_of(recorded.run, Board(), 0)._clocks.harness_ahead_s is not None
    (recorded.run.path / "plan.json").unlink()
    assert taker_of(recorded.run, Board(), 0)._clocks.harness_ahead_s is None
    assert Clocks.of(None).unix(event(time.monotonic(), "step")) is None
