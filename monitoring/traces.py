"""Spans of a recorded run: run → trial → recoveries and their phases, ranks' steps and their parts.

Called by `pg monitoring trace`. Written as a Chrome trace file (chrome://tracing, ui.perfetto.dev) or sent over
OTLP (`monitoring.otlp`). What the files know becomes a span, nothing else: a step without moments has no parts, and
the phases of a recovery are the moments that the recovery report found (`results.json`); before the report is made
there is only the time from a fault's injection to its healing.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from proving_ground.bench import contract, rundir
from proving_ground.bench.jobstate import Worker
from proving_ground.bench.rundir import HARNESS, Record, RunDir, RunDirError
from proving_ground.training.events import STEP_MARKS

MOMENTS = {
    "detected": "unnoticed",
    "survivors_stopped": "stopping",
    "membership_agreed": "meeting",
    "state_loaded": "loading",
    "first_committed_step": "first step",
    "full_speed": "getting up to speed",
}
"""Moment of a recovery → the phase that it ends (`reports/recovery/README.md`)."""
WHOLE = "run"  # the track of what is no process


@dataclass(frozen=True)
class Span:
    """Something that lasted: from and to are on the run's clock; `parent` is the span it is a part of."""

    name: str
    begin_t: float
    end_t: float
    track: str = WHOLE  # or a process, as n2.0
    parent: Span | None = None
    about: dict[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Wanted:
    """Which part of a run: None means all."""

    trial: str | None = None
    step: int | None = None


def spans(run: RunDir, wanted: Wanted) -> Iterator[Span]:
    """The wanted spans, a parent before its parts. A step that was made again after a recovery: the last time.

    Raises:
        RunDirError: no such trial or step, or nothing recorded.
    """
    records = list(rundir.recorded(run))
    trials = list(of_trials(run, records))
    if wanted.trial not in (None, *(it.about["trial"] for it in trials)):
        known = ", ".join(it.about["trial"] for it in trials)
        raise RunDirError(f"{run.path}: no trial {wanted.trial}; recorded: {known or 'none'}")
    chosen = [it for it in trials if wanted.trial in (None, it.about["trial"])]
    if wanted.step is not None:
        yield from of_step(run, records, chosen, wanted.step)
        return
    yield trials[0].parent or trials[0]
    for trial in chosen:
        yield trial
        yield from of_faults(run, records, trial)
        yield from itertools.chain.from_iterable(of_steps(steps_of(records, trial), trial))


def of_trials(run: RunDir, records: list[Record]) -> Iterator[Span]:
    """A span for each trial; one that has not ended lasts until the newest event."""
    own = [it for it in records if it["source"] == HARNESS]
    ends: dict[str, float] = {it["trial"]: it["t"] for it in own if it["event"] == "trial_end"}
    last = float(records[-1]["t"])
    whole = Span(f"run {run.run_id}", records[0]["t"], last, about={"suite": run.suite})
    cases = {it["id"]: {key: it.get(key) for key in ("case", "nodes", "repeat")} for it in run.read("plan")["trials"]}
    for it in own:
        if it["event"] == "trial_start":
            trial = it["trial"]
            about = {"trial": trial, **cases.get(trial, {})}
            yield Span(f"trial {trial}", it["t"], ends.get(trial, last), parent=whole, about=about)


def of_faults(run: RunDir, records: list[Record], trial: Span) -> Iterator[Span]:
    """Each fault while it was held, and the recovery from it with its phases."""
    name = trial.about["trial"]
    own = [it for it in records if it["source"] == HARNESS and it.get("trial") == name and "fault" in it]
    healed = {it["fault"]: it["t"] for it in own if it["event"] == "fault_end"}
    found = {it["fault"]: it for it in judged(run) if it["trial"] == name}
    for it in own:
        if it["event"] == "fault_begin":
            about = {"fault": it["fault"], "kind": it["kind"], "target": ",".join(it["target"])}
            title = f"{it['fault']} {it['kind']}"
            yield Span(f"fault {title}", it["inject_t"], healed.get(it["fault"], trial.end_t), "faults", trial, about)
            yield from of_recovery(title, found.get(it["fault"], {}), trial)


def judged(run: RunDir) -> list[dict[str, Any]]:
    """What the recovery report says of every fault; nothing before it is made."""
    return list(contract.read(run)["trials"]) if run.results.exists() else []


def of_recovery(title: str, row: dict[str, Any], trial: Span) -> Iterator[Span]:
    """From the fault to full speed; a moment that never came, or came before the one before, ends no phase."""
    timeline = row.get("timeline", {})
    known = [(name, timeline[name]) for name in ("inject", *MOMENTS) if timeline.get(name) is not None]
    if len(known) < 2 or known[0][0] != "inject":
        return
    about = {"fault": row["fault"], "kind": row["kind"], "outcome": row["outcome"]}
    whole = Span(f"recovery {title}", known[0][1], max(t for _, t in known), "recovery", trial, about)
    yield whole
    before = known[0][1]
    for moment, end in known[1:]:
        if end > before:
            yield Span(MOMENTS[moment], before, end, "recovery", whole)
            before = end


def steps_of(records: Iterable[Record], trial: Span) -> list[Record]:
    """The steps of a trial, each with the rank that its process had, in the order in which they ended."""
    workers: dict[str, Worker] = {}
    found = []
    for it in records:
        if it.get("trial") == trial.about["trial"]:
            worker = workers.setdefault(it["source"], Worker(""))
            worker.take(it)
            if it["event"] == "step":
                found.append({**it, "rank": worker.rank})
    return found


def of_steps(steps: list[Record], trial: Span) -> Iterator[list[Span]]:
    """The spans of each step of each rank."""
    last: dict[tuple[int, int], float] = {}  # (generation, step) → the slowest rank's last gradient
    for it in steps:
        key = (it.get("generation", 0), it["step"])
        last[key] = max(last.get(key, 0.0), it.get("backward_t", 0.0))
    for it in steps:
        yield of_one(it, last[it.get("generation", 0), it["step"]], trial)


def of_one(step: Record, last_gradient: float, trial: Span) -> list[Span]:
    """One step of one rank and its parts; communication is waiting until the slowest rank has its gradients."""
    begin = step.get("begin_t", step["t"] - step["step_s"] if "step_s" in step else step["t"])
    kept = ("step", "rank", "generation", "samples", "loss", "lr")
    about = {key: step[key] for key in kept if step.get(key) is not None}
    whole = Span(f"step {step['step']}", begin, step["t"], step["source"], trial, about)
    if not all(mark in step for mark in STEP_MARKS):
        return [whole]
    edges = [(mark.removesuffix("_t"), step[mark]) for mark in STEP_MARKS]
    edges.insert(4, ("wait", min(max(last_gradient, step["backward_t"]), step["comm_t"])))  # after backward
    edges.append(("checkpoint", min(step["t"], step["optimizer_t"] + step.get("checkpoint_s", 0))))
    parts = [(name, start, end) for (_, start), (name, end) in pairwise(edges) if end > start]
    return [whole, *(Span(name, start, end, step["source"], whole) for name, start, end in parts)]


def of_step(run: RunDir, records: list[Record], trials: list[Span], step: int) -> Iterator[Span]:
    """One step of all ranks, of the first trial that has it, the last time it was made."""
    for trial in trials:
        own = [it for it in steps_of(records, trial) if it["step"] == step]
        if own:
            newest = max(it.get("generation", 0) for it in own)
            latest = {it["source"]: it for it in own if it.get("generation", 0) == newest}
            yield from itertools.chain.from_iterable(of_steps(list(latest.values()), trial))
            return
    raise RunDirError(f"{run.path}: nobody made step {step} in {', '.join(it.about['trial'] for it in trials)}")


def write_chrome(found: Iterable[Span], file: Path, *, origin_t: float) -> int:
    """Write a Chrome trace ("Trace Event Format", complete events): a track a process, times from `origin_t`.

    How many spans; nothing of them overlaps within a track but a whole and its parts.
    """
    rows = list(found)
    tracks = {track: number for number, track in enumerate(sorted({it.track for it in rows}, key=track_order), 1)}
    names = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": track}}
        for track, number in tracks.items()
    ]
    events = [
        {"ph": "X", "name": it.name, "cat": it.track.partition(".")[0], "pid": 1, "tid": tracks[it.track],
         "ts": round(1e6 * (it.begin_t - origin_t), 3), "dur": round(1e6 * (it.end_t - it.begin_t), 3),
         "args": it.about}
        for it in rows
    ]  # fmt: skip
    document = {"traceEvents": [*names, *events], "displayTimeUnit": "ms"}
    rundir.write_atomic(file, json.dumps(document) + "\n")
    return len(rows)


def track_order(track: str) -> tuple[int, str]:
    """The run, faults and recoveries above the processes, n2 before n10."""
    fixed = (WHOLE, "faults", "recovery")
    if track in fixed:
        return fixed.index(track), ""
    digits = "".join(filter(str.isdigit, track.partition(".")[0]))
    return len(fixed) + int(digits or 0), track
