"""What one trial measured: its window, samples and seconds a step, and where the time went.

Called by `results`. Warm-up is removed here and nowhere else. All times are seconds on the run's one clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from proving_ground.bench.jobstate import RANK_0, one_tells
from proving_ground.reports.agreement import Agreement, agreement
from proving_ground.reports.history import TrialHistory
from proving_ground.reports.recovery.ledger import Ledger
from proving_ground.reports.scaling import attribution
from proving_ground.reports.scaling.coverage import coverage
from proving_ground.reports.scaling.stalls import stalls
from proving_ground.training.events import STEP_MARKS

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]

PARTS = ("data", "forward", "backward", "wait", "comm", "optimizer", "checkpoint", "between", "stall", "rest")
"""Where a step's time goes. `wait`: for the slowest rank; `comm`: exposed communication left; `stall`: single steps
that stood still between two parts; `rest`: unexplained."""
LEAST_STALL_S = 0.002  # ten times what usually lies there
RARE = 1 / 3  # of the steps of a process: what happens more often is no accident


@dataclass(frozen=True)
class Measured:
    """One planned trial and what came of it.

    `samples` and `seconds` have one value a measured step of the whole job; `parts` are mean seconds a step and rank
    (a part that was not recorded is absent, never zero); `flags` say why its figures may not be trusted.
    """

    plan: Mapping[str, Any]
    failed: str = ""  # why it is no good; empty: good
    not_run: bool = False
    window: tuple[float, float] | None = None
    samples: Floats = field(default_factory=lambda: np.empty(0))
    seconds: Floats = field(default_factory=lambda: np.empty(0))
    parts: Mapping[str, float] = field(default_factory=dict)
    causes: Mapping[str, float] = field(
        default_factory=dict
    )  # `attribution.causes`: what the fast ranks' step is made of
    throttled_s: float = math.nan  # a step, of the node that its CPU share held back most
    read_s: float = math.nan  # a step, of the rank that read longest: reading its batches, in the step or ahead of it
    step_s: float = math.nan  # mean wall seconds of a step, over ranks and steps; what `parts` add up to
    quality: Mapping[tuple[str, str], Mapping[str, float]] = field(default_factory=dict)
    told: Sequence[Mapping[str, Any]] = ()  # what a measuring program said in its measured rounds
    work: Mapping[str, float] = field(default_factory=dict)  # operations of a sample, and a device's peak, if told
    flags: tuple[str, ...] = ()
    stalls: tuple[str, ...] = ()  # steps in which one rank stood still for all, in words; they stay in the figures
    machine: Mapping[str, float] = field(default_factory=dict)
    idle: Mapping[str, float] = field(default_factory=dict)  # samples/s of each idle node meanwhile (`pace`)
    earlier: tuple[str, ...] = ()  # why attempts before this one did not end well
    agreement: Agreement = field(default_factory=Agreement)  # of the ranks' fingerprints
    ledger: Ledger = field(default_factory=Ledger)  # of the samples that it learned from

    @property
    def good(self) -> bool:
        """Ran to its end on every node."""
        return not self.failed and not self.not_run

    @property
    def counted(self) -> bool:
        """Good, and nothing says that the machine disturbed it."""
        return self.good and not self.flags

    @property
    def watched(self) -> bool:
        """The machine's CPU counters cover it."""
        return not math.isnan(self.machine.get("steal", math.nan))

    @property
    def case_nodes(self) -> tuple[str, int]:
        """Which case at which size it is a repeat of."""
        return self.plan["case"], self.plan["nodes"]

    @property
    def where(self) -> dict[str, Any]:
        """What a verdict on it is about."""
        return {key: self.plan[key] for key in ("case", "workload", "nodes", "repeat")} | {"trial": self.plan["id"]}

    @property
    def step_samples(self) -> float:
        """Mean samples of a step of the whole job."""
        return float(self.samples.mean())

    @property
    def throughput(self) -> float:
        """Samples a second of all ranks over the measured window; NaN without one."""
        return float(self.samples.sum() / self.seconds.sum()) if self.seconds.size else math.nan


def measure(plan: Mapping[str, Any], trial: TrialHistory | None) -> Measured:
    """Everything about one trial; a trial that is no good says why and has no figures."""
    if trial is None or trial.ok is None:
        return Measured(plan, not_run=True, earlier=trial.earlier if trial else ())
    return replace(of_trial(plan, trial), earlier=trial.earlier)


