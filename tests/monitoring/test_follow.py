"""Event files are followed through everything that can happen to a file while it is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from proving_ground.bench.rundir import RunDir
from proving_ground.monitoring.follow import LINE_MAX, Follower
from tests.monitoring.conftest import Recorded


@pytest.fixture
def empty(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path / "s" / "r")


@pytest.fixture
def follower(empty: Recorded) -> Iterator[Follower]:
    made = Follower(empty.run)
    yield made
    made.close()


def steps(follower: Follower) -> list[int]:
    return [record["step"] for record in follower.new() if record["event"] == "step"]


def line(step: int, t: float = 1.0) -> str:
    return f'{{"t":{t},"event":"step","step":{step},"samples":1}}\n'


def test_what_was_there_and_what_is_appended(empty: Recorded, follower: Follower) -> None:
    assert steps(follower) == []
    empty.append("t001.n1.0", line(1))
    assert steps(follower) == [1]
    assert steps(follower) == []
    empty.append("t001.n1.0", line(2) + line(3))
    assert steps(follower) == [2, 3]


def test_a_record_knows_whose_it_is(empty: Recorded, follower: Follower) -> None:
    empty.append("t001.n1.0", line(1))
    empty.append("harness", '{"t":2,"event":"trial_start","trial":"t001"}\n')
    found = list(follower.new())
    assert [(it["source"], it["trial"]) for it in found] == [("n1.0", "t001"), ("harness", "t001")]


def test_a_half_line_waits_for_its_other_half(empty: Recorded, follower: Follower) -> None:
    whole = line(1)
    empty.append("t001.n1.0", whole[:20])
    assert steps(follower) == []
    empty.append("t001.n1.0", whole[20:])
    assert steps(follower) == [1]
    assert follower.refused == 0


def test_files_are_merged_in_the_order_of_time(empty: Recorded, follower: Follower) -> None:
    empty.append("t001.n1.0", line(1, 1.0) + line(3, 3.0))
    empty.append("t001.n2.0", line(2, 2.0) + line(4, 4.0))
    assert steps(follower) == [1, 2, 3, 4]


def test_a_file_that_was_cut_is_read_from_its_beginning(empty: Recorded, follower: Follower) -> None:
    empty.append("t001.n1.0", line(1) + line(2) + '{"half')
    assert steps(follower) == [1, 2]
    (empty.run.events / "t001.n1.0.jsonl").write_text(line(7))
    assert steps(follower) == [7]


def test_a_file_that_was_moved_aside_is_read_to_its_end_and_then_the_new_one(
    empty: Recorded, follower: Follower
) -> None:
    empty.append("t001.n1.0", line(1))
    assert steps(follower) == [1]
    file = empty.run.events / "t001.n1.0.jsonl"
    empty.append("t001.n1.0", line(2))
    file.rename(file.with_suffix(".old"))
    assert steps(follower) == [2]
    empty.append("t001.n1.0", line(3))
    assert steps(follower) == [3]


def test_a_removed_file_is_no_trouble(empty: Recorded, follower: Follower) -> None:
    empty.append("t001.n1.0", line(1))
    assert steps(follower) == [1]
    (empty.run.events / "t001.n1.0.jsonl").unlink()
    assert steps(follower) == []


@pytest.mark.parametrize(
    "bad", ["no json", "[]", "3", '{"event":"step"}', '{"t":1,"event":"step","step":1}', "", '{"t":"x","event":"step"}']
)
def test_lines_that_are_no_events_are_counted_and_passed_over(empty: Recorded, follower: Follower, bad: str) -> None:
    empty.append("t001.n1.0", line(1) + bad + "\n" + line(2))
    assert steps(follower) == [1, 2]
    assert follower.refused == 1


def test_a_line_without_an_end_costs_no_memory(empty: Recorded, follower: Follower) -> None:
    empty.append("t001.n1.0", line(1) + "x" * (3 * LINE_MAX))
    assert steps(follower) == [1]
    assert len(next(iter(follower.files.values()))._half) <= LINE_MAX
    empty.append("t001.n1.0", "x\n" + line(2))
    assert steps(follower) == [2]
    assert follower.refused == 1


def test_a_loss_that_is_no_number_is_an_event(empty: Recorded, follower: Follower) -> None:
    empty.append("t001.n1.0", '{"t":1,"event":"step","step":1,"samples":1,"loss":NaN}\n')
    assert steps(follower) == [1]


def test_a_run_without_events_is_no_trouble(tmp_path: Path) -> None:
    assert list(Follower(RunDir(tmp_path)).new()) == []
