"""Reads a run's history into columns, in one pass and in memory that grows by numbers only.

Called by `scaling.results`. A step event becomes one row of doubles; what it lacks becomes NaN, so that it can be shown
as a gap later.
"""

from __future__ import annotations

import math
import operator
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
import pandas as pd

from proving_ground.bench import rundir
from proving_ground.reports.agreement import BUFFERS, SHARED
from proving_ground.training.events import STEP_MARKS, STEP_PARTS

Record = Mapping[str, Any]
PICKED = ("t", "step", "samples", *STEP_PARTS, *STEP_MARKS)
COLUMNS = (*PICKED, "read_s")
PICK = operator.itemgetter(*PICKED)
CUT_OFF = "it was cut off"
"""Why an attempt did not end well of which the harness could say no more."""
NOT_RECORDED = -1.0  # in place of a count of sample ids: this step did not say which samples it learned from
WORK = ("flops_per_sample", "peak_tflops")
"""What `ready` may tell about the work of a sample (`training.device.flops`)."""
MACHINE = ("t", "steal_s", "cpu_s", "load1", "mhz")


@dataclass
class Process:
    """What one process of a trial did: its rows in the order of `COLUMNS`, and how it began and ended."""

    name: str
    rank: int = -1
    rows: array[float] = field(default_factory=lambda: array("d"))
    ready_t: float = math.nan
    exit_code: int | None = None
    error: str = ""

    def steps(self) -> pd.DataFrame:
        """One row a step, with the process' name."""
        frame = pd.DataFrame(np.frombuffer(self.rows).reshape(-1, len(COLUMNS)), columns=list(COLUMNS))
        return frame.assign(process=self.name)


@dataclass(slots=True)
class Mark:
    """The hashes of a process' state after a step; without faults there is one generation."""

    t: float
    step: int
    rank: int
    parameters_sha256: str | None
    optimizer_sha256: str | None
    buffers_sha256: str | None
    generation: int = 0


@dataclass
class LedgerRows:
    """The sample ids that steps told, and of each record its step and how many they were (or `NOT_RECORDED`)."""

    ids: array[int] = field(default_factory=lambda: array("q"))
    steps: array[float] = field(default_factory=lambda: array("d"))
    counts: array[float] = field(default_factory=lambda: array("d"))

    def take(self, record: Record) -> None:
        """Those of one step of one process."""
        self.steps.append(number(record.get("step")))
        self.counts.append(add_ids(self.ids, record["rows"]))


@dataclass
class TrialHistory:
    """All that was recorded about one trial; `started` are the processes that the harness started."""

    id: str
    start_t: float = math.nan
    end_t: float = math.nan
    ok: bool | None = None  # None: never ended
    paces: list[Record] = field(default_factory=list)  # of idle nodes that train by themselves: `neighbour_pace` events
    neighbours_t: float = math.nan  # since when idle nodes trained by themselves; NaN where none had to
    why: str = ""
    started: list[str] = field(default_factory=list)
    processes: dict[str, Process] = field(default_factory=dict)
    evals: list[Record] = field(default_factory=list)
    told: list[Record] = field(default_factory=list)  # `collective` and `measure` events
    marks: list[Mark] = field(default_factory=list)  # what the ranks' states were
    rows: int = 0  # samples of an epoch; 0: nobody said
    work: Mapping[str, float] = field(default_factory=dict)  # `flops_per_sample`, `peak_tflops`, where they were told
    data_sets: list[Any] = field(default_factory=list)  # the same, as each process said it when it was ready
    ledger: LedgerRows = field(default_factory=LedgerRows)
    earlier: tuple[str, ...] = ()  # why attempts before this one did not end well

    def process(self, name: object) -> Process:
        """The process of that name, made on its first event; what is no name, in a damaged record, is one as a text."""
        found = self.processes.get(str(name))
        if found is None:
            found = self.processes[str(name)] = Process(str(name))
        return found


