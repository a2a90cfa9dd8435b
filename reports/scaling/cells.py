"""Turns measured trials into the figures of `results.json`, cell by cell. Called by `results`.

A cell is one case at one kind of scaling and one number of nodes; its values are its repeats. Ratios are taken between
trials of the same repeat, because repeats are interleaved: what disturbs one size disturbs the others at the same time.
The smaller one's rate is what it would have been while the larger one was measured, by idle nodes (`pace`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from proving_ground.reports import intervals
from proving_ground.reports.figures import DECIMALS, Figure
from proving_ground.reports.intervals import Interval
from proving_ground.reports.scaling import attribution, bound, pace, programs
from proving_ground.reports.scaling.measure import PARTS, Measured

ENOUGH = 3  # undisturbed repeats of a size; with fewer, disturbed ones stay in


@dataclass(frozen=True)
class Cell:
    """All good repeats of one case, scaling and number of nodes; `discarded` ones are not in the figures."""

    case: str
    workload: str
    scaling: str
    nodes: int
    counted: tuple[Measured, ...]
    discarded: tuple[Measured, ...] = ()
    disturbed: bool = (
        False  # half of the repeats or more were flagged: the figures are shown, and no verdict rests on them
    )

    @property
    def group(self) -> tuple[str, str]:
        """What its efficiency is compared within."""
        return self.case, self.scaling

    @property
    def where(self) -> dict[str, Any]:
        """What a figure of this cell is about."""
        return {"case": self.case, "workload": self.workload, "scaling": self.scaling, "nodes": self.nodes}

    @property
    def program(self) -> bool:
        """Whether it is a measuring program, which has no efficiency."""
        return any(programs.is_program(trial.plan) for trial in (*self.counted, *self.discarded))

    @property
    def label(self) -> str:
        """Real only if every trial is."""
        labels = {str(trial.plan.get("label", "emulated")) for trial in self.counted}
        return "real" if labels == {"real"} else "emulated"


@dataclass(frozen=True)
class Pair:
    """The same repeat at one size and at the smallest."""

    here: Measured
    base: Measured
    nodes: int
    base_nodes: int

    @property
    def expected(self) -> float:
        """Samples/s that the smallest size would have made while this one was measured."""
        return pace.of_base(self.here, self.base)

    @property
    def pace(self) -> float:
        """How fast the machine was then, over how fast it was for the smallest size: about 1."""
        return self.expected / self.base.throughput

    @property
    def speedup(self) -> float:
        """How many times the samples/s that the smallest size would have made."""
        return self.here.throughput / self.expected

    @property
    def draws(self) -> intervals.Floats:
        """Speed-ups that could have been, by the steps of both; by this one's alone where idle nodes are the base."""
        expected = self.expected if pace.is_base(self.here, self.base) else self.pace * _rate_draws(self.base)
        found: intervals.Floats = _rate_draws(self.here) / expected
        return found

    @property
    def efficiency(self) -> float:
        """Speed-up over the growth of the cluster; 1 is ideal. Samples/s per node over that of the smallest size."""
        return self.speedup * self.base_nodes / self.nodes

    @property
    def growth(self) -> float:
        """Of a node's batch, against the base: weak 1, strong 1/n."""
        return self.here.step_samples / self.nodes / (self.base.step_samples / self.base_nodes)

    def lost(self) -> dict[str, float]:
        """Cause → the share of the step that it costs beyond what it costs, per sample of a node, at the smallest size.

        They add up to 1 - efficiency = (T_n - g T_1) / T_n with g the growth of a node's batch: what no cause explains
        is `rest`. Empty where the trainer recorded no parts.
        """
        step_s = float(self.here.seconds.mean())
        growth = self.growth / self.pace  # how much of the base's step would have taken here at this pace
        lost = attribution.losses(self.here.causes, self.base.causes, growth, step_s)
        if not lost:
            return {}
        lost["rest"] = 1 - self.efficiency - sum(lost.values())
        throttled = (self.here.throttled_s - growth * self.base.throttled_s) / step_s
        exposed_s = (self.here.plan.get("bound") or {}).get("exposed_s", 0.0)
        return lost if math.isnan(throttled) else attribution.book_throttling(lost, throttled, exposed_s / step_s)


def cells(trials: Sequence[Measured]) -> list[Cell]:
    """Every planned cell, in the order case, scaling, nodes; cells without a good repeat are there, empty."""
    found: dict[tuple[str, str, int], list[Measured]] = {}
    for trial in trials:
        if trial.plan.get("block") == "a":  # only the fit of a prediction has seen it
            continue
        for scaling in trial.plan["scaling"]:
            found.setdefault((trial.plan["case"], scaling, trial.plan["nodes"]), []).append(trial)
    order = {case: index for index, case in enumerate(dict.fromkeys(trial.plan["case"] for trial in trials))}
    keys = sorted(found, key=lambda key: (order[key[0]], key[1] != "weak", key[1], key[2]))
    return [_cell(key, found[key]) for key in keys]


