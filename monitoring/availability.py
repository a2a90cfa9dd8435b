"""The share of time in which submitted jobs make progress, from recorded runs. Called by `monitoring.readers`.

A job is one trial of a training run; its time is from when it was submitted (`trial_start`) until its end, or until
what was recorded of it ends. It makes progress while it commits steps (`bench.jobstate`) that it had never committed,
at its own pace: a step that takes longer than three median ones counts as a median one, the rest of its time is down
time. Steps made again after a failure are no progress, nor is the start before the first step. A job counts with all of
its time, whatever became of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from proving_ground.bench import rundir
from proving_ground.bench.jobstate import JobState
from proving_ground.bench.rundir import HARNESS, Record, RunDir, RunDirError

USUAL = 3.0  # median steps that a step may take and be progress as a whole
PROGRAMS = "none"  # `compute` of a measuring program, which is no job


@dataclass
class SubmittedJob:
    """One submitted job: when it began and ended, and when it was first beyond each step."""

    run: RunDir
    trial: str
    plan: dict[str, Any]
    begin_t: float
    end_t: float
    ended: bool = False  # the trainer said that it was done, or the harness ended it
    steps: list[float] = field(default_factory=list)  # ends of committed steps that were new
    newest: int = 0
    state: JobState = field(default_factory=JobState)

    @property
    def faults(self) -> int:
        """How many were injected."""
        return sum(it.injected for it in self.state.faults.values())

    @property
    def recoveries_s(self) -> dict[str, float]:
        """Fault → time to recovery, where training went on in a new generation; those that overlap are one."""
        return {it.fault.id: it.seconds for it in self.state.disturbances if it.seconds is not None}

    @property
    def seconds(self) -> float:
        """From submission to end."""
        return max(0.0, self.end_t - self.begin_t)

    @property
    def start_s(self) -> float:
        """Seconds until its first step ended; all of them, if there was none."""
        return self.steps[0] - self.begin_t if self.steps else self.seconds

    @property
    def progress_s(self) -> float:
        """Seconds in which it made progress; the first step is a part of the start."""
        gaps = [later - earlier for earlier, later in pairwise(self.steps)]
        pace = median(gaps) if gaps else 0.0
        return sum(gap if gap <= USUAL * pace else pace for gap in gaps)


@dataclass(frozen=True)
class Availability:
    """Of some jobs together: seconds submitted, of start and of progress; each time to recovery."""

    jobs: int
    seconds: float
    start_s: float
    progress_s: float
    faults: int
    recoveries_s: tuple[float, ...]
    labels: tuple[str, ...]


def measure(jobs: Iterable[SubmittedJob]) -> Availability:
    """All of them together, each weighed with its time."""
    every = list(jobs)
    labels = tuple(sorted({str(it.plan.get("label", "emulated")) for it in every}))
    seconds, start, progress = (sum(getattr(it, name) for it in every) for name in ("seconds", "start_s", "progress_s"))
    recoveries = tuple(took for it in every for took in it.recoveries_s.values())
    return Availability(len(every), seconds, start, progress, sum(it.faults for it in every), recoveries, labels)


def jobs_of(run: RunDir) -> list[SubmittedJob]:
    """The training jobs of a run.

    Raises:
        RunDirError: its plan cannot be read, or nothing was recorded.
    """
    plans = {str(it["id"]): it for it in run.read("plan")["trials"]}
    jobs: dict[str, SubmittedJob] = {}
    for record in rundir.recorded(run):
        take(jobs, plans, run, record)
    return [it for it in jobs.values() if it.plan.get("compute") != PROGRAMS]


def take(jobs: dict[str, SubmittedJob], plans: dict[str, dict[str, Any]], run: RunDir, record: Record) -> None:
    """Take one event in."""
    trial, event, t = str(record.get("trial", "")), record["event"], float(record["t"])
    if event == "trial_start" and record["source"] == HARNESS:
        plan = plans.get(trial, {})
        jobs[trial] = SubmittedJob(run, trial, plan, t, t, state=JobState(plan))
    job = jobs.get(trial)
    if job is None:
        return
    step = job.state.take(record).committed
    job.ended = job.ended and not step  # who ended had been asked to leave, and training went on
    if job.ended and t > job.end_t:
        return
    if step and step.step > job.newest:
        job.newest = step.step
        job.steps.append(step.end_t)
    job.end_t = t
    job.ended = job.ended or event in ("trial_end", "end")


def with_jobs(runs: Iterable[RunDir], skipped: list[str]) -> Iterator[tuple[RunDir, list[SubmittedJob]]]:
    """Each run that had jobs, and them; runs that cannot be read are named in `skipped`."""
    for run in runs:
        try:
            own = jobs_of(run)
        except RunDirError as error:
            skipped.append(str(error))
            continue
        if own:
            yield run, own


def lines(runs: Iterable[RunDir], skipped: list[str]) -> Iterator[str]:
    """A line a run with jobs, then all together; runs that cannot be read are named in `skipped`."""
    every: list[SubmittedJob] = []
    for run, own in with_jobs(runs, skipped):
        every += own
        yield f"{run.suite}/{run.run_id}  {said(measure(own))}"
    calm, broken = ([it for it in every if bool(it.faults) == bad] for bad in (False, True))
    for name, some in (("without faults", calm), ("with faults", broken), ("all", every)):
        if some:
            yield f"{name}: {said(measure(some))}"


def rows(runs: Iterable[RunDir], skipped: list[str]) -> list[dict[str, Any]]:
    """The same for machines, a table a run with jobs."""
    return [{"suite": run.suite, "run": run.run_id, **asdict(measure(own))} for run, own in with_jobs(runs, skipped)]


def said(found: Availability) -> str:
    """`78.4 % of 312 s in 4 jobs made progress (9.1 % start, 12.5 % down); 12 faults; emulated`."""
    if not found.seconds:
        return f"unknown: {found.jobs} jobs without any time"
    progress, start = (100 * part / found.seconds for part in (found.progress_s, found.start_s))
    faults = f"; {found.faults} faults" if found.faults else ""
    faults += f", time to recovery {median(found.recoveries_s):.2f} s (median)" if found.recoveries_s else ""
    parts = f"{start:.1f} % start, {100 - progress - start:.1f} % down"
    whole = f"{found.seconds:,.0f} s in {found.jobs} job{'s' if found.jobs != 1 else ''}"
    return f"{progress:.1f} % of {whole} made progress ({parts}){faults}; {' and '.join(found.labels)}"


def chosen(runs: Path, names: Iterable[str]) -> list[RunDir]:
    """The runs that are meant: those named, or all of them.

    Raises:
        RunDirError: there is no such run, or none at all.
    """
    found = [rundir.find(runs, name) for name in names] or rundir.all_runs(runs)
    if not found:
        raise RunDirError(f"no runs under {runs}; start with: pg bench run")
    return found
