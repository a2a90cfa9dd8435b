"""Effective training time at one fault a minute, and a forecast for three: `python -m tests.validations effective`.

A round of a mechanism is two jobs with kills at random moments. The first is measured and set beside the closed form;
from its costs the second, which fails more often, is forecast: once it is over, forecast and measurement are compared.
Nothing is asked of the trainer but training, so that only training is measured; whether it stays the same training is
what `recovery` and `soak` prove.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from proving_ground.bench.mechanisms import faults_s
from proving_ground.bench.spec import SpecError
from proving_ground.reports.recovery import effective, forecast, results
from proving_ground.reports.recovery.forecast import CLOSE_POINTS
from proving_ground.reports.recovery.results import RECOVERED, Analysis
from tests.validations.chaos_runs import chaos_run, faults_toml
from tests.validations.sitting import MEASURED, Document, Sitting, decide, keep, load, origin

FILE = MEASURED / "effective.json"
COMMAND = "nox -s validate -- effective"
MECHANISMS = ("live", "restart")
KNOWN, HELD_OUT = (1.0, 10), (3.0, 20)  # (faults a minute, faults) of the two jobs of a round
JOBS = {"known": "formula", "held_out": "forecast"}
"""Job of a round → what its measured share is set beside."""
LEAST_SHARE = 0.90
PACE_STEPS = 300  # before the one fault of the job that says how long a step takes
LEAST_STEPS = 20  # between two faults: the job has to be whole again
START_S = 20.0  # of a job, until it trains
NODES = 3
STEPS = 1_000_000  # more than a job makes: its last fault ends it

Table = dict[str, Any]

HEAD = """title = "Effective training time, seed {seed}"
nodes = [{nodes}]
repeats = 1
disk_mb = 64
volume_mb = 256
seed = {seed}

[[case]]
name = "effective"
workload = "digits"
mechanism = "{mechanism}"
min_nodes = 1
global_batch = 96
steps = {steps}
warmup_steps = 5
estimated_step_s = {step_s:.9f}
patience_s = 900
training = {{ reduction = "exact", shards = 12, optimizer = "adamw", lr = 0.002, \
clip_norm = 1.0, checkpoint_every = 20 }}
"""


def draw(seed: int, count: int, gap_steps: float) -> list[Table]:
    """So many kills of a seed; the steps between two are exponentially distributed, `gap_steps` on average."""
    chance = random.Random(seed)  # noqa: S311 - to be repeated, not secret
    return [
        {
            "kind": chance.choice(("worker_kill", "node_kill")), "target": chance.choice(("one", "rank0")), "hold_s": 1,
            "after_steps": max(LEAST_STEPS, round(chance.expovariate(1 / gap_steps))),
        }
        for _ in range(count)
    ]  # fmt: skip


def suite(seed: int, mechanism: str, faults: Sequence[Table], seconds: float) -> str:
    """The suite file of a job that will take so long."""
    calm_s = max(1.0, seconds - faults_s(mechanism, faults))
    step_s = NODES * calm_s / STEPS  # of the whole batch; only for the time left
    head = HEAD.format(seed=seed, mechanism=mechanism, nodes=NODES, steps=STEPS, step_s=step_s)
    return head + faults_toml(faults)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m tests.validations effective", description=__doc__)
    made.add_argument("--minutes", type=float, default=60.0, help="of this sitting (default 60)")
    made.add_argument("--rounds", type=int, default=1, metavar="N", help="of each mechanism in all, decided before")
    return made


def main(argv: list[str]) -> int:
    """One sitting; exit status 1 when a target is missed or a job was not judged."""
    options = parser().parse_args(argv)
    if options.minutes <= 0 or options.rounds < 1:
        raise SpecError(f"--minutes {options.minutes:g} --rounds {options.rounds}: must be above 0")
    document, sitting = load(FILE, COMMAND), Sitting(options.minutes)
    decide(document, rounds=options.rounds)
    for number, mechanism in itertools.product(range(1, options.rounds + 1), MECHANISMS):
        rounds = document["cells"].setdefault(mechanism, {"rounds": []})["rounds"]
        if len(rounds) < number and sitting.fits(round_s()):
            print(f"{mechanism}: round {number} of {options.rounds} · {sitting.left()}", flush=True)
            rounds.append(one_round(mechanism, number))
            keep(FILE, document)
    for line in told(document):
        print(line)
    return int(not all(fine(it) for cell in document["cells"].values() for it in cell["rounds"]))


def round_s() -> float:
    """About how long a round takes."""
    return 3 * START_S + sum(60 * count / rate for rate, count in (KNOWN, HELD_OUT))


def one_round(mechanism: str, seed: int) -> Table:
    """Both jobs of a round; the second is judged by what the first has taught."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pace = play(folder, 100 * seed, mechanism, draw(100 * seed, 1, PACE_STEPS), START_S)
        gaps = {job: 60 / job[0] / costs_of(pace).step_s for job in (KNOWN, HELD_OUT)}
        first, second = (
            play(folder, 100 * seed + number, mechanism, draw(100 * seed + number, count, gap), 60 * count / rate)
            for number, ((rate, count), gap) in enumerate(gaps.items(), 1)
        )
        return {"known": measured(first), "held_out": measured(second) | scored(first, second), **origin()}


