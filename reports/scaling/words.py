"""The sentences: what a run found, in words made from its figures. Used by the terminal and the page alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from proving_ground.reports import figures, numbers, verdicts
from proving_ground.reports.figures import Figure
from proving_ground.reports.numbers import short
from proving_ground.reports.scaling import checks
from proving_ground.reports.scaling.cells import Cell
from proving_ground.reports.scaling.results import Analysis
from proving_ground.training import better

PART_WORDS = {
    "data": "data",
    "forward": "forward",
    "backward": "backward",
    "wait": "stragglers",
    "comm": "exposed all-reduce",
    "optimizer": "optimizer",
    "checkpoint": "checkpoint",
    "between": "between steps",
    "stall": "gaps",
    "cpu": "cpu",
    "rest": "?",
}
PART_LONG = PART_WORDS | {
    "data": "waiting for data",
    "wait": "waiting for the slowest node",
    "comm": "exposed communication",
    "checkpoint": "checkpoints",
    "stall": "gaps in single steps",
    "cpu": "the node's CPU share",
    "rest": "unexplained",
}
WORTH_SAYING = 0.1  # points; smaller losses are left out of sentences


def further(plan: Mapping[str, Any]) -> str:
    """`6 more of digits on 2 and 8 nodes, …`: what was repeated after a first look; empty where nothing was."""
    added = plan.get("further")
    if not added:
        return ""
    sizes = "; ".join(f"{case} on {several(counts)}" for case, counts in sorted(added["sizes"].items()))
    return f"{added['rounds']} more of {sizes}, since those planned had left it open"


def verdict_line(analysis: Analysis) -> str:
    """The verdict and, for a pass, which thresholds it stands for."""
    value = verdicts.overall(analysis.verdicts)
    return {
        verdicts.PASS: f"pass ({bars_passed(analysis)})",
        verdicts.FAIL: "fail",
        verdicts.UNKNOWN: "unknown: this run cannot tell, which is no pass",
    }[value]


def reasons(analysis: Analysis, value: str, most: int = 6) -> list[str]:
    """Why, once each; the first `most` of them."""
    found = [v for v in analysis.verdicts if v["verdict"] == value]
    deciding = [v for v in found if v["check"] != "stable"] or found  # an unsteady machine is in the other reasons too
    sizes: dict[tuple[str, str], set[int]] = {}
    for v in deciding:
        case, count = about(v)
        sizes.setdefault((case, v["why"]), set()).update(count)
    said = [f"{case} at {several(sorted(counts))}: {why}" if counts else why for (case, why), counts in sizes.items()]
    return said[:most] + ([f"and {len(said) - most} more"] if len(said) > most else [])


def about(found: verdicts.Verdict) -> tuple[str, Sequence[int]]:
    """(case, its size) where a verdict is about a size; else neither."""
    where = found["where"]
    if "nodes" not in where or found["why"] == checks.CONTENTION:
        return "", ()
    return where["case"], (where["nodes"],)


def bars_passed(analysis: Analysis) -> str:
    """`digits ≥90 / 85 / 75 % at 2 / 4 / 8 nodes`."""
    by_case: dict[str, list[tuple[int, float]]] = {}
    for found in analysis.verdicts:
        if found["check"] == "efficiency":
            by_case.setdefault(found["where"]["case"], []).append((found["where"]["nodes"], found["where"]["bar"]))
    if not by_case:
        return "every trial completed; this suite sets no thresholds"
    parts = []
    for case, bars in by_case.items():
        limits, sizes = " / ".join(f"{bar:g}" for _, bar in bars), " / ".join(str(size) for size, _ in bars)
        parts.append(f"{case} ≥{limits} % at {sizes} nodes")
    return "; ".join(parts)


def about_group(rows: Sequence[Cell]) -> tuple[str, str]:
    """(`digits · weak scaling`, `64 samples a step on each node · real compute · links 1000 Mb/s`)."""
    name = f"{rows[0].case} · {rows[0].scaling} scaling"
    plan = next((trial.plan for cell in rows for trial in (*cell.counted, *cell.discarded)), None)
    if plan is None:
        return name, "not measured"
    batch, of = (
        (plan["batch_per_node"], "on each node") if rows[0].scaling == "weak" else (plan["global_batch"], "in all")
    )
    pace = "paced compute" if plan.get("compute") == "paced" else "real compute"
    link = f" · links {short(plan['link_mbps'])} Mb/s" if plan.get("link_mbps") else ""
    many = f" · {ranks} ranks a node" if (ranks := plan.get("ranks_per_node", 1)) > 1 else ""
    idle = rows[0].scaling == "weak" and any(trial.idle for cell in rows for trial in cell.counted)
    against = " · against idle nodes" if idle else ""
    return name, f"{batch} samples a step {of} · {pace}{many}{link}{against}"


def nodes(count: int) -> str:
    """1 node, 2 nodes."""
    return f"{count} node" if count == 1 else f"{count} nodes"


def several(counts: Sequence[int]) -> str:
    """`1, 2, 4 and 8 nodes`."""
    before = f"{', '.join(map(str, counts[:-1]))} and " if counts[1:] else ""
    return before + nodes(counts[-1])


def lost_parts(analysis: Analysis, cell: Cell) -> list[tuple[str, float]]:
    """(part, points lost), the largest first, gains and the unexplained rest too; they add up to 100 - efficiency.

    Of the middle repeat, or of the middle two: the medians of the parts would add up to no repeat's loss.
    """
    kept = figures.pick(analysis.figures, "efficiency", **cell.where)
    found = figures.pick_all(analysis.figures, "lost", **cell.where)
    if kept is None or any(f["n"] != kept["n"] for f in found):
        return []
    order = sorted(range(kept["n"]), key=lambda repeat: float(kept["values"][repeat]))
    middle = {order[(kept["n"] - 1) // 2], order[kept["n"] // 2]}
    parts = [(str(f["where"]["part"]), fmean(f["values"][repeat] for repeat in middle)) for f in found]
    return sorted(parts, key=lambda part: (part[0] == "rest", -part[1]))


def lost_to(analysis: Analysis, cell: Cell, most: int = 3) -> str:
    """`exposed all-reduce 5.1, cpu 2.0, ? −0.6, others 0.2`: what was won has a minus, and all add up to the loss.

    The `most` largest by size are named, the rest of them is `others`. A gap where nothing was recorded, `nothing`
    where nothing was lost or won.
    """
    parts = lost_parts(analysis, cell)
    shown = {part: round(points, 1) for part, points in parts if abs(points) >= WORTH_SAYING / 2 + 1e-9}
    named = sorted(shown, key=lambda part: -abs(shown[part]))[:most]
    others = round(round(sum(points for _, points in parts), 1) - sum(shown[part] for part in named), 1)
    said = [f"{PART_WORDS[part]} {numbers.plain(shown[part], 1)}" for part in shown if part in named]
    said += [f"others {numbers.plain(others, 1)}"] if others else []
    return ", ".join(said) if said else ("nothing" if parts else numbers.GAP)


def largest(analysis: Analysis) -> list[tuple[Cell, Figure]]:
    """Each case and scaling at its largest measured size beyond the smallest, with its efficiency; sure ones first."""
    found: dict[tuple[str, str], tuple[Cell, Figure]] = {}
    for cell in analysis.cells:
        value = figures.pick(analysis.figures, "efficiency", **cell.where)
        if value and value["where"]["base_nodes"] != cell.nodes:
            found[cell.group] = (cell, value)
    return sorted(found.values(), key=lambda it: not is_sure(analysis, *it))


def is_sure(analysis: Analysis, cell: Cell, value: Figure) -> bool:
    """Whether a figure is worth a headline: a steady machine, and no interval that says nothing."""
    unsteady = any(
        v["check"] == "stable" and v["verdict"] != verdicts.PASS and v["where"] == cell.where for v in analysis.verdicts
    )
    return not unsteady and numbers.ends(value, 1) != numbers.CANNOT_TELL


def title(analysis: Analysis) -> str:
    """The answer in at most two short lines; `headline` has the details."""
    best = largest(analysis)
    if best:
        cell, found = best[0]
        if not is_sure(analysis, cell, found):
            return f"Cannot tell how {short_name(cell.case)} scales to {nodes(cell.nodes)}"
        base = found["where"]["base_nodes"]
        speed = "speed" if base == 1 else f"{base}-node speed"
        return f"On {nodes(cell.nodes)}, {short_name(cell.case)} keeps {found['median']:.1f} % of its {speed}"
    if any(trial.failed for trial in analysis.trials):
        return "This run failed; it measured no scaling"
    fast = fastest(analysis)
    if fast is not None:
        return f"{fast['where']['op']}: {fast['median']:,.0f} Mb/s on {nodes(fast['where']['nodes'])}".replace("_", "-")
    measured = [cell.case for cell in analysis.cells if cell.program and cell.counted]
    return f"{short_name(measured[0])} was measured" if measured else "This run measured no scaling"


def short_name(name: str, most: int = 16) -> str:
    """A name that fits into a headline."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def headline(analysis: Analysis) -> str:
    """The answer in one sentence."""
    best = largest(analysis)
    found = (
        sentence(analysis, *best[0])
        if best
        else (measured_by_programs(analysis) or f"This run measured no scaling: {no_scaling(analysis)}.")
    )
    return " ".join([*caution(analysis), found])


