"""The present state of a run in progress, event by event. Filled by `monitoring.live`, which shows it.

Moments are on the run's clock, in seconds. What nobody told is None, never a zero.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from bench.rundir import Record
from training.events import STEP_PARTS

WINDOW = 20  # steps over which rates and shares are taken
GONE_S = 120.0  # without any event; the harness records the machine once a second while a trial runs
SILENT_S, SILENT_STEPS = 2.0, 3.0  # a worker is silent after so many seconds, and so many of its own steps

PLACE = ("node", "slot", "gpu", "mount")
"""Labels of an alert that say where."""


def gone(newest_t: float | None, now: float, gone_s: float = GONE_S) -> bool:
    """Whether nothing has been recorded for so long that the harness must be gone."""
    return newest_t is not None and now - newest_t > gone_s


@dataclass
class Worker:
    """One trainer process: its latest life."""

    rank: int | None = None
    world_size: int | None = None
    generation: int | None = None
    state: str = "starts"  # starts, ready, trains, failed, ended
    step: int | None = None
    loss: float | None = None
    seen_t: float = 0.0
    steps: deque[Record] = field(default_factory=lambda: deque(maxlen=WINDOW))

    @property
    def rate(self) -> float | None:
        """Samples/s over its last steps."""
        rows = list(self.steps)
        seconds = rows[-1]["t"] - rows[0]["t"] if len(rows) > 1 else 0.0
        return float(sum(it["samples"] for it in rows[1:]) / seconds) if seconds > 0 else None

    @property
    def step_s(self) -> float | None:
        """Median time from one step's end to the next."""
        times = [it["t"] for it in self.steps]
        return median(later - earlier for earlier, later in pairwise(times)) if times[1:] else None

    @property
    def shares(self) -> dict[str, float]:
        """Part → share of its last steps' time, 0 to 1; empty where it does not time them."""
        rows = [it for it in self.steps if it.get("step_s") and any(name in it for name in STEP_PARTS)]
        whole = sum(it["step_s"] for it in rows)
        return {name[:-2]: sum(it.get(name, 0) for it in rows) / whole for name in STEP_PARTS} if rows else {}

    def silent_s(self, now: float) -> float | None:
        """Seconds without a step, once that is too long; None while it trains, or does not train yet."""
        waited = now - self.seen_t
        due = max(SILENT_S, SILENT_STEPS * (self.step_s or 0))
        return waited if self.state == "trains" and waited > due else None


@dataclass
class Checkpoint:
    """The newest durable one."""

    step: int
    t: float
    block_s: float | None


@dataclass
class Trial:
    """What is known of the trial in progress."""

    id: str
    begin_t: float
    plan: Mapping[str, Any]
    workers: dict[str, Worker] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    faults: dict[str, Record] = field(default_factory=dict)  # held at present
    checkpoint: Checkpoint | None = None
    symptom_t: float | None = None  # of the recovery in progress
    restarts: int = 0  # times that the job's ranks met again

    @property
    def present(self) -> list[Worker]:
        """The workers of the newest generation that have not failed."""
        newest = max((it.generation or 0 for it in self.workers.values()), default=0)
        return [it for it in self.workers.values() if (it.generation or 0) == newest and it.state == "trains"]

    @property
    def step(self) -> int | None:
        """The step that all of them have done; while none trains, the newest of any."""
        together = min((it.step for it in self.present if it.step is not None), default=None)
        return max((it.step for it in self.workers.values() if it.step), default=None) if together is None else together

    @property
    def loss(self) -> float | None:
        """The newest."""
        newest = max(self.present or self.workers.values(), key=lambda it: it.step or 0, default=None)
        return newest.loss if newest else None

    @property
    def rate(self) -> float | None:
        """Samples/s of all of them together."""
        known = [it.rate for it in self.present if it.rate is not None]
        return sum(known) if known else None

    @property
    def shares(self) -> dict[str, float]:
        """Part → share of time, mean over the workers."""
        each = [it.shares for it in self.present if it.shares]
        return {part: fmean(it[part] for it in each) for part in each[0]} if each else {}


