"""What a search's ledger, and the events of its trials, become in MLflow: a parent, and a child for each trial.

`pg monitoring track` calls it for a search's path. A trial's metrics are those of any trial (`tracking`). The
parent has what was asked, and the best value so far at each trial's end. Parameters that a population based search
copies on are metrics too, since those of an MLflow run never change.
"""

from __future__ import annotations

import heapq
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from proving_ground.bench.jobstate import News
from proving_ground.bench.rundir import HARNESS, Record, RunDir, RunDirError
from proving_ground.monitoring.follow import EventFile, Follower, moment
from proving_ground.monitoring.live_search import GONE_S
from proving_ground.monitoring.searches import DOCUMENT
from proving_ground.monitoring.tracking import Action, Begin, End, Point, Points, Reading, allowed, of_training

WHOLE = ""
"""The search itself, beside its trials' names."""
ASKED = (
    "algorithm", "trials", "concurrent", "steps", "eval_every", "metric", "mode", "budget_s", "budget_steps",
    "grace_steps", "factor", "quantile", "seed",
)  # fmt: skip
ENDS = ("finished", "stopped", "failed")
CLOCKS = ("sitting", "start")  # events that tell a clock beside Unix time
PLAN: Mapping[str, Any] = {"cluster": {"name": "ray"}, "trials": (), "label": "real"}
"""In place of a run's plan."""


@dataclass
class SearchFollower(Follower):
    """All records of a search by Unix time: a search that is resumed after a reboot has several clocks.

    A driver tells its own at the beginning of its sitting, and a trainer when it starts.
    """

    ahead_s: dict[str, float] = field(default_factory=dict)  # file → from its present clock to Unix time

    def new(self) -> Iterator[Record]:
        """What was appended since the last call, in order as far as the files are."""
        self.found()
        return heapq.merge(*(self._by_wall(name, file) for name, file in self.files.items()), key=moment)

    def _by_wall(self, name: str, file: EventFile) -> Iterator[Record]:
        """A file's new records by Unix time; those before the first word of a clock are left out."""
        for record in file.new():
            if record["event"] in CLOCKS and isinstance(record.get("wall_s"), int | float):
                self.ahead_s[name] = record["wall_s"] - record["t"]
            if name in self.ahead_s:
                yield {**record, "t": record["t"] + self.ahead_s[name]}


class TrialReading(Reading):
    """Of one trial: it may wait for its slot, or begin anew, and neither is a recovery."""

    def _recovered(self, news: News) -> None:
        """Nothing."""


@dataclass
class SearchReading:
    """Turns a search's records into what is to be kept, in order: as `tracking.Reading`, many trials at a time.

    Moments are Unix time.
    """

    asked: Mapping[str, Any]  # the table `search` of search.json
    todo: deque[Action] = field(default_factory=deque)
    newest_t: float | None = None
    over: bool = False
    gone_s: float = GONE_S
    ahead_s: float = 0.0
    trials: dict[str, TrialReading] = field(default_factory=dict)
    early: dict[str, list[Record]] = field(default_factory=dict)  # of trainers, before the driver told of their trials
    bests: dict[str, float] = field(default_factory=dict)  # of each trial that told a value, and did not fail
    ended: int = 0

    @property
    def _better(self) -> Callable[..., float]:
        """Of several values the best."""
        return max if self.asked.get("mode", "max") == "max" else min

    def follow(self, run: RunDir) -> Follower:
        """Where the records come from."""
        return SearchFollower(run)

    def close(self) -> None:
        """What waits is delivered now."""
        for reading in self.trials.values():
            reading.close()

    def take(self, record: Record) -> None:
        """Take one record in; of the wrong type, it is passed over."""
        self.newest_t = max(self.newest_t or record["t"], record["t"])
        try:
            if record["source"] != HARNESS:
                self._of_trainer(record)
            elif record["event"] in ENDS:
                self._ended(record)
            elif react := REACTIONS.get(str(record["event"])):
                react(self, record)
        except (KeyError, TypeError, ValueError, ArithmeticError):
            return

    def _of_trainer(self, record: Record) -> None:
        if reading := self.trials.get(trial := str(record["trial"])):
            reading.take(record)
        else:
            self.early.setdefault(trial, []).append(record)

    def _point(self, trial: str, record: Record, name: str, value: object, step: int) -> None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            point = Point(allowed(name), float(value), record["t"], step)
            self.todo.append(Points(trial, [point]))

    def sitting(self, record: Record) -> None:
        """A driver begins."""
        self.over = False
        if record["sitting"] == 1:
            own = {key: self.asked[key] for key in ASKED if self.asked.get(key) is not None}
            space = {f"space.{key}": json.dumps(value) for key, value in self.asked["space"].items()}
            self.todo.append(Begin(WHOLE, record["t"], {**own, **of_training(self.asked), **space}))

    def started(self, record: Record) -> None:
        """A trial begins, or begins anew after an interruption: it is the same one."""
        trial = str(record["trial"])
        if trial in self.trials:
            return
        self.todo.append(Begin(trial, record["t"], {**of_training(self.asked), **record["params"]}))
        self.trials[trial] = TrialReading({}, 0.0, self.todo, trial)
        self._parameters(record, 0)
        for it in self.early.pop(trial, ()):
            self.trials[trial].take(it)

    def copied(self, record: Record) -> None:
        """It took over another one's weights and goes on with other parameters."""
        self._parameters(record, int(record["step"]))

    def _parameters(self, record: Record, step: int) -> None:
        for name, value in record["params"].items() if self.asked.get("algorithm") == "pbt" else ():
            self._point(str(record["trial"]), record, f"parameters/{name}", value, step)

    def reported(self, record: Record) -> None:
        """A trial was evaluated; its trainer tells the value too, as `val/…`."""
        trial, value = str(record["trial"]), float(record["value"])
        self.bests[trial] = self._better(self.bests.get(trial, value), value)

    def _ended(self, record: Record) -> None:
        trial, event = str(record["trial"]), str(record["event"])
        checkpoints = self.trials[trial].checkpoints
        why = ": ".join(it for it in (event, str(record.get("why") or "")) if it)
        self.todo.append(End(trial, record["t"], event != "failed", checkpoints, why))
        self.ended += 1
        if event == "failed":
            self.bests.pop(trial, None)
        if self.bests:
            best = self._better(self.bests.values())
            self._point(WHOLE, record, f"best/{self.asked['metric']}", best, self.ended)

    def ends(self, record: Record) -> None:
        """The search is over."""
        del record
        self.over = True


def of_search(run: RunDir) -> SearchReading:
    """A reading of a search from its beginning.

    Raises:
        RunDirError: what was asked cannot be read.
    """
    asked = run.read(DOCUMENT)
    if not isinstance(asked, dict) or not isinstance(asked.get("search"), dict):
        raise RunDirError(f"{run.path / DOCUMENT}.json: has no table 'search'")
    return SearchReading(asked["search"])


REACTIONS = {
    "sitting": SearchReading.sitting,
    "started": SearchReading.started,
    "copied": SearchReading.copied,
    "reported": SearchReading.reported,
    "over": SearchReading.ends,
}
