"""The charts of the validations: which raw values are drawn, beside what is asked of them. Called by `pages`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from proving_ground.reports import numbers
from proving_ground.reports.intervals import Interval, plain_interval
from proving_ground.reports.scaling.charts import panels
from proving_ground.reports.svg import COLOUR, Chart, chart, quiet_axes, tip
from tests.benchmarks import checkpoint_speed, digits_accuracy, step_cost
from tests.validations import (
    checkpoints,
    clones,
    effective,
    gpu,
    headline,
    inputs,
    pulumi,
    restart,
    same_training,
    searches,
    shootout,
    suites,
    tables,
    tampering,
    trainers,
)
from tests.validations.answers import of_jobs, of_times
from tests.validations.chaos_runs import BAD
from tests.validations.drawings import Cell, Row, Squares, dots, grid, squares
from tests.validations.headline import Size
from tests.validations.recovery import LIVE
from tests.validations.restart import RESTART
from tests.validations.sitting import runs_of
from tests.validations.tampers import CONTROL, EQUIVALENT

Document = Mapping[str, Any]
ROLES = {"wrong": "accent", "recovered": "optimizer", "same": "accent", "different": "bad"}
"""Outcome → the colour of its square; every other one is not decided."""
DOTS = "Each dot is one {}; the upright line is the median, the thin one its 95 % interval"
ASKED = ", the dashed red one the target."


def row(
    name: str, values: Sequence[float], unit: str, bound: float | None = None, asked: str = "",
    ends: Interval | None = None,
) -> Row:  # fmt: skip
    """A row whose median and interval are told beside it; the interval is that of the values, unless it is given."""
    middle = median(values) if values else None
    if middle is not None and all(map(math.isfinite, values)):
        ends = ends or (of_times if unit in ("s", "ms") else plain_interval)(middle, values)
    told = "no median"
    if middle is not None and math.isfinite(middle):
        digits = numbers.digits(middle, ends)
        told = f"{numbers.plain(middle, digits)} {unit}" + (f" ({numbers.range_of(ends, digits)})" if ends else "")
    return Row(name, values, f"{told}, n = {len(values)}", middle, ends, bound, asked)


def comparisons(document: Document, names: Mapping[str, tuple[str, float]]) -> list[Chart]:
    """Changes that comparisons have found; the true one of each kind is known."""
    rows = [
        row(words, [it["change"] for it in document["cells"][kind]["comparisons"]], "%", true,
            f"true: {numbers.short(true)} %")
        for kind, (words, true) in names.items()
    ]  # fmt: skip
    said = DOTS.format("comparison's change of throughput") + ", the dashed red one the true change."
    return [dots("changes", "Changes that were found", said, rows, "%")]


def of_aa(document: Document) -> list[Chart]:
    """Comparisons of separate runs."""
    slower = 100 * (1 / 1.05 - 1)
    return comparisons(document, {"alike": ("the same configuration again", 0.0), "slower": ("5 % slower", slower)})


def of_aa_in_turn(document: Document) -> list[Chart]:
    """Comparisons within one run."""
    true = {kind: 100 * (1 / it["slowdown"] - 1) for kind, it in document["cells"].items()}
    return comparisons(document, {kind: (it["what"], true[kind]) for kind, it in document["cells"].items()})


def of_attribution(document: Document) -> list[Chart]:
    """What was booked on each cause beside its true size."""
    rows = [
        Row(it["planted"], [it["booked_points"][it["cause"]]], f"booked {it['booked_points'][it['cause']]:.1f} points",
            bound=it["true_points"], asked=f"true: {it['true_points']:.1f}")
        for it in document["plants"].values()
    ]  # fmt: skip
    said = "The dot is what the report booked on the planted cause, the dashed red line how much it really cost."
    return [dots("booked", "Planted and found", said, rows, "points of efficiency")]


def recoveries(document: Document, kind: restart.Kind) -> list[Chart]:
    """Every trial's time to recovery."""
    rows = []
    for case, goal in kind.goals.items():
        jobs = restart.times(runs_of(document, case))
        every, asked = list(chain.from_iterable(jobs)), f"target ≤{goal.target_s:g} s"
        rows.append(row(goal.words, every, "s", goal.target_s, asked, of_jobs(jobs) if every else None))
    said = DOTS.format("trial's time to recovery") + ", the dashed red one the target for the largest."
    spread = max(it.bound or 0.0 for it in rows) / min(min(it.values, default=math.inf) for it in rows)
    unit = "s, logarithmic" if spread > WIDE_SPREAD else "s"
    return [dots("times", "Time to recovery, trial by trial", said, rows, unit, log=spread > WIDE_SPREAD)]


