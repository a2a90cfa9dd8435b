"""Every mechanism under one schedule of faults, round after round: `python -m tests.validations shootout`.

A round is one run of the chaos suite `shootout`: the same faults from the same seed for each mechanism, each fault in a
job of its own, and undisturbed jobs of each, which say what a mechanism costs where nothing fails. Exit status 1 when
one of this project's mechanisms did not get over a fault as the same training, or live recovery costs more than asked.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from proving_ground.bench.spec import SpecError
from proving_ground.chaos import spec
from proving_ground.chaos.spec import faults_of
from proving_ground.reports.recovery import results
from proving_ground.reports.recovery.healthy import Healthy, over_rounds
from proving_ground.reports.recovery.results import INVALID, RECOVERED, Analysis
from proving_ground.reports.recovery.shootout import costs, named, shots, ways
from tests.validations.chaos_runs import chaos_run
from tests.validations.sitting import MEASURED, Document, Sitting, State, decide, keep, load, origin

FILE = MEASURED / "shootout.json"
COMMAND = "nox -s validate -- shootout"
ROUNDS = 5
ROUND_S = 1500.0
OURS = ("restart", "live")  # mechanisms that must get over everything
MOST_COST = 0.03  # of live recovery in float sums, where nothing fails
LIVE = "live"
BASE = "relaunch"  # what the step time of the others is set beside
BASELINES = ("torchrun", "torchrun-tuned")  # set beside our own in the tables of recovery


def main(argv: list[str]) -> int:
    """One sitting; exit status as above."""
    parser = argparse.ArgumentParser(prog="python -m tests.validations shootout", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of this sitting (default 60)")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, metavar="N", help="in all, decided before (default %(default)s)"
    )
    options = parser.parse_args(argv)
    if options.minutes <= 0 or options.rounds < 1:
        raise SpecError(f"--minutes {options.minutes:g} --rounds {options.rounds}: must be above 0")
    document, sitting = load(FILE, COMMAND, state), Sitting(options.minutes)
    decide(document, rounds=options.rounds)
    rounds = document.setdefault("rounds", [])
    while len(rounds) < options.rounds and sitting.fits(ROUND_S):
        print(f"round {len(rounds) + 1} of {options.rounds} · {sitting.left()}", flush=True)
        seed = 1 + len(rounds)
        with tempfile.TemporaryDirectory() as folder:
            take(document, results.analyse(chaos_run(Path(folder), "shootout", "--seed", str(seed))), seed)
        keep(FILE, document)
    print("\n".join(told(document)))
    return int(not fine(document))


def take(document: Document, analysis: Analysis, seed: int) -> None:
    """Keep what a round came to: every trial, and the step times of the undisturbed jobs, in ms."""
    cells, healthy, found = document["cells"], costs(analysis), shots(analysis)
    for name, mechanism in ways(analysis).items():
        cell = cells.setdefault(name, {"mechanism": mechanism, "trials": [], "step_ms": []})
        figure = healthy[name].figure
        cell["step_ms"].append(figure["values"] if figure else [])
        cell["trials"] += [
            {
                "fault": it.fault, "outcome": it.outcome, "lost_steps": it.lost_steps, "lost_s": round(it.lost_s, 4),
                "resume_s": None if it.seconds is None else round(it.seconds, 4),
                **({"failed": list(it.failed)} if it.failed else {}),
            }
            for it in found if it.way == name
        ]  # fmt: skip
    document["rounds"].append({"seed": seed, "run": analysis.run.run_id, **origin()})


def judged(trials: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those whose fault left evidence; the others say nothing."""
    return [it for it in trials if it["outcome"] != "invalid"]


def times(trials: Sequence[Mapping[str, Any]]) -> list[float]:
    """Seconds to recovery where training stopped; infinite where it is stuck, which is larger than every time."""
    found = [math.inf if it["outcome"] == "stuck" else it["resume_s"] for it in judged(trials)]
    return [it for it in found if it is not None]


def shown(time_s: float) -> str:
    """Seconds to recovery, for people."""
    return "stuck" if math.isinf(time_s) else f"{time_s:.2f} s"


def cost(document: Mapping[str, Any], name: str) -> Healthy:
    """How much longer a step is than the plain trainer's where nothing fails, with its 95 % interval over the rounds.

    Steps are compared within a round, as machines change.
    """
    own, base = (document["cells"].get(it, {}).get("step_ms", []) for it in (name, BASE))
    ratios = [median(mine) / median(its) for mine, its in zip(own, base, strict=False) if mine and its]
    return over_rounds(ratios) if ratios and name != BASE else Healthy(None)


def cost_words(document: Mapping[str, Any], name: str) -> str:
    """The cost in words."""
    found = cost(document, name)
    if found.cost is not None and found.ends is None:
        return "cannot tell: one round"
    return found.words