def _cell(key: tuple[str, str, int], repeats: Sequence[Measured]) -> Cell:
    good = [trial for trial in repeats if trial.good]
    steady = [trial for trial in good if trial.counted]
    # With two repeats Student's t tells nothing: a disturbed third one, which widens the interval, tells more.
    counted = steady if len(steady) >= ENOUGH else good
    case, scaling, nodes = key
    discarded = tuple(trial for trial in repeats if trial not in counted and not trial.not_run)
    return Cell(case, repeats[0].plan["workload"], scaling, nodes, tuple(counted), discarded, mostly_disturbed(repeats))


def mostly_disturbed(repeats: Sequence[Measured]) -> bool:
    """Whether half of the good repeats or more were flagged: no verdict rests on them."""
    good = [trial for trial in repeats if trial.good]
    return bool(good) and sum(trial.counted for trial in good) * 2 <= len(good)


def base_of(cell: Cell, every: Sequence[Cell]) -> Cell | None:
    """The smallest size of the cell's group that has a good repeat."""
    return min(
        (other for other in every if other.group == cell.group and other.counted), key=lambda c: c.nodes, default=None
    )


def pairs(cell: Cell, base: Cell) -> list[Pair]:
    """The repeats that both sizes have."""
    at_base = {trial.plan["repeat"]: trial for trial in base.counted}
    return [
        Pair(trial, at_base[trial.plan["repeat"]], cell.nodes, base.nodes)
        for trial in cell.counted
        if trial.plan["repeat"] in at_base
    ]


def all_figures(every: Sequence[Cell]) -> list[Figure]:
    """All figures of a run, cell by cell."""
    figures: list[Figure] = []
    for cell in every:
        if not cell.counted:
            continue
        if cell.program:
            figures += _told(cell)
            continue
        figures += [
            _throughput(cell),
            *_work(cell),
            _step_time(cell),
            *_shares(cell),
            *_throttled(cell),
            *_quality(cell),
        ]
        base = base_of(cell, every)
        found = pairs(cell, base) if base else []
        if base and found:
            figures += [*_ratios(cell, base, found), *_idle(cell, base, found)]
            figures += [*_lost(cell, base, found), *_bound(cell, base, found)]
    return figures


def figure(
    name: str, unit: str, cell: Cell, values: Sequence[float], ci95: Interval | None, label: str = "", **where: object
) -> Figure:
    """One row of the contract; the label is the cell's unless another is given."""
    ends = [round(end, DECIMALS) for end in ci95] if ci95 else None
    return {
        "name": name,
        "unit": unit,
        "label": label or cell.label,
        "where": {**cell.where, **where},
        "n": len(values),
        "median": round(median(values), DECIMALS),
        "ci95": ends,
        "values": [round(value, DECIMALS) for value in values],
    }


def _rate_draws(trial: Measured) -> intervals.Floats:
    return intervals.rate_draws(trial.samples, trial.seconds, _salt(trial))


def _salt(trial: Measured) -> int:
    return int.from_bytes(str(trial.plan["id"]).encode(), "little") % 2**32


def _told(cell: Cell) -> Iterator[Figure]:
    """What a measuring program found."""
    for it in programs.found(cell.counted):
        draws = intervals.constant_draws(it.values)
        positive = min(it.values) > 0  # then a ratio, so that no interval goes below zero
        ends = (
            intervals.ratio_interval(median(it.values), draws)
            if positive
            else intervals.plain_interval(median(it.values), it.values)
        )
        about = {"case": cell.case, "workload": cell.workload, "nodes": cell.nodes, **dict(it.where)}
        yield {**figure(it.name, it.unit, cell, it.values, ends), "where": about}


def _throughput(cell: Cell) -> Figure:
    values = [trial.throughput for trial in cell.counted]
    draws = intervals.stack([_rate_draws(trial) for trial in cell.counted])
    return figure("throughput", "samples/s", cell, values, intervals.ratio_interval(median(values), draws))


def _work(cell: Cell) -> Iterator[Figure]:
    """Operations a second of one rank that the model needs, and their share of what its device can do (MFU).

    MFU = operations of a sample × samples/s ÷ (ranks × the device's peak), as in Chowdhery et al., "PaLM", 2022,
    appendix B; what is computed a second time does not count.
    """
    ranks = cell.nodes * int(cell.counted[0].plan.get("ranks_per_node", 1))
    for name, unit, scale in (("model_flops", "TFLOP/s", 1e12), ("mfu", "%", 1e10)):
        over = [scale if name == "model_flops" else scale * it.work.get("peak_tflops", 0.0) for it in cell.counted]
        by = [it.work.get("flops_per_sample", 0.0) / ranks for it in cell.counted]
        if all(by) and all(over):
            factors = [up / down for up, down in zip(by, over, strict=True)]
            values = [it.throughput * factor for it, factor in zip(cell.counted, factors, strict=True)]
            draws = intervals.stack([_rate_draws(it) * f for it, f in zip(cell.counted, factors, strict=True)])
            yield figure(name, unit, cell, values, intervals.ratio_interval(median(values), draws))


