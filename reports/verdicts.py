"""Pass, fail or unknown, and why: the verdicts of `results.json`. Used by every kind of report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Verdict = dict[str, Any]
PASS, FAIL, UNKNOWN = "pass", "fail", "unknown"
SEVERITY = (FAIL, UNKNOWN, PASS)


def verdict(check: str, value: str, why: str, where: Mapping[str, Any] | None = None) -> Verdict:
    """One row of the contract."""
    return {"check": check, "verdict": value, "why": why, "where": dict(where or {})}


def sealed(problems: Sequence[str]) -> Iterator[Verdict]:
    """The files are the ones that the run left."""
    if problems:
        shown = "; ".join(problems[:3]) + ("; …" if len(problems) > 3 else "")
        yield verdict("sealed", UNKNOWN, f"not as sealed: {shown}")
    else:
        yield verdict("sealed", PASS, "every file is as it was when the run ended")


def attempts(earlier: Mapping[str, Sequence[str]]) -> str:
    """`1 attempt before did not: t003: …`, by the reasons of each trial; empty where there was none."""
    told = [f"{trial}: {why}" for trial, reasons in earlier.items() for why in reasons]
    count = f"{len(told)} earlier attempt{'s' if len(told) > 1 else ''} did not"
    return f"{count}: {'; '.join(told[:3])}{'; …' if len(told) > 3 else ''}" if told else ""


def overall(verdicts: Sequence[Verdict]) -> str:
    """Fail if anything failed, else unknown if anything is, else pass; what is about a peer does not count."""
    return worst([v["verdict"] for v in verdicts if not v["where"].get("peer")])


def worst(values: Sequence[str]) -> str:
    """The worst of several verdicts; pass of none."""
    return next((value for value in (FAIL, UNKNOWN) if value in values), PASS)
