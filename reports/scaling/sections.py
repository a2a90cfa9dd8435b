"""Sections of the page beside its charts: bounds, predictions, advice, cost; rows of text. Called by `page`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from proving_ground.reports import figures, numbers
from proving_ground.reports.attempts import Section
from proving_ground.reports.figures import Figure
from proving_ground.reports.numbers import GAP
from proving_ground.reports.scaling import advice, bottlenecks, checks, cost, spending, words
from proving_ground.reports.scaling.results import Analysis


def interval(found: Figure | None, decimals: int) -> str:
    """`91.0–93.6`, or a gap."""
    return numbers.ends(found, decimals) or GAP


def told(analysis: Analysis) -> Iterator[dict[str, str]]:
    """What measuring programs found, a row each; bandwidths beside the rate of the links."""
    for cell in (cell for cell in analysis.cells if cell.program and cell.counted):
        for found in figures.pick_all(analysis.figures, case=cell.case, nodes=cell.nodes):
            where = found["where"]
            about = ", ".join(
                f"{key} {value}" for key, value in where.items() if key not in ("case", "workload", "nodes")
            )
            link = words.link_of(analysis, found) if found["name"] in ("busbw", "algbw") else None
            share = f"{100 * found['median'] / link:.0f} %" if link else GAP
            decimals = numbers.digits(found["median"], None)
            yield {
                "case": cell.case, "nodes": str(cell.nodes), "name": str(found["name"]), "about": about, "link": share,
                "median": numbers.plain(found["median"], decimals), "unit": str(found["unit"]),
                "ends": numbers.ends(found, decimals) or "one repeat",
            }  # fmt: skip


def bounds(analysis: Analysis) -> Iterator[dict[str, Any]]:
    """Each cell's measured step beside the shortest that its link allows."""
    for found in figures.pick_all(analysis.figures, "step_bound"):
        where = {key: found["where"][key] for key in ("case", "workload", "scaling", "nodes")}
        above = figures.pick(analysis.figures, "above_bound", **where)
        measured = figures.pick(analysis.figures, "step_time", **where)
        if above is None or measured is None:
            continue
        judged = [v for v in analysis.verdicts if v["check"] == "near_bound" and v["where"].items() >= where.items()]
        yield {
            **where, "bound": numbers.plain(found["median"], 1), "measured": numbers.plain(measured["median"], 1),
            "above": numbers.plain(above["median"], 1), "ends": numbers.range_of(above["ci95"], 1) or "one repeat",
            "verdict": judged[0]["verdict"] if judged else "",
        }  # fmt: skip


def scoreboard(analysis: Analysis) -> Iterator[dict[str, Any]]:
    """Each predicted size: predicted, measured, error; sizes that were not run have a gap."""
    for found in figures.pick_all(analysis.figures, "prediction", of="efficiency"):
        where = {key: found["where"][key] for key in ("case", "workload", "scaling", "nodes")}
        step = figures.pick(analysis.figures, "prediction", of="step_time", **where)
        measured = figures.pick(analysis.figures, "efficiency", **where)
        error = figures.pick(analysis.figures, "prediction_error", **where)
        yield {
            **where, "efficiency": numbers.plain(found["median"], 1), "ends": interval(found, 1),
            "step": numbers.plain(step["median"] if step else None, 0),
            "measured": numbers.plain(measured["median"] if measured else None, 1),
            "error": signed(error["median"]) if error else "not run",
        }  # fmt: skip


def signed(value: float) -> str:
    """`+0.6`."""
    return f"{value:+.1f}".replace("-", numbers.MINUS)


def foretold(analysis: Analysis) -> str:
    """When it was predicted, and from what; doubts first."""
    made = analysis.prediction.document
    if not made:
        return ""
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(made["wall_s"]))
    sizes = " and ".join(map(str, made["fitted_from"]))
    doubts = "".join(f"Not to be trusted: {doubt}. " for doubt in analysis.prediction.doubts)
    return f"{doubts}Written at {when} from {sizes} nodes alone, before any other size ran; its hash is in the history."


def line(analysis: Analysis) -> str:
    """`predicted from 1 and 2 nodes: …` for the terminal; empty without a prediction."""
    said = []
    for found in figures.pick_all(analysis.figures, "prediction_error"):
        where = {key: found["where"][key] for key in ("case", "workload", "scaling", "nodes")}
        guess = figures.pick(analysis.figures, "prediction", of="efficiency", **where)
        if guess:
            about = f"{where['case']} {where['scaling']} at {where['nodes']}"
            said.append(f"{about}: {numbers.percent(guess['median'])} (step time off by {signed(found['median'])} %)")
    sizes = " and ".join(map(str, analysis.prediction.document.get("fitted_from", ())))
    more = f"; and {len(said) - 4} more" if len(said) > 4 else ""
    return f"predicted from {sizes} nodes: {'; '.join(said[:4])}{more}" if said else ""