def play(folder: Path, seed: int, mechanism: str, faults: Sequence[Table], seconds: float) -> Analysis:
    """One job with these faults, which will take so long, read again from what it left."""
    file = folder / f"effective-{mechanism}-{seed}.toml"
    file.write_text(suite(seed, mechanism, faults, seconds))
    return results.analyse(chaos_run(folder / "runs", str(file)))


def costs_of(analysis: Analysis) -> effective.Costs:
    """What the job cost.

    Raises:
        SpecError: it hardly trained.
    """
    found = effective.costs(analysis.jobs[0])
    if found is None:
        raise SpecError(f"{analysis.run.suite}: the job made no two steps; nothing can be measured here")
    return found


def measured(analysis: Analysis) -> Table:
    """Costs, shares of 1, seconds; every recovery's time and what came of it."""
    cost = costs_of(analysis)
    times = [one.took("first_committed_step") for one in analysis.incidents]
    return {
        **{name: round(value, 6) for name, value in asdict(cost).items()},
        "share": round(cost.measured, 6), "formula": round(cost.formula(), 6),
        "recoveries_s": [None if it is None else round(it, 4) for it in times],
        "outcomes": [str(trial["outcome"]) for trial in analysis.trials],
    }  # fmt: skip


def scored(first: Analysis, second: Analysis) -> Table:
    """The forecast for the second job, from the costs of the first."""
    found = [score for it in forecast.known(first) for score in forecast.held_out(it, second)]
    return {"forecast": round(found[0].formula, 6), "forecast_ci95": list(found[0].ends)} if found else {}


def fine(one: Mapping[str, Any]) -> bool:
    """Whether a round is as it must be: all recovered, the share asked for, formula and forecast close."""
    recovered = all(it == RECOVERED for name in JOBS for it in one[name]["outcomes"])
    errors = [error(one[name], said) for name, said in JOBS.items()]
    close = all(off is not None and abs(off) <= CLOSE_POINTS for off in errors)
    return recovered and one["known"]["share"] >= LEAST_SHARE and close


def error(job: Mapping[str, Any], said: str) -> float | None:
    """By how many points a formula is off; None where it said nothing."""
    return 100 * (job[said] - job["share"]) if said in job else None


def told(document: Document) -> Iterator[str]:
    """A line for each job."""
    for mechanism, cell in document["cells"].items():
        for one in cell["rounds"]:
            yield from (f"{mechanism}: {line(one[name], said)}" for name, said in JOBS.items())


def line(job: Mapping[str, Any], said: str) -> str:
    """One job, and what was said of it."""
    off, good = error(job, said), sum(it == RECOVERED for it in job["outcomes"])
    beside = f"{said} {100 * job[said]:.1f} % ({off:+.1f} points)" if off is not None else f"no {said}"
    return (
        f"{good} of {len(job['outcomes'])} recovered, {per_minute(job):.2f} faults a minute, "
        f"effective {100 * job['share']:.1f} %, {beside}"
    )


def per_minute(job: Mapping[str, Any]) -> float:
    """Faults a minute, as they came."""
    return 60 * len(job["outcomes"]) / float(job["wall_s"])
