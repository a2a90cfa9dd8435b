"""What the training costs by node count, for a price that the reader states. Called by `page` and `results`.

Node-hours are measured; money is node-hours times the price of one (`--price-per-node-hour`); without one it is a gap.
An epoch is as many samples as the trainer said its data has (`rows` of the `ready` event).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from proving_ground.reports import figures
from proving_ground.reports.figures import Figure
from proving_ground.reports.history import History
from proving_ground.reports.scaling import cells
from proving_ground.reports.scaling.cells import Cell


@dataclass(frozen=True)
class Price:
    """What a reader states: of one node for an hour, and perhaps the hours in which an epoch must be done."""

    node_hour: float | None = None
    deadline_h: float | None = None


def rows_of(history: History, cells: Sequence[Cell]) -> dict[str, int]:
    """Case → samples of an epoch, where its trainer said so."""
    found = {}
    for cell in cells:
        for trial in cell.counted:
            rows = history.trials[str(trial.plan["id"])].rows
            if rows:
                found[cell.case] = rows
    return found


def all_figures(
    price: Price, cells: Sequence[Cell], rows: dict[str, int], listed: Sequence[Figure]
) -> Iterator[Figure]:
    """Node-hours of a million samples, cost of 1,000 samples and of an epoch, and hours of an epoch, by size."""
    for cell in cells:
        rate = figures.pick(listed, "throughput", **cell.where)
        if rate is None:
            continue
        hours = [1 / value / 3600 for value in rate["values"]]  # of the whole job, a sample
        yield of(cell, "node_hours", "h/1M samples", [1e6 * cell.nodes * value for value in hours])
        epoch = rows.get(cell.case)
        if epoch:
            yield of(cell, "epoch_time", "h", [epoch * value for value in hours])
        if price.node_hour is not None:
            per_sample = [price.node_hour * cell.nodes * value for value in hours]
            yield of(cell, "cost", "", [1000 * value for value in per_sample], per="1,000 samples")
            if epoch:
                yield of(cell, "cost", "", [epoch * value for value in per_sample], per="epoch")


def of(cell: Cell, name: str, unit: str, values: Sequence[float], **where: str) -> Figure:
    """One figure; its interval is the throughput's, and stands there."""
    return cells.figure(name, unit, cell, values, None, **where)


def cheapest(price: Price, listed: Sequence[Figure], case: str, scaling: str) -> Figure | None:
    """The node count that does an epoch within the deadline with the fewest node-hours; None where none does."""
    about = {"case": case, "scaling": scaling}
    times = {f["where"]["nodes"]: f["median"] for f in figures.pick_all(listed, "epoch_time", **about)}
    found = figures.pick_all(listed, "node_hours", **about)
    limit = price.deadline_h or float("inf")
    fit = [f for f in found if times.get(f["where"]["nodes"], float("inf")) <= limit]
    return min(fit, key=lambda f: float(f["median"]), default=None)


def sentence(price: Price, listed: Sequence[Figure], case: str, scaling: str) -> str:
    """Which size is the cheapest, perhaps within a deadline; empty where epochs are not known."""
    if not figures.pick(listed, "epoch_time", case=case, scaling=scaling):
        return ""
    found = cheapest(price, listed, case, scaling)
    within = f" within {price.deadline_h:g} h" if price.deadline_h else ""
    if found is None:
        return f"No size that was measured does an epoch{within}."
    nodes = found["where"]["nodes"]
    return f"The cheapest size for an epoch{within}: {nodes} node{'s' * (nodes > 1)}."
