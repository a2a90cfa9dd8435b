"""What becomes of a run's Slurm job, in Slurm's words: what it waits for, how it has ended. Called by `remote.slurm`.

States are those of squeue and scontrol. While a job ends it is COMPLETING, whatever becomes of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

WAITS = (
    "PENDING", "CONFIGURING", "SUSPENDED", "STOPPED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD",
    "SPECIAL_EXIT",
)  # fmt: skip
"""States of a job that has no machines, or does not run there, and may do so again."""
ENDS = {
    "CANCELLED": "was cancelled",
    "TIMEOUT": "reached its time limit",
    "NODE_FAIL": "lost a machine that it cannot do without",
    "PREEMPTED": "had to give way to another",
    "OUT_OF_MEMORY": "ran out of memory",
    "BOOT_FAIL": "got a machine that does not boot",
    "DEADLINE": "reached its deadline",
    "REVOKED": "runs on another cluster",
    "FAILED": "has failed",
    "COMPLETED": "is over",
}
"""States of a job that has ended for good."""
NOTICED = 75  # exit status of the batch script that had its notice, and did not begin the job again
FORGOTTEN = "Invalid job id"
"""How Slurm's commands answer for a job that ended more than MinJobAge ago."""
TOLD = ("None", "TimeLimit", "NonZeroExitCode")  # reasons that the state says, too


def minutes(text: str) -> float:
    """Of a time as scontrol shows it, `[days-]hours:minutes:seconds`; infinite where it is UNLIMITED."""
    if not (found := re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)):
        return math.inf
    days, hours, minute, second = (int(it or 0) for it in found.groups())
    return (days * 24 + hours) * 60 + minute + second / 60


def ended(job: str, shown: Mapping[str, str], asked_min: int, who: str = "") -> str:
    """How a job has ended, by what `scontrol show job` says of it; `who` is sacct's word on who cancelled it."""
    if not (state := shown.get("JobState", "")):
        return f"job {job} is not known to Slurm any more"
    how, code = ENDS.get(state, "has ended"), shown.get("ExitCode", "").partition(":")[0]
    noticed = (state, code) == ("FAILED", str(NOTICED))
    limited, limit_min = noticed or state == "TIMEOUT", minutes(shown.get("TimeLimit", ""))
    if limited:
        how = f"{'left before' if noticed else 'reached'} its time limit of {limit_min:g} min"
    reason, status = shown.get("Reason", "None"), f"exit status {code}" if state == "FAILED" else ""
    said = ", ".join(filter(None, (who or state, "" if reason in TOLD else reason, status)))
    return f"job {job} {how} ({said})" + (": time_min= allows for more" if limited and limit_min == asked_min else "")
