"""The default suite over many repeats: `python -m tests.validations scaling --minutes 30`, again and again.

One repeat of the default suite leaves wide intervals on a noisy machine; here repeats accumulate over sittings. How
many is decided before the first; a verdict is said once all are there. Kept in `reports/measured/scaling.json`: every
value, with date and commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from proving_ground.reports.intervals import plain_interval
from tests.validations import matrix
from tests.validations.headline import Size, cells_of, number
from tests.validations.matrix import Kind
from tests.validations.sitting import Document, State, runs_of

ROUNDS = 20


def table(document: Mapping[str, Any]) -> str:
    """Efficiencies of the default suite against its bars, over the rounds that all cases have."""
    rows = ["| case | nodes | rounds | disturbed | efficiency | 95 % CI | bar | |", "|---|--:|--:|--:|--:|--:|--:|---|"]
    for name in cells_of(document):
        rows += [row(size, bar, planned(document)) for size, bar in barred(document, name)] or [
            f"| {name} | – | 0 | – | – | – | – | not measured |"
        ]
    return "\n".join(rows) + "\n"


def planned(document: Mapping[str, Any]) -> int:
    """The rounds that were decided."""
    found: int = document.get("plan", {}).get("rounds", ROUNDS)
    return found


def barred(document: Mapping[str, Any], name: str) -> list[tuple[Size, float]]:
    """The sizes of a case that have a bar, and the bar in percent, over the rounds that all cases have."""
    done = min((len(runs_of(document, it)) for it in cells_of(document)), default=0)
    bars = document["cells"].get(name, {}).get("bars", {})
    return [
        (Size(name, {}, nodes, runs_of(document, name)[:done]), 100 * bar)
        for nodes, bar in sorted(bars.items(), key=lambda it: int(it[0]))
    ]


def interval(size: Size) -> tuple[float, float] | None:
    """Of its efficiency in percent, at 95 %."""
    values = size.values("efficiency_percent")
    return plain_interval(median(values), values) if values else None


def missed(document: Mapping[str, Any]) -> tuple[int, int]:
    """(sizes below their bars, sizes that cannot be told), once all rounds are there."""
    every = [it for name in cells_of(document) for it in barred(document, name)]
    told = [verdict(interval(size), bar) for size, bar in every if len(size.runs) >= planned(document)]
    return told.count("fail"), told.count("cannot tell")


def row(size: Size, bar: float, planned: int) -> str:
    """One case at one size."""
    values, ends = size.values("efficiency_percent"), interval(size)
    middle = number(median(values) if values else None, "{:.1f} %")
    shown = f"{ends[0]:.1f}–{ends[1]:.1f} %" if ends else "–"
    return (
        f"| {size.cell} | {size.nodes} | {len(size.runs)} of {planned} | {size.disturbed} | {middle} | {shown} | "
        f"{bar:g} % | {verdict(ends, bar) if len(size.runs) >= planned else 'cannot tell yet'} |"
    )


def verdict(ends: tuple[float, float] | None, bar: float) -> str:
    """Below or above a bar only if the whole interval is."""
    if ends is None or ends[0] < bar <= ends[1]:
        return "cannot tell"
    return "pass" if ends[0] >= bar else "fail"


SCALING = Kind("scaling", __doc__, ROUNDS, lambda document: table(document).splitlines(), missed)
FILE = SCALING.file


def state(document: Document) -> State:
    """How far it is."""
    return matrix.state(document, SCALING)


def main(argv: Sequence[str]) -> int:
    """One sitting; exit status 1 if a trial failed."""
    return matrix.main(argv, SCALING)
