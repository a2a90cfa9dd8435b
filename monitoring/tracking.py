"""Experiment tracking: what a run says becomes parameters, metrics, artefacts. `pg monitoring track` calls it.

A process of its own reads the event files, so training never waits for the tracking server, nor notices that it is
away: what cannot be delivered yet waits here, and all of it can be read again from the files. Metrics come from the
head process alone (rank 0, wherever it is after a recovery), since they are those of the whole job. This module knows
what is tracked; `monitoring.mlflow_store` knows MLflow.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Protocol

from proving_ground.bench import loglines
from proving_ground.bench.jobstate import JobState, News
from proving_ground.bench.rundir import Record, RunDir
from proving_ground.monitoring.follow import Follower
from proving_ground.monitoring.present import GONE_S, gone

EVERY_S = 1.0
BACKOFF_S = (1.0, 30.0)  # from, to: doubled while the server is away
BATCH = 1000  # metrics of one request, MLflow's limit
NAME_MAX = 250  # characters of a metric's name, MLflow's limit
WAITING_MAX = 200  # batches that wait here; with more the rest waits in the files
SETTLE_S = 30.0  # from a run's end to its seal and its report, which are made after it
MADE = ("seal.json", "results.json")  # after a run's end

STEP = {
    "loss": "train/loss", "lr": "train/learning_rate", "grad_norm": "train/gradient_norm", "step_s": "train/step_time",
    "data_s": "train/data_time", "comm_s": "train/communication_time", "world_size": "train/world_size",
}  # fmt: skip
"""Field of a `step` → metric; times in seconds."""
CHECKPOINT = {"block_s": "checkpoint/block_time", "durable_s": "checkpoint/save_time", "bytes": "checkpoint/size"}
GPU = {
    "utilisation": "system/gpu_utilization", "memory_used": "system/gpu_memory", "power_w": "system/gpu_power",
    "temperature_c": "system/gpu_temperature",
}  # fmt: skip
"""Field of a `machine` sample's GPUs → metric, the mean over the GPUs."""
SPLITS = {"test": "val", "validation": "val"}
ABOUT = (
    "case", "workload", "mechanism", "scaling", "nodes", "min_nodes", "repeat", "seed", "batch_per_node",
    "global_batch", "steps", "warmup_steps", "link_mbps", "cpus_per_node", "dilation", "compute",
)  # fmt: skip
"""Keys of a trial in plan.json that are parameters; its `training` too."""


def allowed(name: str) -> str:
    """A metric's name as MLflow takes it: `val/acc@1` becomes `val/acc_1`. One that it refuses would end tracking."""
    parts = (re.sub(r"[^A-Za-z0-9_. -]", "_", part) for part in name.split("/"))
    return "/".join(part for part in parts if part.strip(". ")).strip()[:NAME_MAX] or "unnamed"