@dataclass
class Present:
    """A whole run: the trial in progress, alerts, the last thing that happened."""

    plans: Mapping[str, Mapping[str, Any]]
    trial: Trial | None = None
    done: int = 0
    alerts: dict[str, Record] = field(default_factory=dict)  # firing, by name and where
    said: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=5))
    newest_t: float | None = None
    begin_t: float | None = None
    end: Record | None = None

    def take(self, record: Record) -> None:
        """Take one event in; of the wrong type, it is passed over."""
        t = float(record["t"])
        self.newest_t = t if self.newest_t is None else max(self.newest_t, t)
        self.begin_t = t if self.begin_t is None else self.begin_t
        react = RUN.get(record["event"])
        try:
            if react:
                react(self, record)
            elif self.trial and record.get("trial") == self.trial.id and record["event"] in TRIAL:
                TRIAL[record["event"]](self, self.trial, record)
        except (KeyError, TypeError, ValueError):
            return

    def say(self, t: float, words: str) -> None:
        """Something happened."""
        self.said.append((t, words))

    # The run ----------------------------------------------------------------------------------------------------------

    def run_end(self, record: Record) -> None:
        """It is over."""
        self.end = record

    def resumed(self, record: Record) -> None:
        """It was interrupted, and goes on."""
        self.end = None
        self.say(record["t"], "the run goes on after an interruption")

    def trial_start(self, record: Record) -> None:
        """A trial begins."""
        name = str(record["trial"])
        self.trial = Trial(name, record["t"], self.plans.get(name, {}))

    def trial_end(self, record: Record) -> None:
        """It ended."""
        self.done += 1
        if not record.get("ok", True):
            self.say(record["t"], f"trial {record['trial']} failed: {record.get('why', '')}")

    def alert(self, record: Record) -> None:
        """An alert fires, or is resolved."""
        labels = record.get("labels", {})
        key = " ".join([record["alert"], *(str(labels[name]) for name in PLACE if name in labels)])
        if record.get("state") == "resolved":
            self.alerts.pop(key, None)
        else:
            self.alerts.setdefault(key, record)

    # The trial --------------------------------------------------------------------------------------------------------

    def _worker(self, trial: Trial, record: Record) -> Worker:
        worker = trial.workers.setdefault(str(record["source"]), Worker())
        worker.seen_t = record["t"]
        return worker

    def start(self, trial: Trial, record: Record) -> None:
        """A worker is up, perhaps again."""
        trial.workers[str(record["source"])] = Worker(
            int(record["rank"]), int(record["world_size"]), seen_t=record["t"]
        )

    def ready(self, trial: Trial, record: Record) -> None:
        """A worker has met the others."""
        worker, before = self._worker(trial, record), max(it.generation or 0 for it in trial.workers.values())
        worker.state, worker.generation = "ready", record.get("generation")
        if 0 < before < (worker.generation or 0):
            trial.restarts += 1
            self.say(record["t"], f"generation {worker.generation}: {worker.world_size} ranks have met")

    def step(self, trial: Trial, record: Record) -> None:
        """A worker made a step; the first one after a symptom ends the recovery."""
        worker = self._worker(trial, record)
        worker.state, worker.step = "trains", int(record["step"])
        worker.loss = record.get("loss")
        worker.steps.append(record)
        t = float(record["t"])
        began = float(record.get("begin_t", t))
        if trial.symptom_t is not None and began > trial.symptom_t:
            self.say(t, f"training again after {t - trial.symptom_t:.2f} s")
            trial.symptom_t = None

    def error(self, trial: Trial, record: Record) -> None:
        """A worker told of an error."""
        worker = self._worker(trial, record)
        self.say(record["t"], f"{record['source']}: {str(record['message']).splitlines()[0][:100]}")
        if record.get("fatal", True):
            worker.state = "failed"
            self._symptom(trial, record)

    def worker_end(self, trial: Trial, record: Record) -> None:
        """A worker is done."""
        self._worker(trial, record).state = "ended"

    def checkpoint(self, trial: Trial, record: Record) -> None:
        """A checkpoint is durable."""
        trial.checkpoint = Checkpoint(int(record["step"]), record["t"], record.get("block_s"))

    def detected(self, trial: Trial, record: Record) -> None:
        """A launcher noticed that something is wrong."""
        node = str(record["source"]).partition(".")[0]
        self.say(record["t"], f"{node} noticed: {str(record.get('why', '')).replace('_', ' ')}")
        self._symptom(trial, record)

    def process_exit(self, trial: Trial, record: Record) -> None:
        """The node agent saw a process end."""
        if record.get("code") != 0:
            self.say(record["t"], f"{record['node']}.{record['slot']} ended with {record.get('code')}")
            self._symptom(trial, record)

    def node_down(self, trial: Trial, record: Record) -> None:
        """A node lost power."""
        trial.down.add(str(record["node"]))

    def node_up(self, trial: Trial, record: Record) -> None:
        """It has it again."""
        trial.down.discard(str(record["node"]))

    def fault_begin(self, trial: Trial, record: Record) -> None:
        """The nemesis did something."""
        trial.faults[str(record["fault"])] = record

    def fault_end(self, trial: Trial, record: Record) -> None:
        """And healed it."""
        trial.faults.pop(str(record["fault"]), None)

    @staticmethod
    def _symptom(trial: Trial, record: Record) -> None:
        if trial.symptom_t is None and trial.step is not None:
            trial.symptom_t = record["t"]


RUN: dict[str, Callable[[Present, Record], None]] = {
    "run_end": Present.run_end,
    "resumed": Present.resumed,
    "trial_start": Present.trial_start,
    "trial_end": Present.trial_end,
    "alert": Present.alert,
}
TRIAL: dict[str, Callable[[Present, Trial, Record], None]] = {
    "start": Present.start,
    "ready": Present.ready,
    "step": Present.step,
    "error": Present.error,
    "end": Present.worker_end,
    "checkpoint": Present.checkpoint,
    "detected": Present.detected,
    "process_exit": Present.process_exit,
    "node_down": Present.node_down,
    "node_up": Present.node_up,
    "fault_begin": Present.fault_begin,
    "fault_end": Present.fault_end,
}
"""Event → what it changes."""