def told(document: Document) -> list[str]:
    """A line for each mechanism."""
    lines = []
    for name, cell in document["cells"].items():
        trials, found = cell["trials"], times(cell["trials"])
        good = sum(it["outcome"] == RECOVERED for it in trials)
        took = f"time to recovery {shown(median(found))}, {shown(max(found))} at most" if found else "no time to tell"
        lines.append(f"{name}: {good} of {len(judged(trials))} recovered; {took}; step {cost_words(document, name)}")
    return lines


def fine(document: Mapping[str, Any]) -> bool:
    """Whether ours got over everything, and live costs no more than asked as far as can be told."""
    trials = of_ours(document)
    return bool(trials) and all(it["outcome"] == RECOVERED for it in trials) and not is_dear(document)


def of_ours(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The trials of our own mechanisms."""
    return [it for cell in document["cells"].values() if cell["mechanism"] in OURS for it in cell["trials"]]


def is_dear(document: Mapping[str, Any]) -> bool:
    """Whether live recovery is known to cost more of a step than asked."""
    ends = cost(document, LIVE).ends
    return ends is not None and ends[0] > MOST_COST


def state(document: Mapping[str, Any]) -> State:
    """How far it is."""
    ends = Counter(it["outcome"] for it in of_ours(document))
    bad = ends.total() - ends[RECOVERED] - ends[INVALID] + is_dear(document)
    unknown = ends[INVALID] + bool(ends and cost(document, LIVE).ends is None)
    rounds = document.get("plan", {}).get("rounds", ROUNDS)
    return State(len(document.get("rounds", [])), rounds, "rounds", bad, unknown)


def table(document: Mapping[str, Any]) -> str:
    """One row a mechanism; then fault by fault how long each takes."""
    cells = document["cells"]
    heads = "faults | invalid | recovered | wrong | stuck | slow | time to recovery, median | largest | "
    rows = [f"| mechanism | {heads}most steps lost | step, no fault |", f"|---|{'--:|' * 10}"]
    rows += [row(document, name) for name in dict.fromkeys([*cells, *planned()])]
    faults = dict.fromkeys(it["fault"] for cell in cells.values() for it in cell["trials"])
    rows += ["", f"| fault | {' | '.join(cells)} |", f"|---|{'--:|' * len(cells)}"]
    rows += [f"| {fault} | {' | '.join(shot(cell['trials'], fault) for cell in cells.values())} |" for fault in faults]
    return "\n".join(rows) + f"\n\nRounds: {len(document.get('rounds', []))}, each fault once a round.\n"


def planned() -> list[str]:
    """The mechanisms that the suite puts to the test."""
    return [named(case.name, case.mechanism) for case in spec.load("shootout").cases]


def row(document: Mapping[str, Any], name: str) -> str:
    """One mechanism; a gap where it was not measured."""
    trials = document["cells"].get(name, {}).get("trials", [])
    if not trials:
        return f"| {name} | 0 | 0 | not measured |{' – |' * 7}"
    counting, found, ends = judged(trials), times(trials), Counter(it["outcome"] for it in trials)
    counts = f"{len(counting)} | {ends['invalid']} | {ends['recovered']} | {ends['wrong']} | {ends['stuck']} | "
    counts += f"{ends['slow']}"
    spread = f"{shown(median(found))} | {shown(max(found))}" if found else "– | –"
    lost = max((it["lost_steps"] for it in counting), default=0)
    return f"| {name} | {counts} | {spread} | {lost:.0f} | {cost_words(document, name)} |"


def shot(trials: Sequence[Mapping[str, Any]], fault: str) -> str:
    """One fault under one mechanism: the median time, and how often it was stuck, went wrong or left no evidence."""
    own = [it for it in trials if it["fault"] == fault]
    found, bad = times(own), Counter(it["outcome"] for it in own if it["outcome"] != RECOVERED)
    went_on = any(it["outcome"] not in ("stuck", "invalid") for it in own)
    said = [shown(median(found)) if found else "never stopped"] if went_on else []
    return ", ".join(said + [f"{count} of {len(own)} {outcome}" for outcome, count in sorted(bad.items())]) or "–"


def baseline(document: Mapping[str, Any], fault: str, held_s: float) -> str:
    """What torchrun took for one of the shoot-out's faults, with the number of trials; a dash where there is none.

    `held_s` is for how long the fault lasts that it is set beside; another time is told.
    """
    ours = {name: document.get("cells", {}).get(name, {}).get("trials", []) for name in BASELINES}
    counts = {name: sum(it["fault"] == fault for it in trials) for name, trials in ours.items()}
    said = ", ".join(f"{name} {shot(ours[name], fault)} (n = {count})" for name, count in counts.items() if count)
    here_s = lasting().get(fault, held_s)
    return (said + (f"; held for {here_s:g} s" if here_s != held_s else "")) if said else "–"


def lasting() -> dict[str, float]:
    """The shoot-out's faults → the seconds for which each is held."""
    case = spec.load("shootout").cases[0]
    return {f"{it.kind} {it.target}".strip(): it.seconds for it in faults_of(case.faults, case.name)}
