"""A job as its event files show it while it runs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.jobview import JobView
from proving_ground.bench.spec import Trial


def write(folder: Path, name: str, *records: dict[str, Any], end: str = "\n") -> None:
    """Append records to the file of one process."""
    with (folder / f"t001.{name}.jsonl").open("a") as file:
        file.write("".join(json.dumps(record) + "\n" for record in records)[:-1] + end)


def life(rank: int, generation: int, pid: int, *, t: float, steps: int, world: int = 2, first: int = 1) -> list[Any]:
    """What one incarnation of a worker tells."""
    start = {"t": t, "event": "start", "rank": rank, "world_size": world, "pid": pid}
    ready = {"t": t, "event": "ready", "generation": generation}
    return [start, ready, *({"t": t + 0.1 * it, "event": "step", "step": first + it} for it in range(steps))]


@pytest.fixture
def view(tmp_path: Path) -> JobView:
    trial = Trial("t001", "c", "digits", ("strong",), 2, 1, 1, 8, 16, 100, 0)
    return JobView(trial, ["n1", "n2"], "n3", tmp_path, None, None, lambda: 20.0)


def test_it_knows_who_is_who(view: JobView) -> None:
    write(view.folder, "n1.0", *life(1, 1, 70, t=10, steps=3))
    write(view.folder, "n2.0", *life(0, 1, 80, t=10, steps=4))
    view.refresh()
    assert view.rank0() == "n2"
    assert view.pids() == {"n1": {70: "n1.0"}, "n2": {80: "n2.0"}}
    assert view.ranks_of(["n1"]) == [1]
    assert view.step == 4


def test_a_joiner_has_started_and_has_not_met_the_others(view: JobView) -> None:
    write(view.folder, "n1.0", *life(0, 1, 70, t=10, steps=3))
    write(view.folder, "n2.0", {"t": 10, "event": "start", "pid": 80})
    view.refresh()
    assert view.joiners() == ("n2",)
    write(view.folder, "n2.0", {"t": 11, "event": "ready", "generation": 1, "rank": 1, "world_size": 2})
    view.refresh()
    assert view.joiners() == ()


def test_while_nobody_has_met_there_is_no_joiner(view: JobView) -> None:
    for name, pid in (("n1.0", 70), ("n2.0", 80)):
        write(view.folder, name, {"t": 10, "event": "start", "pid": pid})
    view.refresh()
    assert view.joiners() == ()


def test_a_job_is_steady_only_at_full_strength_since_the_moment_asked_for(view: JobView) -> None:
    write(view.folder, "n1.0", *life(0, 1, 70, t=10, steps=5))
    view.refresh()
    assert not view.steady(3, since_t=0)  # n2 is missing
    write(view.folder, "n2.0", *life(1, 1, 80, t=10, steps=5))
    view.refresh()
    assert view.steady(5, since_t=0)
    assert not view.steady(5, since_t=10.05)


def test_why_a_job_is_not_steady_is_told(view: JobView) -> None:
    assert view.unsteady(3, 0) == "0 of 2 trainers have told that they started"
    write(view.folder, "n1.0", *life(0, 2, 70, t=10, steps=5))
    write(view.folder, "n2.0", *life(1, 1, 80, t=10, steps=5))
    view.refresh()
    assert view.unsteady(3, 0) == "1 of 2 ranks have met at full strength"
    write(view.folder, "n2.0", *life(1, 2, 81, t=11, steps=2, first=4))
    view.refresh()
    assert view.unsteady(3, 0) == "n2 has told 2 of 3 steps"
    assert view.unsteady(2, 0, beyond=5) == "n1 makes up for lost work: step 5 of 6"
    assert view.unsteady(2, 0) == ""


def test_a_trainer_that_knows_no_generations_is_steady_by_its_steps(view: JobView) -> None:
    for name, rank in (("n1.0", 0), ("n2.0", 1)):
        start, _, *steps = life(rank, 0, 70 + rank, t=10, steps=4)
        write(view.folder, name, start, {**start, "pid": 90 + rank}, *steps)
    view.refresh()
    assert view.steady(4, since_t=0)
    assert view.pids() == {"n1": {90: "n1.0"}, "n2": {91: "n2.0"}}  # its own word for its pid


def test_a_step_takes_as_long_as_the_slowest_rank_says(view: JobView) -> None:
    write(view.folder, "n1.0", *life(0, 1, 70, t=10, steps=8))
    view.refresh()
    assert math.isnan(view.step_s(5))  # n2 is missing
    slow = [{"t": t, "event": "step", "step": t} for t in (11, 12, 13)]
    write(view.folder, "n2.0", *life(1, 1, 80, t=10, steps=6), *slow)
    view.refresh()
    assert view.step_s(15) == pytest.approx(0.1)  # n2's are 5 of 0.1 s, one of 0.5 s, two of 1 s
    assert view.step_s(5) == pytest.approx(0.5)
    assert view.step_s(15, since_t=10.15) == pytest.approx(0.3)
    assert math.isnan(view.step_s(15, since_t=10.25))  # n1 has made 4 since


def test_who_is_left_of_an_old_generation_does_not_count(view: JobView) -> None:
    write(view.folder, "n1.0", *life(0, 1, 70, t=10, steps=5), *life(0, 2, 71, t=12, steps=5, world=1))
    write(view.folder, "n2.0", *life(1, 1, 80, t=10, steps=5))
    view.refresh()
    assert not view.steady(3, since_t=0)
    write(view.folder, "n1.0", *life(1, 3, 72, t=14, steps=5))
    write(view.folder, "n2.0", *life(0, 3, 82, t=14, steps=5))
    view.refresh()
    assert view.steady(5, since_t=0)
    assert view.rank0() == "n2"


def test_each_record_is_told_once_and_half_lines_wait(view: JobView) -> None:
    write(
        view.folder, "n1.launch", {"t": 1, "event": "detected", "why": "worker_failed"}, {"t": 2, "event": "x"}, end=""
    )
    view.refresh()
    assert [it["event"] for it in view.told] == ["detected"]
    write(view.folder, "n1.launch", {}, end="")  # nothing but the end of the line
    with (view.folder / "t001.n1.launch.jsonl").open("a") as file:
        file.write("\n")
    view.refresh()
    assert view.told == []  # the line that came of the two halves is no record
    assert view.workers == {}


def test_a_job_with_two_ranks_a_node_is_steady_when_all_ranks_are(view: JobView) -> None:
    view.trial = replace(view.trial, ranks_per_node=2)
    for rank, name in enumerate(("n2.0", "n2.1", "n1.0")):
        write(view.folder, name, *life(rank, 1, 70 + rank, t=10, steps=5, world=4))
    view.refresh()
    assert view.unsteady(3, 0) == "3 of 4 trainers have told that they started"
    write(view.folder, "n1.1", *life(3, 1, 73, t=10, steps=2, world=4))
    view.refresh()
    assert view.unsteady(3, 0) == "rank 3 on n1 has told 2 of 3 steps"
    assert view.steady(2, 0)
    assert view.pids() == {"n1": {72: "n1.0", 73: "n1.1"}, "n2": {70: "n2.0", 71: "n2.1"}}
    assert (view.rank0(), view.writer(), view.ranks_of(["n1"])) == ("n2", "n2.0", [2, 3])
    write(view.folder, "n1.0", *life(0, 2, 80, t=12, steps=5, world=2))
    write(view.folder, "n1.1", *life(1, 2, 81, t=12, steps=5, world=2))
    view.refresh()
    assert view.unsteady(3, 0) == "0 of 4 ranks have met at full strength", "two ranks are one node of the two"