def _throttled(cell: Cell) -> Iterator[Figure]:
    """Milliseconds a step for which its CPU share held the most throttled node back; it lies within the other parts."""
    values = [1000 * trial.throttled_s for trial in cell.counted if not math.isnan(trial.throttled_s)]
    if len(values) == len(cell.counted):
        yield figure("throttled", "ms", cell, values, intervals.plain_interval(median(values), values))


def _step_time(cell: Cell) -> Figure:
    values = [float(1000 * trial.seconds.mean()) for trial in cell.counted]
    draws = intervals.constant_draws(values)
    return figure("step_time", "ms", cell, values, intervals.ratio_interval(median(values), draws))


def _ratios(cell: Cell, base: Cell, found: Sequence[Pair]) -> Iterator[Figure]:
    """Speed-up and efficiency; at the smallest size itself they are 1 by definition and have no interval."""
    growth = cell.nodes / base.nodes
    efficiency, ends = [100 * pair.efficiency for pair in found], None
    if cell is not base:
        draws = intervals.stack([pair.draws for pair in found])
        ends = intervals.ratio_interval(median(efficiency), draws)
    yield figure("efficiency", "%", cell, efficiency, ends, base_nodes=base.nodes)
    scaled = ends and (ends[0] * growth / 100, ends[1] * growth / 100)
    yield figure("speedup", "x", cell, [pair.speedup for pair in found], scaled, base_nodes=base.nodes)


def _idle(cell: Cell, base: Cell, found: Sequence[Pair]) -> Iterator[Figure]:
    """How fast idle nodes were beside this size, of how fast they were beside the smallest one, in the same repeat."""
    ratios = [ratio for pair in found if (ratio := pace.ratio(pair.here, pair.base))]
    if ratios:
        values = [100 * ratio for ratio in ratios]
        ends = intervals.ratio_interval(median(values), intervals.constant_draws(values))
        yield figure("idle_pace", "%", cell, values, ends, base_nodes=base.nodes)


def _shares(cell: Cell) -> Iterator[Figure]:
    """Each part of a step, in ms and as a share; a part that a repeat lacks is a gap for the cell."""
    for part in PARTS:
        have = [trial for trial in cell.counted if part in trial.parts]
        if not have:
            continue
        for unit, values in (
            ("ms", [1000 * trial.parts[part] for trial in have]),
            ("%", [100 * trial.parts[part] / trial.step_s for trial in have]),
        ):
            yield figure("time_share", unit, cell, values, intervals.plain_interval(median(values), values), part=part)


def _lost(cell: Cell, base: Cell, found: Sequence[Pair]) -> Iterator[Figure]:
    """Points of efficiency that each part took, against the smallest size."""
    if cell is base:
        return
    every = [lost for pair in found if (lost := pair.lost())]
    for part in attribution.CAUSES:
        # A part that only some repeats have took nothing of the others: their parts add up to all that they lost.
        values = [100 * lost.get(part, 0.0) for lost in every]
        if any(part in lost for lost in every):
            ends = intervals.plain_interval(median(values), values)
            yield figure("lost", "points", cell, values, ends, part=part, base_nodes=base.nodes)


def _bound(cell: Cell, base: Cell, found: Sequence[Pair]) -> Iterator[Figure]:
    """What the link allows, worked out before the run: as efficiency, as a step, and how far off the step is."""
    bounds = [bound.Allowed.of(pair.here.plan, pair.base.plan, pair.growth) for pair in found]
    if not all(bounds):
        return
    for name, unit, values in (
        ("efficiency_bound", "%", [100 * it.efficiency for it in bounds if it]),
        ("step_bound", "ms", [1000 * it.step_s for it in bounds if it]),
    ):
        yield figure(name, unit, cell, values[:1], None, "predicted", base_nodes=base.nodes)
    off = [bound.above(pair.here) for pair in found]
    yield figure("above_bound", "%", cell, off, intervals.plain_interval(median(off), off))


def _quality(cell: Cell) -> Iterator[Figure]:
    """What the trained model is worth, beside its baseline where the trainer gave one."""
    names = sorted({key for trial in cell.counted for key in trial.quality})
    for split, metric in names:
        for of in ("value", "baseline"):
            values = [q[of] for trial in cell.counted if of in (q := trial.quality.get((split, metric), {}))]
            if values:
                ends = intervals.plain_interval(median(values), values)
                yield figure("quality", "", cell, values, ends, split=split, metric=metric, of=of)
