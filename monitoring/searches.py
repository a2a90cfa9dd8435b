"""What a search's ledger, and the steps of its trials, mean for the metrics. Called by `monitoring.exporter`.

The trials have no series of a training's own: that some diverge, stand still or are begun again is what a search is
for, and no alert. A search that is over has no series; one that was interrupted has, and is resumed or looked after.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from proving_ground.bench.rundir import HARNESS, Record
from proving_ground.monitoring.board import Board
from proving_ground.monitoring.clocks import Clocks
from proving_ground.monitoring.taker import Taker

DOCUMENT = "search"
"""`search.json`: what was asked."""
STATES = ("waiting", "running", "finished", "stopped", "cut_off", "failed")
"""Of a trial. `stopped`: early, by the algorithm; `cut_off`: by the budget."""
TRIALS = ("trial",)
"""Label `queue` of what waits."""
SERIES = ("search_", "queue_")
"""What the names of a search's series begin with."""


class Searches(Taker):
    """Takes in the events of one search."""

    def __init__(self, board: Board, run: str, asked: Mapping[str, Any], clock: Mapping[str, float] | None) -> None:
        super().__init__(board, run, clock)
        self._search = asked
        self._better = max if asked.get("mode", "max") == "max" else min
        self._states: dict[str, str] = {}  # of trials that were begun
        self._counts: Counter[str] = Counter()
        self._bests: dict[str, float] = {}
        self._earlier_s = 0.0  # that earlier sittings took
        self._begin_t = self._newest_t = 0.0  # of the present one

    def react(self, record: Record) -> None:
        """One record of the ledger, or one event of a trial's trainer."""
        event = str(record["event"])
        if self.over:
            return
        if record["source"] != HARNESS:
            if event == "step":
                self._board.add("search_steps_total", (self._run,))
        elif event == "sitting":
            self._sitting(record)
        elif event == "over":
            self.over = True
            self._board.drop_job(self._run, begins=SERIES)
        elif event == "reported":
            self._reported(str(record["trial"]), float(record["value"]), record)
        elif (state := state_of(event, record)) is not None:
            self._moves(str(record["trial"]), state)
        if record["source"] == HARNESS:  # a step may be of a boot before
            self._newest_t = float(record["t"])

    def _sitting(self, record: Record) -> None:
        """A driver begins, by the clock of this boot; what the one before it was cut off in begins anew."""
        board, run, t, wall_s = self._board, (self._run,), float(record["t"]), float(record["wall_s"])
        planned = int(record["planned"])
        self._clocks = Clocks.of({"wall_s": wall_s, "t": t})
        self._earlier_s += self._newest_t - self._begin_t
        self._begin_t = t
        self._states = {it: "waiting" if state == "running" else state for it, state in self._states.items()}
        self._counts = Counter(self._states.values())
        self._counts["waiting"] += planned - len(self._states)
        board.set("search_info", (*run, *(str(self._search.get(it)) for it in ("algorithm", "metric", "mode"))), 1)
        board.set("search_trials_planned", run, planned)
        board.set("search_start_timestamp_seconds", run, wall_s - self._earlier_s)
        board.add("search_steps_total", run, 0)
        board.set("queue_oldest_timestamp_seconds", (*run, *TRIALS), wall_s - self._earlier_s)
        board.drop_job(self._run, begins=("search_trial_value",))
        for name, labels, key in (
            ("search_budget_seconds", run, "budget_s"), ("queue_told_seconds", (*run, *TRIALS), "budget_s"),
            ("search_budget_steps", run, "budget_steps"),
        ):  # fmt: skip
            if self._search.get(key) is not None:
                board.set(name, labels, self._search[key])
        self._tell_counts()

    def _reported(self, trial: str, value: float, record: Record) -> None:
        self._bests[trial] = self._better(self._bests.get(trial, value), value)
        self._board.set("search_trial_value", (self._run, trial), value)
        self._at("search_last_report_timestamp_seconds", (self._run,), record)
        held = self._board.get("search_best_value", (self._run,))
        self._board.set("search_best_value", (self._run,), value if held is None else self._better(held, value))

    def _moves(self, trial: str, state: str) -> None:
        """A trial is in another state."""
        self._counts[self._states.get(trial, "waiting")] -= 1
        self._counts[state] += 1
        self._states[trial] = state
        if state != "running":
            self._board.drop("search_trial_value", (self._run, trial))
        if state == "failed" and self._bests.pop(trial, None) is not None:  # its best counts no more
            self._board.drop("search_best_value", (self._run,))
            if self._bests:
                self._board.set("search_best_value", (self._run,), self._better(self._bests.values()))
        self._tell_counts()

    def _tell_counts(self) -> None:
        for state in STATES:
            self._board.set("search_trials", (self._run, state), self._counts[state])
        if not self._counts["waiting"]:
            self._board.drop("queue_oldest_timestamp_seconds", (self._run, *TRIALS))


def state_of(event: str, record: Record) -> str | None:
    """The state that a record puts its trial in; None: it says nothing of that."""
    if event == "stopped" and record.get("why") == "budget":
        return "cut_off"
    return {"started": "running", "lost": "waiting"}.get(event, event if event in STATES else None)
