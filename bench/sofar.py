"""How training scales so far, while a benchmark still runs: for people who wait. Called by `bench.progress`.

The report measures with more care (`reports.figures`). Here a size is compared with the smallest of its case, repeat by
repeat; of a single repeat the interval is that of its steps alone, and the line says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, variance

from scipy import special

from proving_ground.bench import rundir
from proving_ground.bench.rundir import RunDir
from proving_ground.bench.spec import Trial

LEVEL = 0.95
SHOWN_REPEATS = (1, 3)  # the interval of two is by one degree of freedom, and says nothing; later ones move it little


@dataclass(frozen=True)
class Rate:
    """Steps of the whole job in one trial: samples/s, and the relative variance of that by its steps."""

    rate: float
    variance: float
    steps: int


class SoFar:
    """How fast the trials were that are done."""

    def __init__(self) -> None:
        self._base: dict[str, int] = {}  # case → its smallest size
        self._paces: dict[tuple[str, int, int], Rate] = {}  # case, nodes, repeat →

    def plan(self, planned: Sequence[Trial]) -> None:
        """All trials there will be, as far as that is known."""
        for trial in planned:
            self._base[trial.case] = min(trial.nodes, self._base.get(trial.case, trial.nodes))

    def add(self, store: RunDir, trial: Trial) -> list[str]:
        """Lines about the sizes that a trial, which has just ended, tells something of."""
        if "weak" not in trial.scaling or trial.mechanism or trial.role or trial.block == "a":
            return []
        pace = pace_of(*measured_steps(store, trial))
        if pace:
            self._paces[trial.case, trial.nodes, trial.repeat] = pace
        if trial.repeat not in SHOWN_REPEATS:
            return []
        base = self._base[trial.case]
        sizes = sorted({nodes for case, nodes, repeat in self._paces if (case, repeat) == (trial.case, trial.repeat)})
        news = [it for it in sizes if it > base] if trial.nodes == base else [trial.nodes]
        return [line for nodes in news if (line := self._line(trial, nodes, base))]

    def _line(self, trial: Trial, nodes: int, base: int) -> str:
        """`so far: digits on 4 nodes: 92.3 % of linear (88.1–96.7 %, 3 repeats, emulated)`; empty: nothing yet."""
        case, repeat = trial.case, trial.repeat
        pairs = [(self._paces.get((case, nodes, it)), self._paces.get((case, base, it))) for it in range(1, repeat + 1)]
        known = [(here, there) for here, there in pairs if here and there]
        if len(known) < repeat:
            return ""
        linear = math.log(nodes / base)
        values = [math.log(here.rate / there.rate) - linear for here, there in known]
        half = of_repeats(values) if repeat > 1 else of_steps(*known[0])
        middle = fmean(values)
        low, found, high = (100 * math.exp(it) for it in (middle - half, middle, middle + half))
        of = f"{repeat} repeats" if repeat > 1 else "by the steps of 1 repeat"
        known_to = f"{low:.1f}–{high:.1f} %, {of}" if half else "1 repeat, no interval yet"
        return f"so far: {case} on {nodes} nodes: {found:.1f} % of linear ({known_to}, {trial.label})"


def measured_steps(store: RunDir, trial: Trial) -> tuple[list[float], list[float]]:
    """Samples of all ranks and seconds, step by step after the warm-up, from one last rank's end to the next."""
    ends: dict[int, float] = {}
    samples: dict[int, float] = {}
    for file in store.events.glob(f"{trial.id}.*.jsonl"):
        for record in rundir.read_events(file):
            if record["event"] == "step" and record.get("samples") and "step" in record:
                step = int(record["step"])
                ends[step] = max(ends.get(step, -math.inf), float(record["t"]))
                samples[step] = samples.get(step, 0.0) + float(record["samples"])
    pairs = list(pairwise(step for step in sorted(ends) if step >= trial.warmup_steps))
    return [samples[step] for _, step in pairs], [ends[step] - ends[before] for before, step in pairs]


def pace_of(samples: Sequence[float], seconds: Sequence[float]) -> Rate | None:
    """How fast a trial was; None where it measured nothing."""
    if not sum(seconds) > 0:
        return None
    mean_s, count = fmean(seconds), len(seconds)
    spread = variance(seconds) / mean_s**2 / count if count > 1 else 0.0
    return Rate(sum(samples) / sum(seconds), spread, count)


def of_repeats(values: Sequence[float]) -> float:
    """Half of the interval of a mean."""
    return student(len(values) - 1) * math.sqrt(variance(values) / len(values))


def of_steps(here: Rate, there: Rate) -> float:
    """Half of the interval of the logarithm of a ratio, by Welch's degrees of freedom; 0: steps do not tell."""
    whole = here.variance + there.variance
    if min(here.steps, there.steps) < 2 or not whole:
        return 0.0
    free = whole**2 / sum(it.variance**2 / (it.steps - 1) for it in (here, there))
    return student(free) * math.sqrt(whole)


def student(degrees: float) -> float:
    """Student's t of a two-sided interval."""
    return float(special.stdtrit(degrees, (1 + LEVEL) / 2))