WIDE_SPREAD = 10.0  # from here on an axis is logarithmic


def of_restart(document: Document) -> list[Chart]:
    """By a restart."""
    return recoveries(document, RESTART)


def of_recovery(document: Document) -> list[Chart]:
    """By live recovery."""
    return recoveries(document, LIVE)


def of_shootout(document: Document) -> list[Chart]:
    """Every fault by mechanism."""
    rows = [row(name, shootout.times(cell["trials"]), "s") for name, cell in document["cells"].items()]
    said = DOTS.format("fault's time to recovery") + ", a cross a fault that the job never recovered from."
    return [dots("times", "Time to recovery by mechanism", said, rows, "s, logarithmic", log=True)]


def of_effective(document: Document) -> list[Chart]:
    """The share of each job beside the formula's."""
    rows = [
        Row(f"{mechanism}, {effective.per_minute(one[name]):.2f} faults a minute", [100 * one[name]["share"]],
            f"{100 * one[name]['share']:.1f} %", bound=100 * one[name][said],
            asked=f"{said} {100 * one[name][said]:.1f} %")
        for mechanism, cell in document["cells"].items() for one in cell["rounds"]
        for name, said in effective.JOBS.items()
    ]  # fmt: skip
    said = (
        "The dot is the measured share of the time that went into the final weights, the dashed red line the formula's."
    )
    return [dots("shares", "Goodput, measured and by the formula", said, rows, "%")]


def of_checkpoint_speed(document: Document) -> list[Chart]:
    """Every round of saving and loading."""
    words = {"block_s": "training is blocked", "durable_s": "durable", "load_s": "loaded and verified",
             "first_block_s": "training is blocked by a process's first save"}  # fmt: skip
    rows = []
    for name, what in words.items():
        most = checkpoint_speed.TARGETS.get(name)
        asked = f"target of 95 %: ≤{1000 * most:,g} ms" if most else ""
        rows.append(row(what, [1000 * it[name] for it in document["rounds"]], "ms", most and 1000 * most, asked))
    return [dots("times", "What a checkpoint costs", DOTS.format("round") + ASKED, rows, "ms, logarithmic", log=True)]


def of_simulation(document: Document) -> list[Chart]:
    """How soon each rule that is switched off is seen."""
    groups = [
        Squares(f"{jobs}: {len(mutants)} rules switched off, {sum(bool(it['why']) for it in mutants.values())} seen",
                [("accent" if it["why"] else "bad", f"{name}: seen by {it['breaks']} in run {it['seed']}")
                 for name, it in mutants.items()])
        for jobs, mutants in sorted(document["mutants"].items(), reverse=True)
    ]  # fmt: skip
    rows = [Row(f"{jobs} jobs", [it["seed"] for it in mutants.values()], f"n = {len(mutants)}")
            for jobs, mutants in sorted(document["mutants"].items(), reverse=True)]  # fmt: skip
    said = (
        "Each dot is a rule of the membership logic that was switched off: the number of the run in which it was seen."
    )
    more = "Each square is a rule that was switched off; a crossed one was not seen."
    return [dots("seen", "How soon a missing rule is seen", said, rows, "run"),
            squares("mutants", "Rules switched off", more, groups, bad=("bad",))]  # fmt: skip


def of_soak(document: Document) -> list[Chart]:
    """How many of each kind of fault were recovered from."""
    cells = {name: it for name, it in document["cells"].items() if name == tables.mechanism(name)}
    kinds = sorted({kind for it in cells.values() for kind in it["kinds"]})
    rows = []
    for kind in kinds:
        counts = [Counter(it["kinds"].get(kind, {})) for it in cells.values()]
        most = max(sum(other.values()) for it in cells.values() for other in it["kinds"].values())
        rows.append((kind, [recovered(kind, name, it, most) for name, it in zip(cells, counts, strict=True)]))
    said = "Recovered of judged faults, by kind and mechanism; the more faults, the darker. Invalid ones are left out."
    return [grid("kinds", "Faults that were recovered from", said, list(cells), rows)]


