"""Live jobs: ranks change while a process lives, a state comes from a peer, a rank dies after its share counted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from proving_ground.reports.recovery import custody, ledger
from proving_ground.reports.recovery.incidents import Left
from proving_ground.reports.recovery.jobs import Job, collect, note
from proving_ground.reports.recovery.steps import Stretch, job_steps, lineage

Records = list[dict[str, Any]]


def history(*, died_at: int = 2) -> Records:
    """Three nodes make step 1, then n1 is lost while step 2 is under way; the others make step 3.

    `died_at` 2: the sums of step 2 had arrived, and the others recorded it; 1: they had not, and step 2 is made again.
    """
    found: Records = [{"event": "trial_start"}]
    for number in (1, 2, 3):
        source = f"n{number}.0"
        about: dict[str, Any] = {"generation": 1, "world_size": 3}
        found += [
            {"event": "start", "source": source, "rank": -1, "world_size": 0},
            {"event": "ready", "source": source, "rank": number - 1, **about},
        ]
        for step in (1, 2):
            share = {"source": source, "step": step, "rows": [10 * step + number], **about}
            found.append({"event": "share", **share})
            if step == 1 or (died_at == 2 and number > 1):
                found.append({"event": "step", "samples": 1, **share})
    for number in (2, 3):
        about = {"source": f"n{number}.0", "generation": 2, "world_size": 2}
        found.append({"event": "ready", "rank": number - 2, **about})
        for step in range(died_at + 1, 4):
            rows = [10 * step + 1, 10 * step + 3] if number == 3 else [10 * step + 2]
            found.append({"event": "share", "step": step, "rows": rows, **about})
            found.append({"event": "step", "step": step, "samples": len(rows), "rows": rows, **about})
    return [{"trial": "t001", "source": "harness", **it, "t": float(at)} for at, it in enumerate(found)]


def read(records: Records) -> Job:
    return collect(records, []).jobs["t001"]


@pytest.mark.parametrize("died_at", [1, 2])
def test_every_sample_of_a_live_job_is_known(died_at: int) -> None:
    job = read(history(died_at=died_at))
    rows = job.rows()
    steps = job_steps(job, rows)
    stretches = lineage(job, steps)
    assert stretches == [Stretch(1, 1, died_at, 3), Stretch(2, died_at + 1, 3, 2)]
    assert steps["committed"].all()
    found = ledger.entries(job, rows, stretches)
    assert list(found.missing) == []
    assert found.id.tolist() == [11, 12, 13, 21, 22, 23, 31, 32, 33]


@pytest.mark.parametrize(
    ("resumed", "back"),
    [
        ([], False),  # survivors have their state
        ([{"path": "peer n2", "peer": 2, "of_generation": 1}], False),
        ([{"path": "ckpt-2", "of_generation": 1}], True),
        ([{"path": "peer n2", "peer": 2, "of_generation": 1}, {"path": "ckpt-2", "of_generation": 1}], True),
    ],
)
def test_training_went_back_where_anybody_loaded_a_checkpoint(resumed: Records, back: bool) -> None:  # noqa: FBT001
    records = history()
    at = next(number for number, it in enumerate(records) if it.get("generation") == 2)
    about = {"trial": "t001", "event": "resume", "source": "n2.0", "step": 2, "generation": 2, "t": records[at]["t"]}
    job = read(records[:at] + [{**about, **it} for it in resumed] + records[at:])
    steps = job_steps(job, job.rows())
    assert Left(job, steps, lineage(job, steps)).went_back(2) == back
    assert Left(job, steps, lineage(job, steps)).went_back(1)  # from nothing


def test_without_a_share_the_record_of_the_lost_rank_is_missing() -> None:
    job = read([it for it in history() if it["event"] != "share"])
    rows = job.rows()
    assert list(ledger.entries(job, rows, lineage(job, job_steps(job, rows))).missing) == [2]


def test_a_share_of_a_step_that_nobody_recorded_does_not_count() -> None:
    rows = read(history(died_at=1)).rows()
    assert not len(rows[(rows["generation"] == 1) & (rows["step"] == 2)])


def test_ranks_follow_the_membership() -> None:
    rows = read(history()).rows()
    second = rows[rows["generation"] == 2]
    assert sorted(second["rank"].unique()) == [0, 1]
    assert set(second["world"]) == {2}


@pytest.mark.parametrize(
    ("step", "generation", "expected"), [(7, 3, "pass"), (7, 2, "unknown"), (8, 3, "unknown"), (0, 0, "pass")]
)
def test_a_peer_s_state_is_right_if_somebody_made_that_step_in_that_generation(
    step: int, generation: int, expected: str
) -> None:
    evidence: Any = SimpleNamespace(steps=pd.DataFrame({"step": [6, 7], "generation": [3, 3]}))
    record = {"path": "peer n1", "peer": 0, "step": step, "of_generation": generation}
    assert custody.about_load(evidence, record)[0] == expected


@pytest.mark.parametrize(
    ("told", "step", "proven", "expected"),
    [
        ((20, 30), 30, None, "pass"),
        ((20, 30), 20, 99, "fail"),  # it is that of step 30 now
        ((20, 30), 40, None, "unknown"),  # rank 0 was killed between the file and the telling
        ((20, 30), 40, 50, "pass"),
        ((20, 30), 50, 60, "fail"),  # nobody had made it
        ((30,), 40, 50, "fail"),  # a name of its own for each step
    ],
)
def test_a_file_that_each_checkpoint_overwrites_may_have_one_that_nobody_told(
    told: tuple[int, ...], step: int, proven: int | None, expected: str
) -> None:
    commits = [{"t": float(it), "step": it, "path": "newest.pt"} for it in told]
    evidence: Any = SimpleNamespace(
        commits={"newest.pt": commits}, broken=(), job=SimpleNamespace(within=lambda *_: []),
        steps=pd.DataFrame({"step": [20, 30, 40], "end": [20.0, 30.0, 40.0]}),
        sameness=SimpleNamespace(bitwise_after=lambda _: proven),
    )  # fmt: skip
    assert custody.about_load(evidence, {"path": "newest.pt", "t": 60.0, "step": step})[0] == expected


def test_a_start_told_twice_begins_one_life() -> None:
    """By who started it and by the trainer itself; a trainer that knows no generations is counted by its lives."""
    job = Job("t001")
    for pid in (1, 2):
        about: dict[str, Any] = {"source": "n1.0", "t": float(pid)}
        for again in (0, 10):
            note(job, "start", {**about, "event": "start", "rank": 0, "world_size": 2, "pid": pid + again})
        told = {**about, "event": "eval"}
        note(job, "eval", told)
        assert told["generation"] == pid
