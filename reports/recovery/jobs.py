"""Reads a chaos run's history into jobs, in one pass. Called by `reports.recovery.results`.

A job is one trial: a training job with faults, or an undisturbed twin. Step events become rows of doubles and their
sample ids one long array of integers; everything else is kept by its name, as recorded. Each worker's record gets the
rank, world size and generation of the life in which it was written, by `bench.jobstate`, which also says which steps
were committed and when recoveries began and ended.
"""

from __future__ import annotations

import math
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from proving_ground.bench.jobstate import JobState, Worker
from proving_ground.reports import stability
from proving_ground.reports.history import CUT_OFF, MACHINE, add_ids, number

Record = dict[str, Any]
STEP_COLUMNS = ("t", "begin_t", "step", "generation", "world", "rank", "process", "rows", "lr")
HASHES = ("parameters_sha256", "buffers_sha256", "optimizer_sha256", "random_sha256")
EARLY = 20  # steps of which everything is kept, for the comparison with a plain loop


def moment(record: Mapping[str, Any]) -> float:
    """When it was, in seconds on the run's clock."""
    return float(record["t"])


@dataclass(slots=True)
class Fingerprint:
    """What a worker's state was at a step. There are many: most hashes are the same on all ranks, and kept once."""

    t: float
    step: int
    rank: int
    generation: int
    parameters_sha256: str | None
    buffers_sha256: str | None
    optimizer_sha256: str | None
    random_sha256: str | None
    lr: float | None
    sketch: array[float] | None

    @classmethod
    def of(cls, record: Record) -> Fingerprint:
        """As recorded, with the rank and generation of its life."""
        step, rank, generation = (int(record[name]) for name in ("step", "rank", "generation"))
        hashes = {name: sys.intern(it) if isinstance(it := record.get(name), str) else None for name in HASHES}
        sketch = array("d", map(number, it)) if isinstance(it := record.get("sketch"), list) and it else None
        lr = None if record.get("lr") is None else number(record["lr"])  # NaN: what is no number
        return cls(moment(record), step, rank, generation, **hashes, lr=lr, sketch=sketch)


def apart(one: Sequence[float] | None, other: Sequence[float] | None) -> float:
    """Euclidean distance of two sketches; 0 where one is missing or of another length."""
    if not one or not other or len(one) != len(other):
        return 0.0
    with np.errstate(invalid="ignore"):  # of a training that has diverged
        return float(np.linalg.norm(np.asarray(one) - np.asarray(other)))


