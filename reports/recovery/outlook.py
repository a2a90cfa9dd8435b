"""The forecast in words and rows, for the page and for `pg reports forecast`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from proving_ground.reports.numbers import short
from proving_ground.reports.recovery import failures, forecast
from proving_ground.reports.recovery.forecast import Asked, Known, Row, Score
from proving_ground.reports.recovery.results import Analysis
from proving_ground.reports.recovery.words import plural

PUBLISHED = "Llama 3 405B, 419 interruptions in 54 days on 16,384 GPUs, 8 a node"
MINUTE, HOUR = 60, 3600


def section(analysis: Analysis) -> list[dict[str, Any]]:
    """One block a mechanism, for the page: at the published rate of failures."""
    asked = Asked(mtbf_node_hours=failures.mtbf_node_hours())
    return [{"said": basis(it, asked), "rows": forecast.rows(it, asked)} for it in forecast.known(analysis)]


def basis(it: Known, asked: Asked) -> str:
    """What the forecast of a mechanism rests on."""
    share = f"{100 * it.back:.2g} % of the failures are taken to bring training back to a checkpoint"
    back = f"; {share}" if it.back < 1 else ""
    stuck = f"; {plural(it.stuck, 'fault')} not got over, or slow ever after: not in the forecast" if it.stuck else ""
    recoveries = "1 recovery" if len(it.every) == 1 else f"{len(it.every)} recoveries"
    rate = f"a failure every {asked.mtbf_node_hours:,.0f} hours of a node"
    published = f" ({PUBLISHED})" if asked.mtbf_node_hours == failures.mtbf_node_hours() else ""
    return (
        f"{it.mechanism}: {recoveries} on {it.nodes} nodes, {it.restart_s:.2f} s on average over the "
        f"published mix of causes, and a checkpoint that blocks {1000 * it.block_s:.0f} ms ({it.label}); "
        f"{rate}{published}; a node is away for {asked.repair_hours:g} hours in {100 * failures.REPAIR_SHARE:.0f} % "
        f"of them{back}{stuck}"
    )


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3.1 h`."""
    if seconds < 2 * MINUTE:
        return f"{short(seconds)} s"
    return f"{seconds / MINUTE:.0f} min" if seconds < 2 * HOUR else f"{seconds / HOUR:.1f} h"


HEAD = ("nodes", "failures a day", "best checkpoint interval", "effective time", "simulated, 95 %", "spares",
        "lost node-hours a day", "cost a day")  # fmt: skip


def cells(row: Row) -> Sequence[str]:
    """A row in the columns of `HEAD`."""
    low, high = row.ends
    return (
        f"{row.nodes:,}", short(row.failures_per_day), duration(row.interval_s), f"{100 * row.ettr:.3f} %",
        f"{100 * row.middle:.3f} % ({100 * low:.3f}–{100 * high:.3f})", str(row.spares), short(row.lost_node_hours),
        "–" if row.cost is None else f"{row.cost:,.2f}",
    )  # fmt: skip


def lines(blocks: Sequence[Known], asked: Asked) -> Iterator[str]:
    """The forecast of each mechanism as text."""
    for it in blocks:
        yield f"predicted: {basis(it, asked)}"
        table = [HEAD, *(cells(row) for row in forecast.rows(it, asked))]
        widths = [max(len(line[column]) for line in table) for column in range(len(HEAD))]
        for line in table:
            yield "  " + "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True))


def document(blocks: Sequence[Known], asked: Asked, scores: Sequence[tuple[Score, str]]) -> dict[str, Any]:
    """The same for machines; shares of 1."""
    rows = [
        {"mechanism": it.mechanism, "label": "predicted", **asdict(row), "cost": row.cost}
        for it in blocks for row in forecast.rows(it, asked)
    ]  # fmt: skip
    return {
        "mtbf_node_hours": asked.mtbf_node_hours, "repair_hours": asked.repair_hours, "sizes": rows,
        "held_out": [{"mechanism": mechanism, **asdict(it), "close": it.close} for it, mechanism in scores],
    }  # fmt: skip


def told(score: Score, mechanism: str) -> str:
    """How good a forecast was for a job that it had not seen."""
    low, high = score.ends
    verdict = "within" if score.close else "NOT within"
    return (
        f"held out: {mechanism}, job {score.job}, {score.faults} faults: predicted {100 * score.formula:.1f} % "
        f"({100 * low:.1f}–{100 * high:.1f}), measured {100 * score.measured:.1f} %: {verdict} "
        f"{forecast.CLOSE_POINTS:g} points"
    )


def page(analysis: Analysis) -> Mapping[str, Any]:
    """What the template needs."""
    made = [{**block, "rows": [cells(row)[:-1] for row in block["rows"]]} for block in section(analysis)]
    return {"head": HEAD[:-1], "blocks": made}
