"""Is the record of a job whole? A process that lives on leaves out no step, and no fingerprint that was asked for.

Called by `reports.recovery.results`. What a process did not live to write down is no gap: the last step of a life or of
a generation may lack.
"""

from __future__ import annotations

import pandas as pd

from reports.checks import PASS, UNKNOWN
from reports.recovery.checks import Answer, Evidence
from reports.recovery.jobs import Job


def recorded(evidence: Evidence) -> Answer:
    """Every process recorded one step after the other, and all of a generation knew of the same number of ranks."""
    rows = evidence.rows.dropna(subset=["step", "generation"])
    why = other_world(rows) or left_out(evidence.job, rows) or unmarked(evidence.job, rows)
    return (UNKNOWN, why) if why else (PASS, f"{len(rows):,} steps of {len(evidence.job.processes)} processes, no gap")


def other_world(rows: pd.DataFrame) -> str:
    """A generation of which two numbers of ranks were recorded."""
    worlds = rows.groupby("generation")["world"].agg(["min", "max"])
    odd = worlds[worlds["min"] != worlds["max"]]
    if odd.empty:
        return ""
    few, many = odd.iloc[0]
    return f"generation {odd.index[0]:.0f} had {few:.0f} ranks by one record and {many:.0f} by another"


def left_out(job: Job, rows: pd.DataFrame) -> str:
    """A process that made a step and not the one before, in the same generation."""
    ordered = rows.drop_duplicates(["process", "generation", "step"]).sort_values(["process", "generation", "step"])
    skipped = ordered[ordered.groupby(["process", "generation"])["step"].diff() > 1]
    if skipped.empty:
        return ""
    row = skipped.iloc[0]
    name = {number: name for name, number in job.processes.items()}[int(row["process"])]
    return f"{name} recorded step {row['step']:.0f} of generation {row['generation']:.0f}, and not the one before"


def unmarked(job: Job, rows: pd.DataFrame) -> str:
    """A step at which a fingerprint was asked for, and a rank that made a later one has none."""
    every = (job.plan.get("training") or {}).get("fingerprint_every")
    if not every:
        return ""
    newest = rows.groupby(["process", "generation"])["step"].transform("max")
    due = rows[(rows["step"] % every == 0) & (rows["step"] < newest)]
    wanted = set(zip(due["step"].astype(int), due["generation"].astype(int), due["rank"].astype(int), strict=True))
    lost = sorted(wanted - {(mark.step, mark.generation, mark.rank) for mark in job.fingerprints})
    return f"rank {lost[0][2]} recorded no fingerprint at step {lost[0][0]} of generation {lost[0][1]}" if lost else ""