@dataclass
class Job:
    """All that was recorded about one trial. `events` holds what is no step and no fingerprint, by name, by time."""

    id: str
    plan: Mapping[str, Any] = field(default_factory=dict)
    start_t: float = math.nan
    traits: Record | None = None  # of its mechanism, as the history has them; None: it was never started
    end_t: float = math.nan
    ok: bool | None = None  # None: never ended
    why: str = ""
    events: dict[str, list[Record]] = field(default_factory=dict)
    fingerprints: list[Fingerprint] = field(default_factory=list)
    processes: dict[str, int] = field(default_factory=dict)  # worker → its number in column `process`
    state: JobState = field(default_factory=JobState)
    committed: array[int] = field(default_factory=lambda: array("q"))  # generation and step of each such step
    waiting: dict[str, list[Record]] = field(default_factory=dict)  # worker → its records until its generation is known
    cells: array[float] = field(default_factory=lambda: array("d"))
    ids: array[int] = field(default_factory=lambda: array("q"))
    early: list[Record] = field(default_factory=list)  # the records of the first steps, with the rank
    shares: dict[str, list[Record]] = field(default_factory=dict)  # worker → what it was at when it was interrupted
    earlier: tuple[str, ...] = ()  # why attempts before this one did not end well
    machine: list[tuple[float, ...]] = field(default_factory=list)  # samples, in the columns of `reports.history`
    cores: int = 1  # of the machine

    def of(self, *names: str) -> list[Record]:
        """The events of these names, in the order of time."""
        found = [record for name in names for record in self.events.get(name, ())]
        return sorted(found, key=moment) if len(names) > 1 else found

    def within(self, begin: float, end: float, *names: str) -> list[Record]:
        """The events of these names from `begin` on and before `end`, in the order of time."""
        found = []
        for name in names:
            records = self.events.get(name, [])
            found += records[bisect_left(records, begin, key=moment) : bisect_left(records, end, key=moment)]
        return sorted(found, key=moment) if len(names) > 1 else found

    def rows(self) -> pd.DataFrame:
        """One row a worker and step; `first` is where its sample ids begin in `ids`."""
        cells = np.frombuffer(self.cells).reshape(-1, len(STEP_COLUMNS))
        frame = pd.DataFrame(cells, columns=list(STEP_COLUMNS), copy=False)  # a view, no second copy
        counts = frame["rows"].clip(lower=0)
        frame = frame.assign(first=(counts.cumsum() - counts).astype(np.int64))
        return frame if frame["t"].is_monotonic_increasing else frame.sort_values("t", kind="stable", ignore_index=True)

    def steadiness(self, begin: float, end: float) -> stability.Steadiness:
        """What the machine's counters say about the time between two moments."""
        samples = pd.DataFrame(self.machine, columns=list(MACHINE), dtype=float)
        return stability.steadiness(samples, (begin, end), self.cores)

    @property
    def over_t(self) -> float:
        """When the harness said that nothing is left to be done to it, and ended it; infinite: it never did."""
        return min((number(it["t"]) for it in self.of("job_over")), default=math.inf)

    @property
    def nodes(self) -> int:
        """Nodes of the whole job."""
        return int(self.plan.get("nodes") or 0)

    @property
    def ranks(self) -> int:
        """Ranks of the whole job."""
        return self.nodes * int(self.plan.get("ranks_per_node") or 1)

    @property
    def local(self) -> bool:
        """Whether its ranks learn alone between two averages: then each has an optimizer state of its own."""
        return str((self.plan.get("training") or {}).get("updates", "every_step")) != "every_step"

    def said_ready(self, name: str) -> Any:  # noqa: ANN401 - as recorded
        """What the first worker that was ready said of something; None: nobody did."""
        return next(iter(self.every_ready(name)), None)

    def every_ready(self, name: str) -> list[Any]:
        """What each worker said of something, each time that it was ready; who said nothing is left out."""
        return [record[name] for record in self.of("ready") if record.get(name) is not None]


@dataclass
class Recorded:
    """One run's history, job by job."""

    jobs: dict[str, Job] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    clocks: list[Mapping[str, Any]] = field(default_factory=list)  # how far nodes' clocks are from the harness'
    engine: list[Mapping[str, Any]] = field(default_factory=list)  # what an engine says itself, and agents that came
    allocation: list[Mapping[str, Any]] = field(default_factory=list)  # how the machines were had: `reports.allocation`
    end: Record | None = None
    events: int = 0


OF_THE_RUN = {
    "node_clock": "clocks",
    **dict.fromkeys(("engine_event", "engine_timeouts", "agent_back"), "engine"),
    **dict.fromkeys(("queued", "cluster_up", "accounting"), "allocation"),
}
"""Event of no job's → where a run has it."""


