"""Did every sample count exactly once? The ledger of sample ids along the lineage of the final weights.

Called by `reports.recovery.results`. What the ranks recorded in steps that were thrown away does not count. Two things
must hold: the samples of each step are those of the undisturbed twin's same step, as a multiset; and no sample comes a
second time before all of the data set have come once. How many that are, the trainer said when it was ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from proving_ground.reports.recovery.jobs import Job
from proving_ground.reports.recovery.steps import Stretch, in_lineage

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
SHOWN = 4  # ids named in a sentence
SHOWN_OF_A_SIZE = 20  # characters: who says it is a trainer, and it may say anything
OURS, THEIRS = "ledger = true asks the trainer for them", "`rows` of pg_events tell them: docs/my-trainer.md"
LARGEST = np.iinfo(np.int64).max


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
    doubt: str = ""  # why nothing passes, though nothing is wrong


def entries(job: Job, rows: pd.DataFrame, stretches: Sequence[Stretch]) -> Entries:
    """The ledger of the final weights; `rows` are the job's steps, one row a worker."""
    kept = rows.loc[in_lineage(rows, stretches), ["step", "process", "world", "rows", "first"]]
    counts = kept["rows"].clip(lower=0).to_numpy(dtype=np.int64)
    places = np.repeat(kept["first"].to_numpy(dtype=np.int64) - (np.cumsum(counts) - counts), counts)
    places += np.arange(len(places))
    steps = np.repeat(kept["step"].to_numpy(dtype=np.int64), counts)
    return Entries(*ordered(steps, np.asarray(job.ids, dtype=np.int64)[places]), missing_steps(kept, stretches))


def ordered(first: Ints, second: Ints) -> tuple[Ints, Ints]:
    """Pairs in the order of their first, then of their second numbers."""
    width = int(second.max(initial=0)) + 1
    if second.min(initial=0) < 0 or first.min(initial=0) < 0 or (int(first.max(initial=0)) + 1) * width > LARGEST:
        order = np.lexsort((second, first))
        return first[order], second[order]
    keys = first * width + second  # one number a pair: sorted far faster, and in place
    keys.sort()
    second = keys % width
    keys //= width
    return keys, second


def begins(sorted_numbers: Ints) -> Ints:
    """Where each number begins."""
    return np.flatnonzero(np.r_[True, sorted_numbers[1:] != sorted_numbers[:-1]][: len(sorted_numbers)])


def missing_steps(kept: pd.DataFrame, stretches: Sequence[Stretch]) -> list[int]:
    """The steps of the lineage that not every rank has recorded with its samples."""
    told = kept[kept["rows"] >= 0].groupby("step")["process"].nunique()
    worlds = kept.groupby("step")["world"].max()
    short = told.reindex(worlds.index).fillna(0) < worlds
    planned = {step for part in stretches for step in range(part.first, part.last + 1)}
    return sorted({int(step) for step in worlds.index[short]} | (planned - {int(step) for step in worlds.index}))


def judge(mine: Entries, twin: Entries | None, rows: int | None = None, how_to_tell: str = OURS) -> Ledger:
    """All problems of a job's ledger; `rows` is the size of the data set, None where nobody said."""
    if not len(mine.id):
        return Ledger(why_not=f"no sample ids were recorded ({how_to_tell})")
    whole = filled(mine, twin) if twin and mine.missing else mine
    problems: list[Problem] = []
    if twin or not mine.missing:  # else what a lost record held would be told as passed over
        problems += against_twin(whole, twin) or each_once(whole, twin, rows)  # a wrong step would be told again
    problems += [
        Problem(step, f"a rank's record of step {step} is missing", proof_needed=True) for step in mine.missing
    ]
    compared = len(shared_steps(mine, twin)) if twin else 0
    return Ledger(sorted(problems, key=lambda one: one.step), compared, len(mine.id))


