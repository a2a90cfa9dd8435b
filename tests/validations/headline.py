"""What the runs of the matrix say, by a rule that was fixed before they were made. Called by `matrix` and `tables`.

The first run of each cell counts, until all cells have three: then the first three do, by their median. Later runs are
kept and do not count. A size whose machine was disturbed supports no verdict, and neither does a figure that rests on
one: an efficiency on one node, a prediction on one and two. It is "cannot tell", and is not measured in its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from tests.validations.sitting import cut_off, runs_of

ENOUGH = 3  # runs of every cell, from which on their median counts
RESTS_ON: Mapping[str, tuple[str, ...]] = {"efficiency_percent": ("1",), "prediction_error_percent": ("1", "2")}
"""Figure → the node counts of the same run that it is made from, beside its own."""

BARS = {"2": (98.0, 97.0), "4": (96.0, 95.0), "8": (93.0, 92.0)}
"""Nodes → (the efficiency that the bound must allow, the target), in %."""

CLOSE_PERCENT = 5.0
ERROR_MEAN_PERCENT, ERROR_WORST_PERCENT = 3.0, 8.0

Runs = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Size:
    """One cell at one node count, over the runs that count."""

    cell: str
    about: Mapping[str, Any]  # the cell's settings
    nodes: str
    runs: Runs

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.cell}, {self.nodes} nodes"

    @property
    def tried(self) -> list[Mapping[str, Any]]:
        """What each run measured here."""
        return [run["sizes"][self.nodes] for run in self.runs if self.nodes in run["sizes"]]

    @property
    def disturbed(self) -> int:
        """In how many of them the machine was not steady."""
        return sum(bool(it.get("disturbed")) for it in self.tried)

    def values(self, key: str) -> list[float]:
        """A figure in the runs that support it."""
        needed = (*RESTS_ON.get(key, ()), self.nodes)
        steady = [run["sizes"] for run in self.runs if is_steady(run["sizes"], needed)]
        return [value for it in steady for value in it[self.nodes].get(key, ())]

    def value(self, key: str) -> float | None:
        """Its median; None where no run supports it."""
        found = self.values(key)
        return median(found) if found else None

    def bound(self, key: str) -> float | None:
        """What the plan allows, whatever was measured."""
        return next((it[key] for it in self.tried if key in it), None)


def is_steady(sizes: Mapping[str, Any], needed: Sequence[str]) -> bool:
    """Whether nothing disturbed a run at these node counts; one that was not measured is no evidence."""
    return all(count in sizes and not sizes[count].get("disturbed") for count in needed)


def cells_of(document: Mapping[str, Any]) -> list[str]:
    """The cells that are to be measured, without those that the host's calibration refuses whole and always did."""
    planned = document.get("plan", {}).get("cells") or sorted(document["cells"])
    return [it for it in planned if it not in document.get("refused", ()) or runs_of(document, it)]


def counted(document: Mapping[str, Any]) -> int:
    """How many runs of each cell count: the first, or the first three once all cells have them."""
    least = min((len(runs_of(document, it)) for it in cells_of(document)), default=0)
    return ENOUGH if least >= ENOUGH else 1


def sizes(document: Mapping[str, Any]) -> Iterator[Size]:
    """Everything that was measured and counts."""
    count = counted(document)
    for cell in cells_of(document):
        runs = runs_of(document, cell)[:count]
        nodes = sorted({it for run in runs for it in run["sizes"]}, key=int)
        yield from (Size(cell, document["cells"][cell], it, runs) for it in nodes)


def lines(document: Mapping[str, Any]) -> list[str]:
    """What the matrix says about its targets, a line each."""
    return [basis(document), closeness(document), predictions(document), *efficiencies(document)]


def basis(document: Mapping[str, Any]) -> str:
    """What the other lines rest on: how many runs of each cell, and how many of them support no verdict."""
    count, every = counted(document), list(sizes(document))
    tried, disturbed = sum(len(it.tried) for it in every), sum(it.disturbed for it in every)
    runs = "the first run of each cell (n = 1)" if count == 1 else f"the first {count} runs of each cell (n = {count})"
    share = f"{disturbed} of {tried} sizes were disturbed and support no verdict" if tried else "nothing measured"
    missing = sum(not runs_of(document, it) for it in cells_of(document))
    failed = sum("failed" in run for it in cells_of(document) for run in runs_of(document, it)[:count])
    gaps = {"cells not measured": missing, "failed runs": failed, "runs cut off and begun again": cut_off(document)}
    more = "".join(f"; {name}: {number}" for name, number in gaps.items() if number)
    return f"basis: {runs} of {len(cells_of(document))}; {share}{more}"


def judged(document: Mapping[str, Any], key: str) -> tuple[list[tuple[float, Size]], int]:
    """(value, size) where a figure can be told, and of how many sizes that have it, it cannot."""
    having = [it for it in sizes(document) if any(key in tried for tried in it.tried)]
    found = [(value, it) for it in having if (value := it.value(key)) is not None]
    return found, len(having) - len(found)


