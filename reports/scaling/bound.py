"""What the link allows beside what was measured: `plan.json` has the bound of a trial from before the run.

Called by `reports.figures`. The bound is the shortest step that profile, bucket sizes and configured link rate permit
(`bench/bound.py`); this module only sets it beside the measured one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from proving_ground.reports.scaling.measure import Measured


@dataclass(frozen=True)
class Allowed:
    """The bound of one size: its step in seconds, and its efficiency against the base's bound."""

    step_s: float
    efficiency: float

    @classmethod
    def of(cls, plan: Mapping[str, Any], base: Mapping[str, Any], growth: float) -> Allowed | None:
        """From the plans of a trial and of its base; None where no bound could be known before the run."""
        if not plan.get("bound") or not base.get("bound"):
            return None
        step_s = float(plan["bound"]["step_s"])
        return cls(step_s, growth * float(base["bound"]["step_s"]) / step_s)


def above(trial: Measured) -> float:
    """How much longer than its bound the measured step is, in %; negative: shorter, which should not be possible."""
    return 100 * (float(trial.seconds.mean()) / float(trial.plan["bound"]["step_s"]) - 1)
