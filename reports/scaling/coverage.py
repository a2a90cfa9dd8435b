"""Did an undisturbed training learn from every sample once a pass? Called by `measure`.

The arithmetic is that of jobs with faults (`reports.recovery.ledger`); here no step is ever thrown away.
"""

from __future__ import annotations

import numpy as np

from proving_ground.reports.history import TrialHistory
from proving_ground.reports.recovery.ledger import Entries, Ledger, data_set, judge, ordered


def coverage(trial: TrialHistory) -> Ledger:
    """What the sample ids of a trial say; costs nothing where none were recorded."""
    if not trial.ledger.ids:
        return Ledger(why_not="no sample ids were recorded")
    size, doubt = data_set([(size, trial.id) for size in trial.data_sets])
    found = judge(entries(trial), None, size)
    doubt = doubt or ("" if size else "nobody said how many samples the data set has")
    return Ledger(found.problems, found.steps, found.samples, found.why_not, doubt)


def entries(trial: TrialHistory) -> Entries:
    """The (step, sample id) pairs of all processes; a step that not every process told is missing."""
    counts = np.array(trial.ledger.counts)
    steps = np.array(trial.ledger.steps)
    told = counts >= 0
    made, times = np.unique(steps[told], return_counts=True)
    every = {step for process in trial.processes.values() for step in process.steps()["step"].dropna()}
    short = every - set(made[times >= sum(bool(it.rows) for it in trial.processes.values())])
    of_each = np.repeat(steps[told], counts[told].astype(np.int64)).astype(np.int64)
    ids = np.frombuffer(trial.ledger.ids, dtype=np.int64)
    return Entries(*ordered(of_each, ids), sorted(int(step) for step in short))