def measured_by_programs(analysis: Analysis) -> str:
    """What measuring programs measured, in a sentence; empty where there were none, or nothing came of them."""
    cells = [cell for cell in analysis.cells if cell.program and cell.counted]
    if not cells:
        return ""
    names = " and ".join(dict.fromkeys(cell.case for cell in cells))
    sizes = sorted({cell.nodes for cell in cells})
    best = fastest(analysis)
    said = f"This run measured {names} on {several(sizes)}"
    if best is None:
        return f"{said}."
    where, link = best["where"], link_of(analysis, best)
    line = f", {100 * best['median'] / link:.0f} % of the links' {link:g}" if link else ""
    return (
        f"{said}: at best {str(where['op']).replace('_', '-')} moves {best['median']:.0f} Mb/s (bus bandwidth)"
        f"{line}, with {where['bytes']:,} bytes on {nodes(where['nodes'])}."
    )


def fastest(analysis: Analysis) -> Figure | None:
    """The highest bus bandwidth that was measured."""
    return max(figures.pick_all(analysis.figures, "busbw"), key=lambda f: float(f["median"]), default=None)


def link_of(analysis: Analysis, found: Figure) -> float | None:
    """The links' rate (Mb/s) where a figure was measured; None: not limited."""
    plans = (trial.plan for trial in analysis.trials)
    case, count = found["where"]["case"], found["where"]["nodes"]
    return next((plan.get("link_mbps") for plan in plans if (plan["case"], plan["nodes"]) == (case, count)), None)


