"""`--auto`: a search proposed from the task and the machine. Called by `search.commands`.

As many trainers as the machine has cores run side by side for a moment: that tells what a step takes when all slots are
busy, how many steps an epoch has, and which metric the task goes by. The proposal is arithmetic on that, and is stated
before anything starts; the search then keeps to it, since its budget stands in its specification.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proving_ground.search.spec import Search, SearchError, search_from
from proving_ground.search.times import read
from proving_ground.search.words import setting
from proving_ground.training import better
from proving_ground.training import config as trainer

PROBE_STEPS = 24
SKIPPED = 4  # of these: first steps are slower
PROBE_S = 120.0
FACTOR = 3  # of ASHA
RUNGS = 9  # a trial's steps are a multiple of it: ends at 1/9, 1/3 and all of them
PLANNED_SHARE = 0.5  # of all trials in full; ASHA with two cuts needs 0.26 at best, more where good trials come late
START_S = 25.0  # of the budget for Ray and the workers' imports
TRIALS = (27, 18, 9)
MOST_EPOCHS = 10
SPACE: Mapping[str, Mapping[str, Any]] = {
    "sgd": {"lr": {"loguniform": [1e-4, 1.0]}, "momentum": {"uniform": [0.0, 0.98]}},
    "adamw": {"lr": {"loguniform": [1e-5, 0.1]}, "weight_decay": {"loguniform": [1e-6, 0.1]}},
}
"""Optimizer → what is worth searching."""
DROPOUT = ("digits", "vit", "bert", "gpt2")
"""Models in which activations are dropped."""


@dataclass(frozen=True)
class Probe:
    """What the task and the machine are."""

    cores: int
    step_s: float  # with as many trainers at once as cores
    epoch_steps: int
    metric: str


@dataclass(frozen=True)
class Proposal:
    """A search and why it is so."""

    search: Search
    why: tuple[str, ...]


def propose(training: Mapping[str, Any], budget_s: float) -> Proposal:
    """A search for this task that fits this machine and this time.

    Raises:
        SearchError: the trainer does not run, judges nothing, or the time is too short.
    """
    found = probe(training)
    trials, steps = size(found, budget_s)
    space = space_of(training)
    budget_steps = round(PLANNED_SHARE * trials * steps)
    document = {
        "name": "auto", "title": f"Proposed for {training.get('model', trainer.Config.model)}", "algorithm": "asha",
        "trials": trials, "concurrent": found.cores, "steps": steps, "eval_every": steps // RUNGS, "factor": FACTOR,
        "metric": found.metric, "mode": "max" if better.is_higher(found.metric) else "min", "space": space,
        "training": dict(training), "budget_s": budget_s, "budget_steps": budget_steps,
    }  # fmt: skip
    return Proposal(
        search_from(document, "--auto"), tuple(reasons(found, trials, steps, budget_s, budget_steps, space))
    )


def reasons(
    found: Probe, trials: int, steps: int, budget_s: float, budget_steps: int, space: Mapping[str, Any]
) -> list[str]:
    """The proposal in sentences."""
    bounds = ", ".join(f"{name} {kind} {ends}" for name, it in space.items() for kind, ends in it.items())
    pace = f"{1000 * found.step_s:.3g} ms a step with {found.cores} trainers at once"
    return [
        f"measured: {pace}, {found.epoch_steps} steps an epoch",
        f"space: {bounds}",
        f"{trials} trials of {steps} steps, {found.cores} at once, ASHA with factor {FACTOR}",
        f"budget: {budget_steps} steps and {budget_s:g} s, whichever is used up first",
    ]


def space_of(training: Mapping[str, Any]) -> dict[str, Any]:
    """What to search: the optimizer's parameters, and dropout where the model has it; nothing that is fixed."""
    space = dict(SPACE[str(training.get("optimizer", trainer.Config.optimizer))])
    if training.get("model", trainer.Config.model) in DROPOUT:
        space["dropout"] = {"uniform": [0.0, 0.5]}
    return {name: it for name, it in space.items() if name not in training}


def size(found: Probe, budget_s: float) -> tuple[int, int]:
    """Trials and steps of each: as many trials as leave each an epoch, and no more than some epochs.

    Raises:
        SearchError: not even the fewest have one evaluation.
    """
    steps_in_all = max(0.0, budget_s - START_S) * found.cores / found.step_s
    for trials in TRIALS:
        steps = int(min(steps_in_all / (PLANNED_SHARE * trials), MOST_EPOCHS * found.epoch_steps))
        if steps >= found.epoch_steps or (trials == TRIALS[-1] and steps >= RUNGS):
            return trials, steps // RUNGS * RUNGS
    least = START_S + TRIALS[-1] * RUNGS * PLANNED_SHARE * found.step_s / found.cores
    raise SearchError(f"--budget-s {budget_s:g}: too short for {TRIALS[-1]} trials; allowed: {least:.0f} or more")


def probe(training: Mapping[str, Any]) -> Probe:
    """Run as many trainers as cores for some steps, and read what they recorded.

    Raises:
        SearchError: one of them failed, or it judges nothing.
    """
    cores = len(os.sched_getaffinity(0))
    words = [word for name, value in training.items() for word in ("--set", f"{name}={setting(value)}")]
    command = [sys.executable, "-m", "proving_ground.training", "run", *words, "--set", f"steps={PROBE_STEPS}"]
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{number}.jsonl" for number in range(cores)]
        started = [
            subprocess.Popen(
                command, env={**os.environ, "PROVING_GROUND_EVENTS": str(it)}, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, text=True,
            )
            for it in files
        ]  # fmt: skip
        try:
            for it in started:
                _, error = it.communicate(timeout=PROBE_S)
                if it.returncode:
                    raise SearchError(
                        f"--auto: the trainer fails: {(error.strip().splitlines() or ['not said why'])[-1]}"
                    )
        except subprocess.TimeoutExpired:
            raise SearchError(f"--auto: {PROBE_STEPS} steps take more than {PROBE_S:g} s: write a suite") from None
        finally:
            for it in started:
                it.kill()
                it.wait()
        return seen(cores, [list(read(it)) for it in files])


def seen(cores: int, runs: list[list[dict[str, Any]]]) -> Probe:
    """What the events of the trainers say.

    Raises:
        SearchError: no evaluation, or nothing that a search can be made of.
    """
    steps = [[it["t"] for it in events if it["event"] == "step"] for events in runs]
    each = [later - earlier for it in steps for earlier, later in zip(it[SKIPPED:], it[SKIPPED + 1 :], strict=False)]
    metrics = [it["metric"] for it in runs[0] if it["event"] == "eval"]
    if not metrics:
        raise SearchError("--auto: the model is not judged: it tells no metric")
    if not better.known(metrics[0]):
        raise SearchError(f"--auto: metric {metrics[0]!r}: is it better high or low? write a suite with its mode")
    rows = next((it["rows"] for it in runs[0] if it["event"] == "ready" and "rows" in it), None)
    if rows is None or not each:
        raise SearchError("--auto: the trainer does not tell its rows or its steps: write a suite")
    batch = max(it.get("global_samples", 1) for it in runs[0] if it["event"] == "step")
    return Probe(cores, statistics.median(each), max(1, -(-rows // batch)), metrics[0])
