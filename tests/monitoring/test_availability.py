"""Availability: what counts as progress, and every way in which a job could seem to make some and does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench import rundir
from proving_ground.bench.rundir import RunDir, RunDirError
from proving_ground.monitoring import availability
from proving_ground.monitoring.availability import SubmittedJob, jobs_of, measure
from proving_ground.monitoring.cli import main


def recorded(root: Path, worker: list[tuple[float, int]], *, end: float = 20.0, faults: int = 0, **plan: Any) -> RunDir:
    """A job submitted at 0 whose ranks ended steps at these moments, and that was ended at `end`."""
    run = RunDir(root / "suite" / f"2026{len(list(root.glob('suite/*')))}")
    run.events.mkdir(parents=True)
    run.write("spec", {})
    run.write("plan", {"trials": [{"id": "t001", "label": "emulated", "compute": "real", **plan}]})
    told: list[dict[str, Any]] = [{"t": 0, "event": "run_start"}, {"t": 0, "event": "trial_start", "trial": "t001"}]
    told += [{"t": 1, "event": "fault_begin", "trial": "t001", "fault": f"f{n}"} for n in range(faults)]
    told += [{"t": end, "event": "trial_end", "trial": "t001"}, {"t": end + 50, "event": "run_end"}]
    write(run, "harness", told)
    for node in ("n1", "n2"):
        write(run, f"t001.{node}.0", [{"t": t, "event": "step", "step": it, "samples": 1} for t, it in worker])
    rundir.merge(run)
    return run


def write(run: RunDir, name: str, records: list[dict[str, Any]]) -> None:
    (run.events / f"{name}.jsonl").write_text("".join(json.dumps(it) + "\n" for it in records))


def steps(begin: float, first: int, last: int) -> list[tuple[float, int]]:
    """One a second, the first one ended at `begin`."""
    return [(begin + number - first, number) for number in range(first, last + 1)]


def of(run: RunDir) -> tuple[float, float, float]:
    """Seconds, of start, of progress."""
    found = measure(jobs_of(run))
    return found.seconds, found.start_s, found.progress_s


def test_a_job_makes_progress_from_its_first_step_to_its_last(tmp_path: Path) -> None:
    assert of(recorded(tmp_path, steps(4, 1, 17))) == (20, 4, 16)


@pytest.mark.parametrize(
    ("worker", "progress"),
    [
        ([*steps(4, 1, 5), *steps(14, 6, 12)], 4 + 1 + 6),  # stood still for 5 s: 1 s of it is the step
        ([*steps(4, 1, 8), *steps(12, 4, 12)], 7 + 1 + 3),  # 4 to 8 were made again
        ([*steps(4, 1, 5)], 4),  # hung until it was ended at 20
        ([(4.0, 1)], 0),  # one step and no more
        ([], 0),  # never trained
        ([*steps(4, 1, 5), *((8 + 2.5 * it, 5 + it) for it in range(1, 5))], 4 + 10),  # slower is not down
    ],
)
def test_what_is_no_progress_does_not_count(tmp_path: Path, worker: list[tuple[float, int]], progress: float) -> None:
    seconds, _, made = of(recorded(tmp_path, worker))
    assert seconds == 20
    assert made == pytest.approx(progress)


def test_the_slow_start_of_a_job_counts_against_it(tmp_path: Path) -> None:
    assert of(recorded(tmp_path, steps(15, 1, 6))) == (20, 15, 5)
    assert of(recorded(tmp_path, [])) == (20, 20, 0)


def test_time_after_the_job_is_not_the_job_s(tmp_path: Path) -> None:
    run = recorded(tmp_path, steps(4, 1, 17), end=500)
    write(run, "t001.n1.0", [{"t": t, "event": "step", "step": it, "samples": 1} for t, it in steps(4, 1, 17)]
          + [{"t": 20.5, "event": "end", "step": 17}])  # fmt: skip
    rundir.merge(run)
    assert of(run)[0] == 20.5


def test_a_job_whose_trainers_were_asked_to_leave_goes_on_when_others_take_their_place(tmp_path: Path) -> None:
    run = recorded(tmp_path, steps(4, 1, 5), end=20)
    for node in ("n1", "n2"):
        left = [{"t": 8.5, "event": "end", "step": 5, "reason": "stopped"}]
        again = [{"t": 12, "event": "start", "rank": 0, "world_size": 2, "pid": 2, "wall_s": 0.0}]
        told = [{"t": t, "event": "step", "step": it, "samples": 1} for t, it in [*steps(4, 1, 5), *steps(14, 6, 12)]]
        write(run, f"t001.{node}.0", sorted([*told, *left, *again], key=lambda it: it["t"]))
    rundir.merge(run)
    assert of(run) == (20, 4, 4 + 1 + 6)


def test_a_run_that_was_cut_off_counts_as_far_as_it_was_recorded(tmp_path: Path) -> None:
    run = recorded(tmp_path, steps(4, 1, 10))
    run.history.unlink()
    write(run, "harness", [{"t": 0, "event": "trial_start", "trial": "t001"}])
    assert of(run) == (13, 4, 9)


def test_a_measuring_program_is_no_job(tmp_path: Path) -> None:
    assert jobs_of(recorded(tmp_path, steps(4, 1, 5), compute="none")) == []


def test_jobs_are_weighed_with_their_time() -> None:
    run = RunDir(Path("x"))
    short = SubmittedJob(run, "a", {}, 0, 10, steps=[0.0, 5.0, 10.0])
    long = SubmittedJob(run, "b", {}, 0, 90)
    found = measure([short, long])
    assert (found.progress_s, found.seconds) == (10, 100)


def test_the_command_tells_runs_apart_and_leaves_out_what_it_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    recorded(tmp_path, steps(4, 1, 17))
    recorded(tmp_path, [*steps(4, 1, 5), *steps(14, 6, 12)], faults=2)
    broken = recorded(tmp_path, [])
    (broken.path / "plan.json").write_text("{")
    assert main(["--runs", str(tmp_path), "availability"]) == 0
    first, second, *whole, left_out = capsys.readouterr().out.splitlines()
    assert first == "suite/20260  80.0 % of 20 s in 1 job made progress (20.0 % start, 0.0 % down); emulated"
    assert (
        second == "suite/20261  55.0 % of 20 s in 1 job made progress (20.0 % start, 25.0 % down); 2 faults; emulated"
    )
    assert [it.partition(" %")[0] for it in whole] == ["without faults: 80.0", "with faults: 55.0", "all: 67.5"]
    assert left_out.startswith("left out: ")
    assert "plan.json" in left_out


def test_no_runs_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="start with: pg bench run"):
        availability.chosen(tmp_path, [])