def of_training(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that the trainer's table of a plan, or of a search, is: `training.lr`."""
    return {f"training.{key}": value for key, value in asked.get("training", {}).items()}


class AwayError(ConnectionError):
    """The tracking server does not answer; later it may."""


class TrackingError(ConnectionError):
    """The tracking server refuses, or was away for too long: one line with what and where."""


@dataclass(frozen=True)
class Point:
    """One value of one metric."""

    name: str
    value: float
    wall_s: float  # Unix time
    step: int


@dataclass(frozen=True)
class Begin:
    """A trial begins."""

    trial: str
    wall_s: float
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class Points:
    """Some of its metrics."""

    trial: str
    points: list[Point]


@dataclass(frozen=True)
class End:
    """It has ended; every checkpoint that it made."""

    trial: str
    wall_s: float
    ok: bool
    checkpoints: list[Record]
    why: str = ""  # of a search's trial: how it ended


Action = Begin | Points | End


class Store(Protocol):
    """Where experiments are kept. Doing an action twice is as doing it once.

    Its methods raise AwayError when the same may succeed later, TrackingError when it will not.
    """

    def do(self, action: Action) -> None:
        """Keep one."""

    def finish(self) -> None:
        """The run is over: its artefacts."""


@dataclass
class Reading:
    """Turns events into what is to be kept, in order."""

    plans: Mapping[str, Mapping[str, Any]]
    ahead_s: float  # from the run's clock to Unix time
    todo: deque[Action] = field(default_factory=deque)
    trial: str | None = None
    state: JobState = field(default_factory=JobState)  # of the trial
    last_t: float | None = None  # end of the head's step before
    step: int = 0
    checkpoints: list[Record] = field(default_factory=list)
    newest_t: float | None = None
    over: bool = False
    gone_s: float = GONE_S
    open: Points | None = None  # of the trial: what it tells next is added, while this is not delivered

    def follow(self, run: RunDir) -> Follower:
        """Where the events come from."""
        return Follower(run)

    def take(self, record: Record) -> None:
        """Take one event in; of the wrong type, it is passed over."""
        self.newest_t = max(self.newest_t or record["t"], record["t"])
        react = REACTIONS.get(record["event"])
        try:
            news = self.state.take(record) if record.get("trial") == self.trial else None
            if news:
                self._recovered(news)
            if react:
                react(self, record)
        except (KeyError, TypeError, ValueError, ArithmeticError):
            return

    def _keep(self, record: Record, name: str, value: object) -> None:
        """One value of the present step; what is no number is none."""
        self._point(float(record["t"]), self.step, name, value)

    def _point(self, t: float, step: int, name: str, value: object) -> None:
        if self.trial is None or isinstance(value, bool) or not isinstance(value, int | float):
            return
        point = Point(allowed(name), float(value), t + self.ahead_s, step)
        if self.open and self.open.trial == self.trial and len(self.open.points) < BATCH:
            self.open.points.append(point)
        else:
            self.open = Points(self.trial, [point])
            self.todo.append(self.open)

    def close(self) -> None:
        """What waits is delivered now: nothing more is added to it."""
        self.open = None

    def _recovered(self, news: News) -> None:
        """A recovery ended: counted from the fault where there is a nemesis, and from the last committed step.

        One point a disturbance, at the step that ended it, once no further fault can make it longer.
        """
        for it in news.settled:
            if it.last and it.last.first:
                self._point(it.last.first.end_t, it.last.first.step, "recovery/time_to_recovery", it.seconds)
        if news.standstill and news.committed:
            self._point(
                news.committed.end_t, news.committed.step, "recovery/standstill", news.standstill.seconds
            )  # fmt: skip

    def trial_start(self, record: Record) -> None:
        """A trial begins."""
        self.trial, self.last_t, self.step, self.checkpoints = str(record["trial"]), None, 0, []
        self.close()
        plan = self.plans.get(self.trial, {})
        self.state = JobState(plan)
        own = {key: plan[key] for key in ABOUT if plan.get(key) not in (None, "")}
        self.todo.append(Begin(self.trial, record["t"] + self.ahead_s, {**own, **of_training(plan)}))

    def trial_end(self, record: Record) -> None:
        """It ended."""
        ok = bool(record.get("ok"))
        self.todo.append(End(str(record["trial"]), record["t"] + self.ahead_s, ok, self.checkpoints))
        self.trial = None

    def start(self, record: Record) -> None:
        """A worker is up, perhaps again: what lies between its steps and those before is no step."""
        del record
        self.last_t = None

    def step_done(self, record: Record) -> None:
        """A step, if it is the head's."""
        if record["source"] != self.state.head:
            return
        self.step = int(record["step"])
        for name, metric in STEP.items():
            self._keep(record, metric, record.get(name))
        t = float(record["t"])
        if self.last_t is not None and t > self.last_t and "global_samples" in record:
            self._keep(record, "train/throughput", record["global_samples"] / (t - self.last_t))
        self.last_t = t

    def evaluated(self, record: Record) -> None:
        """The model was evaluated: `val/accuracy`."""
        if record["source"] == self.state.head:
            split = str(record["split"])
            self._keep(record, f"{SPLITS.get(split, split)}/{record['metric']}", record["value"])

    def checkpoint(self, record: Record) -> None:
        """One is durable."""
        kept = ("step", "path", "bytes", "sha256", "generation", "block_s", "durable_s")
        self.checkpoints.append({key: record[key] for key in kept if key in record})
        for name, metric in CHECKPOINT.items():
            self._keep(record, metric, record.get(name))

    def machine(self, record: Record) -> None:
        """A sample of the machine, at the step that the job is at."""
        self._keep(record, "system/load1", record.get("load1"))
        gpus = record.get("gpus") or []
        for name, metric in GPU.items():
            values = [it[name] for it in gpus if isinstance(it.get(name), int | float)]
            self._keep(record, metric, fmean(values) if values else None)

    def run_end(self, record: Record) -> None:
        """The run is over."""
        del record
        self.over = True

    def resumed(self, record: Record) -> None:
        """Not yet."""
        del record
        self.over = False


REACTIONS: dict[str, Callable[[Reading, Record], None]] = {
    "trial_start": Reading.trial_start,
    "trial_end": Reading.trial_end,
    "start": Reading.start,
    "step": Reading.step_done,
    "eval": Reading.evaluated,
    "checkpoint": Reading.checkpoint,
    "machine": Reading.machine,
    "run_end": Reading.run_end,
    "resumed": Reading.resumed,
}


class Translator(Protocol):
    """Turns events into what is to be kept: of a run, or of a search."""

    todo: deque[Action]
    ahead_s: float
    newest_t: float | None
    over: bool
    gone_s: float  # without any event: whoever wrote them is no more

    def follow(self, run: RunDir) -> Follower:
        """Where the events come from, in their order."""

    def take(self, record: Record) -> None:
        """Take one event in."""

    def close(self) -> None:
        """What waits is delivered now."""


def of_run(run: RunDir) -> Reading:
    """A reading of a run from its beginning.

    Raises:
        RunDirError: its plan, or its clock, cannot be read.
    """
    clock = loglines.clock(run)
    return Reading({str(it["id"]): it for it in run.read("plan")["trials"]}, clock.wall_s - clock.t)


def track(
    run: RunDir,
    reading: Translator,
    store: Store,
    say: Callable[[str], None],
    patience_s: float,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Follow a run until it ends and all is kept; how many values were.

    Raises:
        TrackingError: the store refuses, or was away for more than `patience_s` seconds on end.
    """
    follower, kept = reading.follow(run), 0
    try:
        while True:
            for record in follower.new() if len(reading.todo) < WAITING_MAX else ():
                reading.take(record)
            reading.close()
            over = reading.over or gone(reading.newest_t, time.time() - reading.ahead_s, reading.gone_s)
            for action in deliver(reading.todo, store, say, patience_s, sleep):
                kept += len(action.points) if isinstance(action, Points) else 0
            if over and settled(run, reading):
                insist(store.finish, say, patience_s, sleep)
                return kept
            sleep(EVERY_S)
    finally:
        follower.close()


def settled(run: RunDir, reading: Translator) -> bool:
    """Whether a run that is over has its seal and its report, or has been over for so long that they do not come."""
    since_s = time.time() - reading.ahead_s - (reading.newest_t or 0.0)
    return abs(since_s) > SETTLE_S or all((run.path / name).exists() for name in MADE)


def deliver(
    todo: deque[Action], store: Store, say: Callable[[str], None], patience_s: float, sleep: Callable[[float], None]
) -> Iterator[Action]:
    """Keep all that is to be kept, in order; each when it is."""
    while todo:
        action = todo[0]
        insist(lambda it=action: store.do(it), say, patience_s, sleep)  # type: ignore[misc]
        yield todo.popleft()


def insist(
    do: Callable[[], None], say: Callable[[str], None], patience_s: float, sleep: Callable[[float], None]
) -> None:
    """Do it, again and again while the server is away.

    Raises:
        TrackingError: it was away for too long.
    """
    wait_s, waited_s = BACKOFF_S[0], 0.0
    while True:
        try:
            do()
        except AwayError as error:
            if waited_s >= patience_s:
                raise TrackingError(f"{error}; nothing is lost: the same command again delivers the rest") from None
            if not waited_s:
                say(f"{error}; training goes on, trying again")
            sleep(wait_s)
            waited_s, wait_s = waited_s + wait_s, min(2 * wait_s, BACKOFF_S[1])
        else:
            if waited_s:
                say(f"the tracking server answers again after {waited_s:.0f} s")
            return