def collect(source: Iterable[Mapping[str, Any]], plans: Sequence[Mapping[str, Any]]) -> Recorded:
    """Sort all records by job."""
    recorded = Recorded()
    planned = {str(plan["id"]): plan for plan in plans}
    jobs = recorded.jobs
    for found in source:
        recorded.events += 1
        event, trial = found.get("event"), found.get("trial")
        if event == "warning":
            recorded.warnings.append(str(found.get("message", "")))
        elif event in OF_THE_RUN:
            getattr(recorded, OF_THE_RUN[event]).append(found)
        elif event == "run_end":
            recorded.end = dict(found)
        elif trial and event == "machine":
            if (job := jobs.get(str(trial))) is not None:
                job.machine.append(tuple(number(found.get(column)) for column in MACHINE))
        elif trial:
            name = str(trial)
            if event == "trial_start" or name not in jobs:  # run again after an interruption: the last counts
                before = jobs.get(name)
                earlier = (*before.earlier, before.why or CUT_OFF) if before else ()
                plan = planned.get(name, {})
                jobs[name] = Job(name, plan, earlier=earlier, state=JobState(plan))
            note(jobs[name], str(event), found if isinstance(found, dict) else dict(found))
    for job in recorded.jobs.values():
        count_shares(job)
    return recorded


def note(job: Job, event: str, record: Record) -> None:
    """Put one record where it belongs."""
    source = str(record.get("source", ""))
    if (step := job.state.take(record).committed) is not None:
        job.committed.extend((step.generation, step.step))
    if event == "step":
        add_step(job, source, record)
        if shares := job.shares.get(source):
            shares.pop()  # it was this step's
        return
    if event == "share":
        job.shares.setdefault(source, []).append(record)
        return
    if event == "trial_start":
        job.start_t, job.traits = number(record["t"]), record.get("traits") or {}
    elif event == "trial_end":
        job.end_t, job.ok, job.why = number(record["t"]), bool(record.get("ok")), str(record.get("why") or "")
    elif source != "harness" and not source.endswith(".launch"):
        stamp(job, source, event, record)
        if event == "fingerprint":
            job.fingerprints.append(Fingerprint.of(record))
            return
    job.events.setdefault(event, []).append(record)


def count_shares(job: Job) -> None:
    """Of a live job: steps that a worker had a share in and did not live to record, and that another recorded.

    A sum arrives with everybody's share or with nobody, so the other's record speaks for all.
    """
    if any(job.shares.values()):
        frame = job.rows()[["step", "generation"]].copy()  # the cells must be free to grow
        made = set(zip(frame["step"], frame["generation"], strict=True))
        for source, shares in job.shares.items():
            for share in shares:
                if (share["step"], share.get("generation")) in made:
                    add_step(job, source, {"begin_t": share["t"], **share})


def stamp(job: Job, source: str, event: str, record: Record) -> None:
    """Give a worker's record the rank and generation of its life; what comes before its `ready` waits for it."""
    worker = job.state.workers[source]
    if event == "start":
        job.waiting[source] = []
    elif event == "ready":
        for earlier in job.waiting.pop(source, ()):
            earlier["generation"] = worker.generation
    record.setdefault("rank", rank_of(worker))
    record.setdefault("world_size", worker.world_size)
    if "generation" not in record:
        record["generation"] = worker.generation
        if not worker.met:
            job.waiting.setdefault(source, []).append(record)


def rank_of(worker: Worker) -> int:
    """Its rank; -1 where it did not say."""
    return -1 if worker.rank is None else worker.rank


def add_step(job: Job, source: str, record: Mapping[str, Any]) -> None:
    """One row of doubles, and the sample ids behind it."""
    worker = job.state.workers[source]
    process = job.processes.setdefault(source, len(job.processes))
    get, count = record.get, add_ids(job.ids, record.get("rows"))
    if isinstance(step := get("step"), int) and step <= EARLY:
        job.early.append({**record, "rank": rank_of(worker), "generation": get("generation", worker.generation)})
    generation, world = get("generation", worker.generation), get("world_size", worker.world_size)
    about: tuple[Any, ...] = (
        record["t"], get("begin_t", math.nan), get("step"), generation, world, rank_of(worker), process, count,
        get("lr", math.nan),
    )  # fmt: skip
    try:
        job.cells.extend(about)
    except TypeError:  # a null or a text: that field is a gap; half a row may have been appended
        del job.cells[len(job.cells) - len(job.cells) % len(STEP_COLUMNS) :]
        job.cells.extend([number(value) for value in about])
