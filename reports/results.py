"""From a run directory to `results.json`.

Called by `reports.cli`. The same directory always gives the same document.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jsonschema

from proving_ground.bench import contract, rundir
from proving_ground.bench.rundir import RunDir, RunDirError
from proving_ground.reports import allocation, checks, cost, figures, history, measure, pace, scoreboard, stability
from proving_ground.reports.attempts import Attempts
from proving_ground.reports.cost import Price
from proving_ground.reports.figures import Cell, Figure
from proving_ground.reports.history import History
from proving_ground.reports.measure import Measured
from proving_ground.reports.scoreboard import Prediction

SCHEMA_FILE = Path(__file__).with_name("results.schema.json")

COUNT, TEXT = {"type": "integer", "minimum": 0}, {"type": "string"}
ANYTHING = jsonschema.Draft202012Validator({"type": "object"})
NEEDED = {
    "plan": jsonschema.Draft202012Validator({
        "type": "object", "required": ["trials", "cluster"], "properties": {
            "cluster": {"type": "object", "required": ["name"], "properties": {"name": TEXT}},
            "trials": {"type": "array", "items": {
                "type": "object", "required": ["id", "case", "workload", "nodes", "repeat", "steps", "scaling"],
                "properties": {
                    "id": TEXT, "case": TEXT, "workload": TEXT, "scaling": {"type": "array", "items": TEXT},
                    "nodes": COUNT, "repeat": COUNT, "steps": COUNT, "warmup_steps": COUNT,
                    "faults": {"type": ["array", "null"], "items": {"type": "object", "required": ["id"]}},
                },
            }},
        },
    }),
}  # fmt: skip
"""What of a run's documents is read without asking; what was damaged otherwise is met where it is read."""


@dataclass(frozen=True)
class Analysis:
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
    def figures(self) -> list[Figure]:
        """The figures of `results.json`."""
        return list(self.results["figures"])

    @property
    def verdicts(self) -> list[checks.Verdict]:
        """The verdicts of `results.json`."""
        return list(self.results["verdicts"])

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
    every, tried, price = figures.cells(trials), Attempts(), price or Price()
    listed = list(figures.all_figures(every))
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


def read_document(run: RunDir, name: str) -> Any:  # noqa: ANN401 - JSON
    """One of the run's JSON documents, or RunDirError when what is read of it is missing or of another kind."""
    found = run.read(name)
    error = next(NEEDED.get(name, ANYTHING).iter_errors(found), None)
    if error is None:
        return found
    what = f"must be {error.validator} {error.validator_value}"
    if error.validator == "required":
        what = f"lacks {', '.join(key for key in error.validator_value if key not in error.instance)}"
    place = error.json_path.removeprefix("$").removeprefix(".")
    raise RunDirError(f"{run.path / name}.json: {place and place + ' '}{what}; was it changed by hand?")


def seal_state(run: RunDir) -> tuple[bool, list[str]]:
    """Whether the run was sealed as complete, and what differs from the seal; never sealed is incomplete."""
    if not (run.path / "seal.json").exists():
        return False, []
    return bool(run.read("seal").get("complete")), rundir.verify(run)


def read_records(run: RunDir, problems: list[str], notes: list[str]) -> Iterator[history.Record]:
    """What the processes wrote down: from the history, where it is there and none of what differs from the seal.

    A history that is not what the event files say is one more of the `problems` once all is read.
    """
    trust = run.history.exists() and not any(line.startswith("history.jsonl") for line in problems)
    return history.records(run, problems=problems if trust else None, notes=notes)


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


def codes(provenance: Mapping[str, Any]) -> list[str]:
    """The code of every sitting, as a commit with what was changed since; the first sitting's first, each once."""
    every = [provenance.get("git", {}), *(it.get("git", {}) for it in provenance.get("sittings", ()))]
    said = (
        str(git.get("commit") or "not known") + " with uncommitted changes" * bool(git.get("dirty")) for git in every
    )
    return list(dict.fromkeys(said))


def mixed(provenance: Mapping[str, Any]) -> list[str]:
    """That a run was resumed with other code than it began with; empty where it was not."""
    found = codes(provenance)
    return [f"this run was resumed with other code: {', then '.join(found)}"] if len(found) > 1 else []


def cores_of(provenance: Mapping[str, Any]) -> int:
    """The machine's cores; 1 where nobody wrote them down."""
    return int(provenance.get("host", {}).get("cores") or 1)


def document(
    run: RunDir,
    cluster: str,
    listed: Sequence[Figure],
    verdicts: Sequence[checks.Verdict],
    trials: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The public contract, checked against its own schema; a benchmark has no `trials`."""
    made = {
        "schema": contract.SCHEMA,
        "suite": run.suite,
        "run_id": run.run_id,
        "cluster": cluster,
        "figures": [without_nan(found) for found in listed],
        "verdicts": list(verdicts),
        "trials": list(trials),
    }
    jsonschema.validate(made, json.loads(SCHEMA_FILE.read_text()))
    return made


def without_nan(found: Figure) -> Figure:
    """The figure as it was, or RunDirError: a figure that is no number must never have been made."""
    if not all(math.isfinite(value) for value in (found["median"], *found["values"], *(found["ci95"] or ()))):
        raise RunDirError(
            f"figure {found['name']} {found['where']}: not a number; the step times in the events make no sense"
        )
    return found


def text(made: Mapping[str, Any]) -> str:
    """The document as JSON with one figure, verdict or trial a line: short, and good to read and to compare."""
    lines = []
    for key, value in made.items():
        if isinstance(value, list) and value:
            rows = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in value)
            lines.append(f' "{key}": [\n  {rows}\n ]')
        else:
            lines.append(f' "{key}": {json.dumps(value, ensure_ascii=False)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write(run: RunDir, made: Mapping[str, Any]) -> None:
    """Write `results.json`, whole or not at all."""
    rundir.write_atomic(run.results, text(made))
