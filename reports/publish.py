"""The last steps of a report, of both kinds: write `results.json`, then the page, then print the table.

Called by `reports.cli` and `reports.recovery.report`.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol, TypeVar

from proving_ground.bench.rundir import RunDir
from proving_ground.reports import document
from proving_ground.reports.attempts import Attempts, Section
from proving_ground.reports.verdicts import Verdict


class Analysed(Protocol):
    """What both kinds of analysis have."""

    @property
    def run(self) -> RunDir:
        """Where it is written to."""

    @property
    def results(self) -> Mapping[str, Any]:
        """The document `results.json`."""

    @property
    def verdicts(self) -> list[Verdict]:
        """Its verdicts."""


A = TypeVar("A", bound=Analysed)


@dataclass(frozen=True)
class Kind:
    """A kind of report: its sections, what writes its page with them, and what prints its table."""

    sections: Mapping[str, Section]
    write: Callable[[Any, Mapping[str, Any]], None]
    show: Callable[[Any, str], None]


def publish(analysis: A, kind: Kind, place: str, *, html: bool) -> list[Verdict]:
    """Write `results.json` and the page, and print the table; the verdicts. `place` is where the page is to be."""
    attempts = Attempts()
    made = attempts.sections(analysis, kind.sections) if html else {}
    analysis = noted(analysis, attempts)
    document.write(analysis.run, analysis.results)
    if html:
        kind.write(analysis, made)
    printing = Attempts()
    printing.made("the table", lambda: kind.show(analysis, place), None)
    for line in printing.failed:
        print(f"reports: {line}; the page and results.json are there", file=sys.stderr)
    return [*analysis.verdicts, *printing.verdicts]


def printed(terminal: ModuleType, shows: str) -> Callable[[Any, str], None]:
    """What prints: of a module `terminal` all or only the verdict, or the document for machines."""
    return as_document if shows == "json" else terminal.verdict if shows == "quiet" else terminal.show


def as_document(analysis: Analysed, report: str) -> None:
    """Print `results.json` in place of the table (`--json`)."""
    del report
    print(document.text(analysis.results), end="")


def noted(analysis: A, attempts: Attempts) -> A:
    """The analysis with a verdict on every section that is missing."""
    if not attempts.failed:
        return analysis
    found = {**analysis.results, "verdicts": [*analysis.results["verdicts"], *attempts.verdicts]}
    return dataclasses.replace(analysis, results=found)  # type: ignore[type-var]
