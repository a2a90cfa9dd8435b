"""What stands in the way, against fixed limits, and what removing it would win. Called by `reports.cli`.

Communication, data, checkpoints: their share of the step at the largest size; GPUs: their memory and utilisation there.
`bottleneck` figures are measured; a `gain` is predicted: for communication, batch size and loading ahead by
`advice`, for the rest it is the most that there is to win, share / (1 - share), all of it gone. `monitoring`
reads both from `results.json`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from proving_ground.reports import figures, intervals
from proving_ground.reports.figures import Figure
from proving_ground.reports.scaling import advice, cells, words
from proving_ground.reports.scaling.advice import Advice
from proving_ground.reports.scaling.cells import Cell
from proving_ground.reports.scaling.results import Analysis

OVER = {"comm": 20.0, "data": 5.0, "checkpoint": 5.0}
"""Part of a step → % of it above which it stands in the way."""
UNDER = {"gpu_memory": 70.0, "gpu_utilization": 50.0}
"""What of a GPU → % below which it is wasted."""
NAMES = {
    "comm": "exposed communication", "data": "waiting for data", "checkpoint": "waiting for checkpoints",
    "gpu_memory": "GPU memory used", "gpu_utilization": "GPU utilisation",
}  # fmt: skip
REMEDIES = {
    "comm": "other buckets, compression, more micro-batches a step, or faster links",
    "data": "load ahead of the step (`prefetch`, more `loaders`), from a faster store or a local cache (`cache_dir`)",
    "checkpoint": "save in the background, and less often (Young and Daly's interval)",
    "gpu_memory": "a larger batch fits (`pg training batch` finds it)",
    "gpu_utilization": "smaller or fewer GPUs, or a larger batch",
}


@dataclass(frozen=True)
class Gain:
    """What a change is predicted to win, in % of the samples/s; `at_most`: only if all of it goes."""

    words: str
    percent: float
    at_most: bool


@dataclass(frozen=True)
class Finding:
    """One thing in the way: what was measured (%, one value a repeat), its limit, and what would help."""

    cell: Cell
    part: str
    values: Sequence[float]
    limit: float
    sure: bool  # its whole interval is beyond the limit
    gains: Sequence[Gain]

    @property
    def line(self) -> str:
        """For people."""
        above = self.part in OVER
        value = f"{median(self.values):.0f} % of the step" if above else f"{median(self.values):.0f} %"
        judged = "" if self.sure else ", not surely"
        about = f"{self.cell.case} {self.cell.scaling}, {words.nodes(self.cell.nodes)}"
        found = f"{NAMES[self.part]} {value} ({'above' if above else 'below'} {self.limit:g} %{judged})"
        return f"{about}: {found}: {self.remedy}"

    @property
    def remedy(self) -> str:
        """What to do, with what it is predicted to win."""
        if not self.gains:
            return f"{REMEDIES[self.part]}; what that wins cannot be predicted here"
        best = self.gains[0]
        return f"{best.words}: predicted {'at most ' if best.at_most else ''}{best.percent:+.1f} % samples/s"


def find(analysis: Analysis) -> list[Finding]:
    """Everything beyond its limit at the largest size of each case and scaling."""
    found = []
    for cell in largest(analysis):
        advised = worth(analysis, cell)
        found += [*of_step(analysis, cell, advised), *of_gpus(analysis, cell, advised)]
    return found


def worth(analysis: Analysis, cell: Cell) -> list[Advice]:
    """What the simulation says of a size, the most first; under strong scaling the batch stays what it is."""
    known = (cell.counted[0].plan.get("bound") or {}).get("settings")
    every = advice.of_cell(analysis, cell) if known else ()
    kept = [it for it in every if it.gain >= advice.WORTH and (it.batches == 1 or cell.scaling == "weak")]
    return sorted(kept, key=lambda it: -it.gain)


def largest(analysis: Analysis) -> list[Cell]:
    """Each case and scaling at the largest size that was measured, one node too."""
    found: dict[tuple[str, str], Cell] = {}
    for cell in analysis.cells:
        if cell.counted and not cell.program and cell.nodes >= (found[cell.group].nodes if cell.group in found else 0):
            found[cell.group] = cell
    return list(found.values())


def of_step(analysis: Analysis, cell: Cell, advised: Sequence[Advice]) -> Iterator[Finding]:
    """Parts that take too much of the step."""
    for part, limit in OVER.items():
        values = shares(analysis, cell, part)
        if not values or median(values) <= limit:
            continue
        ends = intervals.plain_interval(median(values), values)
        known = {"comm": advised, "data": list(advice.of_loading(analysis, cell))}.get(part, [])
        gains = predicted(known) if known or part == "comm" else [removed(part, median(values))]
        yield Finding(cell, part, values, limit, ends is not None and ends[0] > limit, gains)


def shares(analysis: Analysis, cell: Cell, part: str) -> list[float]:
    """% of the step of each repeat.

    Of communication the mean over ranks; of data and checkpoints what the fast ranks' step is made of, because one rank
    that is held up by them holds up all, which on the others looks like waiting (`attribution`).
    """
    if part == "comm":
        found = figures.pick_all(analysis.figures, "time_share", **cell.where, part=part)
        return [value for it in found if it["unit"] == "%" for value in it["values"]]
    return [100 * trial.causes[part] / float(trial.seconds.mean()) for trial in cell.counted if part in trial.causes]


def predicted(advised: Sequence[Advice]) -> list[Gain]:
    """What changes are predicted to win, the most first."""
    return [Gain(it.words, 100 * it.gain, at_most=False) for it in advised]


def removed(part: str, percent: float) -> Gain:
    """All of a part gone: Amdahl's law."""
    share = percent / 100
    return Gain(REMEDIES[part], 100 * share / (1 - share), at_most=True)


