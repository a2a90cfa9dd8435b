"""The recovery report of one run, from reading to writing. Called by `reports.cli` when a plan has faults."""

from __future__ import annotations

from proving_ground.bench.rundir import RunDir
from proving_ground.reports.looks import NO_HTML, shown_path
from proving_ground.reports.publish import Kind, printed, publish
from proving_ground.reports.recovery import page, terminal
from proving_ground.reports.recovery.results import analyse, is_chaos
from proving_ground.reports.verdicts import Verdict

__all__ = ["is_chaos", "report"]


def report(run: RunDir, *, html: bool, node_hour: float | None = None, shows: str = "") -> list[Verdict]:
    """Judge, write `results.json` and the page, print the table; the verdicts.

    `node_hour` is the price of a node; `shows` says what is printed: `publish.printed`.

    Raises:
        RunDirError: not a run directory, or a document in it cannot be read.
    """
    place = f"{shown_path(run)}/report.html" if html else NO_HTML
    return publish(analyse(run, node_hour), Kind(page.SECTIONS, page.write, printed(terminal, shows)), place, html=html)
