"""What a batch script does when its time limit comes near, as text. Called by `remote.slurm`.

Slurm signals the script alone (`--signal=B:…`): a job that reaches its limit is never begun again, so the script has to
have it begun again before. Steps get SIGTERM, the agents' notice.
"""

from __future__ import annotations

from proving_ground.bench.clusters.remote.slurm_fate import NOTICED

JOB, ELEMENT = "$SLURM_JOB_ID", "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
"""What a script calls its job. Of an array the last element has the number of the whole, which would stand for all."""
LEAST_S = 60  # Slurm may send the signal so much earlier than it was asked to
BEFORE_S = 10  # the limit: by then the job has to be in the queue again
NOTICE = """leave() {{
  noticed=yes
  scancel --quiet --signal=TERM "{job}"
{further}}}
trap leave USR1
"""
IN_TIME = """  (sleep {seconds}; scontrol requeue "{job}") &
"""
AWAIT = """step=$!
while kill -0 "$step" 2>/dev/null; do wait "$step"; code=$?; done
[ "$noticed" ] || exit "$code"
{further}exit {noticed}
"""
AGAIN = """scontrol requeue "{job}" && sleep 60
"""


def noticed(step: str, notice_s: int, job: str = JOB, *, requeue: bool) -> str:
    """A script's lines that run a step, `step` with its input and ` &` at the end of its first line.

    All steps are told `notice_s` seconds before the limit; once they have left, or when it is high time, the job is put
    into the queue again, or else the script ends with the status that says so.
    """
    in_time = IN_TIME.format(job=job, seconds=max(1, notice_s - BEFORE_S)) if requeue else ""
    begin = NOTICE.format(job=job, further=in_time)
    return f"{begin}{step}{AWAIT.format(further=AGAIN.format(job=job) * requeue, noticed=NOTICED)}"
