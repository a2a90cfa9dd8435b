"""What would make it faster, by how much, and how to check that by running it. For `page` and `reports.commands`.

The step of a size is simulated with its own settings and with one of them changed (`predict`: the buckets'
rings over the link's rate, what backward hides); the ratio of the two is what the change is predicted to win. Reading
ahead of the step is predicted from the time that reading took. What the model does not know (the CPU cost of
compressing, of many small buckets) is not in it: running it tells.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from proving_ground.bench.rundir import RunDirError
from proving_ground.reports import figures
from proving_ground.reports.comparing import compare
from proving_ground.reports.scaling import forecast, predict, words
from proving_ground.reports.scaling.cells import Cell
from proving_ground.reports.scaling.results import Analysis

BUCKETS_MB = (1.0, 4.0, 10.0, 25.0, 50.0)
FASTER_LINKS = (2, 4)
HOP_S = 0.0001  # where the run made no fit of its own
PREFETCH = 2  # steps: one is read while the one before waits for its turn
WORTH = 0.01  # gains below a percent are not worth a sentence


@dataclass(frozen=True)
class Advice:
    """One setting changed, at one size of a case: the samples/s it is predicted to win (share), and how to try it."""

    cell: Cell
    name: str  # of the case that tries it: `resnet50-bucket-4`
    words: str
    gain: float
    efficiency: float  # %, predicted
    training: Mapping[str, Any]  # the changed keys of the trainer's config
    link_mbps: float | None = None
    batches: int = 1  # micro-batches for each one of now


def advise(analysis: Analysis) -> list[Advice]:
    """Everything that wins something at the largest size of each case under weak scaling, the most first."""
    cells = [cell for cell, _ in words.largest(analysis) if cell.scaling == "weak"]
    found = [it for cell in cells for it in (*of_loading(analysis, cell), *of_cell(analysis, cell))]
    return sorted((it for it in found if it.gain >= WORTH), key=lambda it: -it.gain)


def of_loading(analysis: Analysis, cell: Cell) -> Iterator[Advice]:
    """Reading ahead of the step, where a job of this trainer read in it: from what reading took, not simulated.

    Then a step takes as long as all but the waiting, or as long as reading where that is slower.
    """
    gains = [
        step_s / max(step_s - trial.causes["data"], trial.read_s) - 1
        for trial in cell.counted
        if trial.read_s > 0 and "data" in trial.causes and not ahead(trial.plan) and (step_s := trial.seconds.mean())
    ]
    if gains:
        gain = float(median(gains))
        said = f"load ahead of the step (prefetch = {PREFETCH})"
        more = {"prefetch": PREFETCH}
        yield Advice(cell, f"{cell.case}-prefetch", said, gain, efficiency_with(analysis, cell, gain), more)


def ahead(plan: Mapping[str, Any]) -> int:
    """How many steps ahead a job of this trainer read; none unless it is told."""
    return int(plan.get("training", {}).get("prefetch", 0))


def efficiency_with(analysis: Analysis, cell: Cell, gain: float) -> float:
    """The efficiency, %, that a gain in samples/s makes of the measured one."""
    kept = figures.pick(analysis.figures, "efficiency", **cell.where)
    return min(100.0, kept["median"] * (1 + gain)) if kept else float("nan")


def of_cell(analysis: Analysis, cell: Cell) -> Iterator[Advice]:
    """What the simulation says of one size; nothing where its gradients or link are not known."""
    plan = cell.counted[0].plan
    try:
        now = step_s(analysis, plan)
    except RunDirError:
        return
    for it in changes(plan):
        settings = {**it.changed, **({"link_mbps": it.link_mbps} if it.link_mbps else {})}
        load = plan["bound"]["settings"]["load"] * it.batches
        gain = it.batches * now / step_s(analysis, plan, **settings, load=load) - 1
        efficiency = efficiency_with(analysis, cell, gain)
        name = f"{cell.case}-{it.name}"
        yield Advice(cell, name, it.words, gain, efficiency, it.changed, it.link_mbps, it.batches)


@dataclass(frozen=True)
class Change:
    """Keys of the trainer's config that become others, or another link."""

    name: str
    words: str
    changed: Mapping[str, Any]
    link_mbps: float | None = None
    batches: int = 1


def changes(plan: Mapping[str, Any]) -> Iterator[Change]:
    """Other bucket sizes, compression, accumulation, links: one thing at a time."""
    now = plan["bound"]["settings"]
    for size in BUCKETS_MB:
        if size != now["bucket_mb"]:
            yield Change(
                f"bucket-{size:g}", f"{size:g} MB buckets instead of {now['bucket_mb']:g}", {"bucket_mb": size}
            )
    if now["compression"] == "none":
        yield Change("fp16", "gradients travel as FP16", {"compression": "fp16"})
    twice = 2 * now["accumulate"]
    said = f"gradients exchanged every {twice} micro-batches: twice the batch"
    yield Change(f"accumulate-{twice}", said, {"accumulate": twice}, batches=2)
    for times in FASTER_LINKS:
        rate = times * float(plan["link_mbps"])
        meant = rate * float(plan.get("dilation", 1.0))  # what a dilated link stands for
        yield Change(f"link-{meant:.0f}", f"links of {meant:,.0f} Mb/s", {}, rate)


