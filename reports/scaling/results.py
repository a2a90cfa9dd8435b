"""From a run directory to `results.json`.

Called by `reports.cli`. The same directory always gives the same document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from proving_ground.bench.rundir import RunDir
from proving_ground.reports import allocation, history, stability
from proving_ground.reports.attempts import Attempts
from proving_ground.reports.document import Listed, cores_of, document, mixed, read_document, read_records, seal_state
from proving_ground.reports.history import History
from proving_ground.reports.scaling import cells, checks, cost, measure, pace, scoreboard
from proving_ground.reports.scaling.cells import Cell
from proving_ground.reports.scaling.cost import Price
from proving_ground.reports.scaling.measure import Measured
from proving_ground.reports.scaling.scoreboard import Prediction


@dataclass(frozen=True)
class Analysis(Listed):
    """Everything that the terminal and the page show."""

    run: RunDir
    spec: Mapping[str, Any]
    plan: Mapping[str, Any]
    provenance: Mapping[str, Any]
    history: History
    trials: Sequence[Measured]
    cells: Sequence[Cell]
    results: Mapping[str, Any]
    complete: bool
    prediction: Prediction = field(default_factory=Prediction)
    price: Price = field(default_factory=Price)

    @property
    def cores(self) -> int:
        """Of the machine that ran it."""
        return cores_of(self.provenance)


def analyse(run: RunDir, price: Price | None = None) -> Analysis:
    """Read, measure, judge; `price` is what a node costs, where somebody says so. Nothing is written.

    Raises:
        RunDirError: not a run directory, or a document in it cannot be read.
    """
    plan, spec, provenance = (read_document(run, name) for name in ("plan", "spec", "provenance"))
    complete, problems = seal_state(run)
    notes: list[str] = []
    found = history.collect(read_records(run, problems, notes))
    found.warnings[:0] = mixed(provenance)
    found.warnings += notes
    trials = measured(plan["trials"], found, cores_of(provenance))
    every, tried, price = cells.cells(trials), Attempts(), price or Price()
    listed = list(cells.all_figures(every))
    prediction = tried.made("the prediction", lambda: scoreboard.read(run, plan, found), Prediction())
    listed += tried.made("how good it was", lambda: list(scoreboard.all_figures(prediction, every)), [])
    listed += tried.made("cost", lambda: list(cost.all_figures(price, every, cost.rows_of(found, every), listed)), [])
    listed += tried.made("how machines were had", lambda: list(allocation.figures(found.allocation, plan)), [])
    end_why = str((found.end or {}).get("why") or ("" if found.end else "the run did not end by itself"))
    evidence = checks.Evidence(
        trials, every, listed, plan["cluster"], complete, problems, end_why,
        prediction=prediction, look=look_of(plan), refused=plan.get("refused") or (),
    )  # fmt: skip
    results = document(run, plan["cluster"]["name"], listed, [*checks.judge(evidence), *tried.verdicts])
    return Analysis(run, spec, plan, provenance, found, trials, every, results, complete, prediction, price)


def look_of(plan: Mapping[str, Any]) -> str:
    """Which look at its verdicts this is: `checks.LEVELS`."""
    if plan.get("looks", 1) < 2:
        return "once"
    return "second of two" if plan.get("further") else "first of two"


def measured(plans: Sequence[Mapping[str, Any]], found: History, cores: int) -> list[Measured]:
    """Every planned trial, measured, with what the machine did meanwhile."""
    machine = found.machine_frame()
    trials = []
    for plan in plans:
        told = found.trials.get(str(plan["id"]))
        trial = measure.measure(plan, told)
        if told and trial.window:
            state = stability.steadiness(machine, trial.window, cores)
            held = stability.throttled(found.throttled, trial.window, int(plan["nodes"]))
            trial = replace(
                trial, machine={"steal": state.steal, "busy": state.busy, "load1": state.load1},
                flags=(*state.flags, *pace.late(told.neighbours_t, trial.window, float(trial.seconds[0]))),
                idle=pace.of_trial(told.paces, trial.window),
                throttled_s=held * float(trial.seconds.mean()),
            )  # fmt: skip
        trials.append(trial)
    return trials