def recovered(kind: str, name: str, ends: Counter[str], most: int) -> Cell:
    """One kind of fault under one mechanism."""
    judged, bad = ends.total() - ends["invalid"], sum(ends[it] for it in BAD)
    told = f"{kind}, {name}: {', '.join(f'{count} {end}' for end, count in ends.items()) or 'none'}"
    return Cell(f"{ends['recovered']} of {judged}", 1.0 if bad else judged / most, told, "bad" if bad else "accent")


def of_same_training(document: Document) -> list[Chart]:
    """Every schedule, by the number of its changes."""
    rows = document["cells"]["schedules"]
    groups = [
        Squares(f"{count} changes of membership", [
            (ROLES.get(it["outcome"], "wait"), same_training.line(it)) for it in rows
            if len(it.get("changes", ())) == count])
        for count in sorted({len(it.get("changes", ())) for it in rows})
    ]  # fmt: skip
    said = "Each square is a schedule of kills, shrinking and regrowing: blue ended bitwise like its twin, a crossed one did not."  # noqa: E501
    return [squares("schedules", "Schedules by what became of them", said, groups, bad=("bad", "wait"))]


def of_trainers(document: Document) -> list[Chart]:
    """Every defect and every sound trainer, by the shape of the job."""
    cells = document["cells"].values()
    groups = []
    for shape, about in trainers.SHAPES.items():
        own = sorted((it for it in cells if it["shape"] == shape), key=lambda it: (it["defect"] == trainers.SOUND,
                     it["defect"]))  # fmt: skip
        each = [("bad" if trainers.bad(it) else ROLES.get(it["outcome"], "wait"), trainers.line(it)) for it in own]
        groups.append(Squares(about.words, each))
    said = (
        "Each square is a trainer: blue has a defect and was called wrong, green is sound and recovered, orange was "
        "not proven, a crossed one is not as it must be."
    )
    return [squares("cells", "Trainers with a defect, and sound ones", said, groups, bad=("bad",))]


def of_tampering(document: Document) -> list[Chart]:
    """Every change that could be made, by how it was answered."""
    found: dict[str, list[tuple[str, str]]] = {}
    for kind, places in document["cells"]["kinds"].items():
        for place, answer in places.items():
            if answer == tampering.NOT_HERE or kind == CONTROL:
                continue
            name = "says nothing about training" if kind in EQUIVALENT and answer == tampering.UNNOTICED else answer
            found.setdefault(name, []).append((TAMPERED.get(name, "rest"), f"{kind}, {place}: {answer}"))
    order = [*TAMPERED, "says nothing about training"]
    groups = [Squares(f"{name}: {len(found[name])}", found[name]) for name in order if name in found]
    said = "Each square is a change of a sealed record at one fault; a crossed one was not noticed."
    return [squares("changes", "Changes of a record, by how they were answered", said, groups, bad=("bad",))]


TAMPERED = {tampering.NAMED: "accent", tampering.UNKNOWN: "forward", tampering.UNNOTICED: "bad"}


def of_suites(document: Document) -> list[Chart]:
    """What became of the mutants."""
    outcomes, count = document["cells"]["suites"]["outcomes"], document["cells"]["suites"]["count"]
    names = {"refused": "refused in a line", "accepted": "accepted", **{it: it for it in suites.KINDS}}
    rows = [
        (program, [Cell(f"{(n := outcomes.get(f'{program} {key}', 0)):,}", 1.0 if key in suites.KINDS and n
                        else n / count, f"{program}: {n:,} {words}", "bad" if key in suites.KINDS else "accent")
                   for key, words in names.items()])
        for program in suites.PLANS
    ]  # fmt: skip
    said = "Suites with mistakes, by what the program that plans them made of each. All but the first two must be 0."
    return [grid("outcomes", "Suites with mistakes", said, list(names.values()), rows)]


def of_inputs(document: Document) -> list[Chart]:
    """What became of commands with mistakes."""
    cell = document["cells"]["inputs"]
    names = {"done": "done", "failed": "failed", "refused": "refused in a line", **{it: it for it in inputs.KINDS}}
    rows = []
    for program in inputs.programs(cell):
        counts = {key: cell["outcomes"].get(f"{program} {key}", 0) for key in names}
        whole = sum(counts.values())
        rows.append((program, [
            Cell(f"{n:,}", 1.0 if key in inputs.KINDS and n else n / whole, f"{program}: {n:,} {names[key]}",
                 "bad" if key in inputs.KINDS else "accent")
            for key, n in counts.items()
        ]))  # fmt: skip
    said = "Commands with mistakes, by program and how they ended. All but the first three must be 0."
    return [grid("outcomes", "Commands with mistakes", said, list(names.values()), rows)]


