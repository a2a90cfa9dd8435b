"""Is the record of a job whole? A process that lives on leaves out no step, and no fingerprint that was asked for.

Called by `reports.recovery.results`. What a process did not live to write down is no gap: the last step of a life or of
a generation may lack. Nor is what a node had written and could not send before a fault ended it, where the survivors'
records have every step that training went on from (`unexcused` says what else is asked).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from proving_ground.reports.recovery import injection
from proving_ground.reports.recovery.checks import Answer, Evidence
from proving_ground.reports.recovery.incidents import Incident
from proving_ground.reports.recovery.jobs import Record
from proving_ground.reports.recovery.lives import STARTED, WORKING
from proving_ground.reports.verdicts import PASS, UNKNOWN

TAIL_S, TAIL_STEPS = 2.0, 3.0  # before the fault; whichever is longer: what may not have been sent by then


def recorded(evidence: Evidence) -> Answer:
    """Every process recorded one step after the other, and all of a generation knew of the same number of ranks."""
    rows = evidence.rows.dropna(subset=["step", "generation"])
    why = on_the_way(evidence) or next((said for check in GAPS if (said := check(evidence, rows))), "")
    if why:
        return UNKNOWN, why
    ended = sorted({f"{it.get('node')} ({one.kind})" for it in lost(evidence) if (one := ended_by(evidence, it))})
    died = f"; the last records of {', '.join(ended)} went with it, and survivors recorded its steps" if ended else ""
    return PASS, f"{len(rows):,} steps of {len(evidence.job.processes)} processes, no gap{died}"


def on_the_way(evidence: Evidence) -> str:
    """Records that a node wrote and that never arrived here, unless they went with a node that a fault ended."""
    found = [(str(it.get("node")), events(it)[0], unexcused(evidence, it)) for it in lost(evidence)]
    told = sorted(f"records of {node} never arrived ({file}): {why}" for node, file, why in found if why)
    return told[0] if told else ""


def lost(evidence: Evidence) -> list[Record]:
    """The harness' notes of event files that did not come home whole."""
    return [it for it in evidence.job.of("gap") if events(it)]


def events(gap: Record) -> list[str]:
    """The event files that it is about."""
    return sorted(str(file) for file in gap.get("files") or () if str(file).endswith(".jsonl"))


def unexcused(evidence: Evidence, gap: Record) -> str:
    """Why records are missed that never arrived; empty: a fault ended their node, and the survivors have its steps."""
    if "from" in gap:
        return "later ones of the same file did"
    one = ended_by(evidence, gap)
    if one is None:
        return "no fault that is proven ended that node"
    return next((why for check in EXCUSES if (why := check(evidence, one, str(gap.get("node"))))), "")


def ended_by(evidence: Evidence, gap: Record) -> Incident | None:
    """The fault that took a node's records along: the newest before it was told, if the node's life ended with it."""
    node, told_t = str(gap.get("node")), float(gap["t"])
    hit = [one for one in evidence.incidents if one.begin and one.inject_t <= told_t and ends(one, node)]
    one = max(hit, key=lambda it: it.inject_t, default=None)
    if one is None or injection.happened(evidence, one)[0] != PASS:
        return None
    again = [it for it in evidence.job.within(one.inject_t, told_t, STARTED, "gap") if it.get("node") == node]
    return None if any(it is not gap and it["t"] < told_t for it in again) else one


def ends(one: Incident, node: str) -> bool:
    """Whether a fault ends a node."""
    return one.traits.get("ends") == injection.NODE and node in injection.nodes_of(one)


def stopped_before(evidence: Evidence, one: Incident, node: str) -> str:
    """Its records had stopped coming before the fault: more is missing than the fault can have taken."""
    rows = of_node(evidence, node)
    newest = rows.loc[rows["t"] <= end_t(one), "t"].max()
    short_s = one.inject_t - newest
    most_s = max(TAIL_S, TAIL_STEPS * (0.0 if np.isnan(one.pace_s) else one.pace_s))
    return f"the last that came is {short_s:.1f} s older than {one.fault}" if short_s > most_s else ""


def end_t(one: Incident) -> float:
    """The moment from which a victim can have written nothing."""
    t = injection.gone_t(one)
    return one.inject_t if np.isnan(t) else t


def recorded_by_nobody(evidence: Evidence, one: Incident, node: str) -> str:
    """A step that the victim may have made, that training went on from, and that no survivor recorded."""
    mine, rows = of_node(evidence, node), evidence.rows
    mine = mine[mine["t"] <= end_t(one)].sort_values("t", kind="stable")
    if one.new is None or mine.empty:
        return ""
    newest, generation = (int(mine[name].iloc[-1]) for name in ("step", "generation"))
    went_on = int(rows.loc[rows["generation"] == one.new, "step"].min())
    others = rows[(rows["generation"] == generation) & ~rows["process"].isin(victims(evidence, one))]
    missing = set(range(newest + 1, went_on)) - set(others["step"].dropna().astype(int))
    return (
        f"step {min(missing)} was recorded by nobody, and training went on from step {went_on - 1}" if missing else ""
    )


def victims(evidence: Evidence, one: Incident) -> set[int]:
    """The numbers of the processes on the nodes that a fault was aimed at."""
    nodes = injection.nodes_of(one)
    return {it for name, it in evidence.job.processes.items() if name.partition(".")[0] in nodes}


def of_node(evidence: Evidence, node: str) -> pd.DataFrame:
    """The steps that a node's processes recorded."""
    mine = [it for name, it in evidence.job.processes.items() if name.partition(".")[0] == node]
    return evidence.rows[evidence.rows["process"].isin(mine)].dropna(subset=["step", "generation"])


EXCUSES: tuple[Callable[[Evidence, Incident, str], str], ...] = (stopped_before, recorded_by_nobody)
"""Each says why a node's missing last records are missed though a fault ended it; empty: they are not."""


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


def misplaced(evidence: Evidence, _: pd.DataFrame) -> str:
    """A process that took itself for another of its node: two of them may have shared a device, or a file."""
    for it in evidence.job.of(WORKING):
        source = str(it["source"])
        if "local_rank" in it and str(it["local_rank"]) != source.rpartition(".")[2]:
            return f"{source} said that its local rank is {it['local_rank']}"
    return ""


GAPS: tuple[Callable[[Evidence, pd.DataFrame], str], ...] = (
    other_world, left_out, unmarked, unsaid, unloaded, misplaced,
)  # fmt: skip
"""Each says what is missing; empty: nothing."""