def advices(analysis: Analysis) -> Iterator[dict[str, str]]:
    """What would help, with its predicted gain."""
    for it in advice.advise(analysis):
        about = f"{it.cell.case}, {words.nodes(it.cell.nodes)}"
        gain = f"{signed(100 * it.gain)} %"
        yield {"about": about, "words": it.words, "gain": gain, "efficiency": numbers.plain(it.efficiency, 1)}


def costs(analysis: Analysis) -> Iterator[dict[str, Any]]:
    """Each size: hours of an epoch, node-hours of a million samples, and money where a price was stated."""
    for found in figures.pick_all(analysis.figures, "node_hours"):
        where = {key: found["where"][key] for key in ("case", "workload", "scaling", "nodes")}
        of = {
            "epoch_h": ("epoch_time", {}),
            "per_1000": ("cost", {"per": "1,000 samples"}),
            "epoch": ("cost", {"per": "epoch"}),
        }
        shown = {key: figures.pick(analysis.figures, name, **where, **more) for key, (name, more) in of.items()}
        yield {
            **where, "node_hours": significant(found["median"]),
            **{key: significant(it["median"]) if it else GAP for key, it in shown.items()},
        }  # fmt: skip


def work(analysis: Analysis) -> Iterator[str]:
    """What the model's arithmetic comes to, a line a size, where operations were counted."""
    for found in figures.pick_all(analysis.figures, "model_flops"):
        where = found["where"]
        used = figures.pick(analysis.figures, "mfu", **where)
        share = f"; MFU {numbers.plain(used['median'], 1)} % ({interval(used, 1)})" if used else ""
        size = f"{where['case']}, {where['scaling']}, {words.nodes(where['nodes'])}"
        yield f"{size}: {significant(1e3 * found['median'])} GFLOP/s a rank{share}"


def significant(value: float) -> str:
    """Four digits, whatever the size."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def cost_words(analysis: Analysis) -> str:
    """For which price, and which size is the cheapest."""
    price = analysis.price
    said = [f"{group[0]}, {group[1]} scaling: {found}" for group in dict.fromkeys(c.group for c in analysis.cells)
            if (found := cost.sentence(price, analysis.figures, *group))]  # fmt: skip
    stated = (
        f"For a price of {price.node_hour:g} a node and hour, as stated by whoever made this page."
        if price.node_hour is not None
        else "No price was stated (--price-per-node-hour), so there is no money here, only time."
    )
    return " ".join([stated, *said])


def spent(analysis: Analysis) -> dict[str, Any]:
    """What the run itself took, by size and by node."""
    found, price = spending.by_size(analysis.trials, analysis.history), analysis.price.node_hour
    by_node = spending.by_node(analysis.trials, analysis.history)
    return {
        "rows": spending.rows(found, price),
        "words": " ".join(spending.words(found, price)),
        "nodes": ", ".join(f"{node} {numbers.short(hours)} h" for node, hours in by_node.items()),
    }


def money(analysis: Analysis) -> Iterator[str]:
    """What the run took, for the terminal, where a price was stated."""
    if (price := analysis.price.node_hour) is not None:
        yield from spending.words(spending.by_size(analysis.trials, analysis.history), price)


def advice_command(analysis: Analysis) -> str:
    """What writes the suite that measures the advice."""
    return f"pg reports advise {analysis.run.run_id} --suite advice.toml"


SECTIONS = {
    "told": Section("what measuring programs found", lambda it: list(told(it)), []),
    "bounds": Section("bounds", lambda it: list(bounds(it)), []),
    "scoreboard": Section("predictions", lambda it: list(scoreboard(it)), []),
    "foretold": Section("when it was predicted", foretold, ""),
    "findings": Section("what stands in the way", lambda it: [found.line for found in bottlenecks.find(it)], []),
    "advices": Section("advice", lambda it: list(advices(it)), []),
    "advice_command": Section("the command of the advice", advice_command, ""),
    "costs": Section("cost", lambda it: list(costs(it)), []),
    "cost_words": Section("cost in words", cost_words, ""),
    "work": Section("the arithmetic of the model", lambda it: list(work(it)), []),
    "spent": Section("what the run took", spent, {"rows": [], "words": "", "nodes": ""}),
    "limits_bound": Section("the limit of a bound", lambda _: checks.ABOVE_BOUND_MAX, checks.ABOVE_BOUND_MAX),
}
