"""Is the record of a job whole? A process that lives on leaves out no step, and no fingerprint that was asked for.

Called by `reports.recovery.results`. What a process did not live to write down is no gap: the last step of a life or of
a generation may lack.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from reports.checks import PASS, UNKNOWN
from reports.recovery.checks import Answer, Evidence
from reports.recovery.lives import WORKING


def recorded(evidence: Evidence) -> Answer:
    """Every process recorded one step after the other, and all of a generation knew of the same number of ranks."""
    rows = evidence.rows.dropna(subset=["step", "generation"])
    why = on_the_way(evidence) or next((said for check in GAPS if (said := check(evidence, rows))), "")
    return (UNKNOWN, why) if why else (PASS, f"{len(rows):,} steps of {len(evidence.job.processes)} processes, no gap")


def on_the_way(evidence: Evidence) -> str:
    """Records that a node wrote and that never arrived here: its connection was lost, and then the node."""
    lost = [(str(it.get("node")), file) for it in evidence.job.of("gap") for file in it.get("files") or ()]
    events = sorted((node, file) for node, file in lost if str(file).endswith(".jsonl"))
    return f"records of {events[0][0]} never arrived ({events[0][1]})" if events else ""


def other_world(_: Evidence, rows: pd.DataFrame) -> str:
    """A generation of which two numbers of ranks were recorded."""
    worlds = rows.groupby("generation")["world"].agg(["min", "max"])
    odd = worlds[worlds["min"] != worlds["max"]]
    if odd.empty:
        return ""
    few, many = odd.iloc[0]
    return f"generation {odd.index[0]:.0f} had {few:.0f} ranks by one record and {many:.0f} by another"


def left_out(evidence: Evidence, rows: pd.DataFrame) -> str:
    """A process that made a step and not the one before, in the same generation."""
    ordered = rows.drop_duplicates(["process", "generation", "step"]).sort_values(["process", "generation", "step"])
    skipped = ordered[ordered.groupby(["process", "generation"])["step"].diff() > 1]
    if skipped.empty:
        return ""
    row = skipped.iloc[0]
    name = {number: name for name, number in evidence.job.processes.items()}[int(row["process"])]
    return f"{name} recorded step {row['step']:.0f} of generation {row['generation']:.0f}, and not the one before"


def unmarked(evidence: Evidence, rows: pd.DataFrame) -> str:
    """A step at which a fingerprint was asked for, and a rank that made a later one has none."""
    job = evidence.job
    every = (job.plan.get("training") or {}).get("fingerprint_every")
    if not every:
        return ""
    newest = rows.groupby(["process", "generation"])["step"].transform("max")
    due = rows[(rows["step"] % every == 0) & (rows["step"] < newest)]
    wanted = set(zip(due["step"].astype(int), due["generation"].astype(int), due["rank"].astype(int), strict=True))
    lost = sorted(wanted - {(mark.step, mark.generation, mark.rank) for mark in job.fingerprints})
    return f"rank {lost[0][2]} recorded no fingerprint at step {lost[0][0]} of generation {lost[0][1]}" if lost else ""


def unsaid(evidence: Evidence, rows: pd.DataFrame) -> str:
    """A process that said what it was about to learn from, went on to the next step, and never recorded this one."""
    made = set(zip(rows["process"], rows["generation"], rows["step"], strict=True))
    for source, shares in evidence.job.shares.items():
        number = evidence.job.processes.get(source, -1)
        for share in shares:
            if (number, share.get("generation"), share["step"] + 1) in made:
                return f"{source} had a share in step {share['step']}, went on, and did not record it"
    return ""


def unloaded(evidence: Evidence, rows: pd.DataFrame) -> str:
    """A process that went on with a later step than its next one, and never said what state it had loaded."""
    loads = [(str(it["source"]), float(it["t"])) for it in evidence.job.of("resume")]
    for source, number in evidence.job.processes.items() if loads else ():
        mine = rows[rows["process"] == number].sort_values("t", kind="stable")
        told = sorted(t for name, t in loads if name == source)
        begun = [float(it["t"]) for it in evidence.job.of(WORKING) if it["source"] == source]
        times, steps = mine["t"].to_numpy(), mine["step"].to_numpy()
        life, load = (np.searchsorted(found, times) for found in (begun, told))
        before = np.append(0, np.where(life[1:] > life[:-1], 0, steps[:-1])) if len(steps) else steps
        silent = np.flatnonzero((steps > before + 1) & (load == np.append(0, load[:-1])[: len(load)]))
        if len(silent):
            return f"{source} went on with step {steps[silent[0]]:.0f}, and did not say what it had loaded"
    return ""


GAPS: tuple[Callable[[Evidence, pd.DataFrame], str], ...] = (other_world, left_out, unmarked, unsaid, unloaded)
"""Each says what is missing; empty: nothing."""
