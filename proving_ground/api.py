"""The public Python API: `proving_ground.run(…)`, `launch(…)` and `open(path)`. README.md shows how it is used.

Three functions and one class; everything else behind them may change. Called by nobody in the project but
`proving_ground.pytest_plugin` and tests.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from proving_ground.bench import rundir
from proving_ground.bench.child import environment, ours
from proving_ground.bench.rundir import RunDir
from proving_ground.reports import document, gate
from proving_ground.reports.gate import Answer
from proving_ground.reports.recovery import results as recovery
from proving_ground.reports.scaling import bottlenecks, results
from proving_ground.reports.verdicts import FAIL, PASS, UNKNOWN
from proving_ground.training.models import MODELS

COLOURS = {PASS: "#1a7f37", FAIL: "#c62828", UNKNOWN: "#9a6700"}
FIGURES, VERDICTS = ("name", "unit", "label", "n", "median", "low", "high", "values"), ("check", "verdict", "why")


class Run:
    """A recorded run. Analysed when first asked, from what is sealed; nothing is written."""

    def __init__(self, path: Path | str) -> None:
        self._run = RunDir(Path(path).resolve())

    @property
    def path(self) -> Path:
        """Its directory."""
        return self._run.path

    @cached_property
    def results(self) -> Mapping[str, Any]:
        """The document `results.json`, made anew.

        Raises:
            ValueError: it is no run, or cannot be read; one line says what.
        """
        plan = document.read_document(self._run, "plan")
        made: Mapping[str, Any] = (
            recovery.analyse(self._run).results
            if recovery.is_chaos(plan)
            else bottlenecks.added(results.analyse(self._run)).results
        )
        return made

    @cached_property
    def figures(self) -> pd.DataFrame:
        """A row a figure: name, unit, label, n, median, low and high (95 %), values, and its labels as columns."""
        rows = [
            {**it, "low": (it["ci95"] or (None, None))[0], "high": (it["ci95"] or (None, None))[1]}
            for it in self.results["figures"]
        ]
        return table(rows, FIGURES)

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """A row a verdict: check, verdict (pass, fail or unknown), why, and what it is about as columns."""
        return table(self.results["verdicts"], VERDICTS)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """Of a chaos run a row a fault, with its moments in seconds; of a benchmark a row a planned trial."""
        if self.results["trials"]:
            return pd.DataFrame([{**it, **it["timeline"]} for it in self.results["trials"]]).drop(columns="timeline")
        keys = ("id", "case", "scaling", "nodes", "repeat", "global_batch", "steps", "compute", "label")
        return pd.DataFrame([{key: it.get(key) for key in keys} for it in self._run.read("plan")["trials"]])

    @cached_property
    def steps(self) -> pd.DataFrame:
        """A row a step of a rank, as its process recorded it: trial, node, slot, t, step and what else it said."""
        return pd.DataFrame(list(self._records("step")))

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """A row a metric of an evaluation: trial, node, slot, t, step, split, metric, value and what else it said."""
        return pd.DataFrame(list(self._records("eval")))

    def _records(self, kind: str) -> Iterator[dict[str, Any]]:
        for file in sorted(self._run.events.glob("*.jsonl")):
            if file.stem == rundir.HARNESS:
                continue
            for it in rundir.read_events(file):
                if it["event"] == kind:
                    node, _, slot = str(it["source"]).partition(".")
                    rest = {key: value for key, value in it.items() if key not in ("source", "event", "trial")}
                    yield {"trial": it["trial"], "node": node, "slot": slot, **rest}

    @property
    def verdict(self) -> str:
        """All verdicts together: fail if one fails, else unknown if one is, else pass."""
        found = {it["verdict"] for it in self.results["verdicts"]}
        return FAIL if FAIL in found else UNKNOWN if UNKNOWN in found or not found else PASS

    def check(self, *constraints: str) -> list[Answer]:
        """Each constraint's answer, as `pg reports check` gives it: verdict (pass, fail or unknown) and why.

        Raises:
            ValueError: a constraint makes no sense; one line says why.
        """
        return gate.judge([gate.parsed(it, "check") for it in constraints], self.results)

    def __repr__(self) -> str:
        return f"<Run {self._run.suite}/{self._run.run_id}: {self.verdict}>"

    def _repr_html_(self) -> str:
        """For a notebook: the verdict, the figures to look at first, and what is no pass."""
        head = f"{self._run.suite}/{self._run.run_id}: {self.verdict}"
        first = self.figures[self.figures["name"].isin(("efficiency", "throughput", "time_to_recovery", "ettr"))]
        shown = first.drop(columns=["values"]).dropna(axis="columns", how="all")
        odd = self.verdicts[self.verdicts["verdict"] != PASS][list(VERDICTS)]
        parts = [f'<p><b style="color:{COLOURS[self.verdict]}">{html.escape(head)}</b></p>', shown.to_html(index=False)]
        return "".join([*parts, *([odd.to_html(index=False)] if len(odd) else ())])


def table(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> pd.DataFrame:
    """Rows with these columns first, then their labels (`where`); one that is called like a column is `in_…`."""
    flat = []
    for it in rows:
        labels = {f"in_{key}" if key in keys else key: value for key, value in it["where"].items()}
        flat.append({key: it[key] for key in keys} | labels)
    return pd.DataFrame(flat) if flat else pd.DataFrame(columns=list(keys))


def open_run(run: Path | str = "latest", runs: Path | str = "runs") -> Run:
    """A recorded run: a path, a run id, a suite's name, or `latest`, under the folder `runs`.

    Raises:
        ValueError: there is no such run; one line says which there are.
    """
    return Run(rundir.find(Path(runs), str(run)).path)


def run(suite: Path | str = "smoke", *, chaos: bool = False, runs: Path | str = "runs", **options: object) -> Run:
    """Run a suite as `pg bench run` (or `chaos`) does, in a process of its own, and open what it recorded.

    Options are those of the command: `nodes="1,2"`, `cluster="fake"`, `repeats=3`; `case=["a", "b"]` is given twice.
    A failed verdict raises nothing: look at `.verdict`.

    Raises:
        ValueError: what was asked makes no sense; the command's own line.
        RuntimeError: nothing was recorded; the same.
    """
    before = rundir.newest(Path(runs))
    words = ["run", "--quiet", "--suite", str(suite), "--runs", str(runs), *words_of(options)]
    done = subprocess.run(
        ours("chaos" if chaos else "bench", *words), capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, env=environment(),
    )  # fmt: skip
    line = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
    if done.returncode == 2:
        raise ValueError(line)
    if rundir.newest(Path(runs)) == before:
        raise RuntimeError(line)
    return open_run("latest", runs)


def launch(
    config: Mapping[str, object],
    *,
    nodes: int = 1,
    ranks_per_node: int = 1,
    runs: Path | str = "runs",
    **options: Any,  # noqa: ANN401 - as the command takes them
) -> Run:
    """Train once, distributed, and open what was recorded: `steps` and `evaluations` are its tables.

    `config` has the trainer's keys (`training/README.md`): `model`, `steps`, `global_batch`, and what else differs from
    its defaults. Options are those of `pg bench run`, such as `cluster="slurm:partition=gpu"`.

    Raises:
        ValueError: what was asked makes no sense; one line says why.
        RuntimeError: nothing was recorded; the same.
    """
    asked = {"model": "digits", "size": "tiny", "steps": 0, "global_batch": 64, "seed": 1, **config}
    model, steps = str(asked.pop("model")), asked.pop("steps")
    size = str(asked.pop("size"))
    if not steps:
        raise ValueError("launch: config needs steps, the optimizer steps to make")
    known = MODELS.get(model)
    case = {
        "name": re.sub("[^a-z0-9]+", "-", model.lower()).strip("-"), "steps": steps, "warmup_steps": 0,
        "workload": f"{model}-{size}" if known and known.sized else model, "estimated_step_s": 0.1,
        "global_batch": asked.pop("global_batch"), "ranks_per_node": ranks_per_node,
    }  # fmt: skip
    suite = {
        "title": f"{model} on {nodes} × {ranks_per_node}",
        "nodes": [nodes],
        "repeats": 1,
        "seed": asked.pop("seed"),
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"launch-{case['name']}"[:60] + ".toml")
        file.write_text("\n".join([*toml(suite), "[[case]]", *toml(case), "[case.training]", *toml(asked)]))
        return run(file, runs=runs, **options)


def toml(table: Mapping[str, object]) -> Iterator[str]:
    """A line a key; JSON's numbers, strings, booleans and lists are TOML's too.

    Raises:
        ValueError: a value is none of these.
    """
    for key, value in table.items():
        try:
            yield f"{json.dumps(key)} = {json.dumps(value, ensure_ascii=False, allow_nan=False)}"
        except (TypeError, ValueError) as error:
            raise ValueError(f"launch: {key} = {value!r}: {error}") from None


def words_of(options: Mapping[str, object]) -> Iterator[str]:
    """Options of Python as options of a command."""
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        values = value if isinstance(value, list | tuple) else [value]
        for it in values:
            if it is True:
                yield option
            elif it is not None and it is not False:
                yield from (option, str(it))
