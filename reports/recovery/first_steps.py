"""Are a job's first steps those of a plain PyTorch loop? Called by `reports.recovery.results`.

What job and twin have both wrong shows here: gradients that are halved, labels that are shifted, a loss of the wrong
samples. The loop (`training/judging/reference.py`) adds up in another order, so figures are compared, not bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from proving_ground.reports.recovery.jobs import Job, Record, apart
from proving_ground.reports.verdicts import FAIL, PASS, UNKNOWN

COMPARED = 3
"""Steps whose figures are compared. Rounding is about 1e-7 of each there; later a tie of two activations that falls the
other way may make it 1e-3 within a step or two, as was seen from the sixth on."""
NEAR = {"loss": 1e-3, "grad_norm": 1e-2, "lr": 1e-9}
"""Field of a step → how far it may be off, relative to the loop's."""
NEAR_WEIGHTS = 0.05
"""How far the parameters may be off after the last step, relative to the way that they have come:
4e-7 to 4e-3 by rounding."""


def judge(job: Job, reference: Job, before: float) -> tuple[str, str]:
    """(verdict, why) of the steps that a job made before a moment, in seconds on the run's clock."""
    plain = {step: it for it in reference.early if (step := int(it["step"])) <= COMPARED}
    mine: dict[int, list[Record]] = {}
    for record in job.early:
        if float(record["t"]) < before and int(record["step"]) in plain:
            mine.setdefault(int(record["step"]), []).append(record)
    if not plain or not mine:
        return UNKNOWN, "no first step was recorded that a plain loop made too"
    wrong = [why for step in sorted(mine) for why in different(mine[step], plain[step], local=job.local)]
    wrong += weights(job, reference, before)
    if wrong:
        return FAIL, f"not as in a plain loop: {wrong[0]}"
    return PASS, f"{len(mine)} first steps as in a plain loop"


def different(records: Sequence[Record], plain: Mapping[str, Any], *, local: bool) -> Iterator[str]:
    """What differs in one step; where ranks learn alone only rank 0's is known."""
    told = [it for it in records if it["rank"] == 0] if local else records
    for field, near in NEAR.items():
        its = plain.get(field)
        values = [float(it[field]) for it in told if isinstance(it.get(field), int | float)]
        if values and its is not None and not np.allclose(values, its, rtol=near, atol=1e-9):
            odd = max(values, key=lambda value: abs(value - its))
            yield f"{field} of step {plain['step']} is {odd:g}, there {its:g}"


def weights(job: Job, reference: Job, before: float) -> Iterator[str]:
    """Whether the parameters are where the loop has brought them."""
    if job.local or len(reference.fingerprints) < 2:
        return
    begun, come = reference.fingerprints[0], reference.fingerprints[-1]
    way = apart(come.sketch, begun.sketch)
    for mark in job.fingerprints:
        if mark.step == come.step and mark.t < before and mark.sketch and way:
            share = apart(mark.sketch, come.sketch) / way
            if share > NEAR_WEIGHTS:
                yield f"parameters after step {mark.step} are off by {100 * share:.1f} % of the way that they have come"
                return