def caution(analysis: Analysis) -> list[str]:
    """What must be said before any number."""
    if any(v["check"] == "sealed" and v["verdict"] != verdicts.PASS for v in analysis.verdicts):
        return ["These files are not as the run left them."]
    if any(trial.failed for trial in analysis.trials):
        return ["This run failed."]
    if any(v["why"] == checks.CONTENTION for v in analysis.verdicts):
        return [f"{checks.CONTENTION[0].upper()}{checks.CONTENTION[1:]}."]
    if not analysis.complete:
        return ["This run is incomplete."]
    return ["The machine was not steady."] if any(cell.disturbed for cell in analysis.cells) else []


def sentence(analysis: Analysis, cell: Cell, value: Figure) -> str:
    """One case and scaling at its largest size, in words."""
    base = value["where"]["base_nodes"]
    of_base = "one-node" if base == 1 else f"{base}-node"
    kind = "" if cell.label == "real" else f"{cell.label} "
    kept = numbers.percent(value["median"]) + numbers.in_brackets(value)
    return (
        f"On {cell.nodes} {kind}nodes, {cell.case} keeps {kept} of its {of_base} speed per node "
        f"under {cell.scaling} scaling{most_lost(analysis, cell)}.{odd(value)}"
    )


def odd(value: Figure) -> str:
    """` This is odd: …` of an efficiency above 100 %; else empty."""
    beyond = checks.odd(value)
    return f" This is odd: {beyond}." if beyond else ""


def most_lost(analysis: Analysis, cell: Cell) -> str:
    """What costs most of the rest, where it is known."""
    parts = [(part, points) for part, points in lost_parts(analysis, cell) if points >= WORTH_SAYING]
    if not parts:
        return ""
    part, points = max(parts, key=lambda found: found[1])
    what = "an unexplained part of the step" if part == "rest" else PART_LONG[part]
    return f"; {what} costs the most, {points:.1f} points"


def no_scaling(analysis: Analysis) -> str:
    """Why there is nothing to compare."""
    failed = [trial for trial in analysis.trials if trial.failed]
    if failed:
        return f"trial {failed[0].plan['id']} failed ({failed[0].failed})"
    sizes = {trial.plan["nodes"] for trial in analysis.trials}
    return "it has only one size" if len(sizes) == 1 else "no two sizes were completed"


def label_line(analysis: Analysis) -> str:
    """The label and what it rests on."""
    said = [text for trial in analysis.trials for text in trial.plan.get("imitated", ())]
    imitated = list(dict.fromkeys([*said, *analysis.plan["cluster"].get("imitated", ())]))
    return "; ".join(imitated) if imitated else "nothing stands in for anything"


def quality_lines(analysis: Analysis) -> list[str]:
    """What the trained models are worth, and honestly whether they beat their baseline; one line a case and metric."""
    keys = ("case", "scaling", "split", "metric")
    every = figures.pick_all(analysis.figures, "quality", of="value")
    lines = []
    for group in dict.fromkeys(tuple(found["where"][key] for key in keys) for found in every):
        where = dict(zip(keys, group, strict=True))
        found = figures.pick_all(analysis.figures, "quality", **where, of="value")
        values, sizes = (" / ".join(texts) for texts in zip(*map(_value_and_size, found), strict=True))
        pairs = [(f, figures.pick(analysis.figures, "quality", **{**f["where"], "of": "baseline"})) for f in found]
        said = list(dict.fromkeys(beats(mine, base) for mine, base in pairs if base))
        line = f"{where['case']}, {where['scaling']}: {where['split']} {where['metric']} {values} at {sizes} nodes"
        lines.append(line + (f"; {', '.join(said)}" if said else ""))
    return lines


def _value_and_size(found: Figure) -> tuple[str, str]:
    return f"{found['median']:.4g}", str(found["where"]["nodes"])


def beats(found: Figure, baseline: Figure) -> str:
    """Beats its baseline, does not, or cannot tell."""
    higher = better.is_higher(str(found["where"]["metric"]))
    gains: Sequence[float] = [
        (mine - theirs) * (1 if higher else -1)
        for mine, theirs in zip(found["values"], baseline["values"], strict=False)
    ]
    bar = f"the baseline ({baseline['median']:.4g})"
    if all(gain > 0 for gain in gains):
        return f"beats {bar}"
    return f"does not beat {bar}" if not any(gain > 0 for gain in gains) else f"beats {bar} in some repeats only"