def of_checkpoints(document: Document) -> list[Chart]:
    """Bad loads by writer and kind of crash."""
    everyone = {**document["writers"], **{f"ours, {name}": it for name, it in document["mutants"].items()}}
    kinds = list(dict.fromkeys(kind for it in everyone.values() for kind in it["kinds"]))
    rows = [(name, [crashed(name, kind, it["kinds"].get(kind, {})) for kind in kinds])
            for name, it in everyone.items()]  # fmt: skip
    said = "Bad loads by kind of crash: the more of its points, the darker. Ours must have none, each mutant some."
    return [grid("crashes", "Bad loads after a crash", said, kinds, rows)]


def crashed(name: str, kind: str, ends: Mapping[str, int]) -> Cell:
    """One writer and kind of crash."""
    points = sum(ends.values())
    bad = sum(count for came, count in ends.items() if came != "ok")
    role = "bad" if name in checkpoints.OURS else "wait"
    return Cell(f"{bad}", bad / points if points else 0.0, f"{name}, {kind}: {bad} of {points} bad", role)


def of_connections(document: Document) -> list[Chart]:
    """What was cut and what was lost, job by job."""
    heads = {"cuts": "cut", "reconnected": "made again", "records": "records", "gaps": "gaps", "left_out": "left out"}
    runs = runs_of(document, "ssh")
    rows = [
        (f"job {number}", [
            Cell(f"{it[key]:,}", (it[key] > 0) if key in ("gaps", "left_out") else it[key] / max(
                other[key] or 1 for other in runs), f"job {number}, {words}: {it[key]:,}",
                 "bad" if key in ("gaps", "left_out") else "accent")
            for key, words in heads.items()])
        for number, it in enumerate(runs, 1)
    ]  # fmt: skip
    said = "What each job's connections came to; gaps in the records and steps that were left out must be 0."
    return [grid("jobs", "Jobs whose connections were cut", said, list(heads.values()), rows)]


def of_searches(document: Document) -> list[Chart]:
    """What ASHA saved and missed, seed by seed."""
    asked = searches.SAVED_PERCENT, searches.WORSE_POINTS
    saved = row("steps saved", searches.saved(document), "%", asked[0], f"target ≥{asked[0]:g} %")
    worse = row("best below", searches.worse(document), "points", asked[1], f"target ≤{asked[1]:g} point")
    most = searches.OVERHEAD_PERCENT
    longer = [
        row("short trials", searches.more(document, "short"), "%"),
        row("long trials", searches.more(document, "long"), "%", most, f"target ≤{most:g} %"),
    ]
    said = f"{DOTS.format('seed')}{ASKED}"
    return [
        dots("longer", "How much longer a trial takes in a search", f"{DOTS.format('turn')}{ASKED}", longer, "%"),
        dots("saved", "Steps that early stopping saved", said, [saved], "% of the steps of all trials"),
        dots("price", "How far its best accuracy lies below", said, [worse], "points of accuracy"),
    ]


def of_gpu(document: Document) -> list[Chart]:
    """Every repeat of every network, in per cent of the plain loop beside it."""
    bound = 100 * gpu.TARGET
    rows = [row(it, [100 * one for one in gpu.against(document, it)], "%", bound, f"target ≥{bound:g} %")
            for it in gpu.cases(document)]  # fmt: skip
    return [dots("rates", "The trainer's rate, of a plain loop's", DOTS.format("repeat") + ASKED, rows, "%")]


def of_pulumi(document: Document) -> list[Chart]:
    """Seconds of every round and mending."""
    rows = []
    for words, name, _, _ in pulumi.STEPS:
        bound = (pulumi.TARGET_S, f"target ≤{pulumi.TARGET_S:g} s") if name == "up_s" else (None, "")
        rows.append(row(plain(words), [it[name] for it in runs_of(document, pulumi.WHOLE)], "s", *bound))
    for kind in pulumi.KINDS:
        word, way = kind.split()
        values = [it["mended_s"] for it in runs_of(document, kind) if it["mended_s"] is not None]
        rows.append(row(f"{word} stopped by {way}: mending", values, "s"))
    return [dots("times", "Up, down, and mending", DOTS.format("round") + ASKED, rows, "s")]


