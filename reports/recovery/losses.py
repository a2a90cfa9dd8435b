"""Where the time went, phase by phase of recovery, and what would win some of it back. Called by the page."""

from __future__ import annotations

import math
from typing import Any

from proving_ground.reports.figures import pick_all
from proving_ground.reports.recovery import effective
from proving_ground.reports.recovery.results import Analysis


def rows(analysis: Analysis) -> list[dict[str, Any]]:
    """One row a job: its costs, the seconds of each phase of recovery, and effective training time."""
    made = []
    for evidence in analysis.jobs:
        costs = effective.costs(evidence)
        if costs is None:
            continue
        phases = effective.lost_by_phase(evidence)
        total = sum(phases.values())
        made.append({
            "trial": evidence.job.id,
            "costs": costs,
            "formula": costs.formula(),
            "known": math.isfinite(costs.formula()),
            "best_interval_s": costs.best_interval_s if math.isfinite(costs.best_interval_s) else None,
            "phases": [(name, seconds, 100 * seconds / total if total else 0.0) for name, seconds in phases.items()],
        })  # fmt: skip
    return made


def advice(analysis: Analysis) -> list[tuple[str, float]]:
    """(what to do, predicted gain in points), the most worth first."""
    found = [(str(gain["where"]["advice"]), float(gain["median"])) for gain in pick_all(analysis.own_figures, "gain")]
    return sorted(found, key=lambda one: -one[1])