def step_s(analysis: Analysis, plan: Mapping[str, Any], **changed: Any) -> float:  # noqa: ANN401 - settings
    """Seconds of a simulated step, with the share of the link's rate that the run's own fit found.

    Raises:
        RunDirError: nothing is known of its gradients.
    """
    there = forecast.job(plan, int(plan["nodes"]), analysis.plan.get("profiles", {}), **changed)
    fitted = analysis.prediction.document.get("links", {}).get(f"{plan['link_mbps']:g}", {})
    share = fitted.get("rate_share", predict.SHARE_PRIOR)[0]
    hop_s = fitted.get("hop_s", [HOP_S])[0]
    return there.compute_s + float(predict.exposed(there, np.array(share), np.array(hop_s)))


def best_words(analysis: Analysis) -> str:
    """`4 MB buckets instead of 25 are predicted to win 3.1 points.` for the headline; empty where nothing does.

    Only what costs nothing but a setting: a faster link or a larger batch is another training.
    """
    for it in advise(analysis):
        kept = figures.pick(analysis.figures, "efficiency", **it.cell.where)
        points = it.efficiency - kept["median"] if kept else 0.0
        if set(it.training) & {"bucket_mb", "compression", "prefetch"} and points >= words.WORTH_SAYING:
            return f"Predicted to win {points:.1f} points of it: {it.words}."
    return ""


def suite_text(analysis: Analysis, advices: Sequence[Advice], repeats: int = 3) -> str:
    """A suite that measures each piece of advice beside what it changes, in turn, at its size.

    Raises:
        RunDirError: there is nothing to try.
    """
    if not advices:
        raise RunDirError("no advice: nothing that can be changed is predicted to win anything")
    spec = {case["name"]: case for case in analysis.spec["cases"]}
    sizes = sorted({it.cell.nodes for it in advices})
    lines = [f"# Advice on {analysis.run.suite}/{analysis.run.run_id}, to be checked by running it.",
             'title = "Advice, checked"', f"nodes = {json.dumps(sizes)}", f"repeats = {repeats}", ""]  # fmt: skip
    for name in dict.fromkeys(it.cell.case for it in advices):
        lines += case_lines(spec[name], name, {}, None, 1)
    for it in advices:
        lines += case_lines(spec[it.cell.case], it.name, it.training, it.link_mbps, it.batches)
    return "\n".join(lines)


def case_lines(
    case: Mapping[str, Any], name: str, training: Mapping[str, Any], link_mbps: float | None, batches: int
) -> list[str]:
    """One case of the suite in TOML (JSON's numbers, texts and lists are TOML's too)."""
    # the planned rate is the one after dilation, and so is the advised one
    dilation = float(case.get("dilation", 1.0))
    link = case["link_mbps"] if link_mbps is None else link_mbps * dilation
    kept = {
        key: case[key] for key in ("workload", "steps", "warmup_steps", "estimated_step_s", "dilation") if key in case
    }
    kept |= {"name": name, "link_mbps": link, "batch_per_node": case["batch_per_node"] * batches}
    lines = ["[[case]]", *(f"{key} = {json.dumps(value)}" for key, value in kept.items()), "", "[case.training]"]
    return [*lines, *(f"{key} = {json.dumps(value)}" for key, value in {**case["training"], **training}.items()), ""]


@dataclass(frozen=True)
class Checked:
    """Advice and what running it gave: gains as shares of samples/s, measured in pairs of the same repeat."""

    advice: Advice
    measured: float
    ci95: tuple[float, float]

    @property
    def line(self) -> str:
        """For people."""
        low, high = (f"{100 * end:+.1f}" for end in self.ci95)
        return (
            f"{self.advice.name}, {words.nodes(self.advice.cell.nodes)}: predicted {100 * self.advice.gain:+.1f} %, "
            f"measured {100 * self.measured:+.1f} % ({low} to {high})"
        )


def row(it: Advice, ran: Checked | None = None) -> dict[str, Any]:
    """A piece of advice for machines, with what running it gave; gains in percent of samples/s."""
    return {
        "case": it.cell.case, "nodes": it.cell.nodes, "words": it.words, "try": it.name,
        "predicted_percent": 100 * it.gain, "measured_percent": 100 * ran.measured if ran else None,
        "ci95_percent": [100 * end for end in ran.ci95] if ran else None,
    }  # fmt: skip


def check(advices: Sequence[Advice], ran: Analysis) -> list[Checked]:
    """What the suite of `suite_text` measured of each piece of advice.

    Raises:
        RunDirError: the run has none of the cases, or single values.
    """
    found = []
    for it in advices:
        cells = {cell.case: cell for cell in ran.cells if cell.nodes == it.cell.nodes and cell.scaling == "weak"}
        if it.cell.case in cells and it.name in cells:
            found.append(Checked(it, *gain(cells[it.cell.case], cells[it.name])))
    if not found:
        names = ", ".join(it.name for it in advices)
        raise RunDirError(f"{ran.run.run_id}: has no case of the advice; expected some of {names}")
    return found


def gain(before: Cell, after: Cell) -> tuple[float, tuple[float, float]]:
    """The measured gain with its 95 % interval, in pairs of the same repeat.

    Raises:
        RunDirError: fewer than two repeats of both.
    """
    values = [{trial.plan["repeat"]: trial.throughput for trial in cell.counted} for cell in (before, after)]
    both = sorted(values[0].keys() & values[1].keys())
    if len(both) < 2:
        raise RunDirError(f"{after.case}: fewer than two repeats beside {before.case}; repeat it: --repeats 3")
    pair = [np.array([side[repeat] for repeat in both]) for side in values]
    low, high = compare.interval(compare.paired(*pair))
    return float(np.expm1(median(np.log(pair[1] / pair[0])))), (low, high)