def of_clones(document: Document) -> list[Chart]:
    """How long each command took."""
    rows = []
    for cell in clones.CELLS:
        name, load = cell.split(", ")
        bound = (clones.MOST_S[name], f"target ≤{clones.MOST_S[name]:g} s") if load == clones.IDLE else (None, "")
        rows.append(row(f"{name} run, {load}", [it["seconds"] for it in runs_of(document, cell)], "s", *bound))
    return [dots("times", "Both commands, from clone to verdict", DOTS.format("round") + ASKED, rows, "s")]


def plain(words: str) -> str:
    """Without the marks of code."""
    return words.replace("`", "")


def of_alerts(document: Document) -> list[Chart]:
    """How late each alert came after what it is about, beside what its rule states."""
    faults = [it for run in document["cells"]["runs"] for it in run["faults"]]
    names = sorted({name for it in faults for name in it["must"]})
    rows = []
    for name in names:
        own = [it for it in faults if name in it["took_s"]]
        stated = max((it["stated_s"][name] for it in own if name in it["stated_s"]), default=None)
        said = f"n = {len(own)}"
        rows.append(Row(name, [it["took_s"][name] for it in own], said, bound=stated,
                        asked="" if stated is None else f"rule: {stated:g} s"))  # fmt: skip
    said = (
        "Each dot is one fault: how long after what it is about the alert came; the dashed red line is what its rule "
        "states, to which a scrape comes."
    )
    return [dots("late", "How late each alert came", said, rows, "s")]


def of_healthy(document: Document) -> list[Chart]:
    """Round by round."""
    rounds = document["cells"]["live"]
    most = max(it["train_s"] for it in rounds)
    rows = [
        (f"round {number}", [
            Cell(f"{it['train_s'] / 60:.1f}", it["train_s"] / most, f"{it['train_s']:.0f} s of training"),
            Cell(f"{it['load_percent']:.0f}", it["load_percent"] / 100, f"{it['load_percent']:.1f} % CPU busy"),
            Cell(f"{len(it['alarms'])}", len(it["alarms"]), f"{len(it['alarms'])} false alarms", "bad"),
            Cell(f"{it['evictions']}", it["evictions"], f"{it['evictions']} false evictions", "bad"),
        ])
        for number, it in enumerate(rounds, 1)
    ]  # fmt: skip
    said = "What was said in each round while nothing was wrong: alarms and evictions must be 0."
    return [grid("rounds", "Rounds in which nothing broke", said, ["minutes", "CPU, %", "alarms", "evictions"], rows)]


def of_step_cost(document: Document) -> list[Chart]:
    """How much longer a step is, round by round."""
    cells, most = document["cells"], 100 * shootout.MOST_COST
    rows = []
    for way in (it for it in step_cost.ORDER if it in cells and not step_cost.is_base(it)):
        name = f"{way}, against {step_cost.base_of(cells, way)}"
        longer = [100 * (it - 1) for it in step_cost.ratios(cells, way)]
        rows.append(row(name, longer, "%", *((most, f"target ≤{most:g} %") if way == "live" else ())))
    said = DOTS.format("round's median over neighbouring turns") + ASKED
    return [dots("longer", "How much longer a step is", said, rows, "% longer")]


def of_accuracy(document: Document) -> list[Chart]:
    """Every seed, by the number of ranks."""
    bar = 100 * digits_accuracy.BAR
    rows = [row(f"{nodes} rank{'s' * (nodes > 1)}", [100 * it["accuracy"] for it in document["runs"]
                                                  if it["nodes"] == nodes], "%", bar, f"target ≥{bar:g} %")
            for nodes in digits_accuracy.NODES]  # fmt: skip
    return [dots("seeds", "Test accuracy, seed by seed", DOTS.format("training") + ASKED, rows, "%")]


def of_matrix(document: Document) -> list[Chart]:
    """The matrix, a grid a size, the largest first."""
    sizes = list(headline.sizes(document))
    counts = sorted({it.nodes for it in sizes if it.nodes != "1"}, key=int, reverse=True)
    return [at_size([it for it in sizes if it.nodes == nodes], nodes) for nodes in counts]


