"""What a replay is told: which generation made which steps, and whose state each rank went on from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.lineage import LineageError, Stretch, seen, stretches, write
from proving_ground.bench.protocols import TrialFiles
from proving_ground.bench.spec import Trial

WORKERS = ["n1.0", "n2.0", "n3.0"]


class Recorder:
    """Records of workers, as their event files have them."""

    def __init__(self) -> None:
        self.records: dict[str, list[dict[str, Any]]] = {worker: [] for worker in WORKERS}

    def meet(self, generation: int, *numbers: int, start: bool = True, resume: Any = None) -> None:
        """Nodes of these numbers meet, rank 0 first; with `resume` of those that went on from something."""
        for rank, number in enumerate(numbers):
            mine = self.records[f"n{number}.0"]
            mine += [{"event": "start"}] if start else []
            if resume and (start or number in resume.get("by", ())):
                mine.append({"event": "resume", **resume})
            mine.append({"event": "ready", "generation": generation, "rank": rank, "world_size": len(numbers)})

    def steps(self, generation: int, first: int, last: int, *numbers: int) -> None:
        for step in range(first, last + 1):
            for number in numbers:
                self.records[f"n{number}.0"].append({"event": "step", "step": step, "generation": generation})

    def found(self) -> list[Stretch]:
        return stretches(seen(self.records), WORKERS)


def test_a_job_that_shrank_and_grew_under_restart() -> None:
    job = Recorder()
    job.meet(1, 1, 2, 3)
    job.steps(1, 1, 14, 1, 2, 3)
    job.meet(2, 3, 1, resume={"step": 10, "of_generation": 1})
    job.steps(2, 11, 25, 1, 3)
    job.meet(3, 1, 2, 3, resume={"step": 20, "of_generation": 2})
    job.steps(3, 21, 30, 1, 2, 3)
    assert job.found() == [
        Stretch(1, 1, 10, (0, 1, 2)), Stretch(2, 11, 20, (0, 1)), Stretch(3, 21, 30, (0, 1, 0)),
    ]  # fmt: skip


def test_a_live_job_whose_member_is_replaced_keeps_each_survivors_own_state() -> None:
    job = Recorder()
    job.meet(1, 1, 2, 3)
    job.steps(1, 1, 7, 1, 2, 3)
    job.meet(2, 1, 3, start=False)
    job.steps(2, 8, 12, 1, 3)
    job.records["n2.0"].append({"event": "start"})
    job.meet(3, 1, 2, 3, start=False, resume={"by": (2,), "step": 12, "of_generation": 2, "peer": 2})
    job.steps(3, 13, 20, 1, 2, 3)
    assert job.found() == [Stretch(1, 1, 7, (0, 1, 2)), Stretch(2, 8, 12, (0, 2)), Stretch(3, 13, 20, (0, 1, 1))]


def test_a_membership_that_made_no_step_is_passed_over() -> None:
    job = Recorder()
    job.meet(1, 1, 2, 3)
    job.steps(1, 1, 5, 1, 2, 3)
    job.meet(2, 1, 3, start=False)  # was struck again before its first step
    job.meet(3, 3, start=False)
    job.steps(3, 6, 9, 3)
    assert job.found() == [Stretch(1, 1, 5, (0, 1, 2)), Stretch(3, 6, 9, (2,))]


def test_a_step_that_a_rank_did_not_live_to_record_counts_by_its_share() -> None:
    job = Recorder()
    job.meet(1, 1, 2)
    job.steps(1, 1, 4, 1, 2)
    job.records["n1.0"].append({"event": "step", "step": 5, "generation": 1})
    assert job.found()[-1].last == 4
    job.records["n2.0"].append({"event": "share", "step": 5, "generation": 1})
    assert job.found()[-1].last == 5


def test_what_nobody_recorded_is_said() -> None:
    job = Recorder()
    job.meet(1, 1, 2)
    with pytest.raises(LineageError, match="no step of the whole job"):
        job.found()
    job.steps(1, 1, 4, 1, 2)
    job.meet(2, 1, 3)  # n3 has a part and never said what it went on from
    job.steps(2, 5, 6, 1, 3)
    with pytest.raises(LineageError, match=r"n3\.0 has a part in generation 2"):
        job.found()


def test_a_record_that_says_too_little_is_told_and_no_traceback(tmp_path: Path) -> None:
    files = TrialFiles(tmp_path, tmp_path, tmp_path)
    replayed = Trial("t001", "c", "digits", ("strong",), 3, 1, 1, 8, 24, 100, 0)
    for worker in WORKERS:
        files.event_file("t001", worker).write_text('{"t": 1, "event": "ready", "generation": 1}\n')
    with pytest.raises(LineageError, match="a record of it cannot be read: KeyError: 'rank'"):
        write(replace(replayed, id="t002", replays="t001"), replayed, files, ["n1", "n2", "n3"])


def test_two_ranks_a_node_are_four_workers_and_a_job_that_kept_its_size_has_no_replay(tmp_path: Path) -> None:
    replayed = Trial("t001", "c", "digits", ("strong",), 2, 1, 1, 8, 16, 100, 0, ranks_per_node=2)
    again = replace(replayed, id="t002", role="replay", replays="t001")
    for number, worlds in enumerate(((4, 4, 4), (4, 2, 4))):
        folder = tmp_path / str(number)
        folder.mkdir()
        files = TrialFiles(folder, folder, folder)
        for rank, name in enumerate(("n1.0", "n1.1", "n2.0", "n2.1")):
            records = [json.dumps({"t": 1.0, **it}) + "\n" for it in of_rank(rank, worlds)]
            files.event_file("t001", name).write_text("".join(records))
        found = write(again, replayed, files, ["n1", "n2"])
        sizes = [] if number == 0 else [(0, 1, 2, 3), (0, 1), (0, 1, 0, 0)]
        assert [it.origin for it in found] == sizes


def of_rank(rank: int, worlds: tuple[int, ...]) -> list[dict[str, Any]]:
    """A rank of four, its node gone where the world is smaller: five steps of each generation."""
    told: list[dict[str, Any]] = []
    for generation, world in enumerate(worlds, 1):
        if rank < world:
            told += [{"event": "start", "rank": rank, "world_size": world, "pid": 1, "wall_s": 0.0}]
            if generation > 1:
                told += [{"event": "resume", "step": 5 * generation - 5, "path": "c", "of_generation": generation - 1}]
            told += [{"event": "ready", "generation": generation, "rank": rank, "world_size": world}]
            first = 5 * generation - 4
            made = {"event": "step", "samples": 1, "generation": generation}
            told += [{**made, "step": step} for step in range(first, first + 5)]
    return told