def of_gpus(analysis: Analysis, cell: Cell, advised: Sequence[Advice]) -> Iterator[Finding]:
    """GPUs that have room; nothing where there are none, or nobody sampled them."""
    larger = predicted([it for it in advised if it.batches > 1])
    for name, limit in UNDER.items():
        values = [value for trial in cell.counted for value in sampled(analysis, name, trial.window)]
        if values and median(values) < limit:
            ends = intervals.plain_interval(median(values), values)
            yield Finding(cell, name, values, limit, ends is not None and ends[1] < limit, larger)


def sampled(analysis: Analysis, name: str, window: tuple[float, float] | None) -> list[float]:
    """The mean over the samples and GPUs in a trial's window, %; of memory the share that is used."""
    if window is None:
        return []
    rows = [row for t, gpus in analysis.history.gpus if window[0] <= t <= window[1] for row in gpus]
    values = [value for row in rows if (value := percent_of(name, row)) is not None]
    return [fmean(values)] if values else []


def percent_of(name: str, row: Mapping[str, Any]) -> float | None:
    """One sample of one GPU; None where its driver did not tell."""
    if name == "gpu_utilization":
        value = row.get("utilisation")
        return float(value) if isinstance(value, int | float) else None
    used, total = row.get("memory_used"), row.get("memory_total")
    return 100 * used / total if isinstance(used, int | float) and isinstance(total, int | float) and total else None


def of_sampled(analysis: Analysis) -> Iterator[Figure]:
    """`gpu_utilization` and `gpu_memory` of each size: the mean over GPUs and samples, a value a repeat."""
    for cell in analysis.cells:
        for name in UNDER:
            values = [value for trial in cell.counted for value in sampled(analysis, name, trial.window)]
            if values:
                yield cells.figure(name, "%", cell, values, intervals.plain_interval(median(values), values))


def all_figures(found: Sequence[Finding]) -> Iterator[Figure]:
    """`bottleneck` and `gain` for `results.json`."""
    for it in found:
        about: dict[str, Any] = {"part": it.part, "limit": it.limit, "sure": it.sure}
        ends = intervals.plain_interval(median(it.values), it.values)
        yield cells.figure("bottleneck", "%", it.cell, it.values, ends, **about)
        for gain in it.gains:
            told: dict[str, Any] = {"part": it.part, "advice": gain.words, "at_most": gain.at_most}
            yield cells.figure("gain", "% of samples/s", it.cell, [gain.percent], None, "predicted", **told)


def added(analysis: Analysis) -> Analysis:
    """The analysis with what stands in the way among its figures."""
    more = [*of_sampled(analysis), *all_figures(find(analysis))]
    results = {**analysis.results, "figures": [*analysis.results["figures"], *more]}
    return dataclasses.replace(analysis, results=results)