def at_size(sizes: Sequence[Size], nodes: str) -> Chart:
    """How far steps are above their bound, by model, bucket, compression and link rate."""
    rates = sorted({it.about["link_mbps"] for it in sizes})
    kinds: dict[str, dict[float, Size]] = {}
    for it in sizes:
        model, bucket, bits = (it.about[key] for key in ("workload", "bucket_mb", "compression"))
        name = f"{model}, {bucket:g} MB, {'fp32' if bits == 'none' else bits}"
        kinds.setdefault(name, {})[it.about["link_mbps"]] = it
    rows = [(name, [above(own.get(rate)) for rate in rates]) for name, own in kinds.items()]
    said = (
        f"How far a step on {nodes} nodes is above what its links of so many Mb/s allow, in %: the further, the "
        f"darker, red beyond {headline.CLOSE_PERCENT:g}. A dash: the machine was disturbed, or the link refused."
    )
    return grid(f"above-{nodes}", f"Above the bound on {nodes} nodes", said, [f"{it:g} Mb/s" for it in rates], rows)


def above(size: Size | None) -> Cell:
    """One cell at one size."""
    value = size.value("above_bound_percent") if size else None
    if size is None or value is None:
        return Cell("–", 0.0, f"{size.name if size else 'refused'}: nothing can be told")
    kept, bound = (size.value("efficiency_percent"), size.bound("efficiency_bound_percent"))
    more = f"; efficiency {kept:.1f} % of {bound:.1f} %" if kept is not None and bound is not None else ""
    far = abs(value) / headline.CLOSE_PERCENT
    shown = f"{value:+.1f}".replace("-", "\N{MINUS SIGN}")
    return Cell(shown, far, f"{size.name}: {value:+.1f} %{more}", "bad" if far > 1 else "accent")


def of_scaling(document: Document) -> list[Chart]:
    """Efficiency by nodes: every round, medians with intervals, the thresholds."""
    cells = {name: it for name, it in document["cells"].items() if it["runs"]}

    def draw(drawing: Drawing, narrow: bool) -> None:  # noqa: FBT001
        for axes, (name, cell) in zip(
            panels(drawing, len(cells), narrow=narrow, sharey=True), cells.items(), strict=True
        ):
            curve(axes, name, cell)

    said = (
        "Samples per second and node as a share of one node's: each dot is one round, the line joins the medians, "
        "light strips are 95 % intervals, dashed red lines the thresholds."
    )
    return [chart("curve", "Efficiency by number of nodes", said, draw, (320, 230 * len(cells)))]


def curve(axes: Axes, name: str, cell: Document) -> None:
    """One case."""
    sizes = sorted({count for run in cell["runs"] for count in run["sizes"]}, key=int)
    found = [Size(name, {}, count, cell["runs"]).values("efficiency_percent") for count in sizes]
    axes.plot([at for at, own in enumerate(found) if own], [median(own) for own in found if own],
              color=COLOUR["accent"], linewidth=2, zorder=3)  # fmt: skip
    for at, (count, own) in enumerate(zip(sizes, found, strict=True)):
        ends = plain_interval(median(own), own) if own else None
        if ends:
            axes.plot([at, at], ends, color=COLOUR["accent"], linewidth=8, alpha=0.25, solid_capstyle="round", zorder=2)
        for value in own:
            axes.plot(at, value, "o", color=COLOUR["accent"], markersize=5, alpha=0.6, markeredgewidth=0, zorder=4,
                      gid=tip(f"{name}, {count} nodes: {value:.1f} %"))  # fmt: skip
        if bar := cell["bars"].get(count):
            axes.plot([at - 0.25, at + 0.25], [100 * bar] * 2, color=COLOUR["bad"], linewidth=2,
                      linestyle=(0, (2, 1.2)), gid=tip(f"target at {count} nodes: ≥{100 * bar:g} %"))  # fmt: skip
    asked = {count: f"\n≥{100 * bar:g} %" for count, bar in cell["bars"].items()}
    axes.set_xticks(range(len(sizes)), [f"{count}{asked.get(count, '')}" for count in sizes])
    axes.set_xlim(-0.4, len(sizes) - 0.6)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")
    axes.locator_params(axis="y", nbins=6)
    axes.set_title(name, pad=8)
    axes.set_xlabel("nodes, and the threshold")
    quiet_axes(axes)