def closeness(document: Mapping[str, Any]) -> str:
    """How far the steps are from their bounds."""
    found, unknown = judged(document, "above_bound_percent")
    if not found:
        return f"distance from the bound: nothing to judge, {unknown} cannot tell"
    within = sum(abs(value) <= CLOSE_PERCENT for value, _ in found)
    worst, size = max(found, key=lambda it: abs(it[0]))
    return (
        f"distance from the bound: {within} of {len(found)} sizes within {CLOSE_PERCENT:g} %, worst {worst:+.1f} % "
        f"({size.name}); {unknown} cannot tell"
    )


def predictions(document: Mapping[str, Any]) -> str:
    """Errors of the predictions from the smallest sizes."""
    found, unknown = judged(document, "prediction_error_percent")
    if not found:
        return f"prediction: nothing to judge, {unknown} cannot tell"
    worst, size = max(found, key=lambda it: abs(it[0]))
    return (
        f"prediction: mean error {mean(abs(it[0]) for it in found):.2f} % (target ≤{ERROR_MEAN_PERCENT:g}), "
        f"worst {abs(worst):.1f} % (target ≤{ERROR_WORST_PERCENT:g}; {size.name}), {len(found)} predictions; "
        f"{unknown} cannot tell"
    )


def missed(document: Mapping[str, Any]) -> tuple[int, int]:
    """(targets that are missed, sizes and combinations that cannot be told)."""
    close, dark = judged(document, "above_bound_percent")
    errors, unknown = judged(document, "prediction_error_percent")
    off = [abs(value) for value, _ in errors]
    links = [(lowest_links(document, nodes, allowed), target) for nodes, (allowed, target) in BARS.items()]
    found = [
        any(abs(value) > CLOSE_PERCENT for value, _ in close),
        bool(off) and mean(off) > ERROR_MEAN_PERCENT,
        bool(off) and max(off) > ERROR_WORST_PERCENT,
        *(any(value < target for value, _ in values) for (values, _), target in links),
    ]
    return sum(found), dark + unknown + sum(count - len(values) for (values, count), _ in links)


def efficiencies(document: Mapping[str, Any]) -> list[str]:
    """For each model and hook the efficiency at the lowest link rate whose bound allows the target."""
    return [efficiency(document, nodes, *bars) for nodes, bars in BARS.items()]


def efficiency(document: Mapping[str, Any], nodes: str, allowed: float, target: float) -> str:
    """The same at one node count. A lowest link that was disturbed is not replaced by a faster one."""
    head = f"efficiency at {nodes} nodes, lowest link whose bound is ≥{allowed:g} %: "
    found, count = lowest_links(document, nodes, allowed)
    if not count:
        return head + "no cell allows it"
    unknown = f"{count - len(found)} cannot tell"
    if not found:
        return head + unknown
    least, size = min(found, key=lambda it: it[0])
    passed = sum(value >= target for value, _ in found)
    bound = size.bound("efficiency_bound_percent") or 0.0
    return (
        f"{head}{passed} of {count} combinations ≥{target:g} %, {unknown}; lowest {least:.1f} % of {bound:.1f} % "
        f"({size.cell})"
    )


def lowest_links(document: Mapping[str, Any], nodes: str, allowed: float) -> tuple[list[tuple[float, Size]], int]:
    """(efficiency, size) of each model and hook at its lowest link that allows it, and of how many there are."""
    lowest: dict[tuple[str, float, str], Size] = {}
    for size in sizes(document):
        if size.nodes == nodes and (size.bound("efficiency_bound_percent") or 0) >= allowed:
            key = (size.about["workload"], size.about["bucket_mb"], size.about["compression"])
            lowest[key] = min(lowest.get(key, size), size, key=lambda it: float(it.about["link_mbps"]))
    found = [(value, it) for it in lowest.values() if (value := it.value("efficiency_percent")) is not None]
    return found, len(lowest)


def table(document: Mapping[str, Any]) -> str:
    """One row a cell and size above one node: the step against its bound, efficiency, prediction error."""
    rows = ["| cell | nodes | runs | disturbed | step ms | bound ms | above | efficiency | bound | prediction error |",
            "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"]  # fmt: skip
    measured = {it.cell for it in sizes(document)}
    rows += [row(it) for it in sizes(document) if it.nodes != "1"]
    rows += [f"| {cell} | – | 0 | – |{' – |' * 6}" for cell in cells_of(document) if cell not in measured]
    return "\n".join(rows) + "\n"


def row(size: Size) -> str:
    """One size; a dash where nothing can be told."""
    shown = [
        number(size.value("step_ms"), "{:,.0f}"), number(size.bound("bound_ms"), "{:,.0f}"),
        number(size.value("above_bound_percent"), "{:+.1f} %"), number(size.value("efficiency_percent"), "{:.1f} %"),
        number(size.bound("efficiency_bound_percent"), "{:.1f} %"),
        number(size.value("prediction_error_percent"), "{:+.1f} %"),
    ]  # fmt: skip
    return f"| {size.cell} | {size.nodes} | {len(size.tried)} | {size.disturbed} | {' | '.join(shown)} |"


def number(value: float | None, form: str) -> str:
    """A value for a table; a dash where there is none."""
    return "–" if value is None else form.format(value)


def targets(document: Mapping[str, Any]) -> str:
    """The lines as a list."""
    return "".join(f"- {line}\n" for line in lines(document))
