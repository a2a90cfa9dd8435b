"""What a run took in node-hours: by size and by node, beside its plan's estimate. Called by `sections`.

Measured from the start of a trial to its end, start-up included: what a cluster would be paid for. Trained is the part
from the moment when the last rank was ready to the end of its last step. Money is node-hours times the price that a
reader states.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from proving_ground.reports.history import History, TrialHistory
from proving_ground.reports.numbers import short
from proving_ground.reports.scaling.measure import Measured

OVER = 1.25  # of the estimate: from here on it is said
LOW = 0.5  # share of the time in training: below it, there is something to gain
WORTH_A_WORD = 600.0  # node-seconds: a run that took less is over whatever it did
HOUR = 3600


@dataclass(frozen=True)
class Spent:
    """The trials of one case at one size, in node-hours; `estimated` is of those that ended."""

    case: str
    nodes: int
    trials: int
    estimated: float
    used: float
    trained: float

    @property
    def share(self) -> float:
        """Of the time in training, 0 to 1."""
        return self.trained / self.used if self.used else math.nan


def by_size(trials: Sequence[Measured], history: History) -> list[Spent]:
    """Every case and size with a trial that ended, in the order of the plan."""
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    for trial, recorded in ended(trials, history):
        per_hour = int(trial.plan["nodes"]) / HOUR
        times = float(trial.plan.get("estimate_s") or 0.0), took(recorded), trained(trial, recorded)
        estimated, used, busy = (seconds * per_hour for seconds in times)
        found.setdefault(trial.case_nodes, []).append((estimated, used, busy))
    return [Spent(*key, len(rows), *map(sum, zip(*rows, strict=True))) for key, rows in found.items()]


def by_node(trials: Sequence[Measured], history: History) -> dict[str, float]:
    """Node → hours in which it was there for a trial that ended."""
    hours: dict[str, float] = {}
    for _, recorded in ended(trials, history):
        for node in {name.partition(".")[0] for name in recorded.started}:
            hours[node] = hours.get(node, 0.0) + took(recorded) / HOUR
    return dict(sorted(hours.items()))


def ended(trials: Sequence[Measured], history: History) -> Iterator[tuple[Measured, TrialHistory]]:
    """The trials that ended, with what was recorded of them."""
    for trial in trials:
        recorded = history.trials.get(str(trial.plan["id"]))
        if recorded and math.isfinite(took(recorded)):
            yield trial, recorded


def took(recorded: TrialHistory) -> float:
    """Seconds of a trial; NaN where it never ended."""
    return recorded.end_t - recorded.start_t


def trained(trial: Measured, recorded: TrialHistory) -> float:
    """Seconds in which it trained; NaN where nobody said when it was ready, or it came to no measurement."""
    ready = [process.ready_t for process in recorded.processes.values() if math.isfinite(process.ready_t)]
    return trial.window[1] - max(ready) if trial.window and ready else math.nan


def words(spent: Sequence[Spent], price: float | None) -> Iterator[str]:
    """The whole in sentences: what it took and cost, an alert above the estimate, advice where little was training."""
    used, estimated, busy = (math.fsum(getattr(it, name) for it in spent) for name in ("used", "estimated", "trained"))
    if not used:
        return
    money = f", which cost {short(price * used)} at the stated price" if price is not None else ""
    yield f"The trials took {short(used)} node-hours{money}; estimated before were {short(estimated)}."
    if used * HOUR < WORTH_A_WORD:
        return
    if estimated and used >= OVER * estimated:
        yield f"That is {used / estimated - 1:.0%} over the estimate: look for what was slower before you run it again."
    if busy < LOW * used:
        yield (
            f"Only {busy / used:.0%} of them went into training, the rest into starting and ending: "
            "more steps a trial, fewer nodes, or machines at a spot price make a step cheaper."
        )


def rows(spent: Sequence[Spent], price: float | None) -> list[Mapping[str, object]]:
    """One row a size for the page; None where there is no price, or nobody said when training began."""
    return [
        {
            "case": it.case, "nodes": it.nodes, "trials": it.trials, "estimated": f"{it.estimated:.4f}",
            "used": f"{it.used:.4f}", "share": f"{100 * it.share:.0f} %" if math.isfinite(it.share) else None,
            "money": None if price is None else f"{price * it.used:,.4f}",
        }
        for it in spent
    ]  # fmt: skip
