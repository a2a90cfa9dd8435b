"""Comparisons and trends as text: for a terminal, and as Markdown for a pull request. Called by `reports.commands`."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from bench.terminal import Terminal
from reports import compare, numbers, trend
from reports.compare import Difference
from reports.series import Series

WORDS = {
    compare.WORSE: "worse", compare.BETTER: "better", compare.SAME: "the same", compare.UNKNOWN: "cannot tell",
}  # fmt: skip
HEADS = ("figure", "about", "before", "after", "unit", "change", "95 % CI", "answer")


@dataclass(frozen=True)
class Comparison:
    """What was compared with what, and how."""

    before: str
    after: str
    found: Sequence[Difference]
    margin: float  # %
    between: float  # standard deviation between runs, as a share
    assumed: bool  # whether that is an assumption

    @property
    def sentence(self) -> str:
        """The answer."""
        gated = [it for it in self.found if it.gated]
        answer = compare.overall(self.found)
        hit = [f"{it.name} {about(it.where)} by {changed(it)}" for it in gated if it.answer == answer]
        said = {
            compare.WORSE: f"worse: {'; '.join(hit)}", compare.BETTER: f"better: {'; '.join(hit)}",
            compare.SAME: f"the same: every figure is within ±{self.margin:g} %",
        }  # fmt: skip
        return said.get(answer, f"cannot tell: no change beyond ±{self.margin:g} % is shown, and none is ruled out")

    @property
    def method(self) -> str:
        """How it was told."""
        how = "assumed: too few earlier runs" if self.assumed else "from earlier runs"
        return (
            f"Better and worse mean beyond ±{self.margin:g} %, at {100 * compare.ALPHA:g} % false alarms over all "
            f"gated figures ({', '.join(compare.GATED)}). Noise between runs: {100 * self.between:.1f} % ({how})."
        )


def about(where: Mapping[str, Any]) -> str:
    """`resnet50 weak 8 nodes`."""
    words = [str(where[key]) for key in ("case", "op", "bytes", "scaling") if key in where]
    return " ".join([*words, *([f"{where['nodes']} nodes"] if "nodes" in where else [])])


def changed(found: Difference) -> str:
    """`+1.2 %`."""
    return f"{found.change:+.1f} %".replace("-", numbers.MINUS)


def rows(found: Sequence[Difference]) -> Iterator[tuple[str, ...]]:
    """The cells of the table, gated figures first."""
    for it in sorted(found, key=lambda it: not it.gated):
        low, high = (f"{end:+.1f}".replace("-", numbers.MINUS) for end in it.ci95)
        values = (f"{value:,.4g}" for value in (it.before, it.after))
        yield it.name, about(it.where), *values, it.unit, changed(it), f"{low} to {high}", WORDS[it.answer]


def plain(made: Comparison) -> str:
    """For a terminal or a log."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in HEADS:
        table.add_column(head, justify="right" if head in ("before", "after", "change") else "left", no_wrap=True)
    for row in rows(made.found):
        table.add_row(*row)
    out = io.StringIO()
    Terminal(file=out, width=200).print(table)
    lines = [f"{made.before} → {made.after}", "", *map(str.rstrip, out.getvalue().splitlines()), "", made.method]
    return "\n".join([*lines, made.sentence])


def markdown(made: Comparison) -> str:
    """For a pull request."""
    lines = [f"### {made.sentence}", "", f"`{made.before}` → `{made.after}`", ""]
    lines += [f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}"]
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows(made.found)]
    return "\n".join([*lines, "", made.method, ""])


def trend_lines(found: Sequence[Series]) -> Iterator[str]:
    """One line a figure, and one for each change in it."""
    width = max((len(it.about) for it in found), default=0)
    for it in found:
        yield f"{it.about:<{width}}  {trend.sparkline(it.values)}  {it.values[0]:,.4g} → {it.values[-1]:,.4g} {it.unit}"
        changes = trend.changes(it.values)
        for change in changes:
            percent = f"{change.percent:+.1f} %".replace("-", numbers.MINUS)
            yield f"{'':<{width}}  {percent} from run {it.runs[change.index]} on, {commit_of(it, change.index)}"
        if not changes:
            yield f"{'':<{width}}  no change beyond noise"


def commit_of(found: Series, index: int) -> str:
    """Where a change falls: between two commits, or within one."""
    before, after = found.commits[index - 1][:12], found.commits[index][:12]
    if before == after:
        return f"within commit {after}: not the code, or uncommitted changes"
    return f"between commits {before} and {after}"
