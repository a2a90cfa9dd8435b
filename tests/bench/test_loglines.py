"""The merged view of a run's logs: whose line, when, at which rank and step; and where none of it can be known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proving_ground.bench import loglines
from proving_ground.bench.loglines import LogLine, Wanted
from proving_ground.bench.rundir import RunDir, RunDirError

WALL_S = 1795276500.0  # 2026-11-21 15:55:00 UTC
BEGIN_T = 1000.0


def stamp(seconds: float) -> str:
    """PyTorch's, so many seconds into the run."""
    return f"E1121 15:55:{seconds:09.6f} 2 torch/api.py:836] "


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Rank 1 of two is killed at 4 s and comes back as rank 0."""
    store = RunDir(tmp_path / "suite" / "id")
    store.events.mkdir(parents=True)
    store.logs.mkdir()
    store.write("provenance", {"t": BEGIN_T, "wall_s": WALL_S, "utc_offset_s": 0})
    write(store, "harness", [
        {"t": 1000.5, "event": "trial_start", "trial": "t001"},
        {"t": 1001.0, "event": "process_start", "trial": "t001", "node": "n1", "slot": 0},
        {"t": 1001.0, "event": "process_start", "trial": "t001", "node": "n2", "slot": 0},
        {"t": 1004.1, "event": "fault_begin", "trial": "t001", "fault": "f01", "kind": "worker_kill",
         "target": ["n2"], "inject_t": 1004.0},
        {"t": 1009.1, "event": "fault_begin", "trial": "t001", "fault": "f02", "kind": "hang",
         "target": ["n1"], "inject_t": 1009.0},
        {"t": 1020.0, "event": "trial_end", "trial": "t001"},
    ])  # fmt: skip
    write(store, "t001.n1.0", [start(1001.5, 0), *steps(1002, 1, 2), *steps(1006, 2, 3)])
    write(store, "t001.n2.0", [start(1001.5, 1), *steps(1002, 1, 2), start(1005.5, 0), *steps(1006, 2, 3)])
    (store.logs / "t001.n1.0.log").write_text(
        f"hello\nstep 2/9  loss 1\n{stamp(4.5)}peer lost\n  at line 7\nstep 2/9  loss 1\n"
    )
    (store.logs / "t001.n2.0.log").write_text(f"hello\nkilled soon\n{stamp(5.75)}again\n{stamp(8.5)}late\n")
    return store


def write(store: RunDir, name: str, records: list[dict[str, object]]) -> None:
    (store.events / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def start(t: float, rank: int) -> dict[str, object]:
    return {"t": t, "event": "start", "rank": rank, "world_size": 2, "pid": 1, "wall_s": 1.0}


def steps(t: float, *numbers: int) -> list[dict[str, object]]:
    return [{"t": t + i, "event": "step", "step": number, "samples": 1} for i, number in enumerate(numbers)]


def of(found: list[LogLine], message: str) -> LogLine:
    return next(line for line in found if message in line.message)


def test_lines_of_all_processes_are_one_list_in_the_order_of_time(run: RunDir) -> None:
    said = [(line.node, line.message.rpartition("] ")[2]) for line in loglines.lines(run)]
    assert said == [
        ("n1", "hello"), ("n2", "hello"), ("n2", "killed soon"), ("n1", "step 2/9  loss 1"), ("n1", "peer lost"),
        ("n1", "  at line 7"), ("n2", "again"), ("n1", "step 2/9  loss 1"), ("n2", "late"),
    ]  # fmt: skip


def test_rank_and_step_are_those_of_the_moment(run: RunDir) -> None:
    found = list(loglines.lines(run))
    assert (of(found, "peer lost").rank, of(found, "peer lost").step) == (0, 2)
    again, late = of(found, "again"), of(found, "late")
    assert (again.rank, again.step, late.rank, late.step) == (0, None, 0, 3), "started again: no step yet, another rank"
    assert of(found, "hello").rank is None, "before it was told which rank it has"


def test_a_line_without_a_time_says_that_its_time_is_that_of_the_line_before(run: RunDir) -> None:
    found = list(loglines.lines(run))
    error, below = of(found, "peer lost"), of(found, "at line 7")
    assert error.t == pytest.approx(1004.5)
    assert (error.timed, error.level) == (True, "error")
    assert (below.t, below.timed, below.level) == (error.t, False, "")
    assert loglines.shown(below, BEGIN_T).split()[0] == "≥4.500"


def test_a_step_that_was_done_twice_is_the_next_one_in_the_file(run: RunDir) -> None:
    assert [line.t for line in loglines.lines(run) if line.message.startswith("step 2")] == [1003.0, 1006.0]


@pytest.mark.parametrize(
    ("wanted", "first"),
    [
        (Wanted(since="fault"), "peer lost"),
        (Wanted(since="f02"), None),
        (Wanted(since="5"), "again"),
        (Wanted(node="n2", since="fault"), "again"),
        (Wanted(node="n2.0"), "hello"),
        (Wanted(rank=1), None),
        (Wanted(node="n2", rank=0), "again"),
    ],
)
def test_what_is_not_wanted_is_left_out(run: RunDir, wanted: Wanted, first: str | None) -> None:
    found = list(loglines.lines(run, wanted))
    assert (first in found[0].message) if first else found == []


def test_the_faults_of_a_trial_do_not_let_others_through(run: RunDir) -> None:
    (run.logs / "t002.n1.0.log").write_text("quiet\n")
    assert "quiet" not in [line.message for line in loglines.lines(run, Wanted(since="fault"))]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Wanted(since="f09"), "--since f09: allowed: fault, a fault's id (f01, f02), seconds into the run"),
        (Wanted(trial="t009"), "unknown trial 't009'; allowed: t001"),
    ],
)
def test_a_mistake_names_what_is_allowed(run: RunDir, wanted: Wanted, message: str) -> None:
    with pytest.raises(RunDirError) as told:
        list(loglines.lines(run, wanted))
    assert message in str(told.value)


def test_no_stamp_of_a_node_whose_clock_was_set_wrong_is_believed(run: RunDir) -> None:
    harness = run.events / "harness.jsonl"
    set_wrong = '"kind": "hang", "evidence": {"ahead_s": {"n1": 60.0}}'
    harness.write_text(harness.read_text().replace('"kind": "hang"', set_wrong))
    assert not of(list(loglines.lines(run)), "peer lost").timed


def test_a_stamp_far_outside_its_trial_is_not_believed(run: RunDir) -> None:
    (run.logs / "t001.n1.0.log").write_text(f"{stamp(45)}what\n")
    assert [(line.t, line.timed) for line in loglines.lines(run, Wanted(node="n1"))] == [(1001.0, False)]


def test_local_time_and_the_turn_of_the_year() -> None:
    newyear = loglines.Clock(t=0.0, wall_s=1798761599.0, utc_offset_s=3600)  # 2026-12-31 23:59:59 UTC
    assert newyear.of_stamp("0101 00:59:59.500000") == pytest.approx(0.5)
    assert loglines.Clock(0.0, 1798761599.0, 0).of_stamp("0101 00:00:01.000000") == pytest.approx(2)


def test_logs_without_any_event_have_no_time(run: RunDir) -> None:
    for file in run.events.iterdir():
        file.unlink()
    (line, *_) = loglines.lines(run, Wanted(node="n2"))
    assert (line.t, line.rank, line.step) == (None, None, None)
    assert loglines.shown(line, BEGIN_T).startswith("         - t001 n2.0")


def test_the_rank_of_a_live_job_changes_with_its_members(run: RunDir) -> None:
    met = {"t": 1003.5, "event": "ready", "generation": 2, "rank": 1, "world_size": 2}
    write(run, "t001.n1.0", [start(1001.5, 0), *steps(1002, 1, 2), met])
    life = loglines.life_of(run.events / "t001.n1.0.jsonl")
    assert [life.at(t) for t in (1000, 1002.5, 1004)] == [(None, None), (0, 1), (1, 2)]