def of_trial(plan: Mapping[str, Any], trial: TrialHistory) -> Measured:
    """The same of a trial that ended."""
    steps = all_steps(trial)
    failed = why_failed(plan, trial, steps)
    if failed:
        return Measured(plan, failed=failed)
    warmup = int(plan.get("warmup_steps", 0))
    window, samples, seconds = job_steps(steps, trial, warmup)
    if not (seconds.sum() > 0 and samples.sum() > 0):
        return Measured(plan, failed=f"{samples.sum():g} samples in {seconds.sum():g} s: its events make no sense")
    inside = steps[steps["step"].isin(np.unique(steps["step"])[warmup:])]
    step_s, parts = time_parts(steps, inside)
    return Measured(
        plan, window=window, samples=samples, seconds=seconds, parts=parts, step_s=step_s,
        causes=attribution.causes(steps, warmup) or parts, read_s=reading_s(inside), quality=last_quality(trial.evals),
        told=[record for record in trial.told if record.get("step", warmup + 1) > warmup],
        stalls=tuple(it.words for it in stalls(inside)),
        work=trial.work,
        agreement=agreement(trial.marks, plan.get("training") or {}), ledger=coverage(trial),
    )  # fmt: skip


def all_steps(trial: TrialHistory) -> pd.DataFrame:
    """The steps of all processes, one row a process and step; `wall_s` is the time since that process' step before."""
    frames = [trial.processes[name].steps() for name in sorted(trial.processes) if trial.processes[name].rows]
    if not frames:
        return pd.DataFrame({"process": [], "t": [], "step": [], "samples": []})
    steps = pd.concat(frames, ignore_index=True)
    steps["wall_s"] = steps.groupby("process")["t"].diff()
    told = {it.get("step") for it in trial.evals} | {it.step for it in trial.marks}
    judged = steps.groupby("process")["step"].shift().isin(told)
    steps["between_s"] = between_s(steps, judged)
    steps["stall_s"] = stall_s(steps, judged)
    return steps


def between_s(steps: pd.DataFrame, judged: pd.Series) -> pd.Series:
    """Seconds between two steps: from a step's last part to its end, and from there to the beginning of the next.

    The trainer's own work there is that of its loop: it reads the loss, tells of the step, counts. That before a step
    and that after its last part are the step's, as its wall time has them. Where the step before was `judged` (it told
    of an evaluation, or hashed its state), what comes before stays unexplained. NaN where a mark is missing.
    """
    before = steps["begin_t"] - steps.groupby("process")["t"].shift()
    before = before.mask(judged, 0.0).fillna(0.0)
    ended = steps[["comm_t", "optimizer_t"]].max(axis=1, skipna=False)
    after = steps["t"] - ended - steps["checkpoint_s"].fillna(0.0)
    return (before + after).clip(lower=0.0)


def stall_s(steps: pd.DataFrame, judged: pd.Series) -> pd.Series:
    """Seconds for which a rank stood still between two parts of a step, in single steps only.

    What lies between the parts takes a fraction of a millisecond. A machine that does something else, or a CPU share
    that is used up, may last a hundred there. What half of the steps of a process take there is none of it, nor is
    what happens in more than a third of them: that is work, and stays unexplained. Nor are steps after one that was
    `judged`.
    """
    parts = steps[["data_s", "forward_s", "backward_s", "comm_s", "optimizer_s", "between_s"]].sum(axis=1, skipna=False)
    open_s = (steps["wall_s"] - parts - steps["checkpoint_s"].fillna(0.0)).mask(judged)
    usual = open_s.groupby(steps["process"]).quantile(0.5, interpolation="lower").clip(lower=0.0)
    found = open_s - steps["process"].map(usual)
    stood = (found > LEAST_STALL_S).groupby(steps["process"])
    rare = stood.transform("sum") <= (RARE * stood.transform("size")).clip(lower=1.0)
    return found.where((found > LEAST_STALL_S) & rare, 0.0).where(parts.notna())


def why_failed(plan: Mapping[str, Any], trial: TrialHistory, steps: pd.DataFrame) -> str:
    """Why a trial is no measurement; empty when it is one. A benchmark in which a worker died is never healthy."""
    if not trial.ok and trial.why:  # the harness saw which end came first; it has ended the others itself
        return trial.why
    for process in trial.processes.values():
        if process.exit_code not in (None, 0):
            return f"{process.name} ended with exit status {process.exit_code}" + (
                process.error and f": {process.error}"
            )
    if not trial.ok:
        return "the harness gave no reason"
    if nodes_missing := int(plan["nodes"]) - len({name.partition(".")[0] for name in trial.started}):
        return f"{nodes_missing} of {plan['nodes']} nodes started no process"
    return what_is_missing(plan, trial, steps)