@dataclass
class History:
    """One run's history in columns."""

    trials: dict[str, TrialHistory] = field(default_factory=dict)
    machine: list[tuple[float, ...]] = field(default_factory=list)
    throttled: list[tuple[float, Mapping[str, float]]] = field(default_factory=list)
    gpus: list[tuple[float, list[Record]]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    allocation: list[Record] = field(default_factory=list)  # how the machines were had: `reports.allocation`
    end: Record | None = None
    prediction: Record | None = None
    events: int = 0

    def machine_frame(self) -> pd.DataFrame:
        """The machine's samples, one row a second; counters are cumulative seconds."""
        return pd.DataFrame(self.machine, columns=list(MACHINE), dtype=float)


def records(run: rundir.RunDir, *, problems: list[str] | None, notes: list[str]) -> Iterator[Record]:
    """Every record in the order of `t`: from the history, else (no `problems`) merged again from the event files.

    Where the history is not what the event files say, `problems` names the first difference once all is read.
    """
    if problems is not None:
        return rundir.read_compared(run, orjson.loads, problems)  # four times as fast as the standard library
    return rundir.read_unmerged(run, notes)


def collect(source: Iterable[Record]) -> History:
    """Sort all records into columns; unknown events are passed over."""
    history = History()
    for record in source:
        history.events += 1
        event = record.get("event")
        if event == "step":
            _step(history, record)
        elif event in HANDLERS:
            HANDLERS[event](history, record)
    return history


def _trial(history: History, record: Record) -> TrialHistory:
    name = str(record.get("trial", ""))
    trial = history.trials.get(name)
    if trial is None:
        trial = history.trials[name] = TrialHistory(name)
    return trial


def _step(history: History, record: Record) -> None:
    trial = _trial(history, record)
    rows = trial.process(record["source"]).rows
    if "rows" in record:
        trial.ledger.take(record)
    try:
        rows.extend(PICK(record))
    except (KeyError, TypeError):  # a field is missing, a null or a text: a gap; half a row may have been appended
        del rows[len(rows) - len(rows) % len(COLUMNS) :]
        rows.extend([number(record.get(column)) for column in PICKED])
    rows.append(number(record.get("read_s")))  # apart: most trainers do not tell it


def add_ids(ids: array[int], rows: object) -> float:
    """How many sample ids a step told; `NOT_RECORDED` where it told none, or something else."""
    if not isinstance(rows, list):
        return NOT_RECORDED
    before = len(ids)
    try:
        ids.extend(rows)
    except (TypeError, OverflowError):  # no whole numbers: then it is not known which samples they were
        del ids[before:]
        return NOT_RECORDED
    return len(rows)


def number(value: object) -> float:
    """The value as a float; NaN for everything that is not a number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _trial_start(history: History, record: Record) -> None:
    # a trial that is run again after an interruption starts from nothing: the last attempt counts
    name = str(record["trial"])
    before = history.trials.get(name)
    earlier = (*before.earlier, before.why or CUT_OFF) if before else ()
    history.trials[name] = TrialHistory(name, start_t=number(record["t"]), earlier=earlier)


def _trial_end(history: History, record: Record) -> None:
    trial = _trial(history, record)
    trial.end_t, trial.ok, trial.why = number(record["t"]), bool(record.get("ok")), str(record.get("why") or "")


def _neighbours_up(history: History, record: Record) -> None:
    _trial(history, record).neighbours_t = number(record["t"])


def _neighbour_pace(history: History, record: Record) -> None:
    _trial(history, record).paces.append(record)


def _process_start(history: History, record: Record) -> None:
    if not record.get("serves"):  # a coordinator makes no steps
        _trial(history, record).started.append(f"{record['node']}.{record['slot']}")


def _process_exit(history: History, record: Record) -> None:
    code = record.get("code")
    name = f"{record['node']}.{record['slot']}"
    _trial(history, record).process(name).exit_code = code if isinstance(code, int) else None


def _start(history: History, record: Record) -> None:
    rank = number(record.get("rank"))
    _trial(history, record).process(record["source"]).rank = -1 if math.isnan(rank) else int(rank)


def _ready(history: History, record: Record) -> None:
    trial = _trial(history, record)
    trial.process(record["source"]).ready_t = number(record["t"])
    trial.data_sets += [record["rows"]] if record.get("rows") is not None else []
    trial.work = {name: value for name in WORK if (value := number(record.get(name))) > 0} or trial.work
    rows = number(record.get("rows"))
    trial.rows = trial.rows if math.isnan(rows) else int(rows)


def _error(history: History, record: Record) -> None:
    _trial(history, record).process(record["source"]).error = str(record.get("message", ""))


def _fingerprint(history: History, record: Record) -> None:
    trial = _trial(history, record)
    rank, step = trial.process(record["source"]).rank, number(record.get("step"))
    names = (*SHARED.values(), BUFFERS)
    parameters, optimizer, buffers = (it if isinstance(it := record.get(name), str) else None for name in names)
    if rank >= 0 and not math.isnan(step):
        trial.marks.append(Mark(number(record["t"]), int(step), rank, parameters, optimizer, buffers))


def _eval(history: History, record: Record) -> None:
    _trial(history, record).evals.append(record)


def _told(history: History, record: Record) -> None:
    _trial(history, record).told.append(record)


def _machine(history: History, record: Record) -> None:
    history.machine.append(tuple(number(record.get(column)) for column in MACHINE))
    throttled = record.get("throttled_s")
    if isinstance(throttled, Mapping):
        history.throttled.append((number(record["t"]), throttled))
    if gpus := record.get("gpus"):
        history.gpus.append((number(record["t"]), [it for it in gpus if isinstance(it, Mapping)]))


def _warning(history: History, record: Record) -> None:
    history.warnings.append(str(record.get("message", "")))


def _allocation(history: History, record: Record) -> None:
    history.allocation.append(record)


def _run_end(history: History, record: Record) -> None:
    history.end = record


def _prediction(history: History, record: Record) -> None:
    history.prediction = record


HANDLERS = {
    "trial_start": _trial_start,
    "trial_end": _trial_end,
    "neighbours_up": _neighbours_up,
    "neighbour_pace": _neighbour_pace,
    "process_start": _process_start,
    "process_exit": _process_exit,
    "start": _start,
    "ready": _ready,
    "error": _error,
    "fingerprint": _fingerprint,
    "eval": _eval,
    "collective": _told,
    "measure": _told,
    "machine": _machine,
    "warning": _warning,
    "prediction": _prediction,
    "queued": _allocation,
    "cluster_up": _allocation,
    "accounting": _allocation,
    "run_end": _run_end,
}
