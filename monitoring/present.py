"""The present state of a run in progress, event by event. Filled by `monitoring.live`, which shows it.

Ranks, steps and recoveries are those of `bench.jobstate`; rates, shares and words are made here.
Moments are on the run's clock, in seconds. What nobody told is None, never a zero.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from proving_ground.bench import jobstate
from proving_ground.bench.jobstate import FaultSeen, JobState, News
from proving_ground.bench.rundir import Record
from proving_ground.training.events import STEP_PARTS

WINDOW = 20  # steps over which rates and shares are taken
GONE_S = 120.0  # without any event; the harness records the machine once a second while a trial runs
SILENT_S, SILENT_STEPS = 2.0, 3.0  # a worker is silent after so many seconds, and so many of its own steps

PLACE = ("node", "slot", "gpu", "mount")
"""Labels of an alert that say where."""


def gone(newest_t: float | None, now: float, gone_s: float = GONE_S) -> bool:
    """Whether nothing has been recorded for so long that the harness must be gone."""
    return newest_t is not None and now - newest_t > gone_s


@dataclass
class LiveWorker:
    """One trainer process: its latest life, as it is shown."""

    life: jobstate.Worker
    state: str = "starts"  # starts, ready, trains, failed, ended
    loss: float | None = None
    seen_t: float = 0.0
    steps: deque[Record] = field(default_factory=lambda: deque(maxlen=WINDOW))

    @property
    def step(self) -> int | None:
        """The newest that it made."""
        return self.life.step or None

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
class LiveTrial:
    """What is known of the trial in progress."""

    id: str
    begin_t: float
    plan: Mapping[str, Any]
    state: JobState
    workers: dict[str, LiveWorker] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    checkpoint: Checkpoint | None = None

    @property
    def present(self) -> list[LiveWorker]:
        """The workers of the newest generation that train."""
        known = (self.workers.get(name) for name in self.state.members)
        return [it for it in known if it and it.state == "trains"]

    @property
    def faults(self) -> list[FaultSeen]:
        """Those that are held at present."""
        return [it for it in self.state.faults.values() if it.held]

    @property
    def step(self) -> int | None:
        """The newest step that all ranks committed."""
        return self.state.step or None

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
    trial: LiveTrial | None = None
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
            elif self.trial and record.get("trial") == self.trial.id:
                self._of_trial(self.trial, record)
        except (KeyError, TypeError, ValueError):
            return

    def _of_trial(self, trial: LiveTrial, record: Record) -> None:
        before = trial.state.generation
        news = trial.state.take(record)
        if react := TRIAL.get(record["event"]):
            react(self, trial, record)
        if 0 < before < trial.state.generation:
            self.say(record["t"], f"generation {trial.state.generation}: {trial.state.world_size} ranks have met")
        self._recovered(record["t"], news)

    def _recovered(self, t: float, news: News) -> None:
        """A recovery ended: counted from the fault where the nemesis told of it, else from the last step before."""
        for it in news.recovered:
            self.say(t, f"{it}: recovered in {it.seconds:.2f} s")
        if news.standstill and not news.recovered:
            self.say(t, f"training again, {news.standstill.seconds:.2f} s after the last committed step")

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
        plan = self.plans.get(name, {})
        self.trial = LiveTrial(name, record["t"], plan, JobState(plan))

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

    @staticmethod
    def _worker(trial: LiveTrial, record: Record) -> LiveWorker:
        source = str(record["source"])
        worker = trial.workers.setdefault(source, LiveWorker(trial.state.workers[source]))
        worker.seen_t = record["t"]
        return worker

    def start(self, trial: LiveTrial, record: Record) -> None:
        """A worker is up, perhaps again."""
        trial.workers.pop(str(record["source"]), None)
        self._worker(trial, record)

    def ready(self, trial: LiveTrial, record: Record) -> None:
        """A worker has met the others."""
        self._worker(trial, record).state = "ready"

    def step(self, trial: LiveTrial, record: Record) -> None:
        """A worker made a step."""
        if not {"step", "samples"} <= record.keys():
            return
        worker = self._worker(trial, record)
        worker.state, worker.loss = "trains", record.get("loss")
        worker.steps.append(record)
        for name in trial.state.members if trial.state.one_tells else ():
            if other := trial.workers.get(name):
                other.state, other.seen_t = "trains", record["t"]

    def error(self, trial: LiveTrial, record: Record) -> None:
        """A worker told of an error."""
        worker = self._worker(trial, record)
        self.say(record["t"], f"{record['source']}: {str(record['message']).splitlines()[0][:100]}")
        if record.get("fatal", True):
            worker.state = "failed"

    def worker_end(self, trial: LiveTrial, record: Record) -> None:
        """A worker is done."""
        self._worker(trial, record).state = "ended"

    def checkpoint(self, trial: LiveTrial, record: Record) -> None:
        """A checkpoint is durable."""
        trial.checkpoint = Checkpoint(int(record["step"]), record["t"], record.get("block_s"))

    def detected(self, trial: LiveTrial, record: Record) -> None:
        """A launcher noticed that something is wrong."""
        del trial
        node = str(record["source"]).partition(".")[0]
        self.say(record["t"], f"{node} noticed: {str(record.get('why', '')).replace('_', ' ')}")

    def process_exit(self, trial: LiveTrial, record: Record) -> None:
        """The node agent saw a process end."""
        del trial
        if record.get("code") != 0:
            self.say(record["t"], f"{record['node']}.{record['slot']} ended with {record.get('code')}")

    def node_down(self, trial: LiveTrial, record: Record) -> None:
        """A node lost power."""
        trial.down.add(str(record["node"]))

    def node_up(self, trial: LiveTrial, record: Record) -> None:
        """It has it again."""
        trial.down.discard(str(record["node"]))


RUN: dict[str, Callable[[Present, Record], None]] = {
    "run_end": Present.run_end,
    "resumed": Present.resumed,
    "trial_start": Present.trial_start,
    "trial_end": Present.trial_end,
    "alert": Present.alert,
}
TRIAL: dict[str, Callable[[Present, LiveTrial, Record], None]] = {
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
}
"""Event → what it changes."""
