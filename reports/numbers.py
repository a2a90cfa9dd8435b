"""How numbers look, in the terminal and on the page alike: only as many digits as were measured.

Used by all that writes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from proving_ground.reports.figures import Figure
from proving_ground.reports.intervals import half_width

GAP = "–"  # not measured
MEANINGLESS = 0.5  # an interval of more than ± half of the value says no more than that nobody knows
CANNOT_TELL = "cannot tell"
MINUS = "\N{MINUS SIGN}"


def digits(value: float, interval: Sequence[float] | None = None) -> int:
    """Decimals worth showing: two significant digits of the interval's half-width, or four of the value."""
    half = (interval[1] - interval[0]) / 2 if interval else 0.0
    if half > 0:
        return max(0, min(3, 1 - math.floor(math.log10(half))))
    return max(0, min(3, 3 - math.floor(math.log10(abs(value))))) if value else 0


def plain(value: float | None, decimals: int) -> str:
    """1,234.5; a gap for what was not measured."""
    if value is None or math.isnan(value):
        return GAP
    return f"{value:,.{decimals}f}".replace("-", MINUS) if round(value, decimals) else f"{0:.{decimals}f}"


def short(value: float) -> str:
    """Three significant digits, or all before the point, and never an exponent: 0.0431, 12.5, 1,253."""
    if not value or not math.isfinite(value):
        return plain(value, 0)
    told = plain(value, max(0, 2 - math.floor(math.log10(abs(value)))))
    return told.rstrip("0").rstrip(".") if "." in told else told


def column_digits(found: Sequence[Figure]) -> int:
    """Decimals for a column of a table: those that its least certain number is worth."""
    return min((digits(figure["median"], figure["ci95"]) for figure in found), default=0)


def ends(found: Figure | None, decimals: int) -> str:
    """The interval alone, `408–424`; empty where there is none; in words where it says nothing."""
    if not found or not found["ci95"]:
        return ""
    if half_width(found["median"], found["ci95"]) > MEANINGLESS:
        return CANNOT_TELL
    return range_of(found["ci95"], decimals)


def range_of(interval: Sequence[float] | None, decimals: int) -> str:
    """`408–424`, `−1.0 to 2.0`; empty where there is none."""
    low, high = (plain(end, decimals) for end in interval or (math.nan, math.nan))
    return "" if interval is None else f"{low} to {high}" if MINUS in low + high else f"{low}–{high}"


def percent(value: float) -> str:
    """92.3 %."""
    return f"{plain(value, 1)} %"


def percent_interval(interval: Sequence[float]) -> str:
    """91.0–93.6 %."""
    return f"{range_of(interval, 1)} %"


def in_brackets(found: Figure) -> str:
    """` (91.0–93.6 %)` for a sentence; says so where the interval says nothing, and nothing where there is none."""
    if not found["ci95"]:
        return ""
    if half_width(found["median"], found["ci95"]) > MEANINGLESS:
        return " (but the repeats differ too much to tell)"
    return f" ({percent_interval(found['ci95'])})"


def seconds(value: float) -> str:
    """2 m 05 s, 41 s, 0.8 s."""
    if value >= 60:
        return f"{int(value // 60)} m {int(value % 60):02} s"
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"