def what_is_missing(plan: Mapping[str, Any], trial: TrialHistory, steps: pd.DataFrame) -> str:
    """Whose steps are not all there; empty where they are."""
    counts = steps.groupby("process")["step"].nunique()
    expected = int(plan["steps"])
    if one_tells(plan.get("command")) and len(counts) > 1:
        return f"{len(counts)} ranks told steps, and the suite says that {RANK_0} does: their samples would count twice"
    told_by = [str(counts.idxmax())] if one_tells(plan.get("command")) and len(counts) else trial.started
    for name in told_by:
        if counts.get(name, 0) < expected:
            return f"{name} recorded {counts.get(name, 0)} of {expected} steps"
    return "" if expected > int(plan.get("warmup_steps", 0)) else "no step was left after the warm-up"


def job_steps(steps: pd.DataFrame, trial: TrialHistory, warmup: int) -> tuple[tuple[float, float], Floats, Floats]:
    """The measured window, and samples and seconds of each step of the whole job in it.

    A step of the job ends when its last rank ends it. The window runs from the end of the last warm-up step to
    the end of the last step. Without warm-up steps it begins when the last process was ready; where nobody said so,
    the first step is spent on finding the beginning.
    """
    by_step = steps.groupby("step")
    ends, samples = by_step["t"].max().sort_index(), by_step["samples"].sum().sort_index()
    ready = max((process.ready_t for process in trial.processes.values()), default=math.nan)
    if warmup == 0 and not math.isnan(ready):
        times = np.concatenate([[ready], ends.to_numpy()])
    else:
        times, samples = ends.to_numpy()[max(warmup, 1) - 1 :], samples.iloc[max(warmup, 1) :]
    return (float(times[0]), float(times[-1])), samples.to_numpy(dtype=float), np.diff(times)


def time_parts(steps: pd.DataFrame, inside: pd.DataFrame) -> tuple[float, dict[str, float]]:
    """Mean wall seconds of a step, and of each part of it, over ranks and measured steps; they add up."""
    step_s = float(inside["wall_s"].mean())
    timed = ("data", "forward", "backward", "comm", "optimizer", "between", "stall")
    parts = {name: _mean(inside, f"{name}_s") for name in timed}
    parts["checkpoint"] = (
        _mean(inside.fillna({"checkpoint_s": 0.0}), "checkpoint_s") if _has(steps, "checkpoint_s") else math.nan
    )
    if _has(inside, "comm_s") and _has(inside, "backward_t"):
        parts["wait"] = float(straggler_wait(inside).mean())
        parts["comm"] -= parts["wait"]
    found = {name: parts[name] for name in PARTS if not math.isnan(parts.get(name, math.nan))}
    return step_s, {**found, "rest": step_s - sum(found.values())} if found else {}


def reading_s(steps: pd.DataFrame) -> float:
    """Mean seconds a step for which the rank that read longest was reading; NaN where it was not told."""
    return float(steps.groupby("process")["read_s"].mean().max())


def straggler_wait(steps: pd.DataFrame) -> pd.Series:
    """Seconds a rank waits for the slowest: from its own last gradient to the last rank's, at most its `comm_s`."""
    last = steps.groupby("step")["backward_t"].transform("max")
    return (last - steps["backward_t"]).clip(lower=0).clip(upper=steps["comm_s"])


def _has(steps: pd.DataFrame, column: str) -> bool:
    return bool(steps[column].notna().any())


def _mean(steps: pd.DataFrame, column: str) -> float:
    return float(steps[column].mean()) if _has(steps, column) else math.nan


def last_quality(evals: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], dict[str, float]]:
    """The last value (and baseline, where one was given) of each (split, metric)."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for record in evals:  # in the order of time: the last one stays
        values = {key: record[key] for key in ("value", "baseline") if isinstance(record.get(key), int | float)}
        found[(str(record["split"]), str(record["metric"]))] = {key: float(value) for key, value in values.items()}
    return found


def median_step(steps: pd.DataFrame, window: tuple[float, float]) -> pd.DataFrame:
    """The rows (one a rank) of the measured step of median duration; empty where marks are missing."""
    marked = steps[steps["t"] > window[0]].dropna(subset=list(STEP_MARKS))
    if marked.empty:
        return marked
    whole = marked.groupby("step")
    length = (whole["t"].max() - whole["begin_t"].min())[whole.size() == steps["process"].nunique()].sort_values()
    return marked[marked["step"] == length.index[(len(length) - 1) // 2]] if len(length) else marked.iloc[:0]
