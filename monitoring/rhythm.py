"""What a job does besides steps, how often, and how long it takes in all. Used by `monitoring.intake`.

Trainers tell of both when they are over. Whether one is late, or under way, follows from the job's own rhythm.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from proving_ground.bench.rundir import Record

ASSUMED_S = 1200.0  # of training between saves, until a job has made one
LONGEST_GAP_S = 60.0  # between two steps; what is beyond is no training, unless the step itself took longer
PROMISING_STEPS = 100  # by whose pace the end of a job is estimated that has no plan
INTERVALS = 20  # newest ones that the usual one is the median of
EVALUATION = "evaluation"
"""The `phase` by which a trainer of one's own says that its evaluation begins."""


@dataclass
class Saves:
    """Time that a job trained, and what part of it no checkpoint has. Standing still and starting are no training."""

    trained_s: float = 0.0
    saved_s: float = 0.0  # of it, as far as the newest checkpoint goes
    newest_t: float | None = None  # when the newest step ended
    between_s: deque[float] = field(default_factory=lambda: deque(maxlen=INTERVALS))

    @property
    def unsaved_s(self) -> float:
        """Training that a failure would cost."""
        return self.trained_s - self.saved_s

    @property
    def usual_s(self) -> float:
        """Training that usually lies between two saves; before the first one what is assumed."""
        return median(self.between_s) if self.between_s else ASSUMED_S

    def step(self, record: Record) -> None:
        """A step was committed."""
        t = float(record["t"])
        gap = 0.0 if self.newest_t is None else t - self.newest_t
        self.trained_s += max(min(gap, LONGEST_GAP_S), float(record.get("step_s") or 0.0))
        self.newest_t = t

    def save(self, record: Record) -> None:
        """A checkpoint is durable; what was trained while it was written is not in it."""
        saved_s = max(self.saved_s, self.trained_s - float(record.get("durable_s", 0.0)))
        self.between_s.append(saved_s - self.saved_s)
        self.saved_s = saved_s


def is_to_save(plan: Mapping[str, Any]) -> bool:
    """Whether a job is meant to save at all; what no plan tells of our own trainer's is."""
    if not plan or plan.get("command"):
        return True
    training = plan.get("training") or {}
    return any(training.get(name) for name in ("checkpoint_every", "checkpoint_interval_s", "mtbf_s"))


@dataclass
class Evaluations:
    """After which steps a job is evaluated: as its plan says, else as it was before, and after the last one."""

    every: int | None = None  # steps; 0: at the end only; negative: never; None: not known
    steps: int = 0  # of the whole job; 0: not known
    newest: int = 0  # step of the newest one

    @classmethod
    def of(cls, plan: Mapping[str, Any]) -> Evaluations:
        """Of the plan of our own trainer's job; of others nobody knows."""
        ours = bool(plan) and not plan.get("command")
        return cls(int((plan.get("training") or {}).get("eval_every", -1)) if ours else None)

    def due(self, step: int) -> bool:
        """Whether an evaluation follows a step."""
        every = self.every or 0
        return every >= 0 and (step == self.steps or (every > 0 and step % every == self.newest % every))

    def made(self, step: int) -> None:
        """One was made; the time between the two newest is the rhythm where no plan says it."""
        if step > self.newest > 0:
            self.every = step - self.newest
        self.newest = step


@dataclass
class Promise:
    """How long a job without a plan takes in all, by the pace of its first steps."""

    begin_t: float  # of the job
    first: tuple[int, float] | None = None  # step from which on it is measured, and when that ended

    def estimate_s(self, step: int, t: float, steps: int) -> float | None:
        """From the job's begin to its last step, at a step that ended at `t`; None: not this step's to say."""
        if self.first is None or step < self.first[0]:
            self.first = (step, t)
        if step - self.first[0] != PROMISING_STEPS or steps <= step:
            return None
        return t - self.begin_t + (steps - step) * (t - self.first[1]) / PROMISING_STEPS
