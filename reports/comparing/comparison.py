"""Comparisons and trends as text: for a terminal, and as Markdown for a pull request. Called by `reports.commands`."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from proving_ground.bench.terminal import Terminal
from proving_ground.reports import numbers
from proving_ground.reports.comparing import compare, trend
from proving_ground.reports.comparing.compare import Difference
from proving_ground.reports.comparing.pairing import Noises
from proving_ground.reports.comparing.series import Series

WORDS = {
    compare.WORSE: "worse", compare.BETTER: "better", compare.SAME: "the same", compare.UNKNOWN: "cannot tell",
}  # fmt: skip
HEADS = ("figure", "about", "before", "after", "unit", "change", "95 % CI", "seen from", "answer")


DIGITS = 5  # of a value: enough that a change of 0.1 % is one in the digits


@dataclass(frozen=True)
class Comparison:
    """What was compared with what, and how."""

    before: str
    after: str
    found: Sequence[Difference]
    margin: float  # %
    noises: Noises
    differs: Sequence[tuple[str, str, str]] = ()  # what was measured on or with something else, here and there

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
        return said.get(answer, self.cannot_tell(gated))

    def cannot_tell(self, gated: Sequence[Difference]) -> str:
        """Why not, and what would have been seen."""
        whys = sorted({it.why for it in gated if it.why})
        if whys:
            return f"cannot tell: {'; '.join(whys)}"
        seen = max((abs(it.smallest) for it in gated), default=math.nan)
        return f"cannot tell: no change beyond ±{self.margin:g} % is shown; one below {seen:.1f} % could not be seen"

    @property
    def method(self) -> str:
        """How it was told."""
        return (
            f"Before and after are geometric means over repeats. Better and worse mean beyond ±{self.margin:g} %, at "
            f"{100 * compare.ALPHA:g} % false alarms over all gated figures ({', '.join(compare.GATED)}). Seen from: "
            f"the smallest change for the worse that is found in {100 * compare.POWER:g} % of the cases. {self.noise}"
        )

    @property
    def noise(self) -> str:
        """How far apart runs lie, over the gated figures; nothing of cases of one run, which were measured in turn."""
        if self.before.partition(":")[0] == self.after.partition(":")[0]:
            return "Measured in turn within one run."
        found = [self.noises({"name": it.name, "where": it.where}) for it in self.found if it.gated]
        if not found:
            return ""
        low, high = (100 * end(it.sd for it in found) for end in (min, max))
        sd = f"{low:.1f} %" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f} %"
        few = min(it.runs for it in found)
        how = f"from {few} earlier runs"
        if any(it.assumed for it in found):
            how = f"assumed, on the safe side: {few} earlier runs of this configuration, {compare.ENOUGH_RUNS} needed"
        return f"Standard deviation between runs: {sd} ({how})."

    @property
    def unlike(self) -> str:
        """What differs beside the code; empty where nothing does."""
        return "; ".join(f"{what}: {here} → {there}" for what, here, there in self.differs)


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
        values = (
            numbers.plain(value, max(0, DIGITS - 1 - math.floor(math.log10(value)))) for value in (it.before, it.after)
        )
        seen = f"{it.smallest:+.1f} %".replace("-", numbers.MINUS)
        said = WORDS[it.answer] + (f": {it.why}" if it.why else "")
        yield it.name, about(it.where), *values, it.unit, changed(it), f"{low} to {high}", seen, said


def document(made: Comparison) -> dict[str, Any]:
    """For machines (docs/machines.md)."""
    figures = [
        {"name": it.name, "where": it.where, "unit": it.unit, "before": it.before, "after": it.after,
         "change_percent": it.change, "ci95_percent": it.ci95, "smallest_percent": it.smallest, "gated": it.gated,
         "answer": WORDS[it.answer], "why": it.why or None}
        for it in made.found
    ]  # fmt: skip
    return {
        "before": made.before, "after": made.after, "answer": WORDS[compare.overall(made.found)],
        "sentence": made.sentence, "margin_percent": made.margin, "figures": figures,
        "differs": [{"what": what, "before": here, "after": there} for what, here, there in made.differs],
    }  # fmt: skip


def trend_row(found: Series) -> dict[str, Any]:
    """One figure over many runs, for machines."""
    changes = [
        {"run": found.runs[it.index], "before": it.before, "after": it.after, "change_percent": it.percent}
        for it in trend.changes(found.values)
    ]
    return {**dataclasses.asdict(found), "changes": changes}


def plain(made: Comparison) -> str:
    """For a terminal or a log."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in HEADS:
        right = head in ("before", "after", "change", "seen from")
        table.add_column(head, justify="right" if right else "left", no_wrap=True)
    for row in rows(made.found):
        table.add_row(*row)
    out = io.StringIO()
    Terminal(file=out, width=240).print(table)
    lines = [f"{made.before} → {made.after}", *([f"differs: {made.unlike}"] if made.differs else ()), ""]
    lines += [*map(str.rstrip, out.getvalue().splitlines()), "", made.method]
    return "\n".join([*lines, made.sentence])


def markdown(made: Comparison) -> str:
    """For a pull request."""
    lines = [f"### {made.sentence}", "", f"`{made.before}` → `{made.after}`", ""]
    lines += [f"Differs: {made.unlike}", ""] if made.differs else []
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
