"""Did every sample count exactly once? The ledger of sample ids along the lineage of the final weights.

Called by `reports.recovery.results`. What the ranks recorded in steps that were thrown away does not count. Two things
must hold: the samples of each step are those of the undisturbed twin's same step, as a multiset; and no sample comes a
second time before all have come once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from reports.recovery.jobs import Job
from reports.recovery.steps import Stretch, in_lineage

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
SHOWN = 4  # ids named in a sentence


@dataclass(frozen=True)
class Entries:
    """(step, sample id) pairs, sorted; `missing` are steps of which a rank's record is not there."""

    step: Ints
    id: Ints
    missing: Sequence[int] = ()


@dataclass(frozen=True)
class Problem:
    """What is wrong with a step; `proof_needed` when a rank's record is gone, and what it did may still be right."""

    step: int
    why: str
    proof_needed: bool = False


@dataclass(frozen=True)
class Ledger:
    """What the ledger says about one job."""

    problems: Sequence[Problem] = field(default_factory=tuple)
    steps: int = 0  # compared with the twin
    samples: int = 0
    why_not: str = ""  # why there is nothing to judge


def entries(job: Job, rows: pd.DataFrame, stretches: Sequence[Stretch]) -> Entries:
    """The ledger of the final weights; `rows` are the job's steps, one row a worker."""
    kept = rows[in_lineage(rows, stretches)].sort_values("step", kind="stable")
    counts = kept["rows"].clip(lower=0).to_numpy(dtype=np.int64)
    firsts = kept["first"].to_numpy(dtype=np.int64)
    begins = np.repeat(firsts - (np.cumsum(counts) - counts), counts)
    ids = np.asarray(job.ids, dtype=np.int64)[begins + np.arange(counts.sum())]
    steps = np.repeat(kept["step"].to_numpy(dtype=np.int64), counts)
    order = np.lexsort((ids, steps))
    return Entries(steps[order], ids[order], missing_steps(kept, stretches))


def missing_steps(kept: pd.DataFrame, stretches: Sequence[Stretch]) -> list[int]:
    """The steps of the lineage that not every rank has recorded with its samples."""
    told = kept[kept["rows"] >= 0].groupby("step")["process"].nunique()
    worlds = kept.groupby("step")["world"].max()
    short = told.reindex(worlds.index).fillna(0) < worlds
    planned = {step for part in stretches for step in range(part.first, part.last + 1)}
    return sorted({int(step) for step in worlds.index[short]} | (planned - {int(step) for step in worlds.index}))


def judge(mine: Entries, twin: Entries | None) -> Ledger:
    """All problems of a job's ledger."""
    if not len(mine.id):
        return Ledger(why_not="no sample ids were recorded (ledger = true asks the trainer for them)")
    whole = filled(mine, twin) if twin else mine
    problems = against_twin(whole, twin) or each_once(whole, twin)  # a wrong step would be told again in the next pass
    problems += [
        Problem(step, f"a rank's record of step {step} is missing", proof_needed=True) for step in mine.missing
    ]
    compared = len(np.intersect1d(mine.step, twin.step)) if twin else 0
    return Ledger(sorted(problems, key=lambda one: one.step), compared, len(mine.id))


def filled(mine: Entries, twin: Entries) -> Entries:
    """With the twin's samples where a rank's record is missing, so that it is told once and not again later."""
    lacking = np.isin(twin.step, list(mine.missing))
    both = np.concatenate([mine.step, twin.step[lacking]]), np.concatenate([mine.id, twin.id[lacking]])
    twice = np.isin(both[0], list(mine.missing))
    kept, merged = np.stack(both)[:, ~twice], np.unique(np.stack(both)[:, twice], axis=1)
    steps, ids = np.concatenate([kept, merged], axis=1)
    order = np.lexsort((ids, steps))
    return Entries(steps[order], ids[order], mine.missing)


def against_twin(mine: Entries, twin: Entries | None) -> list[Problem]:
    """The steps whose samples are not the twin's. Only steps that both have are compared."""
    if twin is None:
        return []
    shared = np.intersect1d(mine.step, twin.step)
    one, other = (pairs(found, shared) for found in (mine, twin))
    if np.array_equal(one, other):
        return []
    return [problem for step in shared.tolist() if (problem := differing(one, other, step))]


def pairs(found: Entries, steps: Ints) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """The pairs of these steps as two rows."""
    kept = np.isin(found.step, steps)
    return np.stack([found.step[kept], found.id[kept]])


def differing(
    one: np.ndarray[tuple[int, int], np.dtype[np.int64]],
    other: np.ndarray[tuple[int, int], np.dtype[np.int64]],
    step: int,
) -> Problem | None:
    """What one step lacks and has too much, in words."""
    mine, its = (found[1, slice(*np.searchsorted(found[0], [step, step + 1]))] for found in (one, other))
    if np.array_equal(mine, its):
        return None
    lacking, extra = np.setdiff1d(its, mine), np.setdiff1d(mine, its)
    words = [f"lacks {some(lacking)}"] if len(lacking) else []
    words += [f"has {some(extra)} instead"] if len(extra) else []
    words += [] if words else ["has a sample more than once"]
    return Problem(step, f"step {step} {' and '.join(words)}")


def some(ids: Ints) -> str:
    """`samples 3, 17, 20, 45 and 12 more`."""
    shown = ", ".join(map(str, ids[:SHOWN].tolist()))
    return f"sample{'s' if len(ids) > 1 else ''} {shown}" + (
        f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    )


def each_once(mine: Entries, twin: Entries | None) -> list[Problem]:
    """Samples that come again before all have come, and samples that were passed over.

    With D samples in the data set, the k-th time that a sample comes must lie in pass k: of the stream's positions of
    its step, at least one must be within ((k-1) D, k D]. D is the number of different samples in the twin or here.
    """
    size = len(np.unique(np.concatenate([mine.id, twin.id]) if twin else mine.id))
    order = np.lexsort((mine.step, mine.id))
    ids, steps = mine.id[order], mine.step[order]
    starts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]])
    times = np.arange(len(ids)) - np.repeat(starts, np.diff(np.r_[starts, len(ids)])) + 1
    begin, end = np.searchsorted(mine.step, steps, "left"), np.searchsorted(mine.step, steps, "right")
    early, late = times > (end - 1) // size + 1, times < begin // size + 1
    wrong = np.flatnonzero(early | late)
    first = {int(steps[at]): int(at) for at in wrong[::-1]}
    return [
        Problem(
            step, f"step {step} learns from sample {ids[at]} for the {times[at]}. time, and {size} samples make a pass"
        )
        for step, at in sorted(first.items())
    ]
