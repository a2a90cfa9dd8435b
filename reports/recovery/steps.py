"""Steps of the whole job, made from the steps of its workers; and which of them the final weights come from.

Called by `reports.recovery.results`. Which of them are committed `bench.jobstate` says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from proving_ground.reports.recovery.jobs import Job, Record

STEADY_STEPS = 15  # before a fault: their median is the undisturbed pace


@dataclass(frozen=True)
class Stretch:
    """Steps `first` to `last` of one generation, which the final weights come from, and the size of its world."""

    generation: int
    first: int
    last: int
    world: int


def job_steps(job: Job, rows: pd.DataFrame) -> pd.DataFrame:
    """One row a step of the job, in the order of `end`, from the rows of its workers' steps.

    Columns: generation, step, ranks, world, begin, begun, end, committed, seconds and newest (the step that the job
    was at). `begin` is that of its first rank, `begun` that of its last, `end` the last rank's.
    `seconds` is the time since the step before of the same generation; the first of one has its own length.
    """
    by_step = rows.drop_duplicates(["generation", "step", "process"]).groupby(["generation", "step"], sort=True)
    found = by_step.agg(
        ranks=("process", "size"),
        world=("world", "max"),
        begin=("begin_t", "min"),
        begun=("begin_t", "max"),
        end=("t", "max"),
    ).reset_index()
    whole = np.frombuffer(job.committed, dtype=np.int64).reshape(-1, 2)
    committed = pd.MultiIndex.from_arrays((whole[:, 0], whole[:, 1]))
    found["committed"] = pd.MultiIndex.from_frame(found[["generation", "step"]].astype(np.int64)).isin(committed)
    found = found.sort_values("end", ignore_index=True)
    before = found.groupby("generation")["end"].shift()
    found["seconds"] = found["end"] - before.fillna(found["begin"])
    found["newest"] = found["step"].where(found["committed"]).ffill().fillna(0)
    return found


def between(frame: pd.DataFrame, begin: float, end: float, column: str = "end") -> pd.DataFrame:
    """The rows from one moment to another, both included, of a frame that is sorted by the column."""
    ends = frame[column].to_numpy()
    return frame.iloc[np.searchsorted(ends, begin, "left") : np.searchsorted(ends, end, "right")]


def full_world(job: Job, steps: pd.DataFrame) -> int:
    """Ranks at full strength: as many as the largest generation had."""
    return int(steps["world"].max()) if len(steps) else job.ranks


def pace_before(steps: pd.DataFrame, t: float, world: int) -> float:
    """Median seconds of the last steady steps at full strength before the moment `t`; NaN where there are none."""
    for reach in (STEADY_STEPS * 4, len(steps)):
        near = between(steps, -math.inf, t).tail(reach)
        inside = near.loc[near["committed"] & (near["world"] == world), "seconds"].tail(STEADY_STEPS)
        if len(inside) == STEADY_STEPS:
            break
    return float(inside.median()) if len(inside) else math.nan


def resumes_by_generation(job: Job) -> dict[int, Record]:
    """The checkpoint that each generation went on from (as its lowest rank recorded it)."""
    found: dict[int, Record] = {}
    for record in sorted(job.of("resume"), key=lambda record: int(record["rank"])):
        found.setdefault(int(record["generation"]), record)
    return found


def lineage(job: Job, steps: pd.DataFrame) -> list[Stretch]:
    """Where the final weights come from: generation by generation, the oldest first.

    A generation goes on from the checkpoint that it loaded, written by an earlier one; without one, and with a first
    step after 1, it carried its state over from the newest generation that had made the step before (live recovery).
    """
    steps = steps[~steps["generation"].isin(begun_after_the_end(job, steps))]
    if steps.empty:
        return []
    loaded, worlds = resumes_by_generation(job), steps.groupby("generation")["world"].max()
    committed = steps[steps["committed"]]
    newest = (committed if len(committed) else steps).sort_values(["generation", "step"]).iloc[-1]
    generation, last = int(newest["generation"]), int(newest["step"])
    found: list[Stretch] = []
    while last > 0:
        parent, since = _parent(steps, loaded.get(generation), generation)
        found.append(Stretch(generation, since + 1, last, int(worlds.get(generation, 0))))
        if since == 0 or parent >= generation:
            break
        generation, last = parent, since
    return found[::-1]


def begins_of(steps: pd.DataFrame) -> pd.Series:
    """When each step began; NaN where nobody told, nor how long it took."""
    return steps["begin"].fillna(steps["end"] - steps["seconds"])


def begun_after_the_end(job: Job, steps: pd.DataFrame) -> list[int]:
    """The generations of those who had not left yet when the harness ended the job, and went on without the others."""
    begins = begins_of(steps).fillna(steps["end"]).groupby(steps["generation"]).min()
    return [int(it) for it in begins.index[begins >= job.over_t]]


def _parent(steps: pd.DataFrame, loaded: Record | None, generation: int) -> tuple[int, int]:
    """(generation, step) that a generation went on from; step 0: it began anew."""
    if loaded:
        since = int(loaded["step"])
    else:
        own = steps.loc[steps["generation"] == generation, "step"]
        since = int(own.min()) - 1 if len(own) else 0
    if loaded and loaded.get("of_generation") is not None:
        return int(loaded["of_generation"]), since
    earlier = steps.loc[(steps["generation"] < generation) & (steps["step"] == since), "generation"]
    return (int(earlier.max()), since) if len(earlier) else (generation, since)


def changed_at(job: Job, steps: pd.DataFrame, world: int) -> dict[int, float]:
    """Generation → the first step of its own lineage that was made in a world of another size; infinite: none was."""
    loaded = resumes_by_generation(job)
    sizes = steps.groupby("generation")["world"].max()
    found: dict[int, float] = {}
    for generation, size in zip(sizes.index.astype(int), sizes, strict=True):
        parent, since = _parent(steps, loaded.get(generation), generation)
        before = found.get(parent, math.inf) if parent < generation else math.inf
        own = math.inf if size == world else since + 1
        found[generation] = before if before <= since else own
    return found


def in_lineage(frame: pd.DataFrame, stretches: Sequence[Stretch]) -> pd.Series:
    """Which rows (with generation and step) belong to the final weights."""
    if not stretches:
        return pd.Series(data=False, index=frame.index)
    known = np.array([(part.generation, part.first, part.last) for part in stretches])  # in the order of generations
    at = np.searchsorted(known[:, 0], frame["generation"]).clip(max=len(known) - 1)
    generation, first, last = known[at].T
    kept: pd.Series = (frame["generation"] == generation) & (frame["step"] >= first) & (frame["step"] <= last)
    return kept