def data_set(sizes: Sequence[tuple[Any, str]]) -> tuple[int | None, str]:
    """(samples of the data set, why that is not known) by every `ready` of a job and its twins: (size, trial).

    Nobody need say it; but a size that changes is no size, and what it is compared with proves nothing.
    """
    told = {str(size): job for size, job in sizes}
    if len(told) > 1:
        (one, mine), (other, its) = list(told.items())[:2]
        where = f"trial {mine} was ready" if mine == its else f"trials {mine} and {its} were ready"
        return None, f"the data set had {one[:SHOWN_OF_A_SIZE]} samples and {other[:SHOWN_OF_A_SIZE]} when {where}"
    for size, job in sizes:
        if type(size) is not int or size < 1:
            return None, f"trial {job} was ready with a data set of {str(size)[:SHOWN_OF_A_SIZE]} samples"
    return next((size for size, _ in sizes), None), ""


def filled(mine: Entries, twin: Entries) -> Entries:
    """With the twin's samples where a rank's record is missing, so that it is told once and not again later."""
    lacking = np.array(mine.missing, dtype=np.int64)
    its, partly = of_steps(twin, lacking), np.isin(mine.step, lacking)
    steps, ids = np.unique([np.r_[mine.step[partly], its.step], np.r_[mine.id[partly], its.id]], axis=1)
    return Entries(*ordered(np.r_[mine.step[~partly], steps], np.r_[mine.id[~partly], ids]), mine.missing)


def of_steps(found: Entries, steps: Ints) -> Entries:
    """The entries of these steps."""
    kept = np.isin(found.step, steps)
    return Entries(found.step[kept], found.id[kept], found.missing)


def shared_steps(mine: Entries, twin: Entries) -> Ints:
    """The steps that both have."""
    own, its = (found.step[begins(found.step)] for found in (mine, twin))
    return np.intersect1d(own, its, assume_unique=True)


def against_twin(mine: Entries, twin: Entries | None) -> list[Problem]:
    """The steps whose samples are not the twin's. Only steps that both have are compared."""
    if twin is None:
        return []
    shared = shared_steps(mine, twin)
    one, other = of_steps(mine, shared), of_steps(twin, shared)
    if np.array_equal(one.step, other.step) and np.array_equal(one.id, other.id):
        return []
    return [problem for step in shared.tolist() if (problem := differing(one, other, step))]


def differing(one: Entries, other: Entries, step: int) -> Problem | None:
    """What one step lacks and has too much, in words."""
    mine, its = (found.id[slice(*np.searchsorted(found.step, [step, step + 1]))] for found in (one, other))
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


def each_once(mine: Entries, twin: Entries | None, rows: int | None = None) -> list[Problem]:
    """Samples that come again before all have come, and samples that were passed over.

    With D samples in the data set, the k-th time that a sample comes must lie in pass k: of the stream's positions of
    its step, at least one must be within ((k-1) D, k D]. Where nobody said how large the data set is, D is the
    number of different samples in the twin or here.
    """
    size = rows or len(np.union1d(np.unique(mine.id), np.unique(twin.id)) if twin else np.unique(mine.id))
    strange = np.flatnonzero((mine.id < 0) | (mine.id >= rows)) if rows else np.empty(0, dtype=np.int64)
    if len(strange):
        step, sample = int(mine.step[strange[0]]), int(mine.id[strange[0]])
        return [Problem(step, f"step {step} learns from sample {sample}, and the data set has {rows}")]
    begin = begins(mine.step)
    lengths, steps = np.diff(np.r_[begin, len(mine.step)]), mine.step[begin]
    lowest, highest = begin // size + 1, (begin + lengths - 1) // size + 1  # time that a sample may come at a step
    ids, nth_step = ordered(mine.id, np.repeat(np.arange(len(begin)), lengths))
    starts = begins(ids)
    times = np.arange(1, len(ids) + 1)
    times -= np.repeat(starts, np.diff(np.r_[starts, len(ids)]))
    wrong = np.flatnonzero((times > highest[nth_step]) | (times < lowest[nth_step]))
    first = {int(steps[nth_step[at]]): int(at) for at in wrong[::-1]}
    return [
        Problem(step, f"step {step} learns from sample {ids[at]} for the {times[at]}. time; {size} samples make a pass")
        for step, at in sorted(first.items())
    ]
