"""What a site's accounting says of a run's jobs once they are over, asked by `sacct`. Called by `remote.slurm`.

Its moments are whole seconds on the controller's clock. They are kept as they come, and nothing is measured with them.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

WAIT_S = 5.0  # for all of it: a run that is over does not wait for a slow site
LOOK_S = 0.5
FIELDS = (
    "JobID", "JobName", "State", "ExitCode", "Submit", "Eligible", "Start", "End", "ElapsedRaw", "NNodes", "AllocCPUS",
    "AllocTRES", "NodeList",
)  # fmt: skip
NEVER = ("", "None", "Unknown")  # a moment that did not come, or has not yet
MOMENTS = "%s"  # for SLURM_TIME_FORMAT: by itself sacct writes the time of this machine's zone, and does not say so
NO_ANSWER = "sacct did not answer in time"
NOT_OVER = "when it was asked, not all of it had ended there yet"


@dataclass
class Accounts:
    """The jobs that a run has had; asked about once."""

    jobs: list[str] = field(default_factory=list)

    def told(self, name: str) -> Mapping[str, Any]:
        """Fields of an `accounting` event: a row for each begin of a job, and why there is none; empty: no job.

        `name` is how the names of the run's jobs begin: a cluster may have had their numbers before.
        """
        jobs, self.jobs = self.jobs, []
        if not jobs:
            return {}
        found, why = begins(jobs, name)
        return {"begins": found, "why": why}


def begins(jobs: Sequence[str], name: str) -> tuple[list[dict[str, Any]], str]:
    """Every begin of the jobs, as soon as all have ended there; or as it is when the time is up, and why that is all.

    A controller tells its accounting of an end a moment after it.
    """
    deadline, found, why = time.monotonic() + WAIT_S, list[dict[str, Any]](), NO_ANSWER
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            found, why = list(rows(ask(jobs, left_s), name)), NOT_OVER
        except TimeoutError:
            break
        except OSError as error:
            return found, str(error)
        if {job_of(it["job"]) for it in found} >= set(jobs) and all(it["end"] for it in found):
            return found, ""
        time.sleep(min(LOOK_S, left_s))
    return found, why


def ask(jobs: Sequence[str], timeout_s: float) -> str:
    """What sacct says.

    Raises:
        TimeoutError: it has no answer in time.
        OSError: it cannot be had, or says that nothing is counted.
    """
    about = ("--duplicates", "-X", "--parsable2", "--noheader", f"--jobs={','.join(jobs)}")
    try:
        done = subprocess.run(
            ["sacct", *about, f"--format={','.join(FIELDS)}"], capture_output=True, text=True, errors="replace",
            timeout=timeout_s, check=False, stdin=subprocess.DEVNULL, env=os.environ | {"SLURM_TIME_FORMAT": MOMENTS},
        )  # fmt: skip
    except FileNotFoundError:
        raise OSError("there is no sacct on this machine") from None
    except subprocess.TimeoutExpired:
        raise TimeoutError(NO_ANSWER) from None
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise OSError(said[-1] if said else f"sacct: exit status {done.returncode}")
    return done.stdout


def rows(said: str, name: str) -> Iterator[dict[str, Any]]:
    """A row for each line of sacct's about a job whose name begins so; other lines are no answer."""
    for line in said.splitlines():
        known = dict(zip(FIELDS, line.split("|"), strict=False))
        if len(known) == len(FIELDS) and known["JobName"].startswith(name):
            moments = {it.lower(): moment(known[it]) for it in ("Submit", "Eligible", "Start", "End")}
            yield {
                "job": known["JobID"], "name": known["JobName"], "state": known["State"], "exit": known["ExitCode"],
                **moments, "elapsed_s": number(known["ElapsedRaw"]), "nodes": number(known["NNodes"]),
                "cpus": number(known["AllocCPUS"]), "gpus": gpus(known["AllocTRES"]), "tres": known["AllocTRES"],
                "hosts": known["NodeList"],
            }  # fmt: skip


def job_of(said: str) -> str:
    """The number that sbatch gave: `12` of `12_3`, an element of an array."""
    return re.split(r"[_+]", said)[0]


def moment(said: str) -> str:
    """As sacct has it, in UTC; empty: it did not come."""
    if said.isdecimal():
        return datetime.fromtimestamp(int(said), UTC).isoformat()
    return "" if said in NEVER else said


def number(said: str) -> int:
    """A count; 0 where there is none."""
    return int(said) if said.isdecimal() else 0


def gpus(tres: str) -> int:
    """The GPUs of `cpu=64,gres/gpu=8,node=2`, where the site counts them."""
    found = re.search(r"gres/gpu=(\d+)", tres)
    return int(found[1]) if found else 0
