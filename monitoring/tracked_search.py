"""What a search's ledger, and the events of its trials, become in MLflow: a parent, and a child for each trial.

`python -m monitoring track` calls it for a search's path. A trial's metrics are those of any trial (`tracking`). The
parent has what was asked, and the best value so far at each trial's end. Parameters that a population based search
copies on are metrics too, since those of an MLflow run never change.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench import loglines
from bench.rundir import HARNESS, Record, RunDir, RunDirError
from monitoring.live_search import GONE_S
from monitoring.searches import DOCUMENT
from monitoring.tracking import Action, Begin, End, Point, Points, Reading, allowed

WHOLE = ""
"""The search itself, beside its trials' names."""
ASKED = (
    "algorithm", "trials", "concurrent", "steps", "eval_every", "metric", "mode", "budget_s", "budget_steps",
    "grace_steps", "factor", "quantile", "seed",
)  # fmt: skip
ENDS = ("finished", "stopped", "failed")
PLAN: Mapping[str, Any] = {"cluster": {"name": "ray"}, "trials": ()}
"""In place of a run's plan."""


@dataclass
class SearchReading:
    """Turns a search's records into what is to be kept, in order: as `tracking.Reading`, many trials at a time."""

    asked: Mapping[str, Any]  # the table `search` of search.json
    ahead_s: float  # from the present boot's clock to Unix time
    todo: deque[Action] = field(default_factory=deque)
    newest_t: float | None = None
    over: bool = False
    gone_s: float = GONE_S
    trials: dict[str, Reading] = field(default_factory=dict)
    values: dict[str, list[float]] = field(default_factory=dict)  # of each trial that told any
    ended: int = 0

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
        if reading := self.trials.get(str(record["trial"])):
            reading.ahead_s = self.ahead_s
            reading.take(record)

    def _point(self, trial: str, record: Record, name: str, value: object, step: int) -> None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            point = Point(allowed(name), float(value), record["t"] + self.ahead_s, step)
            self.todo.append(Points(trial, [point]))

    def sitting(self, record: Record) -> None:
        """A driver begins, by the clock of this boot."""
        self.ahead_s, self.over = float(record["wall_s"]) - float(record["t"]), False
        if not self.trials:
            own = {key: self.asked[key] for key in ASKED if self.asked.get(key) is not None}
            training = {f"training.{key}": value for key, value in self.asked.get("training", {}).items()}
            space = {f"space.{key}": json.dumps(value) for key, value in self.asked["space"].items()}
            self.todo.append(Begin(WHOLE, float(record["wall_s"]), {**own, **training, **space}))

    def started(self, record: Record) -> None:
        """A trial begins, or begins anew after an interruption: it is the same one."""
        trial = str(record["trial"])
        if trial in self.trials:
            return
        self.trials[trial] = Reading({}, self.ahead_s, self.todo, trial)
        training = {f"training.{key}": value for key, value in self.asked.get("training", {}).items()}
        self.todo.append(Begin(trial, record["t"] + self.ahead_s, {**training, **record["params"]}))
        self._parameters(record, 0)

    def copied(self, record: Record) -> None:
        """It took over another one's weights and goes on with other parameters."""
        self._parameters(record, int(record["step"]))

    def _parameters(self, record: Record, step: int) -> None:
        for name, value in record["params"].items() if self.asked.get("algorithm") == "pbt" else ():
            self._point(str(record["trial"]), record, f"parameters/{name}", value, step)

    def reported(self, record: Record) -> None:
        """A trial was evaluated; its trainer tells the value too, as `val/…`."""
        self.values.setdefault(str(record["trial"]), []).append(float(record["value"]))

    def _ended(self, record: Record) -> None:
        trial, event = str(record["trial"]), str(record["event"])
        if trial not in self.trials:
            return
        why = ": ".join(it for it in (event, str(record.get("why") or "")) if it)
        self.todo.append(End(trial, record["t"] + self.ahead_s, event != "failed", [], why))
        self.ended += 1
        if event == "failed":
            self.values.pop(trial, None)
        if told := [value for values in self.values.values() for value in values]:
            best = max if self.asked.get("mode", "max") == "max" else min
            self._point(WHOLE, record, f"best/{self.asked['metric']}", best(told), self.ended)

    def ends(self, record: Record) -> None:
        """The search is over."""
        del record
        self.over = True


def of_search(run: RunDir) -> SearchReading:
    """A reading of a search from its beginning.

    Raises:
        RunDirError: what was asked, or its clock, cannot be read.
    """
    clock, asked = loglines.clock(run), run.read(DOCUMENT)
    if not isinstance(asked, dict) or not isinstance(asked.get("search"), dict):
        raise RunDirError(f"{run.path / DOCUMENT}.json: has no table 'search'")
    return SearchReading(asked["search"], clock.wall_s - clock.t)


REACTIONS = {
    "sitting": SearchReading.sitting,
    "started": SearchReading.started,
    "copied": SearchReading.copied,
    "reported": SearchReading.reported,
    "over": SearchReading.ends,
}
